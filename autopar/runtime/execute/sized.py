"""A rank's program at the sizes of a call: any, where it leaves some open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

from torch import Tensor

from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_sizes import OpenSignature, Sizes
from autopar.ir.program import Port, Program
from autopar.runtime.execute.code import Code, Forward
from autopar.runtime.ports.outputs import Gathering
from autopar.runtime.ports.ports import RankArguments
from autopar.runtime.ports.writing_back import WritingBack
from autopar.runtime.state.open_state import beginning

KEPT_SIZES = 64
"""How many sizes of inputs a rank stays ready for: those of its last calls."""


@dataclass
class Sized:
    """What a rank runs in calls of the same sizes.

    Attributes:
        sizes: Those that are open, by name.
        program: Its program, of which the inputs and outputs are at these sizes.
        forward: Computes its outputs of its inputs.
        all_ranks: Returns the deployment at these sizes.
        rank: This rank.
    """

    sizes: Sizes
    program: Program
    forward: Forward
    all_ranks: Callable[[], Deployment]
    rank: int

    @cached_property
    def arguments(self) -> RankArguments:
        """What `forward` is called with."""
        return RankArguments(self.program)

    @cached_property
    def state(self) -> tuple[Port, ...]:
        """The state with which calls begin that follow none."""
        return beginning(self.program)

    @cached_property
    def gathering(self) -> Gathering:
        """Puts global values together."""
        return Gathering(self.all_ranks(), self.rank)

    @cached_property
    def writing_back(self) -> WritingBack:
        """What the rank writes to its inputs."""
        return WritingBack(self.program)

    def write_back(self, results: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Writes to global inputs what `forward` writes there."""
        sources = self.writing_back.sources
        wholes = {at: self.gathering.to_all("outputs", at, results[at]) for at in sources}
        self.writing_back.write(wholes.__getitem__, tensors)


class SizedRank:
    """One rank of a deployment, ready for calls of any sizes.

    Args:
        deployment: All ranks.
        rank: This one.
        program: What it runs, with its own inputs and outputs.
        code: The code of that.
    """

    def __init__(self, deployment: Deployment, rank: int, program: Program, code: Code) -> None:
        self._deployment = deployment
        self._rank = rank
        self._program = program
        self._code = code
        self._signature = OpenSignature(program)
        self._shared = list(map(OpenSignature, deployment.programs))
        self._kept = lru_cache(KEPT_SIZES)(self._at)

    def at(self, sizes: Sizes, *, state: bool = False) -> Sized:
        """Returns the rank at sizes, by name.

        Args:
            sizes: The sizes by name.
            state: Whether what state is at these sizes is wanted, too.
        """
        return self._kept(tuple(sizes.items()), state)

    def _at(self, items: tuple[tuple[str, int], ...], state: bool) -> Sized:
        sizes = dict(items)
        program = replace(self._program, signature=self._signature.at(sizes, state=state))
        all_ranks = partial(self._all_ranks, sizes, state)
        return Sized(sizes, program, self._code.at(sizes), all_ranks, self._rank)

    def _all_ranks(self, sizes: Sizes, state: bool) -> Deployment:
        programs = tuple(
            replace(each, signature=shared.at(sizes, state=state))
            for each, shared in zip(self._deployment.programs, self._shared, strict=True)
        )
        return replace(self._deployment, programs=programs)
