"""What a training step runs for batches of certain shapes: the ranks, and what they are given.

A build has several plans if it was compiled for batches of several shapes. Their ranks hold the
same state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.expr.at_sizes import NO_SIZES, Sizes
from autopar.ir.program import SEED, Port, Program, Signature
from autopar.runtime.agree.disagreement import GLOBAL_BATCH
from autopar.runtime.execute.ranks import Ranks, Results
from autopar.runtime.ports.batches import label_batch, looks_like_a_part
from autopar.runtime.ports.boxes import Box, box_shape
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.keeping import keeping_by_rank
from autopar.runtime.ports.ports import (
    Arrays,
    RankArguments,
    check_inputs,
    is_weight,
    labelled,
    plain_outputs,
    port_box,
)
from autopar.runtime.ports.rates import is_rate
from autopar.runtime.ports.writing_back import WritingBack

Shapes = tuple[tuple[int, ...], ...]
"""Of the tensors of a batch."""

Arguments = Mapping[int, tuple[Tensor, ...]]
"""Of each rank of this process."""


@dataclass(frozen=True)
class Given:
    """What a step is given.

    Attributes:
        arguments: Each rank's arguments.
        brought: The tensors of the batch by label, as they came.
        handed: The tensors by value name, as they came: of each rank, if they are its parts.
        local: Whether they are.
        peers: The ranks that must bring the same ones; with none, all.
    """

    arguments: Arguments
    brought: Mapping[str, Tensor] = field(default_factory=dict)
    handed: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    local: bool = False
    peers: tuple[int, ...] = ()


class StepPlan:
    """What runs for batches of certain shapes.

    Args:
        ranks: Who runs it in this process.
        bounds: What indices in batches must be.
        sizes: Those that the program leaves open, as they are in the batches.

    Attributes:
        program: The program of one of the ranks.
        shapes: The global shapes that batches must have.
    """

    def __init__(self, ranks: Ranks, bounds: IndexBounds, sizes: Sizes = NO_SIZES) -> None:
        self.ranks = ranks
        self._bounds = bounds
        self._sizes = sizes
        self._first = min(ranks.programs)
        self.program = ranks.programs[self._first]
        self._ports = tuple(filter(_is_batch, self.program.signature.inputs))
        self.shapes: Shapes = tuple(port.known_shape for port in self._ports)
        self._keeping = keeping_by_rank(ranks.programs)
        self._writing_back = {rank: WritingBack(each) for rank, each in ranks.programs.items()}
        self._pieces: dict[int, dict[str, Tensor]] = {}
        self._local = {rank: _local_program(each) for rank, each in ranks.programs.items()}

    def __str__(self) -> str:
        return ", ".join(f"{port.label} {port.dtype}{list(port.shape)}" for port in self._ports)

    @property
    def empty(self) -> str:
        """The tensors of the batches that have no elements; "" if all have some."""
        pairs = zip(self._ports, self.shapes, strict=True)
        return ", ".join(f"{port.label} {list(shape)}" for port, shape in pairs if 0 in shape)

    def check_stored_alike(self, program: Program) -> None:
        """Refuses another program that stores something elsewhere: they share the tensors.

        Raises:
            InvalidInputError: If a piece isn't the same in both.
        """
        boxes = {port.name: port.box for port in self.program.signature.inputs if is_weight(port)}
        for port in program.signature.inputs:
            if port.name in boxes and boxes[port.name] != port.box:
                raise InvalidInputError(
                    f"{port.name} lies elsewhere for batches of other shapes; compile again"
                )

    def label(self, batch: Any) -> dict[str, Any]:
        """Returns the tensors of a batch by label.

        Raises:
            InvalidInputError: If there are more than the program takes, or fewer, or what is no
                tensor isn't as in the example.
        """
        return label_batch(batch, [port.label for port in self._ports], self.program.example)

    def given(self, batch: Any, plain: Mapping[str, Any]) -> Given:
        """Returns what each rank is given.

        Args:
            batch: The global batch.
            plain: Further inputs by label: learning rates, and the seed.

        Raises:
            InvalidInputError: If the batch doesn't fit the program, or has an index that is out of
                range.
        """
        inputs = self._checked({**self.label(batch), **plain})
        self._bounds.check(inputs, self._sizes)
        arguments = {
            rank: self._arguments(rank, program, inputs)
            for rank, program in self.ranks.programs.items()
        }
        batch = self._batch(inputs)
        self._written.check(batch)
        return Given(arguments, self._brought(inputs), {self._first: batch})

    def _checked(self, given: Arrays) -> dict[str, Tensor]:
        try:
            return check_inputs(self.program, given)
        except InvalidInputError as error:
            shapes = [tuple(given[port.label].shape) for port in self._ports]
            if not looks_like_a_part(shapes, self.shapes, self.ranks.deployment.world_size):
                raise
            raise InvalidInputError(f"{error}\n{GLOBAL_BATCH}") from None

    def local_given(self, batches: Sequence[Any], plain: Mapping[str, Any]) -> Given:
        """Returns what each rank is given of what it reads of the global batch.

        Args:
            batches: A batch for each rank of this process.
            plain: Further inputs by label.

        Raises:
            InvalidInputError: If a batch doesn't fit the program, or has an index that is out of
                range.
        """
        inputs = {
            rank: check_inputs(program, {**self.label(batch), **plain})
            for (rank, program), batch in zip(self._local.items(), batches, strict=True)
        }
        for parts in inputs.values():
            self._bounds.check_parts(parts)
        arguments = {
            rank: self._arguments(rank, program, inputs[rank])
            for rank, program in self._local.items()
        }
        handed = {rank: self._batch(parts) for rank, parts in inputs.items()}
        for rank, batch in handed.items():
            self._writing_back[rank].check(batch)
        brought = self._brought(inputs[self._first])
        return Given(arguments, brought, handed, local=True, peers=self._peers)

    @property
    def ran(self) -> bool:
        """Whether it ran before."""
        return bool(self._pieces)

    def remember(self, arguments: Arguments) -> None:
        """Keeps what the ranks ran with, but for what is stored, until the next time."""
        self._pieces = {
            rank: {
                name: piece
                for name, piece in zip(self.ranks.programs[rank].main.inputs, given, strict=True)
                if name not in self.ranks.stored[rank]
            }
            for rank, given in arguments.items()
        }

    def again(self) -> Arguments:
        """Returns what the ranks ran with before, for one that others wait for until all refuse.

        What a program makes of made-up values, nobody knows: a zero may be divided by.
        """
        return {
            rank: tuple(
                {**self.ranks.stored[rank], **pieces}[name]
                for name in self.ranks.programs[rank].main.inputs
            )
            for rank, pieces in self._pieces.items()
        }

    @property
    def _written(self) -> WritingBack:
        return self._writing_back[self._first]

    def _batch(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {port.name: inputs[port.name] for port in self._ports}

    def _brought(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {port.label: inputs[port.name] for port in self._ports}

    @cached_property
    def _peers(self) -> tuple[int, ...]:
        """The ranks that read the same of a global batch as the rank of this process."""
        deployment = self.ranks.deployment

        def read(rank: int) -> list[Box]:
            coords = deployment.coords_of(rank)
            ports = deployment.program_of(rank).signature.inputs
            return [port_box(port, coords) for port in ports if _is_batch(port)]

        mine = read(self._first)
        return tuple(rank for rank in range(deployment.world_size) if read(rank) == mine)

    def fits_locally(self, batches: Sequence[Any]) -> bool:
        """Whether batches have the shapes of what ranks read of a global batch."""
        return all(
            self._shapes_of(batch) == _batch_shapes(program)
            for program, batch in zip(self._local.values(), batches, strict=True)
        )

    def fits(self, batch: Any) -> bool:
        """Whether a global batch has the shapes that the program takes."""
        return self._shapes_of(batch) == self.shapes

    def _shapes_of(self, batch: Any) -> Shapes | None:
        """Returns the shapes of the tensors of a batch; None if it is one of another program."""
        try:
            given = self.label(batch)
        except InvalidInputError:
            return None
        return tuple(tuple(given[port.label].shape) for port in self._ports)

    def keep(self, results: Results) -> None:
        """Takes over new content that could not be written in place."""
        for rank, outputs in results.items():
            self._keeping[rank].keep(self.ranks.stored[rank], outputs)

    def write_back(self, results: Results, given: Given) -> None:
        """Writes to the tensors of a batch what `forward` writes there; all ranks call alike."""
        wholes = {at: self._whole(at, results) for at in self._written.sources}
        for rank, batch in given.handed.items():
            self._writing_back[rank].write(wholes.__getitem__, batch, local=given.local)

    def fetched(self, results: Results) -> dict[str, Tensor]:
        """Returns the global value of each output besides the loss, by label."""
        found = {at: self._whole(at, results) for at in plain_outputs(self.program)[1:]}
        return labelled(self.program.signature.outputs, found)

    def _whole(self, at: int, results: Results) -> Tensor:
        """Returns the global value of an output."""
        pieces = {rank: outputs[at] for rank, outputs in results.items()}
        whole = self.ranks.whole("outputs", at, pieces, everywhere=True)
        assert whole is not None
        return whole

    def _arguments(
        self, rank: int, program: Program, inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        given = RankArguments(program).of(inputs, self.ranks.stored[rank], str(self.ranks.device))
        written = set(self._written.sources.values())
        # What is fetched later may be a view of what was written to.
        return tuple(
            each.clone() if name in written else each
            for name, each in zip(program.main.inputs, given, strict=True)
        )


def _is_batch(port: Port) -> bool:
    return port.role != SEED and not is_weight(port) and not is_rate(port)


def _batch_shapes(program: Program) -> Shapes:
    return tuple(port.known_shape for port in program.signature.inputs if _is_batch(port))


def _local_program(program: Program) -> Program:
    """Returns a rank's program as if its pieces of the inputs were all there is."""
    inputs = tuple(
        replace(port, shape=box_shape(port_box(port, {})), box=())
        for port in program.signature.inputs
    )
    return replace(program, signature=Signature(inputs, program.signature.outputs))
