"""Partition, as text before and after."""

from __future__ import annotations

import textwrap

import pytest

from autopar.cost import Cluster
from autopar.ir.errors import VerificationError
from autopar.ir.program import Op, Program
from autopar.ir.text import parse_program, print_program
from autopar.ir.verify import verify_structure
from autopar.partition import Partition

PARTITION = Partition(Cluster.load("h100"))


def partition(text: str) -> Program:
    program = PARTITION(parse_program(text))
    verify_structure(program)
    return program


def check(before: str, after: str) -> None:
    """Fails unless partition turns one text into the other, line breaks aside."""
    program = partition(before)
    expected = parse_program('program "" partitioned\n' + textwrap.dedent(after))
    assert program == expected, print_program(program)


def ops(program: Program, function: str = "main") -> list[Op]:
    return list(program.functions[function].ops)


def short(program: Program, function: str = "main") -> list[str]:
    """Each op as `result = kind operands`."""
    return [
        f"{', '.join(op.results)} = {op.kind} {' '.join(op.operands)}"
        for op in ops(program, function)
    ]


def test_megatron_mlp() -> None:
    check(
        """
        mesh dp=2, tp=4
        input %x: f32[8@dp, 16]
        parameter %up: f32[16, 32@tp]
        parameter %down: f32[32@tp, 16]
        %h: f32[8@dp, 32@tp] = aten.mm.default(self=%x, mat2=%up) {m: 8@dp, n: 32@tp}
        %r: f32[8@dp, 32@tp] = aten.relu.default(self=%h) {i0: 8@dp, i1: 32@tp}
        %p: f32[8@dp, 16] sum@tp = aten.mm.default(self=%r, mat2=%down) {m: 8@dp, k: 32@tp}
        %y: f32[8@dp, 16] = aten.relu.default(self=%p) {i0: 8@dp} loc("model.py", 7)
        return %y
        """,
        """
        mesh dp=2, tp=4
        func main {
          input %x: f32[4, 16] of [8@dp, 16]
          parameter %up: f32[16, 8] of [16, 32@tp]
          parameter %down: f32[8, 16] of [32@tp, 16]
          %h: f32[4, 8] of [8@dp, 32@tp] = aten.mm.default(self=%x, mat2=%up)
            {m: 8@dp, n: 32@tp}
          %r: f32[4, 8] of [8@dp, 32@tp] = aten.relu.default(self=%h) {i0: 8@dp, i1: 32@tp}
          %p: f32[4, 16] of [8@dp, 16] sum@tp = aten.mm.default(self=%r, mat2=%down)
            {m: 8@dp, k: 32@tp}
          %p.1: f32[4, 16] of [8@dp, 16] =
            comm.all_reduce(self=%p, monoid="sum", axes=["tp"]) {}
            ~implied("reshard of %p from [8@dp, 16] sum@tp to [8@dp, 16]") loc("model.py", 7)
          %y: f32[4, 16] of [8@dp, 16] = aten.relu.default(self=%p.1) {i0: 8@dp}
            loc("model.py", 7)
          return %y
        }
        """,
    )


def test_uneven_blocks_become_rank_expressions() -> None:
    check(
        """
        mesh tp=4
        input %x: f32[6, 10@tp]
        parameter %w: f32[10@tp, 5]
        %y: f32[6, 5] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 10@tp}
        %z: f32[6@tp, 5] = aten.relu.default(self=%y) {i0: 6@tp}
        return %z
        """,
        """
        mesh tp=4
        func main {
          input %x: f32[6, max(0, min(3, tp * -3 + 10))] of [6, 10@tp]
          parameter %w: f32[max(0, min(3, tp * -3 + 10)), 5] of [10@tp, 5]
          %y: f32[6, 5] sum@tp = aten.mm.default(self=%x, mat2=%w) {k: 10@tp}
          %y.1: f32[max(0, min(2, tp * -2 + 6)), 5] of [6@tp, 5] =
            comm.reduce_scatter(self=%y, dim=0, monoid="sum", axes=["tp"]) {}
            ~implied("reshard of %y from [6, 5] sum@tp to [6@tp, 5]")
          %z: f32[max(0, min(2, tp * -2 + 6)), 5] of [6@tp, 5] =
            aten.relu.default(self=%y.1) {i0: 6@tp}
          return %z
        }
        """,
    )


