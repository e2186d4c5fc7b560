"""Traffic: what it takes, and what is won, if stored tensors wait in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from autopar.cost import Cluster
from autopar.ir.fixed import Fixed
from autopar.ir.program import Program
from autopar.partition.offload.bodies import bodies
from autopar.partition.offload.host_choice import NONE, HostSeconds
from autopar.partition.offload.host_updates import HostUpdate, in_buckets
from autopar.partition.offload.places import Placed, placed
from autopar.partition.offload.uses import Segment, segments, uses_of, value_bytes


@dataclass(frozen=True)
class Traffic:
    """What a rank holds and transfers, if it is on one of the slices that hold most.

    Attributes:
        host_bytes: What waits in the host's memory.
        device_bytes: The most of it that is on the device at once.
        transfer_seconds: Of all transfers of a step, one after another.
        on_host: What updates by the host take, their transfers among them.
        updated: The labels of the parameters that it updates.
        waiting: How many parameters wait in its memory, or have state that does.
        is_forced: Whether the user wants the host to update all of them.
    """

    host_bytes: int = 0
    device_bytes: int = 0
    transfer_seconds: float = 0.0
    on_host: HostSeconds = NONE
    updated: tuple[str, ...] = ()
    waiting: int = 0
    is_forced: bool = False

    @property
    def seconds(self) -> float:
        """Serialized seconds that all of this adds to a step."""
        return self.transfer_seconds + self.on_host.host - self.on_host.saved

    @property
    def freed_bytes(self) -> int:
        """What a device holds less at any time."""
        return self.host_bytes - self.device_bytes


def traffic(
    program: Program,
    names: Sequence[str],
    cluster: Cluster,
    updates: Sequence[HostUpdate] = (),
    on_host: HostSeconds = NONE,
) -> Traffic:
    """Returns the traffic of stored inputs.

    Args:
        program: A partitioned program whose updates go from one parameter to the next.
        names: The inputs.
        cluster: Predicts seconds.
        updates: Those that the host carries out; they are in the program.
        on_host: What these take.
    """
    values = program.main.values
    sizes = {name: value_bytes(values[name]) for name in names}
    host = device = 0
    seconds = on_host.transfers
    for fixed, held in by_slice(program, names).items():
        buckets = [each for _, found in buckets_of(program, fixed, held) for each in found]
        here = [each for each in updates if each.fixed == fixed]
        host = max(host, sum(sizes[name] for name in held))
        device = max(device, _most_held(buckets, sizes) + _most_back(program, here))
        for each in buckets:
            moved = (*each.use.inputs, *(source for _, source in each.use.renewed))
            seconds += sum(cluster.transfer_seconds(sizes[name]) for name in moved)
    for body in bodies(program, names):
        within = {name: value_bytes(body.function.values[name]) for name in body.inputs}
        buckets = [each for _, found in body.buckets(program) for each in found]
        device = max(device, _most_held(buckets, within))
        brought = [within[name] for each in buckets for name in each.use.inputs]
        seconds += body.calls * sum(map(cluster.transfer_seconds, brought))
    return Traffic(host, device, seconds, on_host, tuple(each.owner for each in updates))


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


def _most_back(program: Program, updates: Sequence[HostUpdate]) -> int:
    """Returns the most bytes of what the host updated that come to the device at once."""
    values = program.main.values
    sizes = [
        sum(value_bytes(values[name]) for update in bucket for name in update.back)
        for bucket in in_buckets(program.main, updates)
    ]
    return max((sum(pair) for pair in zip([0, *sizes], [*sizes, 0], strict=True)), default=0)
