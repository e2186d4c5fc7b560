"""What hand-written programs move for each preset, derived from a model's structure.

A line of `IDEALS` per preset, with the derivation of it; the numbers that differ from model to
model are in `zoo_models`. n is the number of processes along the axis that a preset works on, and A
a whole activation, of which data-parallel processes have their part.

Where a gradient is asked for, a product with a weight that is split by columns needs one reduction
in its backward pass, by rows one in its forward pass: two products make a block, as Megatron-LM has
it (Shoeybi et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from communication import Moved, collective
from zoo_models import BATCH, F32, WIDTH, Example, Stack

SCALAR = F32
"""Bytes of the loss."""


@dataclass(frozen=True)
class Part:
    """The model that one data-parallel process of several trains.

    Attributes:
        example: The model.
        ways: How many processes share the batch.
    """

    example: Example
    ways: int = 1

    def activation(self, stack: Stack) -> float:
        """Bytes of an activation."""
        return stack.nbytes / self.ways

    @property
    def last(self) -> float:
        """Bytes of what the head reads."""
        return self.activation(self.example.stacks[-1])

    @property
    def tokens(self) -> float:
        """Bytes of a number per label."""
        return F32 * BATCH * self.example.labels / self.ways

    @property
    def split(self) -> float:
        """Bytes of the parameters that Megatron splits."""
        return self.example.nbytes(self.example.split)

    @property
    def whole(self) -> float:
        """Bytes of the others."""
        return self.example.nbytes() - self.split


def ddp(part: Part, n: int) -> Moved:
    """Every gradient and the loss are reduced once; of batch norms two sums per pass as well."""
    norms = F32 * 4 * part.example.norms
    return collective("all_reduce", part.example.nbytes() + SCALAR + norms, n)


def zero(part: Part, n: int) -> Moved:
    """Gradients of matrices are scattered, new parameters gathered; vectors are as in `ddp`."""
    matrices = part.example.nbytes(matrices=True)
    moved = collective("reduce_scatter", matrices / n, n) + collective("all_gather", matrices, n)
    vectors = part.example.nbytes(matrices=False) + F32 * 4 * part.example.norms
    return moved + collective("all_reduce", vectors + SCALAR, n)


def fsdp(part: Part, n: int) -> Moved:
    """Parameters are gathered for forward, and for backward where that reads them."""
    example = part.example
    matrices, again = example.nbytes(matrices=True), example.nbytes(example.lookups, matrices=True)
    moved = zero(part, n) + collective("all_gather", matrices - again, n)
    return moved + collective("all_gather", example.frozen_bytes, n)


def tensor(part: Part, n: int) -> Moved:
    """A block reduces A once in each pass, and so do a memory for its gradient, and the head."""
    example = part.example
    moved = Moved(0, 0)
    for stack in example.stacks:
        moved += collective("all_reduce", part.activation(stack), n, 2 * stack.blocks)
        if stack.memory:
            moved += collective("all_reduce", part.activation(example.stacks[0]), n)
    if example.labels:
        # A table that is the head's is looked up by pieces. Cross-entropy reduces a maximum, a sum
        # and the label's logit of every position.
        moved += collective("all_reduce", part.last, n, 1 + example.tied)
        moved += collective("all_reduce", part.tokens, n, 3)
    return moved


def sequence(part: Part, n: int) -> Moved:
    """A block gathers A, again for its weights' gradients, and the gradient; it scatters twice.

    The head does the same but for the gradient, which is its own; a table that is looked up by
    pieces scatters its rows, and gathers their gradient. Gradients of what works on pieces of the
    sequence are reduced.
    """
    example = part.example
    moved = Moved(0, 0)
    for stack in example.stacks:
        nbytes = part.activation(stack)
        moved += collective("all_gather", nbytes, n, 3 * stack.blocks)
        moved += collective("reduce_scatter", nbytes / n, n, 2 * stack.blocks)
        if stack.memory:
            moved += collective("all_gather", part.activation(example.stacks[0]), n, 2)
            moved += collective("reduce_scatter", part.activation(example.stacks[0]) / n, n)
    if example.labels:
        moved += collective("all_gather", part.last, n, 2 + example.tied)
        moved += collective("reduce_scatter", part.last / n, n, 1 + example.tied)
        moved += collective("all_reduce", part.tokens, n, 3)
    return moved + collective("all_reduce", part.whole, n)


def context(part: Part, n: int) -> Moved:
    """Attention gathers keys and values in each pass, and scatters their gradients; and `ddp`."""
    moved = Moved(0, 0)
    for stack in part.example.stacks:
        share = stack.keys * part.activation(stack) / WIDTH
        reads = [share] * stack.layers
        if stack.memory:
            reads += [part.activation(part.example.stacks[0])] * stack.layers
        for nbytes in reads:
            moved += collective("all_gather", nbytes, n, 4)
            moved += collective("reduce_scatter", nbytes / n, n, 2)
    return moved + ddp(part, n)


def expert(part: Part, n: int) -> Moved:
    """What experts make of the tokens is added up in each pass, and the gradient of their shares.

    Every process has all tokens, and computes the rows of its experts.
    """
    layers = part.example.stacks[0].layers
    chosen = F32 * BATCH * part.example.stacks[0].length * part.example.chosen / part.ways
    moved = collective("all_reduce", part.last, n, 2 * layers)
    return moved + collective("all_reduce", chosen, n, layers)


def ddp_tensor(part: Part, n: int, ways: int) -> Moved:
    """`tensor` on a part of the batch; then every gradient is reduced where it lies."""
    moved = tensor(Part(part.example, ways), n)
    return moved + collective("all_reduce", part.split / n + part.whole + SCALAR, ways)


def ddp_sequence(part: Part, n: int, ways: int) -> Moved:
    """`sequence` on a part of the batch; what it reduces, it reduces over both axes at once."""
    moved = sequence(Part(part.example, ways), n)
    moved += collective("all_reduce", part.split / n + SCALAR, ways)
    extra = collective("all_reduce", part.whole, ways * n)
    alone = collective("all_reduce", part.whole, n)
    return Moved(moved.output, moved.wire + extra.wire - alone.wire)


def fsdp_tensor(part: Part, n: int, ways: int) -> Moved:
    """`tensor` on a part of the batch; `fsdp` of what each process has of the parameters."""
    example = part.example
    moved = tensor(Part(example, ways), n)
    matrices, again = (
        example.nbytes(set_, matrices=True)
        - (1 - 1 / n) * example.nbytes(set_, matrices=True, among=example.split)
        for set_ in (("*",), example.lookups)
    )
    moved += collective("reduce_scatter", matrices / ways, ways)
    moved += collective("all_gather", 2 * matrices - again + example.frozen_bytes, ways)
    vectors = part.split / n + part.whole - matrices
    return moved + collective("all_reduce", vectors + SCALAR, ways)


def zero_context(part: Part, n: int, ways: int) -> Moved:
    """`context` on a part of the batch, with gradients of matrices scattered before that."""
    example = part.example
    inside = context(Part(example, ways), n)
    gradients = ddp(part, n)
    moved = Moved(inside.output - gradients.output, inside.wire - gradients.wire)
    matrices = example.nbytes(matrices=True)
    moved += collective("reduce_scatter", matrices / ways, ways)
    moved += collective("all_reduce", matrices / ways, n)
    moved += collective("all_gather", matrices, ways)
    vectors = example.nbytes(matrices=False) + F32 * 4 * example.norms + SCALAR
    return moved + collective("all_reduce", vectors, n * ways)


def ddp_expert(part: Part, n: int, ways: int) -> Moved:
    """`expert` on a part of the batch; then every gradient is reduced where it lies."""
    example = part.example
    moved = expert(Part(example, ways), n)
    experts = example.nbytes(example.experts)
    rest = example.nbytes() - experts
    return moved + collective("all_reduce", experts / n + rest + SCALAR, ways)


ONE_AXIS: Mapping[str, Callable[[Part, int], Moved]] = {
    "ddp": ddp,
    "zero1": zero,
    "zero2": zero,
    "fsdp": fsdp,
    "tensor": tensor,
    "tensor,sequence": sequence,
    "context": context,
    "expert": expert,
}
"""Per preset, its ideal."""

TWO_AXES: Mapping[str, Callable[[Part, int, int], Moved]] = {
    "ddp,tensor": ddp_tensor,
    "ddp,tensor,sequence": ddp_sequence,
    "fsdp,tensor": fsdp_tensor,
    "zero1,context": zero_context,
    "ddp,expert": ddp_expert,
}
"""Per pair of presets, of which the first has an axis of its own: the ideal of (n, its ways)."""