def test_a_split_table_is_looked_up_with_an_offset() -> None:
    check(
        """
        mesh tp=2
        input %ids: i64[4] replicated
        parameter %table: f32[6@tp, 8]
        %e: f32[4, 8] sum@tp = aten.embedding.default(weight=%table, indices=%ids) {v: 6@tp}
        %y: f32[4, 8@tp] = aten.relu.default(self=%e) {i1: 8@tp}
        return %y
        """,
        """
        mesh tp=2
        func main {
          input %ids: i64[4] replicated
          parameter %table: f32[3, 8] of [6@tp, 8]
          %e: f32[4, 8] sum@tp =
            autopar.embedding(weight=%table, indices=%ids, offset=tp * 3) {v: 6@tp}
          %e.1: f32[4, 4] of [4, 8@tp] =
            comm.reduce_scatter(self=%e, dim=1, monoid="sum", axes=["tp"]) {}
            ~implied("reshard of %e from [4, 8] sum@tp to [4, 8@tp]")
          %y: f32[4, 4] of [4, 8@tp] = aten.relu.default(self=%e.1) {i1: 8@tp}
          return %y
        }
        """,
    )


def test_heads_that_do_not_divide() -> None:
    program = partition("""
        mesh tp=5
        input %x: f32[2, 384] replicated
        parameter %w: f32[384, (12@tp)(32)]
        %q: f32[2, (12@tp)(32)] = aten.mm.default(self=%x, mat2=%w) {n: (12@tp)(32)}
        %h: f32[2, 12@tp, 32] = aten.view.default(self=%q, size=[2, 12, 32]) {v1: 12@tp}
        return %h
        """)
    assert short(program) == ["q = aten.mm.default x w", "h = aten.view.default q"]
    assert str(program.main.ops[1].arg("size")) == str(program.main.values["h"].shape)


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


def test_one_reshard_serves_all_who_need_it() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4@tp, 8]
        %a: f32[4, 8] replicated = aten.relu.default(self=%x) {}
        %b: f32[4, 8] replicated = aten.tanh.default(self=%x) {}
        %c: f32[4, 8] replicated = aten.add.Tensor(self=%x, other=%x) {}
        return %a, %b, %c
        """)
    assert short(program) == [
        "x.1 = comm.all_gather x",
        "a = aten.relu.default x.1",
        "b = aten.tanh.default x.1",
        "c = aten.add.Tensor x.1 x.1",
    ]


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


def test_a_pinned_result_keeps_its_name_and_is_made_only_if_read() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4, 6@tp]
        parameter %w: f32[6@tp, 8]
        %p: f32[4, 8] replicated ~annotated = aten.mm.default(self=%x, mat2=%w) {k: 6@tp} ~chosen
        %q: f32[4, 8@tp] ~annotated = aten.mm.default(self=%x, mat2=%w) {k: 6@tp} ~chosen
        %y: f32[4, 8] sum@tp = aten.neg.default(self=%q) {pending sum@tp(0)} ~chosen
        %z: f32[4, 8] sum@tp = aten.neg.default(self=%y) {pending sum@tp(0)} ~chosen
        return %p
        """)
    assert short(program) == [
        "p.1 = aten.mm.default x w",
        "q.1 = aten.mm.default x w",
        "y = aten.neg.default q.1",
        "z = aten.neg.default y",
        "p = comm.all_reduce p.1",
    ]
    values = program.main.values
    assert str(values["p"].origin) == "annotated"
    assert str(values["p.1"].origin) == "implied: produced by aten.mm.default"
    assert "q" not in values


