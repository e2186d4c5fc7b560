"""Many small collectives under way at once on gloo, with every result compared.

    torchrun --nproc-per-node 4 benchmarks/collective_stress.py --collective gather --steps 12000
    torchrun --nproc-per-node 4 benchmarks/collective_stress.py --collective all --pattern waited

The processes form a grid of two columns; each starts collectives in the group of its row and in
that of its column, as training under `fsdp:dp,tensor:tp` does. `all` draws one of the runtime's for
each. `coalesced` is torch's own gather, which the runtime doesn't use on gloo: it corrupts the
heap, and is there to show that the stress finds such a fault.

A fault shows as a process that dies or hangs, or as a wrong value, which ends the process with 1.
`benchmarks/soak.py` starts this many times.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime.collectives.async_collectives import end_scatter, start_scatter
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.pieces import sent_to_all, wait

Pending = Callable[[], Tensor]
"""Waits for a collective and returns its result."""
Collective = Callable[[Tensor, Group], Pending]
"""Starts a collective of a tensor."""


def gather(x: Tensor, group: Group) -> Pending:
    """The members' tensors one after another, as the runtime gathers them."""
    return partial(wait, sent_to_all(x, group))


def coalesced(x: Tensor, group: Group) -> Pending:
    """The same by torch's functional collective."""
    ops = torch.ops._c10d_functional
    return partial(wait, ops.all_gather_into_tensor(x, group.size, group.tag))


def scatter(x: Tensor, group: Group) -> Pending:
    """The rank's block of the sum."""
    return partial(end_scatter, start_scatter(x, 0, group), 0, tuple(x.shape), group)


def all_reduce(x: Tensor, group: Group) -> Pending:
    """The sum."""
    return partial(wait, torch.ops._c10d_functional.all_reduce(x, "sum", group.tag))


def all_reduce_(x: Tensor, group: Group) -> Pending:
    """The sum, written over a copy."""
    return partial(wait, torch.ops._c10d_functional.all_reduce_(x.clone(), "sum", group.tag))


def broadcast(x: Tensor, group: Group) -> Pending:
    """The tensor of the last member."""
    return partial(wait, torch.ops._c10d_functional.broadcast(x, group.size - 1, group.tag))


def all_to_all(x: Tensor, group: Group) -> Pending:
    """The rank's block of each member's tensor."""
    rows = [len(x) // group.size] * group.size
    return partial(wait, torch.ops._c10d_functional.all_to_all_single(x, rows, rows, group.tag))


def _mine(tensors: Sequence[Tensor], group: Group) -> list[Tensor]:
    return [tensor.chunk(group.size)[group.position] for tensor in tensors]


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


Expected = Callable[[Sequence[Tensor], Group], Tensor]
"""What a collective of the members' tensors is."""

COLLECTIVES: Mapping[str, tuple[Collective, Expected]] = {
    "gather": (gather, lambda tensors, group: torch.cat(list(tensors))),
    "scatter": (scatter, lambda tensors, group: _sum(_mine(tensors, group))),
    "all_reduce": (all_reduce, lambda tensors, group: _sum(tensors)),
    "all_reduce_": (all_reduce_, lambda tensors, group: _sum(tensors)),
    "broadcast": (broadcast, lambda tensors, group: tensors[-1]),
    "all_to_all": (all_to_all, lambda tensors, group: torch.cat(_mine(tensors, group))),
}
"""What starts each collective of the runtime, and what it should be."""
UNSAFE: Mapping[str, tuple[Collective, Expected]] = {
    "coalesced": (coalesced, COLLECTIVES["gather"][1])
}
"""What the runtime doesn't use on gloo."""

SIZES = (16, 16, 16, 16, 512, 1024, 128, 256)
"""Numbers of elements of the collectives of a step. Many short ones end at the same time."""


def stress(collective: str, pattern: str, steps: int, seed: int) -> int:
    """Runs collectives in the initialized process group and returns how many were right.

    Args:
        collective: A name of `COLLECTIVES`, of `UNSAFE`, or `all`.
        pattern: `several`: those of a step are under way at once; `waited`: one by one.
        steps: How often one of each size is run.
        seed: Decides which ones `all` draws, and their values.

    Raises:
        ValueError: If a result is wrong.
    """
    groups = _row_and_column()
    drawn = random.Random(seed)
    right = 0
    for step in range(steps):
        right += _check(_started(collective, pattern, groups, drawn), step)
    return right


def _started(
    collective: str,
    pattern: str,
    groups: Sequence[tuple[Group, Sequence[int]]],
    drawn: random.Random,
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields the names of a step's collectives, their results and what these should be."""
    table = {**COLLECTIVES, **UNSAFE}
    under_way = []
    for at, size in enumerate(SIZES):
        name = drawn.choice(list(COLLECTIVES)) if collective == "all" else collective
        start, expected = table[name]
        # All but one in one group.
        group, members = groups[at == len(SIZES) - 1]
        base = torch.arange(size) % 7 + drawn.randrange(1000)
        tensors = [(base + 1000 * member).float() for member in members]
        pending = start(tensors[group.position], group)
        if pattern == "waited":
            yield name, pending(), expected(tensors, group)
        else:
            under_way.append((name, pending, partial(expected, tensors, group)))
    # The last one first, which overtakes those of the other group.
    results = [(name, pending(), expected) for name, pending, expected in reversed(under_way)]
    for name, found, expected_now in results:
        yield name, found, expected_now()


def _check(results: Iterator[tuple[str, Tensor, Tensor]], step: int) -> int:
    count = 0
    for name, found, expected in results:
        if not torch.equal(found, expected):
            raise ValueError(f"step {step}: {name} is {found[:8]}, not {expected[:8]}")
        count += 1
    return count


def _row_and_column() -> list[tuple[Group, Sequence[int]]]:
    """Returns the process's groups with the ranks of their members, in a grid of two columns."""
    size, rank = dist.get_world_size(), dist.get_rank()
    rows = [[at, at + 1] for at in range(0, size, 2)]
    columns = [list(range(at, size, 2)) for at in range(2)]
    groups: list[tuple[Group, Sequence[int]]] = []
    for members in rows + columns:
        created = dist.new_group(members)
        if rank in members:
            order = tuple(range(len(members)))
            tag = str(created.group_name)
            groups.append((Group(tag, len(members), members.index(rank), order, "gloo"), members))
    return groups[::-1]


def main() -> None:
    """Runs the stress as one of the processes that torchrun started."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--collective", default="all", choices=[*COLLECTIVES, *UNSAFE, "all"])
    parser.add_argument("--pattern", default="several", choices=["several", "waited"])
    parser.add_argument("--steps", type=int, default=12000, help="of eight collectives each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # A hang is a fault too, and says so in time.
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    right = stress(options.collective, options.pattern, options.steps, options.seed)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{options.collective}: {right} collectives right on every process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
