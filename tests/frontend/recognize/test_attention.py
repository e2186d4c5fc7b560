"""Attention that is spelled out becomes one op, however it is scaled, masked and shared."""

from __future__ import annotations

import pytest

from autopar.ir.program import Program
from tests.frontend.recognize.spelled import TOLERANCE, assert_equal, kinds, recognized

NUMBERS = {"zero": 0.0, "least": -float("inf"), "low": -3.4e38, "small": -3e4}
SIZES = ({"b": 2, "l": 3, "t": 5}, {"b": 1, "l": 1, "t": 7}, {"b": 2, "l": 0, "t": 4})

HEAD = """
size $b
size $l
size $t
input %q: T[$b, 4, $l, 8]
input %k: T[$b, G, $t, 8]
input %v: T[$b, G, $t, 8]
input %open: bool[$b, 1, $l, $t]
input %bias: T[$b, 4, $l, $t]
constant %zero: T[1]
constant %least: T[1]
constant %low: T[1]
constant %small: T[1]
"""
SHARED = """
%k1: T[$b, 2, 1, $t, 8] = aten.view.default(self=%k, size=[$b, 2, 1, $t, 8])
%k2: T[$b, 2, 2, $t, 8] = aten.expand.default(self=%k1, size=[$b, 2, 2, $t, 8])
%k3: T[$b, 4, $t, 8] = aten.view.default(self=%k2, size=[$b, 4, $t, 8])
%v1: T[$b, 2, 1, $t, 8] = aten.view.default(self=%v, size=[$b, 2, 1, $t, 8])
%v2: T[$b, 2, 2, $t, 8] = aten.expand.default(self=%v1, size=[$b, 2, 2, $t, 8])
%v3: T[$b, 4, $t, 8] = aten.view.default(self=%v2, size=[$b, 4, $t, 8])
"""
TURNED = """
%kt: T[$b, 4, 8, $t] = aten.permute.default(self=%k, dims=[0, 1, 3, 2])
"""
SCALED = """
%qs: T[$b, 4, $l, 8] = aten.mul.Tensor(self=%q, other=0.5)
%ks: T[$b, 4, 8, $t] = aten.mul.Tensor(self=%kt, other=0.5)
"""
PRODUCTS = """
%q3: T[$b * 4, $l, 8] = aten.view.default(self=%qs, size=[$b * 4, $l, 8])
%kt3: T[$b * 4, 8, $t] = aten.view.default(self=%ks, size=[$b * 4, 8, $t])
%s3: T[$b * 4, $l, $t] = aten.bmm.default(self=%q3, mat2=%kt3)
%s: T[$b, 4, $l, $t] = aten.view.default(self=%s3, size=[$b, 4, $l, $t])
"""
DIVIDED = "%sd: T[$b, 4, $l, $t] = aten.div.Tensor(self=%s, other=4.0)\n"
MASK = "%m: T[$b, 1, $l, $t] = aten.where.self(condition=%open, self=%zero, other=%least)\n"
MASKED = "%sm: T[$b, 4, $l, $t] = aten.add.Tensor(self=%s, other=%m)\n"
SOFTMAX = """
%p: T[$b, 4, $l, $t] = aten._softmax.default(self=%sm, dim=-1, half_to_float=false)
"""
GUARD = """
%n: bool[$b, 4, $l, $t] = aten.isnan.default(self=%p)
%w: T[$b, 4, $l, $t] = aten.where.self(condition=%n, self=%zero, other=%p)
"""
WEIGHTED = """
%p3: T[$b * 4, $l, $t] = aten.view.default(self=%w, size=[$b * 4, $l, $t])
%v4: T[$b * 4, $t, 8] = aten.view.default(self=%v, size=[$b * 4, $t, 8])
%y3: T[$b * 4, $l, 8] = aten.bmm.default(self=%p3, mat2=%v4)
%y: T[$b, 4, $l, 8] = aten.view.default(self=%y3, size=[$b, 4, $l, 8])
return %y
"""
BARE = WEIGHTED.replace("%w", "%p")
PLAIN = PRODUCTS.replace("%qs", "%q").replace("%ks", "%kt")
LOW = MASK.replace("%least", "%low")
EACH = SHARED + TURNED.replace("%k,", "%k3,")
GUARDED = SOFTMAX + GUARD + WEIGHTED
FORMS = {
    "scaled before, guarded": TURNED + SCALED + PRODUCTS + MASK + MASKED + GUARDED,
    "divided, a finite mask": "".join(
        (TURNED, PLAIN, DIVIDED, LOW, MASKED.replace("%s,", "%sd,"), SOFTMAX, BARE)
    ),
    "no mask, no scale": TURNED + PLAIN + SOFTMAX.replace("%sm", "%s") + BARE,
    "the mask first": "".join(
        (TURNED, PLAIN, LOW, MASKED.replace("=%s, other=%m", "=%m, other=%s"), SOFTMAX, BARE)
    ),
    "shared heads": "".join(
        (EACH, SCALED, PRODUCTS, MASK, MASKED, GUARDED.replace("self=%v,", "self=%v3,"))
    ),
    "keys as they are": PLAIN.replace("%kt,", "%k,") + SOFTMAX.replace("%sm", "%s") + BARE,
}
HEADS = {"shared heads": 2}
IN_HALVES = ("scaled before, guarded", "no mask, no scale", "shared heads", "keys as they are")

