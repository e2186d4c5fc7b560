"""Where results lie in memory: what the rows say, beside what torch's kernels do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
from torch import Tensor

from autopar.cost.memory.kernel_results import Args, effect
from autopar.ir.memory.strides import Placed, is_contiguous
from autopar.ir.ops.products.attention import ATTENTION
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD
from autopar.ir.ops.shape.strided import LAID_OUT, LIKE_OPERANDS, VIEWS
from autopar.ir.ops.shape.view import RESHAPES
from tests.ops.sample import Sample, compute
from tests.ops.samples import NOT_RUN, RUN, samples_by_kind
from tests.ops.test_strides import every_second, last_first, wider


def dense(tensor: Tensor) -> Tensor:
    return tensor.contiguous()


def placed(tensor: Tensor) -> Placed:
    return Placed(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())


def plain(sample: Sample) -> Args:
    """The arguments as a program's memory is found from: integers, texts, lists of integers."""
    found = [
        (name, arg)
        for name, arg in sample.ir_args.items()
        if isinstance(arg, (int, str))
        or (isinstance(arg, tuple) and all(isinstance(item, int) for item in arg))
    ]
    return cast(Args, tuple(found))


def owners_of(result: Tensor, operands: Sequence[Tensor]) -> list[int]:
    """The operands in whose memory a result lies."""
    if not result.numel():
        return []
    place = result.untyped_storage().data_ptr()
    return [at for at, each in enumerate(operands) if each.untyped_storage().data_ptr() == place]


def same_place(one: Placed, strides: tuple[int, ...]) -> bool:
    """Whether strides say the same, but of dimensions with at most one element."""
    if 0 in one.shape:
        return True
    pairs = zip(one.shape, one.strides, strides, strict=True)
    return all(mine == said for size, mine, said in pairs if size > 1)


OTHERWISE = {
    *("aten.conj_physical.default", "aten.copy.default"),
    *(ATTENTION, ATTENTION_BACKWARD),
}
"""One is its operand unless that is complex, the other keeps the gaps of what it writes over.

Of ops that are for other devices, the rows say what is done there.
"""

KINDS = sorted(
    ({*VIEWS, *RESHAPES, *LIKE_OPERANDS, *LAID_OUT} - NOT_RUN - OTHERWISE) & set(samples_by_kind())
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "strided",
    [
        last_first,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (dense, every_second, wider)),
    ],
)
def test_rows_say_what_kernels_do(kind: str, strided: Callable[[Tensor], Tensor]) -> None:
    for sample in samples_by_kind()[kind]:
        tensors = [strided(tensor) for tensor in sample.tensors]
        results = compute(kind, sample.ir_args, tensors)
        given = tuple(map(placed, tensors))
        shapes = tuple(tuple(each.shape) for each in results)
        found = effect(kind, plain(sample), given, shapes)
        for result, said in zip(results, found.results, strict=True):
            owners = owners_of(result, tensors)
            if said.operand is None:
                assert not owners, sample
            elif result.numel():
                assert said.operand in owners, sample
            assert same_place(placed(result), said.strides), (str(sample), result.stride(), said)


def test_no_result_of_an_op_without_a_row_is_a_view_that_nobody_knows() -> None:
    views = set()
    for kind in {*RUN} - {*KINDS} - OTHERWISE:
        for sample in samples_by_kind()[kind]:
            tensors = [dense(each) for each in sample.tensors]
            results = compute(kind, sample.ir_args, tensors)
            given = tuple(map(placed, tensors))
            found = effect(kind, plain(sample), given, tuple(tuple(each.shape) for each in results))
            for result, said in zip(results, found.results, strict=True):
                owners = owners_of(result, tensors)
                is_said = said.operand in owners and same_place(placed(result), said.strides)
                if owners and not is_said:
                    views.add(kind)
    assert sorted(views) == []


def test_reshapes_of_what_lies_apart_are_copies() -> None:
    apart = Placed((4, 6), (1, 4), 4)
    assert not is_contiguous(apart.shape, apart.strides)
    copied, free = (
        effect("aten.view.default", (("size", size),), (apart,), (size,)).results[0]
        for size in ((24,), (2, 2, 6))
    )
    assert (copied.operand, free.operand) == (None, 0)
