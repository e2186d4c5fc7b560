"""Chosen bodies become ops with complete layouts."""

from __future__ import annotations

from autopar.completion import Complete, Legalize
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.verify import verify_distribution
from tests.completion.text import lines, program, shown

CLUSTER = Cluster.load("h100")


def legalized(text: str) -> Program:
    pinned = program(text)
    done = Legalize(CLUSTER)(Complete(CLUSTER)(pinned))
    verify_distribution(done, pinned)
    return done


def test_a_bias_is_added_to_a_pending_product_once() -> None:
    done = legalized(
        """
        input     %x: f32[64, 128@tp] ~annotated
        parameter %w: f32[128@tp, 32] ~annotated
        parameter %b: f32[32]
        %h: f32[64, 32] = aten.addmm.default(self=%b, mat1=%x, mat2=%w)
        %y: f32[64, 32] = aten.relu.default(self=%h)
        return %y
        """
    )
    assert shown(done) == lines(
        """
        input %x: f32[64, 128@tp]
        parameter %w: f32[128@tp, 32]
        parameter %b: f32[32]
        %h.mm: f32[64, 32] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 128@tp}
        %h: f32[64, 32] sum@tp = aten.add.Tensor(self=%h.mm, other=%b) {pending sum@tp(0, 1)}
        %y: f32[64, 32] = aten.relu.default(self=%h) {}
        return %y
        """
    )


def test_a_softmax_over_a_split_dimension_reduces_statistics_only() -> None:
    done = legalized(
        """
        input %x: f32[4096@dp, 1024@tp] ~annotated
        %y: f32[4096, 1024] = aten._softmax.default(self=%x, dim=-1, half_to_float=false)
        return %y
        """
    )
    assert [op.kind for op in done.main.ops] == [
        "aten.amax.default",
        "aten.sub.Tensor",
        "aten.exp.default",
        "aten.sum.dim_IntList",
        "aten.div.Tensor",
    ]
    partial = {n: str(v.dist) for n, v in done.main.values.items() if v.dist and v.dist.partial}
    assert partial == {"y.amax": "[4096@dp, 1] max@tp", "y.sum": "[4096@dp, 1] sum@tp"}


def test_a_fused_op_that_is_not_split_along_its_dimension_stays() -> None:
    done = legalized(
        """
        input %x: f32[4096@dp, 1024] ~annotated
        %y: f32[4096, 1024] = aten._softmax.default(self=%x, dim=-1, half_to_float=false)
        return %y
        """
    )
    assert [op.kind for op in done.main.ops] == ["aten._softmax.default"]


def test_new_names_avoid_those_in_use_and_places_are_kept() -> None:
    done = legalized(
        """
        input     %x: f32[64, 128@tp] ~annotated
        parameter %h.mm: f32[128@tp, 32] ~annotated
        parameter %b: f32[32]
        %h: f32[64, 32] = aten.addmm.default(self=%b, mat1=%x, mat2=%h.mm) loc("m.py", 3)
        return %h
        """
    )
    assert [op.results for op in done.main.ops] == [("h.mm_1",), ("h",)]
    assert {str(op.loc) for op in done.main.ops} == {"m.py:3"}


def test_equal_ops_are_expanded_alike() -> None:
    layer = """
        %h{n}: f32[64, 128] = aten.addmm.default(self=%b, mat1=%{x}, mat2=%w)
        %x{n}: f32[64, 128@tp] ~annotated = aten.relu.default(self=%h{n})
    """
    done = legalized(
        """
        input     %x0: f32[64, 128@tp] ~annotated
        parameter %w: f32[128@tp, 128] ~annotated
        parameter %b: f32[128]
        """
        + "".join(layer.format(n=n, x=f"x{n - 1}") for n in (1, 2))
        + "return %x2"
    )
    dists = [op.dist for op in done.main.ops]
    assert len(dists) == 6
    assert dists[:3] == dists[3:]


def test_reductions_of_nothing_are_computed_whole() -> None:
    """There is nothing to split, and no body; the readers must agree on a place nevertheless."""
    done = legalized(
        """
        input %x: f32[0, 128@tp] ~annotated
        %m: f32[0, 1] = aten.mean.dim(self=%x, dim=[1], keepdim=true)
        %y: f32[0, 128] = aten.sub.Tensor(self=%x, other=%m)
        return %y
        """
    )
    assert shown(done) == lines(
        """
        input %x: f32[0, 128@tp]
        %m: f32[0, 1] = aten.mean.dim(self=%x, dim=[1], keepdim=true) {}
        %y: f32[0, 128@tp] = aten.sub.Tensor(self=%x, other=%m) {i1: 128@tp}
        return %y
        """
    )


def test_a_result_is_stored_as_the_body_leaves_it() -> None:
    """A choice of the whole op doesn't know that a range can't be split within a dimension."""
    done = legalized(
        """
        input %x: f32[2, 128@tp] ~annotated
        %r: f32[256] = aten.arange.default(end=256, dtype=f32)
        %v: f32[2, 128] = aten.view.default(self=%r, size=[2, 128])
        %y: f32[2, 128] = aten.add.Tensor(self=%x, other=%v)
        return %y
        """
    )
    assert shown(done) == lines(
        """
        input %x: f32[2, 128@tp]
        %r: f32[256] = aten.arange.start(start=0, end=256, dtype=f32) {}
        %v: f32[2, 128@tp] = aten.view.default(self=%r, size=[2, 128]) {v1: 128@tp}
        %y: f32[2, 128@tp] = aten.add.Tensor(self=%x, other=%v) {i1: 128@tp}
        return %y
        """
    )
