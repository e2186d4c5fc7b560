"""The distribution verifier: what it accepts, and one program per thing that it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from autopar.base.errors import VerificationError
from autopar.ir.ops import rule_of as real_rule_of
from autopar.ir.program import Op, Program, Value
from autopar.ir.rules.rule import SAME, Body, Linear, OpCall, Rule, TensorType, make_rule
from autopar.ir.text import parse_program
from autopar.ir.verify import distribution as module
from autopar.ir.verify import verify_distribution
from tests.ir import programs

COMPLETED = parse_program(programs.COMPLETED)


def problems_of(program: Program | str, pinned: Program | None = None) -> tuple[str, ...]:
    """What the verifier finds in a program."""
    if isinstance(program, str):
        program = parse_program(program)
    try:
        verify_distribution(program, pinned)
    except VerificationError as error:
        return error.problems
    return ()


def test_a_completed_program_passes() -> None:
    assert problems_of(COMPLETED) == ()
    assert problems_of(COMPLETED, pinned=COMPLETED) == ()


def changed(old: str, new: str) -> tuple[str, ...]:
    """What is found in the completed program with a part of it changed."""
    assert old in programs.COMPLETED
    return problems_of(programs.COMPLETED.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '%x: f32[8@dp, 16] ~annotated("--shard x=[dp]")',
            "%x: f32[8, 16] ~default",
            "%x: layout: expected one for every value, got none",
        ),
        (
            '~annotated("--shard x=[dp]")',
            "",
            "%x: origin: expected one of annotated, inherited, preset, implied, chosen, default,"
            " fallback",
        ),
        ("%x: f32[8@dp, 16] ~annotated", "%x: f32[8@dp, 16] ~guessed", "got guessed: --shard"),
        (
            "{i0: 8@dp, i1: 12@tp} ~implied",
            "~implied",
            "distribution: expected a choice for every op, got none",
        ),
        (
            '{i0: 8@dp, i1: 12@tp} ~implied loc(mlp, "act")',
            '{i0: 8@dp, i1: 12@tp} loc(mlp, "act")',
            "preset, implied, chosen, default, fallback, got None\n      %r: f32[8@dp, 12@tp]",
        ),
        (
            "{m: 8@dp, n: 12@tp}",
            "{m: 8@dp, q: 12@tp}",
            "factor: expected one of m, k, n, got 'q'",
        ),
        (
            "{m: 8@dp, n: 12@tp}",
            "{m: 9@dp, n: 12@tp}",
            "factor m: expected sub-dimensions that multiply to 8, got 9",
        ),
        (
            "{m: 8@dp, n: 12@tp}",
            "{m: 8@dp, n: 12@dp}",
            "mesh axis dp: expected one use in a choice, got 2",
        ),
        (
            "{m: 8@dp, n: 12@tp}",
            "{m: 8@dp, n: 12@tp, m: 8@dp}",
            "factor m: expected one layout, got 2",
        ),
        (
            "{m: 8@dp, n: 12@tp}",
            "{m: 8@dp, n: 12@tp; on mesh[tp=1]}",
            "mesh axis: expected one of dp; did you mean dp?, got 'tp'",
        ),
        (
            "{m: 8@dp, n: 12@tp}",
            "{m: 8@dp, n: 12@tp; body fast}",
            "body: expected none, got 'fast'",
        ),
        (
            "%h: f32[8@dp, 12@tp]",
            "%h: f32[8@dp, 12]",
            "layout of %h: expected what the op leaves, [8@dp, 12@tp], got [8@dp, 12]",
        ),
        (
            "%p: f32[8@dp, 16] sum@tp",
            "%p: f32[8@dp, 16]",
            "layout of %p: expected what the op leaves, [8@dp, 16] sum@tp, got [8@dp, 16]",
        ),
        (
            "{i0: 8@dp} ~implied",
            "{i0: 8@dp; pending sum@tp(0)} ~implied",
            "pending sum@tp: expected operands in which the op is linear ([0] under max/min), got"
            " %p at [0] together",
        ),
        (
            "{m: 8@dp, k: 12@tp} ~implied",
            "{m: 8@dp; pending sum@tp(0, 1)} ~implied",
            "pending sum@tp: expected operands in which the op is linear ([0] under sum, [1] under"
            " sum), got %r, %v at [0, 1] together",
        ),
        (
            "{m: 8@dp, k: 12@tp} ~implied",
            "{m: 8@dp; pending max@tp(0)} ~implied",
            "pending max@tp: expected operands in which the op is linear",
        ),
        (
            "{m: 8@dp, k: 12@tp} ~implied",
            '{m: 8@dp; pending "total"@tp(7)} ~implied',
            "pending total@tp: expected one of sum, max, min, prod, any, all; did you mean all?",
        ),
        (
            "{m: 8@dp, k: 12@tp} ~implied",
            "{k: 12@tp; pending max@dp(0)} ~implied",
            "pending max@dp: expected operands in which the op is linear",
        ),
        (
            "%y: f32[8@dp, 16] = aten.relu.default(self=%p) {i0: 8@dp}",
            "%y: f32[8@dp, 16] = some.op(self=%p) {i0: 8@dp}",
            "choice: expected to compute all of an op without a rule everywhere, got a split",
        ),
        (
            "%y: f32[8@dp, 16] = aten.relu.default(self=%p) {i0: 8@dp}",
            "%y: f32[8, 16] = some.op(self=%p) {}",
            "origin: expected fallback, for an op without a rule, got implied",
        ),
        (
            "%y: f32[8@dp, 16] = aten.relu.default(self=%p) {i0: 8@dp} ~implied",
            "%y: f32[8@dp, 16] = some.op(self=%p) {} ~fallback",
            "layout of %y: expected what the op leaves, [8, 16], got [8@dp, 16]",
        ),
        ("return %y as", "return %p, %y as", "%p: layout: expected an input or output of main wi"),
        (
            "%v: f32[12@tp, 16]",
            "%v: f32[12@tp, 16] sum@dp",
            "%v: layout: expected an input or output of main without pending reductions",
        ),
        (
            "%p: f32[8@dp, 16] sum@tp",
            "%p: f32[8, 16] sum@tp max@dp",
            "%p: layout: expected pending reductions of one kind, since others don't commute",
        ),
    ],
)
def test_what_is_found(old: str, new: str, message: str) -> None:
    found = changed(old, new)
    assert any(message in problem for problem in found), found


def test_problems_show_the_op_with_its_place() -> None:
    (problem,) = changed("%h: f32[8@dp, 12@tp]", "%h: f32[(8@dp)(1), 12@dp]")[:1]
    assert "got mesh axis 'dp' is used more than once" in problem
    (problem,) = changed("%r: f32[8@dp, 12@tp]", "%r: f32[8, 12@tp]")
    assert problem == (
        "in main: layout of %r: expected what the op leaves, [8@dp, 12@tp], got [8, 12@tp]\n"
        "      %r: f32[8, 12@tp] = aten.relu.default(self=%h) {i0: 8@dp, i1: 12@tp}"
        ' loc("mlp.onnx", "act")'
    )


def test_pinned_results_may_differ_from_what_the_op_leaves() -> None:
    pin = '%h: f32[8@dp, 12] ~annotated("--shard h=[dp]")'
    assert changed("%h: f32[8@dp, 12@tp]", pin) == ()
    pin = '%h: f32[8@dp, 12] ~preset("data")'
    assert changed("%h: f32[8@dp, 12@tp]", pin) == ()


def test_a_pending_result_that_is_an_output_is_stored_reduced() -> None:
    old = "%y: f32[8@dp, 16] = aten.relu.default(self=%p) {i0: 8@dp} ~implied"
    new = "%y: f32[8@dp, 16] = aten.mm.default(self=%r, mat2=%v) {m: 8@dp, k: 12@tp} ~implied"
    assert changed(old, new) == ()


def test_linear_ops_pass_what_is_pending_on() -> None:
    text = """
        mesh tp=4
        input %x: f32[8, 12@tp] ~annotated
        input %w: f32[12@tp, 6] ~implied
        input %u: f32[6, 5] replicated ~default
        %p: f32[8, 6] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 12@tp} ~implied
        %q: f32[8, 5] sum@tp = aten.mm.default(self=%p, mat2=%u) {pending sum@tp(0)} ~implied
        return
        """
    assert problems_of(text) == ()


def test_a_program_that_was_not_annotated() -> None:
    (problem,) = problems_of("input %x: f32[8] return")
    assert "the program: expected a serial program with a mesh, got level serial" in problem


def test_structural_problems_come_first() -> None:
    (problem,) = problems_of("mesh tp=2 value %x: f32[8] replicated return")
    assert "%x: expected an input or the result of an op, got neither" in problem


def test_functions_that_were_completed_are_checked() -> None:
    text = """
        mesh tp=2
        func main { return }
        func done { input %x: f32[8] %y: f32[8] = some.op(a=%x) {} ~fallback return }
        func untouched { input %x: f32[8] %y: f32[8] = some.op(a=%x) return }
        """
    assert all("in done: " in problem for problem in problems_of(text))
    assert len(problems_of(text)) == 2


def test_pins_of_the_user_are_unchanged() -> None:
    moved = programs.COMPLETED.replace("%x: f32[8@dp, 16]", "%x: f32[8, 16@tp]")
    (problem,) = problems_of(moved, pinned=COMPLETED)
    assert "%x: layout: expected the layout that the user pinned, [8@dp, 16], got [8" in problem
    lost = parse_program("mesh tp=2 return")
    problems = problems_of(lost, pinned=COMPLETED)
    assert problems == ("in main: %x: expected the pinned value, got none",)


def test_layouts_that_are_written_differently_are_the_same_pin() -> None:
    other = programs.COMPLETED.replace("%x: f32[8@dp, 16]", "%x: f32[(2@dp)(4), 16]")
    assert problems_of(other, pinned=COMPLETED) == ()


# Rules that exist for these tests only, for what few real ones have.


def _rule(call: OpCall, text: str = "a b -> b", **options: object) -> Rule:
    return make_rule(text, call, reduce={"a": "sum"}, **options)  # type: ignore[arg-type]


def _with_body(call: OpCall) -> Rule:
    split = Body("split", _rule(call), lambda op, values, fresh: ((), ()))
    return _rule(call, whole=("a",), bodies=(split,))


def _odd_reduction(call: OpCall) -> Rule:
    return replace(_rule(call), reduce={("a", 0): "total"})


RULES: Mapping[str, Callable[[OpCall], Rule]] = {
    "test.whole": lambda call: _rule(call, whole=("a",)),
    "test.indexed": lambda call: _rule(call, indexed={"a": "test.shard"}),
    "test.body": _with_body,
    "test.odd": _odd_reduction,
    "test.same": lambda call: replace(_rule(call), reduce={("a", 0): SAME}),
    "test.max": lambda call: make_rule(
        "a b -> b", call, reduce={"a": "max"}, linear=(Linear(frozenset((0,))),)
    ),
}


@pytest.fixture
def _test_rules(monkeypatch: pytest.MonkeyPatch) -> None:

    def rule_of(op: Op, values: Mapping[str, Value]) -> Rule | None:
        if op.kind not in RULES:
            return real_rule_of(op, values)
        operands, results = (
            tuple(TensorType(values[name].global_shape, values[name].dtype) for name in names)
            for names in (op.operands, op.results)
        )
        return RULES[op.kind](OpCall(op.kind, dict(op.args), operands, results))

    monkeypatch.setattr(module, "rule_of", rule_of)


@pytest.mark.usefixtures("_test_rules")
@pytest.mark.parametrize(
    ("result", "op", "message"),
    [
        ("f32[6] sum@tp", "test.whole(x=%x) {a: 8@tp}", "factor a: expected it whole, as the rul"),
        ("f32[6] replicated", "test.whole(x=%x) {a: 8}", ""),
        (
            "f32[6] sum@tp",
            "test.indexed(x=%x) {a: (2@tp)(4)}",
            "factor a: expected one block, since it is addressed by index, got 2",
        ),
        ("f32[6] sum@tp", "test.indexed(x=%x) {a: 8@tp}", ""),
        ("f32[6] sum@tp", "test.body(x=%x) {a: 8@tp}", "factor a: expected it whole, as the rule"),
        ("f32[6] sum@tp", "test.body(x=%x) {a: 8@tp; body split}", ""),
        (
            "f32[6] sum@tp",
            "test.body(x=%x) {a: 8@tp; body spilt}",
            "body: expected one of split; did you mean split?, got 'spilt'",
        ),
        (
            "f32[6] sum@tp",
            "test.odd(x=%x) {a: 8@tp}",
            "factor a: expected a rule that names the reduction of result 0, got total",
        ),
        ("f32[6] replicated", "test.same(x=%x) {a: 8@tp}", ""),
        (
            "f32[6] max@tp",
            "test.max(x=%x) {a: 8@tp; pending sum@dp(0)}",
            "layout around the op of %y: expected pending reductions of one kind",
        ),
    ],
)
def test_other_rules(result: str, op: str, message: str) -> None:
    found = problems_of(
        f"""
        mesh dp=2, tp=2
        input %x: f32[8, 6] replicated ~default
        %y: {result} = {op} ~chosen
        %z: f32[6] = aten.relu.default(self=%y) {{}} ~default
        return %z
        """
    )
    assert (found == ()) if not message else message in found[0]
