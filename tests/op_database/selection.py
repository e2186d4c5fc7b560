"""Which calls of PyTorch's operator database are judged.

Every OpInfo takes part with up to `SAMPLES` of its sample inputs, in float32, or in the dtype that
it works in. Samples are alike if they differ in the sizes of their dimensions alone. Groups of
alike samples take part with one each, so that shapes and keyword arguments of all kinds occur; if
there are too few groups, or too many, those with something to split come first.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.op_database.exclusions import WITHOUT_IN_PLACE

SAMPLES = 8
IN_PLACE_SAMPLES = 2
DTYPES = (
    torch.float32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)
"""An OpInfo is judged in the first of these that it works in."""


@dataclass(frozen=True)
class Call:
    """A call of an operator as a function of tensors.

    Attributes:
        name: The OpInfo.
        number: Of the sample, among all of the OpInfo.
        writes: Whether it is the operator's in-place variant.
        function: Takes the tensors of the sample and returns what the operator returns.
        tensors: The sample's tensors. Those by which the operator can be differentiated require a
            gradient.
    """

    name: str
    number: int
    writes: bool
    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]

    @property
    def differentiable(self) -> bool:
        """Whether there is a tensor by which the operator can be differentiated."""
        return any(tensor.requires_grad for tensor in self.tensors)


def all_opinfos() -> list[Any]:
    """Returns every OpInfo of the database, in its order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def name_of(opinfo: Any) -> str:
    """Returns the name of an OpInfo, that of its variant included."""
    variant = opinfo.variant_test_name
    return f"{opinfo.name}.{variant}" if variant else str(opinfo.name)


@cache
def opinfos() -> Mapping[str, Any]:
    """Returns every OpInfo by its name."""
    return {name_of(opinfo): opinfo for opinfo in all_opinfos()}


def dtype_of(opinfo: Any) -> torch.dtype | None:
    """Returns the dtype in which an OpInfo is judged; None if it has none on the CPU."""
    return next((dtype for dtype in DTYPES if dtype in opinfo.dtypes), None)


def calls_of(opinfo: Any) -> Iterator[Call]:
    """Yields the calls of an OpInfo that are judged; the same ones each time."""
    dtype = dtype_of(opinfo)
    if dtype is None:
        return
    _seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grad = bool(opinfo.supports_autograd) and (dtype.is_floating_point or dtype.is_complex)
        samples = list(opinfo.sample_inputs("cpu", dtype, requires_grad=grad))
    chosen = _stratified(samples)
    for number in chosen:
        yield _call(opinfo, number, samples[number])
    if opinfo.inplace_variant is None or name_of(opinfo) in WITHOUT_IN_PLACE:
        return
    fits = [number for number in chosen if not samples[number].broadcasts_input]
    for number in fits[:IN_PLACE_SAMPLES]:
        yield _call(opinfo, number, samples[number], writes=True)


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def _call(opinfo: Any, number: int, sample: Any, writes: bool = False) -> Call:
    operator = opinfo.inplace_variant if writes else opinfo.op
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def function(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for position, tensor in zip(at, tensors, strict=True):
            filled[position] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        # What is written to is a copy: a program's inputs keep their values.
        return operator(first.clone() if writes else first, *args, **kwargs)

    tensors = tuple(_plain(leaves[position]) for position in at)
    return Call(name_of(opinfo), number, writes, function, tensors)


def _plain(tensor: Tensor) -> Tensor:
    """Returns a copy that shares nothing with other tensors; contiguous, as inputs are."""
    if tensor.layout != torch.strided:
        return tensor
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.requires_grad_(tensor.requires_grad)


def _stratified(samples: Sequence[Any]) -> list[int]:
    """Returns the numbers of the samples that are judged."""
    groups: dict[Any, list[int]] = {}
    for number, sample in enumerate(samples):
        groups.setdefault(_stratum(sample), []).append(number)
    firsts = [group[0] for group in groups.values()]
    rest = [number for group in groups.values() for number in group[1:]]
    chosen: list[int] = []
    for wanted in (
        [number for number in firsts if _can_be_split(samples[number])],
        [number for number in rest if _can_be_split(samples[number])],
        firsts,
        rest,
    ):
        left = [number for number in wanted if number not in chosen]
        count = min(SAMPLES - len(chosen), len(left))
        chosen.extend(left[at * len(left) // count] for at in range(count))
    return sorted(chosen)


def _can_be_split(sample: Any) -> bool:
    """Returns whether a sample has a tensor with anything to split."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(max(it.shape, default=0) > 1 for it in leaves if isinstance(it, Tensor))


def _stratum(sample: Any) -> str:
    """Returns what alike samples have in common, as text."""
    leaves, _ = pytree.tree_flatten((sample.input, sample.args))
    shapes = [
        (str(leaf.dtype), *(min(size, 2) for size in leaf.shape))
        if isinstance(leaf, Tensor)
        else type(leaf).__name__
        for leaf in leaves
    ]
    options = {
        name: "tensor" if isinstance(value, Tensor) else str(value)[:80]
        for name, value in sample.kwargs.items()
    }
    return f"{shapes} {options}"
