"""Partition of pending sums: where they are added, and reduced once."""

from __future__ import annotations

import pytest

from tests.partition.texts import ops, partition, short


def test_pending_sums_are_added_before_they_are_reduced() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4, 6@tp]
        parameter %a: f32[6@tp, 8]
        parameter %b: f32[6@tp, 8]
        input %r: f32[4, 8] replicated
        %p: f32[4, 8] sum@tp = aten.mm.default(self=%x, mat2=%a) {k: 6@tp}
        %q: f32[4, 8] sum@tp = aten.mm.default(self=%x, mat2=%b) {k: 6@tp}
        %s: f32[4, 8] sum@tp = aten.add.Tensor(self=%p, other=%q) {pending sum@tp(0, 1)}
        %t: f32[4, 8] sum@tp = aten.add.Tensor(self=%s, other=%r) {pending sum@tp(0, 1)}
        %y: f32[4, 8] replicated = aten.relu.default(self=%t) {}
        return %y
        """)
    assert short(program) == [
        "p = aten.mm.default x a",
        "q = aten.mm.default x b",
        "s = aten.add.Tensor p q",
        "r.1 = autopar.to_partial r",
        "t = aten.add.Tensor s r.1",
        "t.1 = comm.all_reduce t",
        "y = aten.relu.default t.1",
    ]
    assert [str(arg) for _, arg in program.main.ops[3].args[1:]] == ["sum", "tp"]


def test_a_pending_sum_is_reduced_once_for_all_layouts_it_is_needed_in() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[400, 600@tp]
        parameter %w: f32[600@tp, 800]
        %p: f32[400, 800] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 600@tp}
        %rows: f32[400@tp, 800] = aten.relu.default(self=%p) {i0: 400@tp}
        %columns: f32[400, 800@tp] = aten.relu.default(self=%p) {i1: 800@tp}
        %all: f32[400, 800] replicated = aten.relu.default(self=%p) {}
        return %rows, %columns, %all
        """)
    assert [line for line in short(program) if "relu" not in line] == [
        "p = aten.mm.default x w",
        "p.1 = comm.all_reduce p",
        "p.2 = aten.slice.Tensor p.1",
        "p.3 = aten.slice.Tensor p.1",
    ]


def test_a_small_pending_sum_for_two_splits_is_reduced_and_cut() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[400, 600@tp]
        parameter %w: f32[600@tp, 800]
        %p: f32[400, 800] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 600@tp}
        %rows: f32[400@tp, 800] = aten.relu.default(self=%p) {i0: 400@tp}
        %columns: f32[400, 800@tp] = aten.relu.default(self=%p) {i1: 800@tp}
        return %rows, %columns
        """)
    assert [op.kind for op in ops(program) if op.kind.startswith("comm.")] == ["comm.all_reduce"]


def test_a_pending_sum_for_two_splits_is_scattered_and_exchanged() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4000, 600@tp]
        parameter %w: f32[600@tp, 8000]
        %p: f32[4000, 8000] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 600@tp}
        %rows: f32[4000@tp, 8000] = aten.relu.default(self=%p) {i0: 4000@tp}
        %columns: f32[4000, 8000@tp] = aten.relu.default(self=%p) {i1: 8000@tp}
        return %rows, %columns
        """)
    assert [op.kind for op in ops(program) if op.kind.startswith("comm.")] == [
        "comm.reduce_scatter",
        "comm.all_to_all",
    ]


def test_sums_of_splits_over_different_axes_meet() -> None:
    # Paddle: add of S0(x) and S0(y) is not implemented.
    program = partition("""
        mesh x=2, y=2
        input %a: f32[8@x, 4]
        input %b: f32[8@y, 4]
        %c: f32[8@x, 4] = aten.add.Tensor(self=%a, other=%b) {i0: 8@x}
        return %c
        """)
    assert short(program)[-1].startswith("c = aten.add.Tensor a b.")


@pytest.mark.parametrize(("size", "plan"), [(5, (("identity", "sum"),)), (7, ()), (8, ())])
def test_a_rank_without_a_part_of_a_sum_adds_the_identity(
    size: int, plan: tuple[tuple[str, str], ...]
) -> None:
    program = partition(f"""
        mesh tp=4
        input %x: f32[3, {size}@tp]
        %y: f32[3] sum@tp = aten.sum.dim_IntList(self=%x, dim=[1]) {{i1: {size}@tp}} plan(save="x")
        %z: f32[3] replicated = aten.relu.default(self=%y) {{}}
        return %z
        """)
    assert ops(program)[0].plan == (("save", "x"), *plan)
