"""The text form: what it looks like, that it comes back equal, and what its errors say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from textwrap import dedent

import pytest
from hypothesis import given, settings

from autopar.ir import text as text_module
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.errors import UNKNOWN, Loc
from autopar.ir.expr import Coord, maximum, minimum
from autopar.ir.layout import Layout, Origin, SubDim
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    BoxDim,
    DType,
    Function,
    Op,
    OpDist,
    Part,
    Pending,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)
from autopar.ir.serde import program_to_bytes
from autopar.ir.text import (
    TextError,
    parse_program,
    print_deployment,
    print_op,
    print_program,
)
from tests.ir import programs, strategies

MESH = ProcessMesh.of_shape((2, 4), ("dp", "tp"))


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


def test_origins_and_locations_can_be_left_out() -> None:
    text = print_program(parse_program(programs.COMPLETED), origins=False, locs=False)
    assert "~" not in text
    assert "loc(" not in text
    assert "file " not in text
    assert "%h: f32[8@dp, 12@tp]" in text


def body_of(*statements: str, header: str = "mesh dp=2, tp=4") -> Function:
    """The main function of a program of these lines."""
    return parse_program("\n".join((header, *statements))).main


def value_of(declaration: str, header: str = "mesh dp=2, tp=4") -> Value:
    """The value that a line declares as an input."""
    return body_of(f"input %x: {declaration}", "return %x", header=header).values["x"]


HEADS = ((SubDim(12, ("tp",)), SubDim(64)),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[]", Value("x", "f32", (), "input")),
        ("bf16[8, 0]", Value("x", "bf16", (8, 0), "input")),
        ("f32[8] replicated", Value("x", "f32", (8,), "input", Layout.replicated(MESH, (8,)))),
        (
            "f32[8@dp, 9@(tp)]",
            Value("x", "f32", (8, 9), "input", Layout.from_dims_mapping(MESH, (8, 9), [0, 1])),
        ),
        (
            "f32[9@(tp,dp)]",
            Value("x", "f32", (9,), "input", Layout(MESH, ((SubDim(9, ("tp", "dp")),),))),
        ),
        ("f32[(12@tp)(64)]", Value("x", "f32", (768,), "input", Layout(MESH, HEADS))),
        (
            "f32[4] sum@tp max@dp",
            Value(
                "x",
                "f32",
                (4,),
                "input",
                Layout(MESH, ((SubDim(4),),), (("tp", "sum"), ("dp", "max"))),
            ),
        ),
        (
            "f32[4] mask [0..2, 5] offload cpu",
            Value(
                "x", "f32", (4,), "input", Layout(MESH, ((SubDim(4),),), (), (0, 1, 2, 5), "cpu")
            ),
        ),
        (
            "f32[4] on mesh[dp=1]",
            Value("x", "f32", (4,), "input", Layout(MESH["dp", 1], ((SubDim(4),),))),
        ),
        (
            'f32[4] ~annotated("--shard x") loc("a.py", 3)',
            Value(
                "x", "f32", (4,), "input", None, Origin("annotated", "--shard x"), Loc("a.py", 3)
            ),
        ),
        (
            "f32[4] replicated ~none",
            Value("x", "f32", (4,), "input", Layout.replicated(MESH, (4,))),
        ),
    ],
)
def test_types(text: str, expected: Value) -> None:
    assert value_of(text) == expected


def test_a_local_shape_stands_before_its_layout() -> None:
    layout = Layout.from_dims_mapping(MESH, (9, 4), ["dp", -1])
    value = Value("x", "f32", layout.local_shape, "input", layout)
    text = "f32[max(0, min(5, dp * -5 + 9)), 4] of [9@dp, 4] box [9[dp; 2], 4]"
    assert value_of(text, "program partitioned mesh dp=2, tp=4") == value


ARGUMENTS = [
    ("none", None),
    ("true", True),
    ("false", False),
    ("-12", -12),
    ("18446744073709551615", (1 << 64) - 1),
    ("1.5", 1.5),
    ("-0.0", -0.0),
    ("1e-05", 1e-05),
    ("inf", math.inf),
    ("-inf", -math.inf),
    ("nan", math.nan),
    ("complex(0.0, -1.5)", complex(0, -1.5)),
    ("f32", DType("f32")),
    ('dtype("odd")', DType("odd")),
    ('"text \\"\\\\\\n"', 'text "\\\n'),
    ("%x", Ref("x")),
    ("[]", ()),
    ("[1, [%x, none], 2.0]", (1, (Ref("x"), None), 2.0)),
    ("tp", Coord("tp")),
    ("max(0, min(3, tp * -3 + 10))", maximum(0, minimum(3, 10 - 3 * Coord("tp")))),
    ("(f32 * 2)", Coord("f32") * 2),
    ("(none)", Coord("none")),
]


@pytest.mark.parametrize(("text", "expected"), ARGUMENTS)
def test_arguments(text: str, expected: object) -> None:
    op = body_of("input %x: f32[]", f"some.op(arg={text})", "return").ops[0]
    arg = op.arg("arg")
    # `repr` tells 1 from True and 0.0 from -0.0.
    assert repr(arg) == repr(expected)
    assert print_op(op, {}) == f"some.op(arg={text})"


def test_all_that_follows_an_op() -> None:
    line = (
        "some.op() {m: 8@dp, k: (12@tp)(64); body split; pending sum@tp(0, 1); on mesh[dp=1]}"
        ' ~chosen("by cost") stage=1 microbatch=2 phase=backward plan(save="to cpu", chunk="4")'
        ' loc("a.py", 12, "name")'
    )
    op = Op(
        "some.op",
        (),
        (),
        OpDist(
            MESH["dp", 1],
            (("m", (SubDim(8, ("dp",)),)), ("k", HEADS[0])),
            "split",
            (Pending("tp", "sum", (0, 1)),),
        ),
        Origin("chosen", "by cost"),
        Loc("a.py", 12, "name"),
        1,
        2,
        "backward",
        (("save", "to cpu"), ("chunk", "4")),
    )
    assert body_of(line, "return").ops == (op,)
    assert f"  {line}\n" in print_program(parse_program(f"mesh dp=2, tp=4\n{line}\nreturn"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('loc("a.py")', Loc("a.py")),
        ('loc("a.py", 3)', Loc("a.py", 3)),
        ('loc("a.py", "n")', Loc("a.py", 0, "n")),
        ('loc("", "n")', Loc("", 0, "n")),
        ('loc("a.py", 3, "n")', Loc("a.py", 3, "n")),
        ("", UNKNOWN),
    ],
)
def test_locations(text: str, expected: Loc) -> None:
    assert body_of(f"some.op() {text}".rstrip(), "return").ops[0].loc == expected


def test_files_that_are_named_often_get_short_names() -> None:
    locs = [Loc("/a/model.onnx", 0, "n1"), Loc("/b/model.onnx", 2), Loc("once.py", 3)]
    ops = tuple(Op("some.op", (), (), loc=loc) for loc in (*locs, *locs[:2]))
    text = print_program(Program({"main": Function("main", (), (), {}, ops)}))
    assert 'file model = "/a/model.onnx"\nfile model_2 = "/b/model.onnx"\n' in text
    assert 'loc(model, "n1")' in text
    assert "loc(model_2, 2)" in text
    assert 'loc("once.py", 3)' in text


def test_results_have_the_origin_of_their_op_unless_they_say_otherwise() -> None:
    main = body_of(
        "%a: f32[4@dp] = some.op() {} ~implied",
        "%b: f32[4@dp] ~default = some.op() {} ~implied",
        "%c: f32[4@dp] ~none = some.op() {} ~implied",
        "%d: f32[4] undistributed = some.op() {} ~implied",
        "return %d",
    )
    origins = [main.values[name].origin for name in "abcd"]
    assert origins == [Origin("implied"), Origin("default"), None, None]


def test_results_of_an_op_with_a_choice_have_a_layout_unless_they_say_otherwise() -> None:
    main = body_of(
        "%a: f32[4] = some.op() {}",
        "%b: f32[4] undistributed = some.op() {}",
        "%c: f32[4] = some.op()",
        "%d: f32[4] = some.op() {on mesh[dp=0]}",
        "return %d",
    )
    layouts = [main.values[name].dist for name in "abcd"]
    replicated = Layout.replicated(MESH, (4,))
    assert layouts == [replicated, None, None, Layout.replicated(MESH["dp", 0], (4,))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mesh x=3", ProcessMesh.of_shape((3,), ("x",))),
        ("mesh x=2, y=2 ids [0, 4..6]", ProcessMesh([[0, 4], [5, 6]], ["x", "y"])),
        ("mesh @m1 x=2, y=2\nmesh @m1[x=1]", ProcessMesh([[0, 1], [2, 3]], ["x", "y"])["x", 1]),
        (
            "mesh @m1 x=4\nmesh y=2 ids [3, 1] parent @m1",
            ProcessMesh([3, 1], ["y"], parent=ProcessMesh.of_shape((4,), ("x",))),
        ),
        ("mesh @m1 x=2, y=1\nmesh @m1[x=1][y=0]", ProcessMesh([[0], [1]], ["x", "y"])[1][0]),
    ],
)
def test_meshes(text: str, expected: ProcessMesh) -> None:
    program = parse_program(f"program serial\n{text}\nfunc main {{ return }}")
    assert program.mesh == expected
    assert f"\n{text}\n" in print_program(program)


def test_meshes_that_are_parts_of_parts() -> None:
    part = ProcessMesh([5, 4], ["z"], parent=MESH["dp", 1])
    layouts = [Layout(mesh, ((SubDim(4),),)) for mesh in (part, part["z", 0], MESH["tp", 2])]
    values = {
        f"x{at}": Value(f"x{at}", "f32", (4,), "input", lay) for at, lay in enumerate(layouts)
    }
    program = Program({"main": Function("main", tuple(values), (), values, ())}, mesh=MESH)
    text = print_program(program)
    assert "mesh dp=2, tp=4\nmesh @m1 z=2 ids [5, 4] parent mesh[dp=1]\n" in text
    assert "%x1: f32[4] on @m1[z=0]" in text
    assert parse_program(text) == program


# The signature.


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


# Errors.

HEADER = "mesh dp=2, tp=4\ninput %x: f32[8, 4]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEADER + "%y: f32[8] = aten.relu.default(self=%x dim=1)\nreturn %y",
            """\
            text, line 3, column 40: expected ',' or ')', got dim
              %y: f32[8] = aten.relu.default(self=%x dim=1)
                                                     ^^^""",
        ),
        (
            HEADER + "%y: f33[8] = aten.relu.default(self=%x)\nreturn %y",
            """\
            text, line 3, column 5: unknown dtype 'f33'; did you mean f32?
              %y: f33[8] = aten.relu.default(self=%x)
                  ^^^""",
        ),
        (
            HEADER + "%y: f32[8] = aten.relu.default(self=%xx)\nreturn %y",
            """\
            text, line 3, column 37: no value %xx in function main; did you mean x?
              %y: f32[8] = aten.relu.default(self=%xx)
                                                  ^^^""",
        ),
        (
            HEADER + "%y: f32[8@pp] = some.op()\nreturn %y",
            """\
            text, line 3, column 11: unknown mesh axis 'pp'; did you mean tp, dp?
              %y: f32[8@pp] = some.op()
                        ^^""",
        ),
        (
            HEADER + "%y = some.op()\nreturn %y",
            """\
            text, line 3, column 4: expected ':', got =
              %y = some.op()
                 ^""",
        ),
        (
            HEADER + "%y: f32[8] some.op()\nreturn %y",
            """\
            text, line 3, column 12: expected ',' or '=', got some.op
              %y: f32[8] some.op()
                         ^^^^^^^""",
        ),
        (
            HEADER + "return %y, %x",
            """\
            text, line 3, column 8: no value %y in function main
              return %y, %x
                     ^^""",
        ),
        (
            "\tinput %x: f32[8\n\treturn",
            """\
            text, line 2, column 2: expected ',' or ']', got return
              \treturn
              \t^^^^^^""",
        ),
    ],
)
def test_errors_show_the_place(text: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_program(text)
    assert str(caught.value) == dedent(message)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected a program, got the end of the text"),
        ("program odd", 1, 9, "unknown level 'odd'"),
        ("input %x: f32[8]", 1, 17, "expected a line of a function: "),
        ("input %x: f32[8@tp]\nreturn", 1, 17, "no mesh is declared; write `mesh dp=2, tp=4`"),
        ("input %x: f32[8] replicated\nreturn", 1, 7, "no mesh is declared"),
        ("some.op() {}\nreturn", 1, 12, "no mesh is declared"),
        ("inptu %x: f32[8]\nreturn", 1, 1, "unknown role 'inptu'; did you mean input?"),
        ("mesh tp\nreturn", 2, 1, "expected '=', got return"),
        ("mesh tp=0\nreturn", 1, 6, "every axis needs at least 1 process"),
        ("mesh min=2\nreturn", 1, 6, "identifiers, and not min or max"),
        ("mesh tp=2 ids [1]\nreturn", 1, 6, "a mesh of 2 processes can't have 1 ids"),
        ("mesh tp=2 ids [3..1]\nreturn", 1, 16, "3..1 is not a range of process ids"),
        ("mesh tp=2 ids [7, 7]\nreturn", 1, 6, "mesh names a process more than once"),
        ("mesh tp=2 parent @m\nreturn", 1, 18, "no mesh @m is declared"),
        ("mesh tp=2\ninput %x: f32[8] on tp\nreturn", 2, 21, "expected 'mesh' or '@'"),
        ("mesh tp=2\ninput %x: f32[8] on mesh[tp=2]\nreturn", 2, 21, "index 2 is outside"),
        ("mesh tp=2\ninput %x: f32[8] total@tp\nreturn", 2, 18, "unknown reduction 'total'"),
        ("mesh tp=2\nsome.op() {m 8}\nreturn", 2, 12, "expected a factor (name: layout), body"),
        ("mesh tp=2\nsome.op() {m: 8@tp n: 3}\nreturn", 2, 20, "expected ',' or ';' or '}'"),
        ("input %x: f32[8 +]\nreturn", 1, 18, "expected a number, a mesh axis, min, max or '('"),
        ("input %x: f32[min(8)]\nreturn", 1, 20, "expected ',', got )"),
        ("input %x: f32[tp] replicated\nreturn", 1, 7, "no mesh is declared"),
        ("mesh tp=2\ninput %x: f32[tp] replicated\nreturn", 2, 7, "needs its layout behind it"),
        ("program executable input %x: f32[tp] return", 1, 26, "write its box"),
        ("input %x: f32[8]\ninput %x: f32[9]\nreturn", 2, 7, "%x is declared twice, differently"),
        ("input %x: f32[8] as 3\nreturn", 1, 21, "expected the user's name for it, a string"),
        ("some.op(a=)\nreturn", 1, 11, "expected a number, a mesh axis"),
        ("some.op(=1)\nreturn", 1, 9, "expected the name of an argument"),
        ('some.op(a="\\q")\nreturn', 1, 11, "unknown escape \\q"),
        ('some.op(a="\\u{ffffff}")\nreturn', 1, 11, "not in range"),
        ('some.op(a="x\nreturn', 1, 11, "a string has no closing quote"),
        ("some.op() loc(model)\nreturn", 1, 15, "unknown file 'model'"),
        ("some.op() phase=sideways\nreturn", 1, 1, "unknown phase 'sideways'"),
        ("some.op(a=" + "[" * 200 + "\nreturn", 1, 111, "nested more than 100 levels deep"),
        ("some.op(a=" + "(" * 200 + "\nreturn", 1, 112, "at most 100 levels of nesting"),
        ("some.op(a=" + "-" * 5000 + "1)\nreturn", 1, 112, "at most 100 levels of nesting"),
        ("some.op(a=" + "9" * 5000 + ")\nreturn", 1, 4011, "expected ',' or ')'"),
        ("func f { return }\nfunc f { return }", 2, 1, "there are two functions 'f'"),
        ('func f { input %x: f32[] as "y" return }', 1, 1, "only the inputs and outputs of main"),
        ("func main { return", 1, 19, "expected '}', got the end of the text"),
        ("signature { %x }", 1, 13, "expected input, output or '}'"),
        ("signature { input %x: f32[tp] }", 1, 19, "the shape of a port is the global one"),
    ],
)
def test_errors_name_what_was_expected(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_program(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message in str(caught.value)


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
