"""What kernels of GPUs want: each wish is told from what suits them."""

from __future__ import annotations

import pytest

from autopar.ir.expr.expression import Size
from autopar.ir.ops.on_gpus import WANTED, concrete, unmet
from autopar.ir.program import Op, Ref, Value

Type = tuple[str, tuple[int, ...]]

FLASH = "aten._scaled_dot_product_flash_attention.default"
EFFICIENT = "aten._scaled_dot_product_efficient_attention.default"
HEAD = ("bf16", (2, 4, 8, 16))


def reasons(kind: str, causal: bool = False, **operands: Type) -> list[str]:
    """Returns what isn't as the kernel of an op wants it."""
    values = {name: Value(name, dtype, shape) for name, (dtype, shape) in operands.items()}
    args = tuple((name, Ref(name)) for name in operands)
    return unmet(Op(kind, (*args, ("is_causal", causal)), ()), values)


def attended(query: Type, key: Type | None = None, value: Type | None = None) -> dict[str, Type]:
    return {"query": query, "key": key or query, "value": value or key or query}


def of(dtype: str, *shape: int) -> Type:
    return dtype, shape


SUITS = [
    (FLASH, attended(HEAD), True),
    (FLASH, attended(HEAD, of("bf16", 2, 2, 9, 16)), False),
    (FLASH.replace("attention", "attention_backward"), attended(HEAD), True),
    (EFFICIENT, attended(of("f32", 2, 4, 8, 12)), True),
    (
        EFFICIENT,
        {**attended(HEAD, of("bf16", 2, 4, 32, 16)), "attn_bias": of("bf16", 8, 32)},
        False,
    ),
    ("autopar.attention", attended(of("f64", 2, 4, 8, 5)), True),
    ("autopar.attention_backward", {"query": of("f32", 1, 65535, 2, 2)}, True),
    ("aten.mm.default", {"self": of("bf16", 3, 4), "mat2": of("bf16", 4, 5)}, False),
    (
        "aten.convolution.default",
        {"input": of("f32", 1, 2, 3), "weight": of("f32", 1, 2, 1)},
        False,
    ),
    ("aten._int_mm.default", {"self": of("i8", 17, 8), "mat2": of("i8", 8, 16)}, False),
    ("aten.add.Tensor", {"self": of("i8", 17, 8)}, False),
]

REFUSED = [
    (FLASH, attended(of("f32", 2, 4, 8, 16)), False, "f32, and the flash kernel computes f16"),
    (FLASH, attended(of("f16", 2, 4, 8, 264)), False, "heads of 264, and the flash kernel takes"),
    (FLASH, attended(HEAD, HEAD, of("bf16", 2, 4, 8, 8)), False, "another size, which the flash"),
    (FLASH, attended(HEAD, of("bf16", 2, 4, 9, 16)), True, "the flash kernel masks from the end"),
    (FLASH, attended(of("bf16", 2, 4, 8, 12)), False, "heads of 12, which are no multiple of 16 b"),
    (EFFICIENT, attended(of("f64", 2, 4, 8, 16)), False, "f64, and the efficient kernel computes"),
    (EFFICIENT, attended(HEAD, of("bf16", 2, 2, 8, 16)), False, "heads share keys, which the effi"),
    (EFFICIENT, attended(of("f32", 2, 4, 8, 6)), False, "heads of 6, which are no multiple of 16"),
    (
        EFFICIENT,
        attended(HEAD, HEAD, of("bf16", 2, 4, 8, 4)),
        False,
        "heads of 4, which are no mul",
    ),
    (
        EFFICIENT,
        {**attended(HEAD), "attn_bias": of("bf16", 2, 4, 8, 8)},
        False,
        "a mask of 8 keys, and rows begin at multiples of 16",
    ),
    (
        EFFICIENT,
        {**attended(HEAD, of("bf16", 2, 4, 16, 16)), "attn_bias": of("f32", 8, 16)},
        False,
        "a mask in f32 of queries in bf16",
    ),
    ("autopar.attention", attended(of("f32", 1, 65536, 2, 4)), False, "65536 heads, and kernels"),
    (
        "aten.mm.default",
        {"self": of("i64", 3, 4), "mat2": of("i64", 4, 5)},
        False,
        "product of i64",
    ),
    (
        "aten.bmm.default",
        {"self": of("i32", 2, 3, 4)},
        False,
        "a product of i32, and GPUs have kern",
    ),
    ("aten.convolution.default", {"input": of("u8", 1, 2, 3)}, False, "a product of u8, and GPUs"),
    (
        "aten._int_mm.default",
        {"self": of("i8", 16, 8), "mat2": of("i8", 8, 8)},
        False,
        "16 rows, a",
    ),
    (
        "aten._int_mm.default",
        {"self": of("i8", 32, 8), "mat2": of("i8", 8, 9)},
        False,
        "size of 9,",
    ),
    (
        "aten._int_mm.default",
        {"self": of("i8", 32, 4), "mat2": of("i8", 4, 8)},
        False,
        "size of 4,",
    ),
]


@pytest.mark.parametrize(("kind", "operands", "causal"), SUITS)
def test_what_suits(kind: str, operands: dict[str, Type], causal: bool) -> None:
    assert reasons(kind, causal, **operands) == []


@pytest.mark.parametrize(("kind", "operands", "causal", "reason"), REFUSED)
def test_what_is_refused(kind: str, operands: dict[str, Type], causal: bool, reason: str) -> None:
    (found,) = reasons(kind, causal, **operands)
    assert reason in found


def test_every_check_has_a_case() -> None:
    tried = {WANTED[kind] for kind, *_ in REFUSED}
    assert tried == {*WANTED.values()}


def test_sizes_are_those_of_a_rank() -> None:
    with pytest.raises(TypeError, match=r"\[\$n, 3\] isn't a rank's own shape"):
        concrete((Size("n"), 3))