ONES = """
%ones: T[$l, $t] = aten.full.default(size=[$l, $t], fill_value=1.0, dtype=T)
%tril: T[$l, $t] = aten.tril.default(self=%ones)
%past: bool[$l, $t] = aten.eq.Scalar(self=%tril, other=0.0)
"""
PLACES = """
%i: i64[$l] = aten.arange.start_step(start=0, end=$l, step=1)
%j: i64[$t] = aten.arange.start_step(start=0, end=$t, step=1)
%rows: i64[1, 1, $l, 1] = aten.view.default(self=%i, size=[1, 1, $l, 1])
%columns: i64[1, 1, 1, $t] = aten.view.default(self=%j, size=[1, 1, 1, $t])
%seen: bool[1, 1, $l, $t] = aten.le.Tensor(self=%columns, other=%rows)
"""
ADDED = "%m: T[$l, $t] = aten.where.self(condition=%past, self=%least, other=%tril)\n"
CAUSAL = {
    "ones in a triangle": ONES + ADDED + MASKED,
    "a triangle of what hides": """
%all: T[$l, $t] = aten.expand.default(self=%least, size=[$l, $t])
%m: T[$l, $t] = aten.triu.default(self=%all, diagonal=1)
"""
    + MASKED,
    "places compared": PLACES
    + "%m: T[1, 1, $l, $t] = aten.where.self(condition=%seen, self=%zero, other=%least)\n"
    + MASKED,
    "scores hidden": ONES
    + "%sm: T[$b, 4, $l, $t] = aten.where.self(condition=%past, self=%least, other=%s)\n",
    "scores hidden by a small number": ONES
    + "%sm: T[$b, 4, $l, $t] = aten.where.self(condition=%past, self=%small, other=%s)\n",
    "scores kept": PLACES
    + "%sm: T[$b, 4, $l, $t] = aten.where.self(condition=%seen, self=%s, other=%least)\n",
}


def programs(form: str, dtype: str, heads: int = 4, **more: object) -> tuple[Program, Program]:
    head = HEAD.replace("G", str(heads))
    if "aten.permute" not in form:
        head = head.replace("%k: T[$b, 4, $t, 8]", "%k: T[$b, 4, 8, $t]")
    text = (head + form).replace("T[", f"{dtype}[")
    return recognized(text, NUMBERS, **more)  # type: ignore[arg-type]


def is_taken(form: str, dtype: str = "f32", heads: int = 4, **more: object) -> bool:
    _, program = programs(form, dtype, heads, **more)
    return "scaled_dot_product_attention" in kinds(program)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("name", FORMS)
def test_attention_becomes_one_op(name: str, dtype: str) -> None:
    spelled, program = programs(FORMS[name], dtype, HEADS.get(name, 4))
    found = kinds(program)
    assert "bmm" not in found
    assert "expand" not in found
    assert found[-1] == "scaled_dot_product_attention"
    for sizes in SIZES:
        assert_equal(spelled, program, NUMBERS, sizes, TOLERANCE[dtype])


