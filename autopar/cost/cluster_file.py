"""Cluster files: the YAML that describes a cluster, read (see `cluster`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from autopar.base.errors import InvalidInputError, near_misses
from autopar.base.yaml_tree import Node, read_yaml
from autopar.cost.algorithms import KINDS, POINT_TO_POINT
from autopar.cost.links import TOPOLOGIES, CollectiveCost, HostLink, LinkLevel
from autopar.cost.rates import FreshMemory, OpRate
from autopar.ir.devices import DEVICES
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.ops.families import FAMILIES


class Description(TypedDict):
    """What a file says of a cluster: the attributes of `cluster.Cluster`, by name."""

    name: str
    device: str
    memory_bytes: int
    memory_bytes_per_second: float
    flops_per_second: tuple[tuple[str, float], ...]
    links: tuple[LinkLevel, ...]
    compute_efficiency: float
    memory_efficiency: float
    launch_seconds: float
    host_link: HostLink | None
    host_memory_bytes_per_second: float | None
    device_type: str
    op_rates: tuple[OpRate, ...]
    fresh_memory: FreshMemory | None


def read_description(path: Path) -> Description:
    """Returns what a YAML file says of a cluster.

    Raises:
        InvalidInputError: If the file can't be read or isn't a valid description.
    """
    root = read_yaml(path, "cluster")
    if root is None:
        return parse_description(None, str(path))
    return parse_description(root.content(), str(path), dict(_lines(root, "")))


def _lines(node: Node, place: str) -> Iterator[tuple[str, int]]:
    """Yields the line of each part of a file, as messages call it: `links[0].size`."""
    parts = [(f"{place}.{key.text}" if place else key.text, key, each) for key, each in node.pairs]
    parts += [(f"{place}[{index}]", item, item) for index, item in enumerate(node.items)]
    for name, start, part in parts:
        yield name, start.line
        yield from _lines(part, name)


LARGEST_SIZE = 10**7
"""Groups that a level of links joins at most."""
LEAST, LARGEST = 1e-30, 1e30
"""Between these are all figures of hardware; sums and products of them are finite."""

_HOST_MEMORY = "host_memory_bytes_per_second"
_KEYS = (
    "name",
    "device",
    "device_type",
    "memory_bytes",
    "memory_bytes_per_second",
    "flops_per_second",
    "compute_efficiency",
    "memory_efficiency",
    "launch_seconds",
    "host_link",
    _HOST_MEMORY,
    "op_rates",
    "fresh_memory",
    "links",
)
_LINK_KEYS = ("name", "size", "alpha_seconds", "beta_seconds_per_byte", "topology", "collectives")
_HOST_LINK_KEYS = ("name", "alpha_seconds", "beta_seconds_per_byte")
_COLLECTIVE_KEYS = ("alpha_seconds", "beta_seconds_per_byte")
_RATE_KEYS = ("family", "dtype", "intensity", "rates")
_FRESH_KEYS = ("above_bytes", "seconds_per_byte")


def parse_description(
    content: Any, where: str, lines: Mapping[str, int] | None = None
) -> Description:
    """Returns what the content of a YAML file says of a cluster.

    Args:
        content: Nested dicts, lists and scalars.
        where: What to call the file in messages.
        lines: The line of each part, as `links[0].size`.

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
    description = Description(
        name=reader.text(top, "name"),
        device=reader.text(top, "device"),
        memory_bytes=int(reader.number(top, "memory_bytes")),
        memory_bytes_per_second=reader.number(top, "memory_bytes_per_second"),
        flops_per_second=tuple(
            (dtype, reader.number(rates, dtype, "flops_per_second.")) for dtype in sorted(rates)
        ),
        links=levels,
        compute_efficiency=reader.share(top, "compute_efficiency"),
        memory_efficiency=reader.share(top, "memory_efficiency"),
        launch_seconds=reader.number(top, "launch_seconds") if "launch_seconds" in top else 0.0,
        host_link=_host_link(reader, top["host_link"]) if "host_link" in top else None,
        host_memory_bytes_per_second=reader.number(top, _HOST_MEMORY)
        if _HOST_MEMORY in top
        else None,
        device_type=reader.one_of(top, "device_type", DEVICES),
        op_rates=tuple(
            _op_rate(reader, entry, f"op_rates[{i}]")
            for i, entry in enumerate(reader.list(top, "op_rates"))
        ),
        fresh_memory=_fresh_memory(reader, top["fresh_memory"]) if "fresh_memory" in top else None,
    )
    if reader.problems:
        listed = "\n".join(f"  - {_with_line(each, lines or {})}" for each in reader.problems)
        raise InvalidInputError(f"cluster file {where}:\n{listed}")
    return description


def _with_line(problem: str, lines: Mapping[str, int]) -> str:
    """Returns a problem with the line of what it names."""
    named = next((word for word in problem.split() if word in lines), "")
    return f"line {lines[named]}: {problem}" if named else problem


