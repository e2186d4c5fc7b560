"""Rotary embedding by slices becomes one by a roll; near misses stay."""

from __future__ import annotations

import pytest

from tests.frontend.recognize.spelled import TOLERANCE, assert_equal, kinds, recognized

SIZES = ({"b": 2, "s": 5}, {"b": 1, "s": 1}, {"b": 2, "s": 0})
END = 2**63 - 1
SPELLED = f"""
size $b
size $s
input %x: T[$b, 4, $s, 8]
input %cos: T[$b, 1, $s, 8]
input %sin: T[$b, 1, $s, 8]
%m: T[$b, 4, $s, 8] = aten.mul.Tensor(self=%x, other=%cos)
%x0: T[$b, 4, $s, 8] = aten.slice.Tensor(self=%x, start=0, end={END})
%x1: T[$b, 4, $s, 4] = aten.slice.Tensor(self=%x0, dim=3, start=0, end=4)
%x2: T[$b, 4, $s, 4] = aten.slice.Tensor(self=%x, dim=3, start=4, end=8)
%n: T[$b, 4, $s, 4] = aten.neg.default(self=%x2)
%t: T[$b, 4, $s, 8] = aten.cat.default(tensors=[%n, %x1], dim=-1)
%c: T[$b, 4, $s, 8] = aten.mul.Tensor(self=%t, other=%sin)
%y: T[$b, 4, $s, 8] = aten.add.Tensor(self=%m, other=%c)
return %y
"""


def split(text: str) -> str:
    """Returns a text in which a split makes the halves."""
    begin, end = text.index("%x0:"), text.index("%n:")
    args = "self=%x, split_sizes=[4, 4], dim=3"
    parts = "%x1: T[$b, 4, $s, 4], %x2: T[$b, 4, $s, 4]"
    return f"{text[:begin]}{parts} = aten.split_with_sizes.default({args})\n{text[end:]}"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_halves_are_rolled(dtype: str) -> None:
    spelled, program = recognized(SPELLED.replace("T[", f"{dtype}["))
    assert kinds(program) == ["mul", "slice", "slice", "neg", "cat", "roll", "addcmul"]
    for sizes in SIZES:
        assert_equal(spelled, program, {}, sizes, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_parts_of_a_split_are_rolled(dtype: str) -> None:
    text = split(SPELLED).replace("T[", f"{dtype}[")
    spelled, program = recognized(text)
    assert kinds(program) == ["mul", "slice", "slice", "neg", "cat", "roll", "addcmul"]
    for sizes in SIZES:
        assert_equal(spelled, program, {}, sizes, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tensors=[%n, %x1]", "tensors=[%x1, %n]"),
        ("self=%x, split_sizes", "self=%cos4, split_sizes"),
        ("return %y", "return %y, %x1"),
    ],
)
def test_near_misses_of_a_split_stay(old: str, new: str) -> None:
    text = split(SPELLED).replace("input %sin", "input %cos4: T[$b, 4, $s, 8]\ninput %sin")
    assert old in text
    _, program = recognized(text.replace(old, new).replace("T[", "f32["))
    assert "roll" not in kinds(program)


def test_the_table_of_sines_is_turned_once() -> None:
    more = SPELLED[SPELLED.index("%m:") : SPELLED.index("return")]
    for name in ("m", "x0", "x1", "x2", "n", "t", "c", "y"):
        more = more.replace(f"%{name}:", f"%{name}_:").replace(f"=%{name},", f"=%{name}_,")
        more = more.replace(f"=%{name})", f"=%{name}_)").replace(f"[%{name},", f"[%{name}_,")
        more = more.replace(f" %{name}]", f" %{name}_]")
    text = SPELLED.replace("return %y", more.replace("%x,", "%y,") + "return %y_")
    _, program = recognized(text.replace("T[", "f32["))
    assert kinds(program).count("neg") == 1
    assert kinds(program).count("roll") == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tensors=[%n, %x1]", "tensors=[%x1, %n]"),
        ("start=4, end=8", "start=3, end=7"),
        ("aten.neg.default", "aten.exp.default"),
        ("%m, other=%c", "%m, other=%c, alpha=2"),
        ("self=%x, other=%cos", "self=%sin, other=%cos"),
        ("return %y", "return %y, %n"),
    ],
)
def test_near_misses_stay(old: str, new: str) -> None:
    assert old in SPELLED
    _, program = recognized(SPELLED.replace(old, new).replace("T[", "f32["))
    assert "roll" not in kinds(program)
