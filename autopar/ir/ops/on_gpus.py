"""What kernels of GPUs want of their operands, of which fake tensors know nothing.

A row of `WANTED` is an op and a function that says what isn't as its kernel wants it. Sizes are
those of a rank: what a GPU takes whole it may refuse in parts.

Sources: the checks in torch's CUDA code (2.11 to 2.13), for compute capability 8.0 and above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import IntExpr, shape_str
from autopar.ir.ops.products.attention import ATTENTION
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD
from autopar.ir.ops.products.attention_kernels import LARGEST_FLASH_HEAD, MASK_STEP, padded
from autopar.ir.program import Op, Value
from autopar.ir.rules.rule import OpCall, TensorType

Check = Callable[["Call"], Iterator[str]]
"""What a call's operands aren't as a kernel wants them, one text for each."""

LARGEST_GRID = 65535
"""Blocks of a launch along its second and third dimension."""

_FLASH = "aten._scaled_dot_product_flash_attention"
_EFFICIENT = "aten._scaled_dot_product_efficient_attention"


def unmet(op: Op, values: Mapping[str, Value]) -> list[str]:
    """Returns what a GPU's kernel wants of an op's operands and doesn't get.

    Args:
        op: An op of a rank, without rank expressions.
        values: The values around it, of local shapes.
    """
    check = WANTED.get(op.kind)
    if check is None:
        return []
    operands = tuple(_Operand.of(values[name]) for name in op.operands)
    types = tuple(TensorType(each.shape, each.dtype) for each in operands)
    positions = OpCall(op.kind, dict(op.args), types, ()).positions
    by_name = {name: operands[at[0]] for name, at in positions.items() if at}
    return list(dict.fromkeys(check(Call(operands, by_name, bool(op.arg("is_causal", False))))))


def concrete(shape: Sequence[IntExpr]) -> tuple[int, ...]:
    """Returns the sizes of a value of a rank at certain sizes.

    Raises:
        TypeError: If one depends on the rank, or is open.
    """
    sizes = tuple(size for size in shape if isinstance(size, int))
    if len(sizes) != len(shape):
        raise TypeError(f"{shape_str(shape)} isn't a rank's own shape")
    return sizes


class _Operand(NamedTuple):
    """A tensor that a kernel reads."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, value: Value) -> _Operand:
        """Returns what a value is."""
        return cls(concrete(value.shape), value.dtype)


class Call(NamedTuple):
    """A call of a kernel.

    Attributes:
        operands: In their order.
        by_name: The first of each argument that names some.
        causal: Whether queries of attention don't see what is behind them.
    """

    operands: tuple[_Operand, ...]
    by_name: Mapping[str, _Operand]
    causal: bool


def _heads(call: Call) -> Iterator[str]:
    """Each head is a block of a launch's second dimension."""
    query = call.by_name.get("query")
    if query is not None and query.shape[1] > LARGEST_GRID:
        yield f"{query.shape[1]} heads, and kernels take up to {LARGEST_GRID}"


def _flash(call: Call) -> Iterator[str]:
    query, key, value = _attended(call)
    if query.dtype not in ("f16", "bf16"):
        yield f"{query.dtype}, and the flash kernel computes f16 and bf16"
    size = query.shape[-1]
    if size > LARGEST_FLASH_HEAD:
        yield f"heads of {size}, and the flash kernel takes up to {LARGEST_FLASH_HEAD}"
    if not query.shape[-1] == key.shape[-1] == value.shape[-1]:
        yield "heads of values have another size, which the flash kernel doesn't take"
    if call.causal and query.shape[-2] != key.shape[-2]:
        yield "as many keys as queries there aren't, and the flash kernel masks from the end"
    yield from _aligned_heads(query)


def _efficient(call: Call) -> Iterator[str]:
    query, key, value = _attended(call)
    if DTYPE_BYTES[query.dtype] > 4:
        yield f"{query.dtype}, and the efficient kernel computes up to 32 bits"
    if query.shape[1] != key.shape[1]:
        yield "heads share keys, which the efficient kernel doesn't take"
    yield from _aligned_heads(query)
    yield from _aligned_heads(value)
    bias = call.by_name.get("attn_bias")
    if bias is not None and bias.shape[-1] % MASK_STEP:
        yield f"a mask of {bias.shape[-1]} keys, and rows begin at multiples of {MASK_STEP}"
    if bias is not None and bias.dtype != query.dtype:
        yield f"a mask in {bias.dtype} of queries in {query.dtype}"


def _aligned_heads(tensor: _Operand) -> Iterator[str]:
    size = tensor.shape[-1]
    if padded(size, DTYPE_BYTES[tensor.dtype]) != size:
        yield f"heads of {size}, which are no multiple of 16 bytes"


def _attended(call: Call) -> tuple[_Operand, _Operand, _Operand]:
    return call.by_name["query"], call.by_name["key"], call.by_name["value"]


def _floats(call: Call) -> Iterator[str]:
    """Products are cuBLAS's and cuDNN's, which have none of integers."""
    dtype = call.operands[0].dtype
    if dtype == "bool" or dtype[0] in "iu":
        yield f"a product of {dtype}, and GPUs have kernels for floats"


def _int_mm(call: Call) -> Iterator[str]:
    left, right = call.operands[:2]
    if left.shape[0] <= 16:
        yield f"{left.shape[0]} rows, and the kernel wants more than 16"
    for size in (left.shape[1], right.shape[1]):
        if size % 8:
            yield f"a size of {size}, and the kernel wants multiples of 8"


WANTED: Mapping[str, Check] = {
    ATTENTION: _heads,
    ATTENTION_BACKWARD: _heads,
    f"{_FLASH}.default": _flash,
    f"{_FLASH}_backward.default": _flash,
    f"{_EFFICIENT}.default": _efficient,
    f"{_EFFICIENT}_backward.default": _efficient,
    **dict.fromkeys(
        (
            *(f"aten.{name}.default" for name in ("mm", "bmm", "matmul", "addmm", "baddbmm")),
            *(f"aten.{name}.default" for name in ("addbmm", "addmv", "mv", "dot", "linear")),
            "aten.convolution.default",
        ),
        _floats,
    ),
    "aten._int_mm.default": _int_mm,
}
"""By op, what is not as its kernel wants it."""
