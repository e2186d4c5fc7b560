"""What the parts of the text form mean: types, arguments, all that follows an op, and meshes."""

from __future__ import annotations

import math

import pytest

from autopar.base.errors import UNKNOWN, Loc
from autopar.ir.dims import SubDim
from autopar.ir.expr.expression import UNBOUNDED, Coord, IntExpr, Size, maximum, minimum
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    BoxDim,
    DType,
    Function,
    Op,
    OpDist,
    Pending,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)
from autopar.ir.text import (
    parse_program,
    print_op,
    print_program,
)

MESH = ProcessMesh.of_shape((2, 4), ("dp", "tp"))


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


BATCH = Size("batch", 0, 64, 16)
OPEN = "mesh dp=2, tp=4 size $batch = 0..64 planned 16"


@pytest.mark.parametrize(
    ("text", "shape", "dims"),
    [
        ("f32[$batch, 4]", (BATCH, 4), None),
        ("f32[$batch, 4] replicated", (BATCH, 4), (SubDim(BATCH), SubDim(4))),
        ("f32[$batch@dp, 4]", (BATCH, 4), (SubDim(BATCH, ("dp",)), SubDim(4))),
        ("f32[$batch + 1, 4@tp]", (BATCH + 1, 4), (SubDim(BATCH + 1), SubDim(4, ("tp",)))),
        ("f32[($batch + 1)@dp, 4]", (BATCH + 1, 4), (SubDim(BATCH + 1, ("dp",)), SubDim(4))),
        ("f32[($batch + 1) // 2, 4]", ((BATCH + 1) // 2, 4), None),
        ("f32[min($batch, 2), 4]", (minimum(BATCH, 2), 4), None),
    ],
)
def test_types_of_open_sizes(
    text: str, shape: tuple[IntExpr, ...], dims: tuple[SubDim, ...] | None
) -> None:
    layout = None if dims is None else Layout(MESH, tuple((sub,) for sub in dims))
    assert value_of(text, OPEN) == Value("x", "f32", shape, "input", layout)
    program = parse_program(f"program serial {OPEN}\nfunc main {{ input %x: {text} return }}")
    assert f"  input %x: {text}\n" in print_program(program)


def test_sub_dimensions_of_open_sizes() -> None:
    value = value_of("f32[($batch@dp)($batch + 1)]", OPEN)
    dim = (SubDim(BATCH, ("dp",)), SubDim(BATCH + 1))
    assert value == Value("x", "f32", (BATCH * (BATCH + 1),), "input", Layout(MESH, (dim,)))


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("size $batch = 0..64 planned 16", BATCH),
        ("size $batch = 2.. planned 16", Size("batch", 2, UNBOUNDED, 16)),
        ("size $batch = 2..2 planned 2", Size("batch", 2, 2, 2)),
    ],
)
def test_open_sizes_are_declared_before_they_are_used(line: str, size: Size) -> None:
    text = f"program serial\n{line}\n\nfunc main {{\n  input %x: f32[$batch]\n  return\n}}\n"
    program = parse_program(text)
    assert program.main.values["x"].shape == (size,)
    assert print_program(program) == text


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("size $batch", Size("batch")),
        ("size $batch = 1..9", Size("batch", 1, 9)),
        ("size $batch planned 4", Size("batch", planned=4)),
    ],
)
def test_declarations_of_open_sizes_by_hand_may_be_shorter(line: str, size: Size) -> None:
    assert value_of("f32[$batch]", line).shape == (size,)


def test_all_open_sizes_that_a_program_uses_are_declared_by_name() -> None:
    """Wherever they are used: in a shape, a layout, an argument, a choice, a port."""
    sizes = [Size(name) for name in "fedcba"]
    layout = Layout(MESH, ((SubDim(sizes[1]),),))
    values = {
        "x": Value("x", "f32", (sizes[0],), "input"),
        "y": Value("y", "f32", (4,), "input", layout),
    }
    choice = OpDist(MESH, (("m", (SubDim(sizes[3]),)),))
    op = Op("some.op", (("list", (1, (sizes[2],))),), (), choice)
    box = ((BoxDim(1, 0, 1), BoxDim(sizes[5], 0, sizes[5])),)
    port = Port("y", "y", "f32", (sizes[4],), "input", box)
    main = Function("main", tuple(values), (), values, (op,))
    program = Program({"main": main}, Signature((port,)), MESH)
    text = print_program(program)
    declared = "\n".join(f"size ${name} = 0.. planned 8" for name in "abcdef")
    assert text.startswith(f"program serial\nmesh dp=2, tp=4\n{declared}\n\n")
    assert parse_program(text) == program


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


def test_relations_between_open_sizes() -> None:
    text = """
      size $past = 0..64 planned 4
      size $length = 0.. planned 4
      relation $past + $length <= 64 loc("model.onnx", "slice")
      relation $length // 4 * 4 == $length
      input %x: f32[$past, $length]
      return %x
    """
    program = parse_program(text)
    first, second = program.relations
    assert (str(first), first.loc) == ("$past + $length <= 64", Loc("model.onnx", name="slice"))
    assert second.told == "length is a multiple of 4"
    assert parse_program(print_program(program)) == program
