"""Where results lie in memory: what the rows say, beside what torch's kernels do."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from torch import Tensor

from autopar.cost.memory.kernel_results import Args, effect
from autopar.ir.memory.strides import Placed, is_contiguous
from autopar.ir.ops.shape.strided import LAID_OUT, LIKE_OPERANDS, VIEWS
from autopar.ir.ops.shape.view import RESHAPES
from tests.ops.sample import Sample, compute
from tests.ops.samples import NOT_RUN, samples_by_kind
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


def same_place(one: Placed, strides: tuple[int, ...]) -> bool:
    """Whether strides say the same, but of dimensions with at most one element."""
    if 0 in one.shape:
        return True
    pairs = zip(one.shape, one.strides, strides, strict=True)
    return all(mine == said for size, mine, said in pairs if size > 1)


OTHERWISE = {"aten.conj_physical.default", "aten.copy.default"}
"""One is its operand unless that is complex, the other keeps the gaps of what it writes over."""

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
            owners = [
                at
                for at, tensor in enumerate(tensors)
                if result.numel()
                and tensor.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
            ]
            if said.operand is None:
                assert not owners, sample
            elif result.numel():
                assert said.operand in owners, sample
            assert same_place(placed(result), said.strides), (str(sample), result.stride(), said)


def test_reshapes_of_what_lies_apart_are_copies() -> None:
    apart = Placed((4, 6), (1, 4), 4)
    assert not is_contiguous(apart.shape, apart.strides)
    copied, free = (
        effect("aten.view.default", (("size", size),), (apart,), (size,)).results[0]
        for size in ((24,), (2, 2, 6))
    )
    assert (copied.operand, free.operand) == (None, 0)
