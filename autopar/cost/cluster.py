"""Cluster: the devices and links that a program is compiled for, as data.

A cluster is a tree of identical devices. Its levels are listed from the inside: 8 GPUs joined by
NVLink form a host, 32 hosts joined by InfiniBand form the cluster. Built-in descriptions are the
YAML files in `profiles/`; users write their own in the same form:

    name: my-cluster
    device: what one device is
    device_type: cuda           # what torch calls devices of this kind; cpu if left out
    memory_bytes: 80e9
    memory_bytes_per_second: 3.35e12
    flops_per_second: {f32: 67e12, bf16: 989e12}
    compute_efficiency: 0.7     # the part of that peak that matrix products reach; 1 if left out
    memory_efficiency: 0.9      # the part of the bandwidth that is reached; 1 if left out
    launch_seconds: 1e-6        # what an op takes besides; 0 if left out
    host_link: {name: pcie5, alpha_seconds: 1e-5, beta_seconds_per_byte: 1.8e-11}
    host_memory_bytes_per_second: 6e10    # each device's share of what the host reaches of its own
    op_rates:                   # measured by family of ops: work, and as much of it per second
      - {family: softmax, rates: [[65536, 2e9], [16777216, 1.1e10]]}                    # bytes
      - {family: product, dtype: bf16, intensity: 16, rates: [[1e6, 4e11], [1e9, 2e13]]}
    fresh_memory: {above_bytes: 33554432, seconds_per_byte: 6e-10}    # where it takes time to get
    links:
      - {name: nvlink, size: 8, alpha_seconds: 3e-6, beta_seconds_per_byte: 2.2e-12}
      - {name: infiniband, size: 32, alpha_seconds: 6e-6, beta_seconds_per_byte: 2e-11}

A level has `topology: ring` where a device reaches its two neighbours only, as along a dimension
of a torus; by default everybody reaches everybody through a `switch`. Where collectives were
measured one by one, a level says their figures too, as

        collectives: {all_reduce: {alpha_seconds: 4e-6, beta_seconds_per_byte: 2e-12}}

`host_link` joins a device to its host's memory, where tensors may wait; it is left out where there
is no other memory. The host may update there what waits, at `host_memory_bytes_per_second`, while
all devices of it have it do so; where that is left out, it is what the link brings in one
direction, which the host's memory bears at least.

`op_rates` take the place of the figures above for the ops that they are about (see `rates`, and
`ir.ops.families`). `fresh_memory` is what the results of an op take besides where the system hands
out their memory page by page. `autopar calibrate` measures both.

There are as many levels as the hardware has, each with links of its own: pairs of devices within a
host, hosts, the switch of a rack, the spine between racks. `cluster_file` reads such files, and
`cluster_text` writes them.

`h100x4` is the built-in h100 with 4 hosts, `h100x8x4` the one with 4 racks of 8 hosts, and so on
outwards. `torusx4` has 4 pods: what is counted first is joined by more than rings.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autopar.base.arguments import expect, one_of
from autopar.base.errors import InvalidInputError, near_misses
from autopar.base.package import PACKAGE
from autopar.cost.links import HostLink, LinkLevel
from autopar.cost.rates import FreshMemory, Measured, OpRate, Rated
from autopar.ir.devices import CPU
from autopar.ir.ops.families import family_of
from autopar.ir.rules.rule import TensorType

PROFILES = PACKAGE / "cost/profiles"

_NAME = one_of(str, Path, words="the name of a cluster, or the path of a YAML file")

_COUNTED = re.compile(r"(?P<name>.+?)(?P<counts>(?:x[1-9][0-9]{0,6})+)")


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
        compute_efficiency: The part of the peak that large matrix products reach.
        memory_efficiency: The part of the bandwidth that is reached.
        launch_seconds: What an op takes besides computing and moving data.
        host_link: The link to the host's memory; None where that is the device's own.
        host_memory_bytes_per_second: A device's share of the bandwidth that ops of the host reach
            of its memory; None where it isn't known.
        device_type: What torch calls devices of this kind, one of `DEVICES`.
        op_rates: What was measured of families of ops.
        fresh_memory: What memory takes that comes from the system; None where that is nothing.
    """

    name: str
    device: str
    memory_bytes: int
    memory_bytes_per_second: float
    flops_per_second: tuple[tuple[str, float], ...]
    links: tuple[LinkLevel, ...]
    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    launch_seconds: float = 0.0
    host_link: HostLink | None = None
    host_memory_bytes_per_second: float | None = None
    device_type: str = CPU
    op_rates: tuple[OpRate, ...] = ()
    fresh_memory: FreshMemory | None = None

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(level.size for level in self.links)

    @cached_property
    def _flops(self) -> Mapping[str, float]:
        return {dtype: peak * self.compute_efficiency for dtype, peak in self.flops_per_second}

    def flops(self, dtype: str) -> float:
        """Returns the flop/s that are reached for a dtype; those of f32 where none are named."""
        return self._flops.get(dtype, self._flops["f32"])

    @cached_property
    def _rated(self) -> Mapping[tuple[str, str], Rated]:
        found: dict[tuple[str, str], list[OpRate]] = {}
        for each in self.op_rates:
            found.setdefault((each.family, each.dtype), []).append(each)
        return {key: Rated(rates) for key, rates in found.items()}

    def measured(self, kind: str, types: Sequence[TensorType]) -> Measured | None:
        """Returns what was measured of the family of an op; None if nothing was.

        Args:
            kind: The op's kind.
            types: Of its operands, and then of its results.
        """
        if not self.op_rates:
            return None
        family, dtype = family_of(kind, types), types[0].dtype if types else ""
        rated = self._rated.get((family, dtype)) or self._rated.get((family, ""))
        return None if rated is None else Measured(family, rated)

    @cached_property
    def bytes_per_second(self) -> float:
        """The bandwidth of the memory that is reached."""
        return self.memory_bytes_per_second * self.memory_efficiency

    def transfer_seconds(self, nbytes: int) -> float:
        """Returns the time of a transfer to the host's memory or back.

        Where the cluster knows no link, it is a copy within the device's memory.
        """
        if self.host_link is None:
            return 2 * nbytes / self.bytes_per_second
        return self.host_link.transfer_seconds(nbytes)

    def host_seconds(self, nbytes: int) -> float:
        """Returns the time of an elementwise op of the host, which its memory bounds.

        To begin, it is assumed to take as long as a transfer: it waits for one.

        Args:
            nbytes: What it reads and writes there.
        """
        link = self.host_link
        start = self.launch_seconds if link is None else link.alpha_seconds
        return start + nbytes / self.host_bytes_per_second

    @property
    def host_bytes_per_second(self) -> float:
        """The bandwidth of the host's memory that an op of the host reaches for a device.

        Where the cluster doesn't say it, that of the link, or of the device's own memory.
        """
        if self.host_memory_bytes_per_second is not None:
            return self.host_memory_bytes_per_second
        if self.host_link is None:
            return self.bytes_per_second
        return 1 / self.host_link.beta_seconds_per_byte

    def with_groups(self, *counts: int) -> Cluster:
        """Returns the cluster with these sizes of the levels outside a host, and no further ones.

        A host, or a pod, is what the innermost links join, or the rings that are all dimensions
        of one torus.

        Args:
            counts: Of the innermost of these levels first: hosts of a rack, racks.

        Raises:
            InvalidInputError: If the cluster has fewer such levels.
        """
        rings = next((level for level, link in enumerate(self.links) if link.topology != "ring"), 0)
        inner, outer = self.links[: max(1, rings)], self.links[max(1, rings) :]
        if len(counts) > len(outer):
            names = ", ".join(level.name for level in self.links)
            raise InvalidInputError(
                f"cluster {self.name!r} has {len(outer)} levels of links around"
                f" {inner[-1].name}, so {len(counts)} sizes of them can't be given; its levels are"
                f" {names}"
            )
        sized = (
            replace(level, size=count)
            for level, count in zip(outer, counts, strict=False)
            if count > 1
        )
        name = "".join((self.name, *(f"x{count}" for count in counts)))
        return replace(self, name=name, links=(*inner, *sized))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Cluster:
        """Returns a built-in cluster by name, or the one that a YAML file describes.

        Args:
            name_or_path: A name such as `cpu` or `h100`; `h100x4`, which has 4 hosts, or `h100x8x4`
                with 4 racks of 8; or a path: something with a directory separator, or that ends
                with `.yaml` or `.yml`.

        Raises:
            InvalidInputError: If there is no such profile or file, or its content is not a valid
                description. All problems of a file are reported at once.
        """
        expect(_NAME, cluster=name_or_path)
        text = str(name_or_path)
        from autopar.cost.cluster_file import read_description

        if cls.is_file(name_or_path):
            return cls(**read_description(Path(text)))
        known = cls.profiles()
        if text in known:
            return cls(**read_description(PROFILES / f"{text}.yaml"))
        counted = _COUNTED.fullmatch(text)
        if counted is not None and counted["name"] in known:
            counts = counted["counts"].removeprefix("x").split("x")
            return cls.load(counted["name"]).with_groups(*map(int, counts))
        if os.path.isfile(text):  # False too for what can't be a path.
            raise InvalidInputError(
                f"{text} is not a cluster file: those are YAML, and end with .yaml or .yml"
            )
        raise InvalidInputError(
            f"no built-in cluster {text!r}{near_misses(text, known)}; there are"
            f" {', '.join(known)}, the same with a number of hosts as {known[0]}x4, and of racks"
            f" as {known[0]}x8x4,"
            " or give the path of a YAML file"
        )

    @staticmethod
    def is_file(name_or_path: str | Path) -> bool:
        """Returns whether what `load` is given is taken for a path, and not for a name."""
        text = str(name_or_path)
        is_path = isinstance(name_or_path, Path) or "/" in text or "\\" in text
        return is_path or text.endswith((".yaml", ".yml"))

    @staticmethod
    def profiles() -> tuple[str, ...]:
        """Returns the names of the built-in clusters."""
        return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))
