"""Signatures in the text form: derived from `main`, or spelled out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autopar.ir.expr.expression import Coord, Size
from autopar.ir.program import (
    BoxDim,
    Part,
    Port,
    Program,
    Signature,
)
from autopar.ir.text import (
    TextError,
    parse_program,
    print_program,
)


def test_the_signature_is_derived_where_it_is_left_out() -> None:
    program = parse_program(
        """
        mesh tp=4
        input %x: i64[8, 4]
        parameter %w: f32[10@tp] as "fc.weight"
        return %x as "out", %w
        """
    )
    assert program.signature == Signature(
        (
            Port("x", "x", "i64", (8, 4), "input"),
            Port("w", "fc.weight", "f32", (10,), "parameter"),
        ),
        (Port("x", "out", "i64", (8, 4), "input"), Port("w", "w", "f32", (10,), "parameter")),
    )


def test_a_partitioned_program_derives_boxes_from_layouts() -> None:
    (port,) = parse_program(
        "program partitioned\nmesh tp=4\ninput %x: f32[2, 6] of [8@tp, (2)(3)]\nreturn"
    ).signature.inputs
    assert port.shape == (8, 6)
    assert port.box == (
        (BoxDim(8, Coord("tp") * 2, 2),),
        (BoxDim(2, 0, 2), BoxDim(3, 0, 3)),
    )


def test_ports_may_have_open_sizes() -> None:
    lines = (
        "size $batch = 0.. planned 8\n\nfunc main {\n"
        "  input %x: f32[2, 6] box [$batch[tp * 2; 2], (2)(($batch * 2)[tp; 1])]\n  return %x\n"
    )
    text = f"program executable\n{lines}}}\n"
    signature = parse_program(text).signature
    batch = Size("batch")
    assert signature.inputs[0].shape == (batch, batch * 4)
    assert signature.inputs[0].box == (
        (BoxDim(batch, Coord("tp") * 2, 2),),
        (BoxDim(2, 0, 2), BoxDim(batch * 2, Coord("tp"), 1)),
    )
    assert signature.outputs[0].shape == (2, 6)
    assert print_program(parse_program(text)) == text


def test_boxes_are_written_where_nothing_tells_them() -> None:
    line = "input %x: f32[2, 6] box [8[tp * 2; 2], (2)(3[tp; 1])]"
    program = parse_program(f"program executable\n{line}\nreturn %x box []")
    assert program.signature.inputs[0].box == (
        (BoxDim(8, Coord("tp") * 2, 2),),
        (BoxDim(2, 0, 2), BoxDim(3, Coord("tp"), 1)),
    )
    assert f"  {line}\n  return %x\n" in print_program(program)


def test_inputs_say_what_they_are_filled_with_unless_given() -> None:
    line = "input %lr: f32[] fill 0.0003"
    program = parse_program(f"program serial\n{line}\nreturn %lr")
    assert program.signature.inputs[0].fill == 3e-4
    assert f"  {line}\n" in print_program(program)


def test_learning_rates_say_what_else_an_update_is_made_with() -> None:
    line = "input %lr: f32[] fill 0.0003 options(betas=[0.9, 0.999], fused=none, maximize=false)"
    program = parse_program(f"program serial\n{line}\nreturn %lr")
    options = (("betas", (0.9, 0.999)), ("fused", None), ("maximize", False))
    assert program.signature.inputs[0].options == options
    assert f"  {line}\n" in print_program(program)


def test_parts_of_a_larger_tensor() -> None:
    line = 'parameter %w_k: f32[4, 8] as "qkv" part "w" [16, 8] from [8, 0]'
    program = parse_program(f'program serial\n{line}\nreturn %w_k as "k"')
    assert program.signature.inputs[0].part == Part("w", (16, 8), (8, 0))
    assert f"  {line}\n" in print_program(program)
    with pytest.raises(TextError, match=re.escape("expected from [...], the index where")):
        parse_program(line.replace("from", "at"))


def test_a_signature_that_differs_from_main_is_spelled_out() -> None:
    main = parse_program("input %x: f32[8]\nreturn %x").main
    odd = Signature((Port("x", "y", "bf16", (7,), "buffer", ((BoxDim(7, 1, 2),),)),))
    program = Program({"main": main}, odd)
    text = print_program(program)
    assert 'signature {\n  input %x: bf16[7] buffer as "y" box [7[1; 2]]\n}\n' in text
    assert parse_program(text) == program
    bare = replace(program, signature=Signature())
    assert "signature {}" in print_program(bare)
    assert parse_program(print_program(bare)) == bare