def test_without_a_rule_every_rank_computes_all() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4@tp, 8]
        %y: f32[4, 8] replicated = vendor.mystery.default(self=%x) {} ~fallback
        %z: f32[4@tp, 8] = aten.relu.default(self=%y) {i0: 4@tp}
        return %z
        """)
    assert short(program) == [
        "x.1 = comm.all_gather x",
        "y = vendor.mystery.default x.1",
        "y.1 = aten.slice.Tensor y",
        "z = aten.relu.default y.1",
    ]


def test_flip_of_a_split_dimension_communicates() -> None:
    # Paddle keeps dimension 0 split through ops that it has no rule for.
    program = partition("""
        mesh tp=2
        input %x: f32[4@tp, 8]
        %y: f32[4, 8] replicated = aten.flip.default(self=%x, dims=[0]) {}
        return %y
        """)
    assert short(program) == ["x.1 = comm.all_gather x", "y = aten.flip.default x.1"]


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


def test_inserted_ops_belong_to_the_op_that_needs_them() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4@tp, 8]
        %y: f32[4, 8] replicated = aten.relu.default(self=%x) {}
          stage=1 microbatch=2 phase=backward loc("model.py", 12)
        %z: f32[4@tp, 8] = aten.relu.default(self=%y) {} loc("model.py", 13)
        return %z
        """)
    gather, _, last = ops(program)[0], ops(program)[1], ops(program)[-1]
    assert (gather.stage, gather.microbatch, gather.phase) == (1, 2, "backward")
    assert str(gather.loc) == "model.py:12"
    assert str(gather.origin) == "implied: reshard of %x from [4@tp, 8] to [4, 8]"
    assert (last.results, str(last.loc)) == (("z",), "model.py:13")


