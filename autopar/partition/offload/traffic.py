"""Traffic: what it takes, and what is won, if stored tensors wait in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from autopar.cost import Cluster
from autopar.ir.fixed import Fixed
from autopar.ir.program import Program
from autopar.partition.offload.bodies import bodies
from autopar.partition.offload.places import Placed, placed
from autopar.partition.offload.uses import Segment, segments, uses_of, value_bytes


@dataclass(frozen=True)
class Traffic:
    """What a rank holds and transfers, if it is on one of the slices that hold most.

    Attributes:
        host_bytes: What waits in the host's memory.
        device_bytes: The most of it that is on the device at once.
        seconds: Of all transfers of a step, one after another.
    """

    host_bytes: int = 0
    device_bytes: int = 0
    seconds: float = 0.0

    @property
    def freed_bytes(self) -> int:
        """What a device holds less at any time."""
        return self.host_bytes - self.device_bytes


def traffic(program: Program, names: Sequence[str], cluster: Cluster) -> Traffic:
    """Returns the traffic of stored inputs.

    Args:
        program: A partitioned program whose updates go from one parameter to the next.
        names: The inputs.
        cluster: Predicts seconds.
    """
    values = program.main.values
    sizes = {name: value_bytes(values[name]) for name in names}
    host = device = 0
    seconds = 0.0
    for fixed, held in by_slice(program, names).items():
        buckets = [each for _, found in buckets_of(program, fixed, held) for each in found]
        host = max(host, sum(sizes[name] for name in held))
        device = max(device, _most_held(buckets, sizes))
        for each in buckets:
            moved = (*each.use.inputs, *(source for _, source in each.use.renewed))
            seconds += sum(cluster.transfer_seconds(sizes[name]) for name in moved)
    for body in bodies(program, names):
        within = {name: value_bytes(body.function.values[name]) for name in body.inputs}
        buckets = [each for _, found in body.buckets(program) for each in found]
        device = max(device, _most_held(buckets, within))
        brought = [within[name] for each in buckets for name in each.use.inputs]
        seconds += body.calls * sum(map(cluster.transfer_seconds, brought))
    return Traffic(host, device, seconds)


def buckets_of(
    program: Program, fixed: Fixed, names: Sequence[str]
) -> Iterator[tuple[Segment, list[Placed]]]:
    """Yields the segments of ranks on a slice, with the buckets that each needs.

    Args:
        program: A partitioned program.
        fixed: The slice.
        names: The stored inputs there that wait in the host's memory.
    """
    for segment in segments(program.main, fixed):
        yield segment, placed(uses_of(program, names, segment), segment)


def by_slice(program: Program, names: Sequence[str]) -> dict[Fixed, list[str]]:
    """Returns stored inputs by the slice of the mesh that holds them."""
    found: dict[Fixed, list[str]] = {}
    for name in names:
        dist = program.main.values[name].dist
        found.setdefault(dist.mesh.fixed if dist is not None else (), []).append(name)
    return found


def _most_held(buckets: Sequence[Placed], sizes: dict[str, int]) -> int:
    """Returns the most bytes of buckets that are on the device at once."""
    change: dict[int, int] = {}
    for each in buckets:
        nbytes = sum(sizes[name] for name in each.use.inputs)
        change[each.start] = change.get(each.start, 0) + nbytes
        change[each.left] = change.get(each.left, 0) - nbytes
    return max(accumulate(change[at] for at in sorted(change)), default=0)