@pytest.mark.parametrize("name", IN_HALVES)
def test_halves_are_attended_to(name: str) -> None:
    test_attention_becomes_one_op(name, "f16")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_hide_no_row(name: str, dtype: str) -> None:
    form = TURNED + PLAIN + CAUSAL[name] + SOFTMAX + BARE
    spelled, program = programs(form.replace("dtype=T", f"dtype={dtype}"), dtype)
    assert kinds(program)[-1] == "scaled_dot_product_attention"
    for sizes in SIZES:
        assert_equal(spelled, program, NUMBERS, sizes, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ones in a triangle", "(self=%ones)", "(self=%ones, diagonal=-1)"),
        ("a triangle of what hides", "diagonal=1", "diagonal=0"),
        ("places compared", "aten.le.Tensor", "aten.lt.Tensor"),
        ("places compared", "start=0, end=$t", "start=1, end=$t + 1"),
        ("scores kept", "self=%columns, other=%rows", "self=%rows, other=%columns"),
        ("scores hidden", "other=0.0", "other=1.0"),
        ("scores hidden by a small number", "other=0.0", "other=1.0"),
    ],
)
def test_masks_that_may_hide_a_row_stay(name: str, old: str, new: str) -> None:
    form = TURNED + PLAIN + CAUSAL[name] + SOFTMAX + BARE
    assert old in form
    assert not is_taken(form.replace(old, new).replace("dtype=T", "dtype=f32"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_softmax_may_be_wide(dtype: str) -> None:
    wide = """
%wide: f32[$b, 4, $l, $t] = aten._to_copy.default(self=%s, dtype=f32)
%pw: f32[$b, 4, $l, $t] = aten._softmax.default(self=%wide, dim=-1, half_to_float=false)
%p: T[$b, 4, $l, $t] = aten._to_copy.default(self=%pw, dtype=T)
"""
    form = (TURNED + PLAIN + wide + BARE).replace("dtype=T", f"dtype={dtype}")
    spelled, program = programs(form, dtype)
    assert kinds(program)[-1] == "scaled_dot_product_attention"
    for sizes in SIZES:
        assert_equal(spelled, program, NUMBERS, sizes, TOLERANCE[dtype])
    assert not is_taken(form.replace(f"dtype={dtype}", "dtype=f64"), "f64")


def test_rows_that_see_nothing_are_zeros_if_the_file_says_so() -> None:
    form = FORMS["scaled before, guarded"]
    assert is_taken(form)
    bare = form.replace(GUARD, "").replace(WEIGHTED, BARE)
    assert not is_taken(bare)
    assert is_taken(bare.replace("%least)", "%low)"))


NEAR = {
    "a mask that isn't made here": (MASKED, MASKED.replace("%m)", "%bias)")),
    "another softmax": (SOFTMAX, SOFTMAX.replace("dim=-1", "dim=2")),
    "a scale that isn't a number": (DIVIDED, DIVIDED.replace("4.0", "%bias")),
    "a scaled sum": (MASKED, MASKED.replace("%m)", "%m, alpha=2)")),
    "the mask of a mask": (
        MASKED,
        MASKED.replace("%sm", "%sn") + MASKED.replace("%s,", "%sn,"),
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_stay(name: str) -> None:
    old, new = NEAR[name]
    form = FORMS["divided, a finite mask"].replace("self=%sd, other=%m", "self=%s, other=%m")
    form = form.replace(DIVIDED, "") if old != DIVIDED else FORMS["divided, a finite mask"]
    assert is_taken(form)
    assert old in form
    assert not is_taken(form.replace(old, new))


def test_halves_whose_rows_may_be_hidden_by_a_finite_number_stay() -> None:
    form = FORMS["divided, a finite mask"]
    assert is_taken(form, "f32")
    assert not is_taken(form, "f16")


@pytest.mark.parametrize("inner", ["s3", "s", "sm", "p", "w", "y3", "qs"])
def test_what_is_read_elsewhere_or_pinned_stays(inner: str) -> None:
    form = FORMS["scaled before, guarded"]
    assert not is_taken(form.replace("return %y", f"return %y, %{inner}"))
    assert not is_taken(form, kept=(inner,))