def test_names_never_clash() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4@tp, 8]
        input %x.1: f32[4@tp, 8]
        %x.2: f32[4, 8] replicated = aten.add.Tensor(self=%x, other=%x.1) {}
        return %x.2
        """)
    assert short(program) == [
        "x.3 = comm.all_gather x",
        "x.1.1 = comm.all_gather x.1",
        "x.2 = aten.add.Tensor x.3 x.1.1",
    ]


def test_signature_tells_each_rank_its_piece() -> None:
    program = partition("""
        mesh dp=2, tp=2
        input %x: f32[5@dp, 8] as "tokens"
        parameter %w: f32[8, (2)(6@tp)] as "fused.weight"
        %y: f32[5@dp, (2)(6@tp)] =
          aten.mm.default(self=%x, mat2=%w) {m: 5@dp, n: (2)(6@tp)}
        return %y as "logits"
        """)
    x, w = program.signature.inputs
    (y,) = program.signature.outputs
    assert (x.label, w.label, y.label) == ("tokens", "fused.weight", "logits")
    assert (x.shape, w.shape, y.shape) == ((5, 8), (8, 12), (5, 12))
    assert [str(sub.start) for sub in x.box[0]] == ["min(dp * 3, 5)"]
    assert [(sub.size, str(sub.start), sub.length) for sub in w.box[1]] == [
        (2, "0", 2),
        (6, "tp * 3", 3),
    ]
    assert y.box == (x.box[0], w.box[1])


def test_an_input_may_be_an_output() -> None:
    program = partition("""
        mesh tp=2
        input %x: f32[4@tp]
        %y: f32[4@tp] = aten.relu.default(self=%x) {i0: 4@tp}
        alias %y -> %x
        return %x, %y, %y
        """)
    assert program.main.outputs == ("x", "y", "y")
    assert program.main.aliases == (("y", "x"),)


CALLS = """
    program "" serial
    mesh tp=2
    func main {
      input %x: f32[4, 8] replicated
      parameter %a: f32[8, 8@tp]
      parameter %b: f32[8@tp, 8]
      %h: f32[4, 8] replicated = call(callee="layer", operands=[%x, %a]) {}
      %y: f32[4, 8] replicated = call(callee="layer", operands=[%h, %b]) {}
      return %y
    }
    func layer {
      input %x: f32[4, 8] replicated
      input %w: f32[8, 8@tp]
      %m: f32[4, 8@tp] = aten.mm.default(self=%x, mat2=%w) {n: 8@tp}
      %z: f32[4, 8] replicated = aten.relu.default(self=%m) {i1: 8@tp}
      return %z
    }
    """


def test_a_function_is_partitioned_once_and_called_in_its_layouts() -> None:
    program = partition(CALLS)
    assert short(program) == [
        "h = call x a",
        "b.1 = comm.all_to_all b",
        "y = call h b.1",
    ]
    assert short(program, "layer") == [
        "m = aten.mm.default x w",
        "z.1 = aten.relu.default m",
        "z = comm.all_gather z.1",
    ]


def test_a_function_that_was_not_completed_runs_whole_on_every_rank() -> None:
    program = partition("""
        program "" serial
        mesh tp=2
        func main {
          input %x: f32[4@tp, 8]
          %y: f32[4, 8] replicated = call(callee="whole", operands=[%x]) {}
          return %y
        }
        func whole {
          input %x: f32[4, 8]
          %z: f32[4, 8] = aten.relu.default(self=%x)
          return %z
        }
        """)
    assert short(program) == ["x.1 = comm.all_gather x", "y = call x.1"]
    assert short(program, "whole") == ["z = aten.relu.default x"]


def test_repeat_slices_stacked_operands_in_the_layouts_of_its_body() -> None:
    program = partition("""
        program "" serial
        mesh tp=2
        func main {
          input %x: f32[4@tp, 8]
          parameter %ws: f32[3, 8, 8@tp]
          input %c: f32[8@tp]
          %y: f32[4, 8] replicated, %all: f32[3, 4, 8@tp] =
            repeat(body="layer", trip=3, carried=[%x], sliced=[%ws], invariant=[%c]) {}
          return %y, %all
        }
        func layer {
          input %x: f32[4, 8] replicated
          input %w: f32[8, 8@tp]
          input %c: f32[8] replicated
          %m: f32[4, 8@tp] = aten.mm.default(self=%x, mat2=%w) {n: 8@tp}
          %s: f32[4, 8@tp] = aten.add.Tensor(self=%m, other=%c) {i1: 8@tp}
          %z: f32[4, 8] replicated = aten.relu.default(self=%s) {i1: 8@tp}
          return %z, %m
        }
        """)
    assert short(program) == [
        "x.1 = comm.all_gather x",
        "c.1 = comm.all_gather c",
        "y, all = repeat x.1 ws c.1",
    ]
    assert program.main.values["ws"].shape == (3, 8, 4)
    assert program.main.values["all"].shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "%y: f32[4] undistributed = aten.relu.default(self=%x) {i0: 4@tp}",
            "1 values have no layout: %y; complete it first",
        ),
        (
            "%y: f32[4@tp] = aten.relu.default(self=%x)",
            "has no distribution; partition needs a completed and legalized program",
        ),
        (
            "%y: f32[4@tp] = aten.relu.default(self=%x) {i0: 4@tp; body other}",
            "still has the body 'other'",
        ),
        (
            "%y: f32[4@tp] = aten.relu.default(self=%x) {row: 4@tp}",
            "its rule i0 -> i0 has no factor 'row'",
        ),
        (
            "%y: f32[4@tp] = vendor.op.default(self=%x) {i0: 4@tp}",
            "has no rule, so it can't be split",
        ),
        (
            "%y: f32[4@tp] = aten.cumsum.default(self=%x, dim=0) {i0: 4@tp}",
            "factor 'i0' of its rule i0 -> i0 must not be split",
        ),
        (
            '%y: f32[4@tp] = call(callee="nowhere", operands=[%x]) {}',
            "there is no function @nowhere",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_op(text: str, message: str) -> None:
    program = parse_program(f'mesh tp=2\ninput %x: f32[4@tp]\n{text} loc("model.py", 5)\nreturn %y')
    with pytest.raises(VerificationError) as error:
        PARTITION(program)
    assert message in str(error.value)
    if "values have no layout" not in message:
        assert 'loc("model.py", 5)' in str(error.value)


def test_a_program_is_partitioned_once() -> None:
    program = partition("mesh tp=2\ninput %x: f32[4@tp]\nreturn %x")
    with pytest.raises(VerificationError, match="it is partitioned already"):
        PARTITION(program)


def test_a_reshard_that_is_impossible_names_the_op() -> None:
    text = CALLS.replace("parameter %b: f32[8@tp, 8]", "parameter %b: f32[6@tp, 8]")
    with pytest.raises(VerificationError) as error:
        PARTITION(parse_program(text))
    assert "%y = call" in str(error.value)
    assert "%b: the shapes differ: [6, 8] and [8, 8]" in str(error.value)


def test_the_program_does_not_grow_with_the_mesh() -> None:
    texts = [CALLS.replace("tp=2", f"tp={size}").replace("8", "4096") for size in (2, 4096)]
    few, many = (PARTITION(parse_program(text)) for text in texts)
    assert short(few) == short(many)
