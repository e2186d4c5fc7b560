"""Takes over what a program computed as the new content of its stored inputs, for the next call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from autopar.ir.memory.storage import Storage
from autopar.ir.program import Program
from autopar.runtime.kernels.growing import has_room
from autopar.runtime.ports.ports import is_weight


class Keeping:
    """Which outputs of a program are the new contents of which of its stored inputs.

    Args:
        program: A rank's program.
    """

    def __init__(self, program: Program) -> None:
        main = program.main
        stored = {port.name for port in program.signature.inputs if is_weight(port)}
        sources = {out: into for out, into in main.aliases if into in stored}
        self._sources = {at: sources[out] for at, out in enumerate(main.outputs) if out in sources}
        self._shared = _shared(program) if sources else frozenset()

    @property
    def written(self) -> frozenset[str]:
        """The names of the stored inputs that get new content."""
        return frozenset(self._sources.values())

    def keep(self, stored: dict[str, Tensor], results: Sequence[Tensor]) -> None:
        """Takes over new content that was not written in place.

        Args:
            stored: A rank's stored inputs by name: those of its next call.
            results: What its program returned.
        """
        stored.update(self._fresh(stored, results))

    def _fresh(self, stored: Mapping[str, Tensor], results: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns new contents in memory of their own, dense: kernels that write want it so.

        What has grown is as it was computed, where that was by appending; else it may be a view.
        """
        found: dict[str, Tensor] = {}
        for at, name in self._sources.items():
            new = results[at]
            if _same(new, stored[name]):
                continue
            if has_room(new):
                found[name] = new
            elif at in self._shared or new.shape != stored[name].shape:
                found[name] = new.clone(memory_format=torch.contiguous_format)
            else:
                found[name] = new.contiguous()
        return found


def keeping_by_rank(programs: Mapping[int, Program]) -> dict[int, Keeping]:
    """Returns what each rank keeps; ranks that run the same code share it."""
    made: dict[int, Keeping] = {}
    for program in programs.values():
        if id(program.functions) not in made:
            made[id(program.functions)] = Keeping(program)
    return {rank: made[id(program.functions)] for rank, program in programs.items()}


def _same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors of one dtype are the same elements in memory."""
    if one is other:
        return True
    if one.shape != other.shape or one.stride() != other.stride():
        return False
    return one.data_ptr() == other.data_ptr()


def _shared(program: Program) -> frozenset[int]:
    """Returns the outputs that may be views of what the caller hands over, or of one another."""
    main = program.main
    storage = Storage(program, main)
    roots = [storage.roots[name] for name in main.outputs]
    users = Counter(chain.from_iterable(roots))
    users.update(main.inputs)
    return frozenset(at for at, each in enumerate(roots) if any(users[root] > 1 for root in each))
