"""What is there already isn't computed again, and rows in their own order aren't looked up."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.expr.at_sizes import at_sizes
from autopar.runtime.execute.serial import run_serial
from tests.frontend.recognize.spelled import kinds, recognized

TWICE = """
input %x: f32[4, 8]
constant %one: f32[1]
constant %same: f32[1]
%a: f32[4, 8] = aten.div.Tensor(self=%x, other=%one)
%b: f32[4, 8] = aten.div.Tensor(self=%x, other=%same)
%y: f32[4, 8] = aten.sub.Tensor(self=%a, other=%b)
return %y
"""


def test_what_is_computed_twice_is_computed_once() -> None:
    _, program = recognized(TWICE, {"one": 3.0, "same": 3.0})
    assert kinds(program) == ["div", "sub"]
    assert program.main.inputs == ("x", "one")


@pytest.mark.parametrize(
    ("old", "new", "numbers"),
    [
        ("", "", {"one": 3.0, "same": 4.0}),
        ("return %y", "return %y, %a, %b", {"one": 3.0, "same": 3.0}),
        ("aten.div.Tensor", "aten.mul.Tensor", {"one": 3.0, "same": 4.0}),
    ],
)
def test_other_numbers_and_results_stay(old: str, new: str, numbers: dict[str, float]) -> None:
    _, program = recognized(TWICE.replace(old, new) if old else TWICE, numbers)
    assert len(program.main.ops) == 3


def test_random_ops_stay() -> None:
    text = "input %x: f32[4]\n"
    for name in "ab":
        text += f"%{name}: f32[4] = aten.bernoulli.p(self=%x, p=0.5)\n"
    text += "%y: f32[4] = aten.add.Tensor(self=%a, other=%b)\nreturn %y\n"
    assert kinds(recognized(text)[1]) == ["bernoulli", "bernoulli", "add"]


def test_what_changes_nothing_goes() -> None:
    text = """
input %x: f32[4]
input %open: bool[4]
constant %yes: bool[]
%a: f32[4] = aten.mul.Tensor(self=%x, other=1.0)
%b: bool[4] = aten.logical_and.default(self=%yes, other=%open)
%y: f32[4] = aten.where.ScalarOther(condition=%b, self=%a, other=0.0)
return %y
"""
    assert kinds(recognized(text, {"yes": 1.0})[1]) == ["where"]
    assert kinds(recognized(text, {"yes": 0.0})[1]) == ["logical_and", "where"]
    wider = text.replace("%a: f32[4] =", "%a: f32[2, 4] =").replace("other=1.0", "other=%two")
    wider = wider.replace("%yes:", "%two: f32[2, 1]\nconstant %yes:").replace(
        "%y: f32[4]", "%y: f32[2, 4]"
    )
    assert "mul" in kinds(recognized(wider, {"yes": 1.0})[1])


ROWS = """
size $b
size $t
input %mask: bool[$b, $t]
%flat: bool[$b * $t, 1] = aten.view.default(self=%mask, size=[$b * $t, 1])
%i: i64[$b] = aten.arange.start_step(start=0, end=$b, dtype=i64)
%i4: i64[$b, 1, 1] = aten.view.default(self=%i, size=[$b, 1, 1])
%j: i64[$t] = aten.arange.start_step(start=0, end=$t, dtype=i64)
%j4: i64[1, 1, $t] = aten.view.default(self=%j, size=[1, 1, $t])
%n: i64[] = aten.full.default(size=[], fill_value=$t, dtype=i64)
%n1: i64[1] = aten.unsqueeze.default(self=%n, dim=0)
%n2: i64[1] = aten.cat.default(tensors=[%n1])
%w: i64[$b, 1, 1] = aten.mul.Tensor(self=%i4, other=%n2)
%at: i64[$b, 1, $t] = aten.add.Tensor(self=%j4, other=%w)
%low: bool[$b, 1, $t] = aten.lt.Scalar(self=%at, other=0)
%end: i64[$b, 1, $t] = aten.add.Tensor(self=%at, other=$b * $t)
%all: i64[$b, 1, $t] = aten.where.self(condition=%low, self=%end, other=%at)
%k: i64[$b * $t] = aten.view.default(self=%all, size=[$b * $t])
%y: bool[$b * $t, 1] = aten.index_select.default(self=%flat, dim=0, index=%k)
return %y
"""


def test_rows_in_their_order_are_the_table() -> None:
    spelled, program = recognized(ROWS)
    assert set(kinds(program)) == {"view"}
    for sizes in ({"b": 3, "t": 4}, {"b": 1, "t": 1}, {"b": 0, "t": 2}):
        mask = torch.arange(sizes["b"] * sizes["t"]).reshape(sizes["b"], sizes["t"]) % 3 == 0
        found = [
            run_serial(at_sizes(each, sizes), {}, {"mask": mask}) for each in (spelled, program)
        ]
        assert torch.equal(found[0]["y"], found[1]["y"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "%j: i64[$t] = aten.arange.start_step(start=0",
            "%j: i64[$t] = aten.arange.start_step(start=1",
        ),
        ("fill_value=$t", "fill_value=$b"),
        ("self=%j4, other=%w)", "self=%j4, other=%w, alpha=2)"),
        ("self=%i4, other=%n2", "self=%i4, other=%i4"),
    ],
)
def test_rows_in_another_order_are_looked_up(old: str, new: str) -> None:
    assert old in ROWS
    assert "index_select" in kinds(recognized(ROWS.replace(old, new))[1])


def test_places_that_may_be_negative_count_from_the_end() -> None:
    text = ROWS.replace(
        "%i: i64[$b] = aten.arange.start_step(start=0, end=$b",
        "%i: i64[$b] = aten.arange.start_step(start=-1, end=$b - 1",
    )
    assert "where" in kinds(recognized(text)[1])
