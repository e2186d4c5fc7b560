"""Partition, as text before and after."""

from __future__ import annotations

from autopar.ir.text import parse_program
from tests.partition.texts import CALLS, PARTITION, check, ops, partition, short


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
            autopar.embedding(weight=%table, indices=%ids, extent=6, offset=tp * 3) {v: 6@tp}
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


def test_the_program_does_not_grow_with_the_mesh() -> None:
    texts = [CALLS.replace("tp=2", f"tp={size}").replace("8", "4096") for size in (2, 4096)]
    few, many = (PARTITION(parse_program(text)) for text in texts)
    assert short(few) == short(many)
