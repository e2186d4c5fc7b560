"""The text form: what it looks like, and that it comes back equal."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
from hypothesis import given, settings

from autopar.ir import text as text_module
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.program import (
    Function,
    Op,
    Program,
    Ref,
    Signature,
    Value,
)
from autopar.ir.serde import program_to_bytes
from autopar.ir.text import (
    parse_program,
    print_deployment,
    print_program,
)
from tests.ir import programs, strategies


@settings(max_examples=100)
@given(strategies.programs())
def test_every_program_comes_back_equal(program: Program) -> None:
    text = print_program(program)
    parsed = parse_program(text)
    assert parsed == program
    # Bytes tell apart what is equal to Python: 1, 1.0 and True, 0.0 and -0.0.
    assert program_to_bytes(parsed) == program_to_bytes(program)
    assert print_program(parsed) == text


# What it looks like.


@pytest.mark.parametrize("name", programs.ALL)
def test_golden_programs_print_as_they_are_written(name: str) -> None:
    text = programs.ALL[name]
    assert aligned(print_program(parse_program(text))) == aligned(text)


def aligned(text: str) -> list[str]:
    """The lines without the padding that puts `=` into one column."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def test_inputs_and_results_are_aligned() -> None:
    program = parse_program(
        """
        input %x: f32[8]
        parameter %weight: f32[8]
        %a: f32[8] = aten.mul.Tensor(self=%x, other=%weight)
        %longer: f32[8] = aten.relu.default(self=%a)
        print.it(self=%longer)
        return %longer
        """
    )
    assert print_program(program) == dedent(
        """\
        program serial

        func main {
          input     %x: f32[8]
          parameter %weight: f32[8]
          %a: f32[8]      = aten.mul.Tensor(self=%x, other=%weight)
          %longer: f32[8] = aten.relu.default(self=%a)
          print.it(self=%longer)
          return %longer
        }
        """
    )


# Programs that don't verify still print.


def test_what_does_not_exist_prints_without_a_type() -> None:
    op = Op("aten.relu.default", (("self", Ref("gone")),), ("lost",))
    text = print_program(Program({"main": Function("main", ("none",), ("nil",), {}, (op,))}))
    assert "%lost = aten.relu.default(self=%gone)" in text
    assert "return %nil" in text


def test_values_that_nothing_produces_are_kept() -> None:
    text = "program serial\n\nfunc main {\n  value %x: f32[8] gradient\n  return\n}\n"
    program = parse_program(text)
    assert program.main.values == {"x": Value("x", "f32", (8,), "gradient")}
    assert print_program(program) == text


def test_words_of_the_language_can_be_names() -> None:
    names = [
        "mesh",
        "return",
        "func",
        "input",
        "alias",
        "1",
        "a-b",
        "%",
        "",
        "\n",
        "~x(",
        "é",
        "\ud800",
    ]
    values = {name: Value(name, "f32", (), "input") for name in names}
    ops = tuple(Op(name or "-", (("a", Ref(name)),), ()) for name in names)
    functions = {
        name: Function(name, tuple(values), tuple(values), values, ops)
        for name in ("main", "return")
    }
    program = Program(functions, Signature(), None, "serial", "func {")
    assert parse_program(print_program(program)) == program


# The description.


def test_the_programs_of_the_description_are_programs() -> None:
    assert text_module.__doc__ is not None
    indented = re.findall(r"(?:^    .*\n|^\n)+", text_module.__doc__, re.MULTILINE)
    first, second = [dedent(part) for part in indented if part.strip()][:2]
    assert aligned(print_program(parse_program(first))) == aligned(first)
    assert parse_program(second).main.ops[0].kind == "aten.relu.default"


# Rank tables.


def test_a_rank_table_is_readable() -> None:
    ranks = tuple(RankEntry(0, divmod(at, 2), 3 - at) for at in range(4))
    deployment = Deployment(
        (parse_program("return"),), ("dp", "tp"), ranks, {"tp": ((0, 1), (2, 3))}
    )
    assert print_deployment(deployment) == dedent(
        """\
        4 ranks, programs: 1

        rank  program  process  dp  tp
           0        0        3   0   0
           1        0        2   0   1
           2        0        1   1   0
           3        0        0   1   1

        group tp: [0, 1] [2, 3]
        """
    )


def test_a_long_rank_table_is_cut() -> None:
    ranks = tuple(RankEntry(0, (at,), at) for at in range(100))
    text = print_deployment(
        Deployment((), ("dp",), ranks, {"odd": tuple((at,) for at in range(100))})
    )
    assert " ...  and 36 more" in text
    assert "[63] and 36 more" in text
    assert len(text.splitlines()) == 70
