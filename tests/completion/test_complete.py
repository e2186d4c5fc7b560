"""Completion of small programs: text in, text out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.annotate import parse_mesh
from autopar.base.errors import AnnotationError
from autopar.completion import Complete
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.verify import verify_distribution
from tests.completion.networks import mlp
from tests.completion.text import lines, program, shown

GPUS = Complete(Cluster.load("h100"))


def completed(pinned: Program) -> Program:
    done = GPUS(pinned)
    verify_distribution(done, pinned)
    return done


def check(before: str, after: str, mesh: str = "dp=2, tp=4") -> None:
    assert shown(completed(program(before, mesh))) == lines(after)


def test_one_pin_makes_a_column_and_a_row_split_layer() -> None:
    check(
        """
        input     %x: f32[64, 1024]
        parameter %w1: f32[1024, 4096@tp] ~annotated
        parameter %w2: f32[4096, 1024]
        %h: f32[64, 4096] = aten.mm.default(self=%x, mat2=%w1)
        %a: f32[64, 4096] = aten.relu.default(self=%h)
        %y: f32[64, 1024] = aten.mm.default(self=%a, mat2=%w2)
        return %y
        """,
        """
        input     %x: f32[64, 1024]
        parameter %w1: f32[1024, 4096@tp]
        parameter %w2: f32[4096@tp, 1024]
        %h: f32[64, 4096@tp] = aten.mm.default(self=%x, mat2=%w1) {n: 4096@tp}
        %a: f32[64, 4096@tp] = aten.relu.default(self=%h) {i1: 4096@tp}
        %y: f32[64, 1024] = aten.mm.default(self=%a, mat2=%w2) {k: 4096@tp}
        return %y
        """,
    )


def test_a_pinned_output_spreads_backward() -> None:
    check(
        """
        input     %x: f32[64, 1024]
        parameter %w: f32[1024, 512]
        %h: f32[64, 512] = aten.mm.default(self=%x, mat2=%w)
        %y: f32[64@dp, 512@tp] ~annotated = aten.relu.default(self=%h)
        return %y
        """,
        """
        input     %x: f32[64@dp, 1024]
        parameter %w: f32[1024, 512@tp]
        %h: f32[64@dp, 512@tp] = aten.mm.default(self=%x, mat2=%w) {m: 64@dp, n: 512@tp}
        %y: f32[64@dp, 512@tp] = aten.relu.default(self=%h) {i0: 64@dp, i1: 512@tp}
        return %y
        """,
    )


def test_two_partial_sums_are_added_before_one_reduction() -> None:
    check(
        """
        input     %x: f32[64, 128@tp] ~annotated
        parameter %v: f32[128, 32]
        parameter %w: f32[128, 32]
        %a: f32[64, 32] = aten.mm.default(self=%x, mat2=%v)
        %b: f32[64, 32] = aten.mm.default(self=%x, mat2=%w)
        %c: f32[64, 32] = aten.add.Tensor(self=%a, other=%b)
        %y: f32[64, 32] = aten.relu.default(self=%c)
        return %y
        """,
        """
        input     %x: f32[64, 128@tp]
        parameter %v: f32[128@tp, 32]
        parameter %w: f32[128@tp, 32]
        %a: f32[64, 32] sum@tp = aten.mm.default(self=%x, mat2=%v) {k: 128@tp}
        %b: f32[64, 32] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 128@tp}
        %c: f32[64, 32] sum@tp = aten.add.Tensor(self=%a, other=%b) {pending sum@tp(0, 1)}
        %y: f32[64, 32] = aten.relu.default(self=%c) {}
        return %y
        """,
    )


def test_a_value_that_must_be_reduced_anyway_is_reduced_once() -> None:
    check(
        """
        input     %x: f32[64, 128@tp] ~annotated
        parameter %w: f32[128@tp, 32] ~annotated
        %a: f32[64, 32] = aten.mm.default(self=%x, mat2=%w)
        %b: f32[64, 32] = aten.relu.default(self=%a)
        %c: f32[64, 32] = aten.mul.Scalar(self=%a, other=2)
        %d: f32[64, 32] = aten.neg.default(self=%a)
        return %b, %c, %d
        """,
        """
        input     %x: f32[64, 128@tp]
        parameter %w: f32[128@tp, 32]
        %a: f32[64, 32] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 128@tp}
        %b: f32[64, 32] = aten.relu.default(self=%a) {}
        %c: f32[64, 32] = aten.mul.Scalar(self=%a, other=2) {}
        %d: f32[64, 32] = aten.neg.default(self=%a) {}
        return %b, %c, %d
        """,
    )


def test_a_reduction_waits_until_the_value_is_small() -> None:
    check(
        """
        input     %x: f32[64, 128@tp] ~annotated
        parameter %w: f32[128@tp, 512] ~annotated
        %a: f32[64, 512] = aten.mm.default(self=%x, mat2=%w)
        %b: f32[64] = aten.sum.dim_IntList(self=%a, dim=[1])
        return %b
        """,
        """
        input     %x: f32[64, 128@tp]
        parameter %w: f32[128@tp, 512]
        %a: f32[64, 512] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 128@tp}
        %b: f32[64] = aten.sum.dim_IntList(self=%a, dim=[1]) {pending sum@tp(0)}
        return %b
        """,
    )


def test_a_reduction_does_not_wait_until_the_value_is_large() -> None:
    check(
        """
        input     %x: f32[64, 128@tp] ~annotated
        parameter %w: f32[128@tp, 1] ~annotated
        %a: f32[64, 1] = aten.mm.default(self=%x, mat2=%w)
        %b: f32[64, 512] = aten.expand.default(self=%a, size=[64, 512])
        return %b
        """,
        """
        input     %x: f32[64, 128@tp]
        parameter %w: f32[128@tp, 1]
        %a: f32[64, 1] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 128@tp}
        %b: f32[64, 512] = aten.expand.default(self=%a, size=[64, 512]) {}
        return %b
        """,
    )


def test_heads_are_split_through_views() -> None:
    check(
        """
        input     %x: f32[2, 16, 384@tp] ~annotated
        %h: f32[2, 16, 12, 32] = aten.view.default(self=%x, size=[2, 16, 12, 32])
        %t: f32[2, 12, 16, 32] = aten.permute.default(self=%h, dims=[0, 2, 1, 3])
        %y: f32[24, 16, 32] = aten.view.default(self=%t, size=[24, 16, 32])
        return %y
        """,
        """
        input     %x: f32[2, 16, 384@tp]
        %h: f32[2, 16, 12@tp, 32] = aten.view.default(self=%x, size=[2, 16, 12, 32]) {v2: 12@tp}
        %t: f32[2, 12@tp, 16, 32] = aten.permute.default(self=%h, dims=[0, 2, 1, 3]) {i2: 12@tp}
        %y: f32[(2)(12@tp), 16, 32] = aten.view.default(self=%t, size=[24, 16, 32]) {v1: 12@tp}
        return %y
        """,
    )


@pytest.mark.parametrize(
    ("rows", "columns", "expected"), [(65536, 64, "m: 65536@tp"), (8, 65536, "k: 1024@tp")]
)
def test_competing_pins_are_decided_by_cost(rows: int, columns: int, expected: str) -> None:
    """A small weight is gathered; a small activation moves to where a large weight lies."""
    done = completed(
        program(
            f"""
            input     %x: f32[{rows}@tp, 1024] ~annotated
            parameter %w: f32[1024@tp, {columns}] ~annotated
            %y: f32[{rows}, {columns}] = aten.mm.default(self=%x, mat2=%w)
            return %y
            """
        )
    )
    assert f"{{{expected}}}" in shown(done)


@pytest.mark.parametrize("strategy", ["data:dp", "auto"])
def test_how_an_op_is_pinned_outlasts_what_a_preset_settles(strategy: str) -> None:
    """What data parallelism settles is split along the axis of the batch only."""
    pinned = """
    input %x: f32[64, 128]
    %h: f32[64, 128] = aten.relu.default(self=%x) {i0: 64@dp, i1: 128@tp} ~annotated
    %y: f32[64, 128] = aten.tanh.default(self=%h)
    return %y
    """
    done = replace(GPUS, strategy=strategy)(program(pinned))
    assert "aten.relu.default(self=%x) {i0: 64@dp, i1: 128@tp}" in shown(done)


def test_pins_of_one_axis_leave_the_others_alone() -> None:
    check(
        """
        input     %x: f32[64@dp, 128] ~annotated
        parameter %w: f32[128, 256@tp] ~annotated
        %h: f32[64, 256] = aten.mm.default(self=%x, mat2=%w)
        %a: f32[64@dp, 256] ~annotated = aten.tanh.default(self=%h)
        %y: f32[64, 256] = aten.relu.default(self=%a)
        return %y
        """,
        """
        input     %x: f32[64@dp, 128]
        parameter %w: f32[128, 256@tp]
        %h: f32[64@dp, 256@tp] = aten.mm.default(self=%x, mat2=%w) {m: 64@dp, n: 256@tp}
        %a: f32[64@dp, 256] = aten.tanh.default(self=%h) {i0: 64@dp, i1: 256@tp}
        %y: f32[64@dp, 256] = aten.relu.default(self=%a) {i0: 64@dp}
        return %y
        """,
    )


def test_several_axes_keep_the_order_of_the_pin() -> None:
    check(
        """
        input %x: f32[64@(tp,dp), 128] ~annotated
        %y: f32[64, 128] = aten.relu.default(self=%x)
        return %y
        """,
        """
        input %x: f32[64@(tp,dp), 128]
        %y: f32[64@(tp,dp), 128] = aten.relu.default(self=%x) {i0: 64@(tp,dp)}
        return %y
        """,
    )


def test_an_input_that_readers_want_differently_is_stored_as_they_agree() -> None:
    check(
        """
        input     %a: f32[64@dp, 8, 32@tp] ~annotated
        input     %b: f32[64@dp, 8@tp, 32] ~annotated
        input     %c: f32[64, 8, 32]
        %x: f32[64, 8, 32] = aten.mul.Tensor(self=%a, other=%c)
        %y: f32[64, 8, 32] = aten.mul.Tensor(self=%b, other=%c)
        return %x, %y
        """,
        """
        input     %a: f32[64@dp, 8, 32@tp]
        input     %b: f32[64@dp, 8@tp, 32]
        input     %c: f32[64@dp, 8, 32]
        %x: f32[64@dp, 8, 32@tp] = aten.mul.Tensor(self=%a, other=%c) {i0: 64@dp, i2: 32@tp}
        %y: f32[64@dp, 8@tp, 32] = aten.mul.Tensor(self=%b, other=%c) {i0: 64@dp, i1: 8@tp}
        return %x, %y
        """,
    )


def test_an_op_without_a_rule_is_replicated() -> None:
    done = completed(
        program(
            """
            input %x: f32[64@dp, 128] ~annotated
            %h: f32[64, 128] = custom.mystery.default(self=%x)
            %y: f32[64, 128] = aten.relu.default(self=%h)
            return %y
            """
        )
    )
    op = done.main.ops[0]
    assert op.origin is not None
    assert (op.origin.kind, op.origin.detail) == ("fallback", "custom.mystery.default has no rule")
    assert str(done.main.values["h"].dist) == "[64, 128]"


def test_origins_say_from_what_a_layout_follows() -> None:
    done = completed(
        program(
            """
            input     %x: f32[64@dp, 128] ~annotated("--shard 'x=[dp,-1]'")
            parameter %w: f32[128, 256]
            parameter %b: f32[256]
            %h: f32[64, 256] = aten.mm.default(self=%x, mat2=%w) loc("m.py", 7)
            %y: f32[64, 256] = aten.add.Tensor(self=%h, other=%b) loc("m.py", 8)
            return %y
            """
        )
    )
    origins = {name: str(value.origin) for name, value in done.main.values.items()}
    assert origins == {
        "x": "annotated: --shard 'x=[dp,-1]'",
        "w": "default: no reader wants it split",
        "b": "default: no reader wants it split",
        "h": "implied: by aten.mm.default at m.py:7",
        "y": "implied: by aten.add.Tensor at m.py:8",
    }
    assert [str(op.origin) for op in done.main.ops] == ["implied: by %x", "implied: by %h"]


def update(weight: str, new: str) -> Program:
    """A weight and its new content, which shares the storage."""
    return program(
        f"""
        input     %g: f32[64@dp, 32] ~annotated
        parameter %w: {weight}
        %v: {new} = aten.sub.Tensor(self=%w, other=%g)
        alias %v -> %w
        return %v
        """
    )


@pytest.mark.parametrize(
    ("weight", "new", "layout"),
    [
        ("f32[64, 32]", "f32[64, 32]", "[64@dp, 32]"),
        ("f32[64, 32@tp] ~annotated", "f32[64, 32]", "[64, 32@tp]"),
        ("f32[64, 32]", "f32[64, 32@tp] ~annotated", "[64, 32@tp]"),
    ],
)
def test_a_value_and_its_update_lie_alike(weight: str, new: str, layout: str) -> None:
    done = completed(update(weight, new)).main
    assert str(done.values["w"].dist) == str(done.values["v"].dist) == layout


def test_different_pins_of_a_value_and_its_update_are_an_error() -> None:
    pins = ('f32[64@dp, 32] ~annotated("one place")', 'f32[64, 32@tp] ~annotated("another")')
    with pytest.raises(AnnotationError, match=r"another.*one place"):
        GPUS(update(*pins))


def test_functions_besides_main_are_computed_by_every_process() -> None:
    main = program(
        'input %x: f32[8, 16]\n%y: f32[8, 16] = call(callee="f", operands=[%x])\nreturn %y'
    )
    other = program("input %a: f32[8, 16]\n%b: f32[8, 16] = aten.relu.default(self=%a)\nreturn %b")
    inner = replace(other.main, name="f")
    done = completed(replace(main, functions={**main.functions, "f": inner}))
    assert [str(value.dist) for value in done.functions["f"].values.values()] == ["[8, 16]"] * 2
    assert {op.origin.kind for op in done.functions["f"].ops if op.origin} == {"fallback"}


def test_a_program_needs_a_mesh() -> None:
    with pytest.raises(AnnotationError, match="has no mesh"):
        GPUS(mlp())


def test_a_pin_must_fit_the_mesh_and_the_value() -> None:
    other = program("input %x: f32[64@dp, 8] ~annotated\nreturn %x", "dp=2")
    with pytest.raises(AnnotationError, match="the program is on"):
        GPUS(replace(other, mesh=parse_mesh("dp=4")))


def test_a_chain_is_gathered_where_it_is_narrow() -> None:
    """8-bit weights are gathered before they are widened to 32 bits."""
    check(
        """
        input     %x: f32[65536@tp, 1024] ~annotated
        parameter %q: i8[1024@tp, 64] ~annotated
        parameter %s: f32[1, 64]
        %f: f32[1024, 64] = aten._to_copy.default(self=%q, dtype=f32)
        %w: f32[1024, 64] = aten.mul.Tensor(self=%f, other=%s)
        %y: f32[65536, 64] = aten.mm.default(self=%x, mat2=%w)
        return %y
        """,
        """
        input     %x: f32[65536@tp, 1024]
        parameter %q: i8[1024@tp, 64]
        parameter %s: f32[1, 64]
        %f: f32[1024, 64] = aten._to_copy.default(self=%q, dtype=f32) {}
        %w: f32[1024, 64] = aten.mul.Tensor(self=%f, other=%s) {}
        %y: f32[65536@tp, 64] = aten.mm.default(self=%x, mat2=%w) {m: 65536@tp}
        return %y
        """,
    )