def _host_link(reader: _Reader, entry: Any) -> HostLink:
    where = "host_link"
    fields = reader.mapping(entry, where, _HOST_LINK_KEYS)
    return HostLink(
        name=reader.text(fields, "name", f"{where}."),
        alpha_seconds=reader.number(fields, "alpha_seconds", f"{where}."),
        beta_seconds_per_byte=reader.number(fields, "beta_seconds_per_byte", f"{where}."),
    )


def _op_rate(reader: _Reader, entry: Any, where: str) -> OpRate:
    fields, prefix = reader.mapping(entry, where, _RATE_KEYS), f"{where}."
    pairs = reader.list(fields, "rates", prefix)
    if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        reader.problems.append(f"{prefix}rates must be pairs of work and work per second")
        pairs = [(1.0, 1.0)]
    named = ({"work": work, "rate": rate} for work, rate in pairs)
    rates = {
        reader.number(pair, "work", f"{prefix}rates, "): reader.number(
            pair, "rate", f"{prefix}rates, "
        )
        for pair in named
    }
    return OpRate(
        family=reader.one_of(fields, "family", FAMILIES, prefix),
        rates=tuple(sorted(rates.items())),
        dtype=reader.one_of(fields, "dtype", ("", *DTYPE_BYTES), prefix),
        intensity=reader.number(fields, "intensity", prefix) if "intensity" in fields else 1.0,
    )


def _fresh_memory(reader: _Reader, entry: Any) -> FreshMemory:
    where = "fresh_memory"
    fields = reader.mapping(entry, where, _FRESH_KEYS)
    return FreshMemory(*(reader.number(fields, key, f"{where}.") for key in _FRESH_KEYS))


def _level(reader: _Reader, entry: Any, where: str) -> LinkLevel:
    fields = reader.mapping(entry, where, _LINK_KEYS)
    prefix = f"{where}."
    size = reader.number(fields, "size", prefix)
    if size != int(size):
        reader.problems.append(f"{prefix}size must be a whole number, not {size}")
    if size > LARGEST_SIZE:
        reader.problems.append(f"{prefix}size must be at most {LARGEST_SIZE}, not {fields['size']}")
    return LinkLevel(
        name=reader.text(fields, "name", prefix),
        size=int(size),
        alpha_seconds=reader.number(fields, "alpha_seconds", prefix),
        beta_seconds_per_byte=reader.number(fields, "beta_seconds_per_byte", prefix),
        topology=reader.one_of(fields, "topology", TOPOLOGIES, prefix),
        collectives=_collectives(reader, fields.get("collectives", {}), f"{prefix}collectives"),
    )


def _collectives(reader: _Reader, entry: Any, where: str) -> tuple[CollectiveCost, ...]:
    costs = []
    for kind, figures in sorted(reader.mapping(entry, where, (*KINDS, POINT_TO_POINT)).items()):
        prefix = f"{where}.{kind}."
        fields = reader.mapping(figures, prefix.rstrip("."), _COLLECTIVE_KEYS)
        alpha = reader.number(fields, "alpha_seconds", prefix)
        costs.append(
            CollectiveCost(kind, alpha, reader.number(fields, "beta_seconds_per_byte", prefix))
        )
    return tuple(costs)


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

    def one_of(
        self, fields: Mapping[str, Any], key: str, known: tuple[str, ...], prefix: str = ""
    ) -> str:
        """Returns one of some words; the first if there is none."""
        value = fields.get(key, known[0])
        if value not in known:
            self.problems.append(f"{prefix}{key} must be {' or '.join(known)}, not {value!r}")
        return str(value)

    def list(self, fields: Mapping[str, Any], key: str, prefix: str = "") -> list[Any]:
        """Returns a list; an empty one if there is none."""
        value = fields.get(key, [])
        if isinstance(value, list):
            return value
        self.problems.append(f"{prefix}{key} must be a list, not {type(value).__name__}")
        return []

    def share(self, fields: Mapping[str, Any], key: str) -> float:
        """Returns a number above 0 and at most 1; 1 if there is none."""
        value = self.number(fields, key) if key in fields else 1.0
        if value > 1:
            self.problems.append(f"{key} must be at most 1, not {fields[key]!r}")
        return value

    def number(self, fields: Mapping[str, Any], key: str, prefix: str = "") -> float:
        value = fields.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
            self.problems.append(f"{prefix}{key} must be a number above 0, not {value!r}")
            return 1.0
        if not LEAST <= value <= LARGEST:  # type: ignore[operator]
            self.problems.append(
                f"{prefix}{key} must be from {LEAST:g} to {LARGEST:g}, not {value!r}"
            )
            return 1.0
        return float(value)  # type: ignore[arg-type]
