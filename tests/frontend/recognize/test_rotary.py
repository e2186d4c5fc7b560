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


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_halves_are_rolled(dtype: str) -> None:
    spelled, program = recognized(SPELLED.replace("T[", f"{dtype}["))
    assert kinds(program) == ["mul", "slice", "slice", "neg", "cat", "roll", "addcmul"]
    for sizes in SIZES:
        assert_equal(spelled, program, {}, sizes, TOLERANCE[dtype])


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
