"""Cluster: the devices and links that a program is compiled for, as data.

A cluster is a tree of identical devices. Its levels are listed from the inside: 8 GPUs joined by
NVLink form a host, 32 hosts joined by InfiniBand form the cluster. Built-in descriptions are the
YAML files in `profiles/`; users write their own in the same form:

    name: my-cluster
    device: what one device is
    memory_bytes: 80e9
    memory_bytes_per_second: 3.35e12
    flops_per_second: {f32: 67e12, bf16: 989e12}
    links:
      - {name: nvlink, size: 8, alpha_seconds: 3e-6, beta_seconds_per_byte: 2.2e-12}
      - {name: infiniband, size: 32, alpha_seconds: 6e-6, beta_seconds_per_byte: 2e-11}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autopar.ir.errors import InvalidInputError, near_misses
from autopar.ir.program import DTYPE_BYTES

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """One level of the tree: how `size` groups of the level below are joined.

    Attributes:
        name: What the link is.
        size: How many groups of the level below (devices, at the innermost one) it joins.
        alpha_seconds: Latency of a message.
        beta_seconds_per_byte: Time per byte that a device sends, all devices sending at once.
    """

    name: str
    size: int
    alpha_seconds: float
    beta_seconds_per_byte: float


@dataclass(frozen=True)
class Cluster:
    """Identical devices joined by levels of links.

    Attributes:
        name: Short name.
        device: What one device is.
        memory_bytes: Memory of a device.
        memory_bytes_per_second: Its bandwidth.
        flops_per_second: Peak per dtype, as (dtype, flop/s); `f32` is always among them.
        links: The levels, innermost first.
    """

    name: str
    device: str
    memory_bytes: int
    memory_bytes_per_second: float
    flops_per_second: tuple[tuple[str, float], ...]
    links: tuple[LinkLevel, ...]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(level.size for level in self.links)

    @cached_property
    def _flops(self) -> Mapping[str, float]:
        return dict(self.flops_per_second)

    def flops(self, dtype: str) -> float:
        """Returns the peak flop/s for a dtype; that of f32 where the description names none."""
        return self._flops.get(dtype, self._flops["f32"])

    @classmethod
    def load(cls, name_or_path: str | Path) -> Cluster:
        """Returns a built-in cluster by name, or the one that a YAML file describes.

        Args:
            name_or_path: A name such as `cpu` or `h100`, or a path: something with a directory
                separator, or that ends with `.yaml` or `.yml`.

        Raises:
            InvalidInputError: If there is no such profile or file, or its content is not a valid
                description. All problems of a file are reported at once.
        """
        text = str(name_or_path)
        is_path = isinstance(name_or_path, Path) or "/" in text or "\\" in text
        if is_path or text.endswith((".yaml", ".yml")):
            return _read(Path(text))
        if text not in (known := cls.profiles()):
            raise InvalidInputError(
                f"no built-in cluster {text!r}{near_misses(text, known)}; there are"
                f" {', '.join(known)}, or give the path of a YAML file"
            )
        return _read(PROFILES / f"{text}.yaml")

    @staticmethod
    def profiles() -> tuple[str, ...]:
        """Returns the names of the built-in clusters."""
        return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def _read(path: Path) -> Cluster:
    import yaml  # only those who load a cluster pay for it

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"cluster file {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cluster file {path} is not valid YAML: {error}") from error
    return parse_cluster(content, str(path))


_KEYS = (
    "name",
    "device",
    "memory_bytes",
    "memory_bytes_per_second",
    "flops_per_second",
    "links",
)
_LINK_KEYS = ("name", "size", "alpha_seconds", "beta_seconds_per_byte")


def parse_cluster(content: Any, where: str) -> Cluster:
    """Returns the cluster that the content of a YAML file describes.

    Args:
        content: Nested dicts, lists and scalars.
        where: What to call the file in messages.

    Raises:
        InvalidInputError: With every problem found.
    """
    reader = _Reader()
    top = reader.mapping(content, "the file", _KEYS)
    links = top.get("links")
    if not isinstance(links, list) or not links:
        reader.problems.append("links must be a list with at least one level")
        links = []
    levels = tuple(_level(reader, entry, f"links[{i}]") for i, entry in enumerate(links))
    rates = reader.mapping(top.get("flops_per_second"), "flops_per_second", tuple(DTYPE_BYTES))
    if isinstance(top.get("flops_per_second"), dict) and "f32" not in rates:
        reader.problems.append("flops_per_second lacks f32, which stands in for other dtypes")
    cluster = Cluster(
        name=reader.text(top, "name"),
        device=reader.text(top, "device"),
        memory_bytes=int(reader.number(top, "memory_bytes")),
        memory_bytes_per_second=reader.number(top, "memory_bytes_per_second"),
        flops_per_second=tuple(
            (dtype, reader.number(rates, dtype, "flops_per_second.")) for dtype in sorted(rates)
        ),
        links=levels,
    )
    if reader.problems:
        lines = "\n".join(f"  - {problem}" for problem in reader.problems)
        raise InvalidInputError(f"cluster file {where}:\n{lines}")
    return cluster


def _level(reader: _Reader, entry: Any, where: str) -> LinkLevel:
    fields = reader.mapping(entry, where, _LINK_KEYS)
    prefix = f"{where}."
    size = reader.number(fields, "size", prefix)
    if size != int(size):
        reader.problems.append(f"{prefix}size must be a whole number, not {size}")
    return LinkLevel(
        name=reader.text(fields, "name", prefix),
        size=int(size),
        alpha_seconds=reader.number(fields, "alpha_seconds", prefix),
        beta_seconds_per_byte=reader.number(fields, "beta_seconds_per_byte", prefix),
    )


class _Reader:
    """Takes typed fields out of YAML and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def mapping(self, content: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(content, dict):
            self.problems.append(f"{where} must be a mapping, not {type(content).__name__}")
            return {}
        for key in content:
            if key not in known:
                hint = near_misses(str(key), known)
                self.problems.append(f"unknown key {key!r} in {where}{hint}")
        return {key: value for key, value in content.items() if key in known}

    def text(self, fields: Mapping[str, Any], key: str, prefix: str = "") -> str:
        value = fields.get(key)
        if isinstance(value, str) and value:
            return value
        self.problems.append(f"{prefix}{key} must be a text, not {value!r}")
        return ""

    def number(self, fields: Mapping[str, Any], key: str, prefix: str = "") -> float:
        """YAML reads `80e9` as a text (it wants `80.0e+9`), so texts are converted here."""
        value = fields.get(key)
        try:
            number = float(value) if not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number) and number > 0:
            return number
        self.problems.append(f"{prefix}{key} must be a number above 0, not {value!r}")
        return 1.0
