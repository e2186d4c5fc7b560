"""The structural verifier: what it accepts, and one program per thing that it finds."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from autopar.base.errors import VerificationError
from autopar.ir.dims import SubDim
from autopar.ir.expr.expression import Coord, Size, ceildiv
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Op, Port, Program, Ref, Signature, Value
from autopar.ir.text import parse_program
from autopar.ir.verify import verify_structure
from tests.ir import programs


def problems_of(program: Program | str) -> tuple[str, ...]:
    """What the verifier finds in a program."""
    if isinstance(program, str):
        program = parse_program(program)
    try:
        verify_structure(program)
    except VerificationError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("text", programs.ALL.values(), ids=programs.ALL)
def test_sound_programs_of_every_level_pass(text: str) -> None:
    assert problems_of(text) == ()


def test_all_problems_are_found_at_once_and_show_op_place_expected_and_got() -> None:
    program = parse_program(
        """
        program "mlp" serial
        input %x: f32[8]
        %z: f32[8] = aten.relu.default(self=%y) loc("m.onnx", 12, "act")
        %y: f32[8] = aten.relu.default(self=%x, dim=tp * 2)
        return %z
        """
    )
    with pytest.raises(VerificationError) as caught:
        verify_structure(program)
    assert str(caught.value) == dedent(
        """\
        the serial program 'mlp' has 2 problems:
          - in main: operand %y: expected a value that is defined before, got a later result
              %z: f32[8] = aten.relu.default(self=%y) loc("m.onnx", 12, "act")
          - in main: argument dim: expected no rank expression in a serial program, got tp * 2
              %y: f32[8] = aten.relu.default(self=%x, dim=tp * 2)"""
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('program "" "odd" return', "program's level: expected one of serial, partitioned, exec"),
        ("func f { return }", "the program: expected a function 'main', got ['f']"),
        ("program executable mesh tp=2 return", "mesh: expected none after strip"),
        ('input %x: "f31"[8] return', "%x: dtype: expected one of f64, f32"),
        ('"inptu" %x: f32[8] return', "role: expected one of input, parameter"),
        ("input %x: f32[-1] return", "%x: shape: expected sizes that are integers >= 0, got -1"),
        (
            "signature {} input %x: f32[tp] return",
            "%x: shape: expected global sizes in a serial program, got the size tp",
        ),
        (
            "program partitioned mesh tp=2 signature {} input %x: f32[dp] return",
            "%x: size dp: expected axes of tp=2, got dp",
        ),
        ("input %x: f32[] input %x: f32[] return", "input %x: expected different inputs, got it"),
        (
            "input %x: f32[] %x: f32[] input = some.op() return",
            "result %x: expected a new name, got one that is defined before",
        ),
        ("value %x: f32[] return", "%x: expected an input or the result of an op, got neither"),
        (
            "value %x: f32[] return %x",
            "output %x: expected an input or the result of an op, got neither",
        ),
        ("some.op(a=1, a=2, b=3) return", "argument a: expected one of that name, got 2"),
        ('some.op(a=[1, dtype("f31")]) return', "argument a: expected one of f64, f32"),
        ("some.op() stage=-1 return", "stage: expected a number >= 0, got -1"),
        ("some.op() microbatch=-2 return", "microbatch: expected a number >= 0, got -2"),
        (
            "input %x: f32[] %y: f32[] = some.op() alias %y -> %x return",
            "alias %y -> %x: expected an output of the function first, got %y",
        ),
        (
            "%y: f32[] = some.op() alias %y -> %y return %y",
            "alias %y -> %y: expected an input of the function second, got %y",
        ),
        (
            "input %x: f32[2] %y: f32[3] = some.op() alias %y -> %x return %y",
            "alias %y -> %x: expected a new content f32[2], got f32[3]",
        ),
        (
            "input %x: f32[] %y: f32[] = some.op() alias %y -> %x alias %y -> %x return %y",
            "alias to %x: expected one new content, got two",
        ),
    ],
)
def test_names_types_and_ends(text: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(text))


MAIN = parse_program("input %x: f32[8] %y: f32[8] = aten.relu.default(self=%x) return %y")


def with_main(**changes: object) -> Program:
    return MAIN.with_main(replace(MAIN.main, **changes))  # type: ignore[arg-type]


def with_op(**changes: object) -> Program:
    return with_main(ops=(replace(MAIN.main.ops[0], **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_op(args=(("self", Ref("xx")),)), "operand %xx: expected a value that is defined"),
        (
            with_op(args=(("self", Ref("x")), ("a=print(1), b", 2))),
            "argument: expected a name as those of Python, got 'a=print(1), b'",
        ),
        (with_op(results=("y", "z")), "result %z: expected a value of the function, got none"),
        (with_op(phase="sideways"), "phase: expected one of forward, backward, update"),
        (with_main(inputs=("x", "z")), "input %z: expected a value of the function, got none"),
        (
            with_main(values={**MAIN.main.values, "y": Value("x", "f32", (8,))}),
            "the value filed as %y: expected its name 'y', got x",
        ),
        (
            replace(MAIN, functions={"main": replace(MAIN.main, name="f")}),
            "the function filed as 'main': expected its name, got 'f'",
        ),
        (
            with_main(values={**MAIN.main.values, "y": Value("y", "f32", (True,))}),
            "%y: shape: expected sizes that are integers >= 0, got True",
        ),
    ],
)
def test_what_text_cannot_say(program: Program, message: str) -> None:
    assert any(message in problem for problem in problems_of(program))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("signature { output %y: f32[8] activation }", "the inputs of the signature: expected"),
        ("signature { input %x: f32[8] input }", "the outputs of the signature: expected the out"),
        (
            "signature { input %x: f16[8] input output %y: f32[8] activation }",
            "port %x: dtype: expected that of the value, f32, got f16",
        ),
        (
            "signature { input %x: f32[9] input output %y: f32[8] activation }",
            "port %x: shape: expected [8], got [9]",
        ),
        (
            "signature { input %x: f32[8] input output %y: f32[8] activation box [4[0; 2]] }",
            "port %y: box: expected one of a tensor [8], got [4]",
        ),
        (
            'signature { input %x: f32[8] input part "w" [12] from [5]'
            " output %y: f32[8] activation }",
            "port %x: part: expected one of [8] within a tensor [12], got one from [5]",
        ),
    ],
)
def test_ports(text: str, message: str) -> None:
    lines = f"{text} input %x: f32[8] %y: f32[8] = aten.relu.default(self=%x) return %y"
    (problem,) = problems_of(lines)
    assert message in problem


def test_ports_of_local_values_have_as_many_dimensions() -> None:
    (problem,) = problems_of(
        "program executable signature { input %x: f32[8] input } input %x: f32[tp, 2] return"
    )
    assert "port %x: shape: expected 2 dimensions, got [8]" in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mesh tp=2 input %x: f32[8] of [9@tp] return",
            "%x: layout: expected one that fits the tensor and its mesh, got layout is for shape",
        ),
        (
            "mesh tp=2 input %x: f32[8@tp, 4@tp] return",
            "got mesh axis 'tp' is used more than once",
        ),
        (
            'mesh tp=2 input %x: f32[8] "total"@tp return',
            "got unknown reduction 'total'",
        ),
        (
            "mesh tp=2 input %x: f32[8] mask [0, 7] return",
            "expected a mask of processes of its mesh, got [7]",
        ),
        (
            "mesh tp=2 mesh @m x=2 input %x: f32[8@x] on @m return",
            "expected the program's mesh tp=2 or a part of it, got x=2",
        ),
        (
            "mesh tp=2 mesh @m x=2 some.op() {on @m} return",
            "mesh: expected the program's mesh tp=2 or a part of it, got",
        ),
        (
            "program partitioned mesh tp=2 input %x: f32[3] of [8@tp] return",
            "%x: layout: expected the local shape [4] of [8@tp] at tp=0, got [3]",
        ),
        (
            "program partitioned mesh tp=4 input %x: f32[2] of [7@tp] return",
            "expected the local shape [1] of [7@tp] at tp=3, got [2]",
        ),
        (
            "program partitioned mesh tp=2 input %x: f32[4, 1] of [8@tp] return",
            "%x: layout: expected a shape of 1 dimensions, got one of 2",
        ),
        (
            "program partitioned mesh dp=64, tp=64 input %x: f32[1] of [4095@(dp,tp)] return",
            "expected the local shape [0] of [4095@(dp,tp)] at tp=63, dp=63, got [1]",
        ),
    ],
)
def test_layouts(text: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(text))


OPEN = """
program partitioned
mesh tp=4
size $batch
size $length = 1..64 planned 16
"""


@pytest.mark.parametrize(
    "text",
    [
        "input %x: f32[$batch, 4] of [($batch * 4)@tp, 4]",
        "input %x: f32[$batch * 4] of [($batch * 16)@tp]",
        "input %x: f32[4 * (1 + $batch) - 4] of [($batch * 16)@tp]",
        "input %x: f32[($batch + 3) // 4 - tp * 0] of [(($batch + 3) // 4 * 4)@tp]",
        "input %x: f32[$batch, 16] of [$batch, 64@tp]",
        "input %x: f32[min($length, 16)]",
    ],
)
def test_local_shapes_of_open_sizes_are_compared_as_expressions(text: str) -> None:
    assert problems_of(f"{OPEN} signature {{}} {text} return") == ()


def test_the_local_shape_that_a_layout_of_open_sizes_tells_is_right() -> None:
    batch, mesh = Size("batch"), ProcessMesh.of_shape((2, 3), ("dp", "tp"))
    for size in (batch, batch * 3, batch + 1, ceildiv(batch, 2), 7):
        for axes in (("dp",), ("tp",), ("tp", "dp")):
            layout = Layout(mesh, ((SubDim(size, axes), SubDim(batch)), (SubDim(5),)))
            value = Value("x", "f32", layout.local_shape, "input", layout)
            main = Function("main", ("x",), (), {"x": value}, ())
            program = Program({"main": main}, mesh=mesh, level="partitioned")
            assert problems_of(program) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "input %x: f32[$batch] of [$batch@tp]",
            "the local shape [max(0, min(($batch + 3) // 4, $batch))] of [$batch@tp] at tp=0, got"
            " [$batch]",
        ),
        (
            "input %x: f32[$batch] of [$length]",
            "expected the local shape [$length] of [$length] at tp=0, got [$batch]",
        ),
        (
            "input %x: f32[$batch] of [($batch * 2)]",
            "expected the local shape [$batch * 2] of [$batch * 2] at tp=0, got [$batch]",
        ),
        ("input %x: f32[0 - $length]", "expected sizes that are at least 0, got the size $length"),
        ("input %x: f32[$length + dp]", "%x: size $length + dp: expected axes of tp=4, got dp"),
        ("some.op(a=$length + dp)", "argument a: expected axes of tp=4, got dp"),
    ],
)
def test_open_sizes_of_partitioned_programs(text: str, message: str) -> None:
    (problem,) = problems_of(f"{OPEN} signature {{}} {text} return")
    assert message in problem


SERIAL = "mesh tp=2 size $batch size $length = 1..64"


@pytest.mark.parametrize(
    "text",
    [
        "input %x: f32[$batch] return",
        "input %x: f32[$batch@tp, $batch * 2] return",
        "%x: f32[$batch] = some.op(size=[$batch, $batch * 2 - 1]) return",
        'func main { input %x: f32[$batch] call(callee="f", operands=[%x]) return }'
        " func f { input %y: f32[$batch] return }",
        'input %x: f32[$length] part "w" [100] from [36] return',
    ],
)
def test_serial_programs_may_have_open_sizes(text: str) -> None:
    assert problems_of(f"{SERIAL} {text}") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "signature {} input %x: f32[$batch + tp] return",
            "%x: shape: expected global sizes in a serial program, got the size $batch + tp",
        ),
        (
            "some.op(a=$batch + tp) return",
            "argument a: expected no rank expression in a serial program, got $batch + tp",
        ),
        (
            "signature {} input %x: f32[$length] of [$batch@tp] return",
            "layout is for shape [$batch], the tensor has [$length]",
        ),
        (
            "signature { input %x: f32[$length] input } input %x: f32[$batch] return",
            "port %x: shape: expected [$batch], got [$length]",
        ),
        (
            "signature { input %x: f32[$batch] input box [$batch[0; 1], 2] }"
            " input %x: f32[$batch] return",
            "port %x: box: expected one of a tensor [$batch], got [$batch, 2]",
        ),
        (
            'input %x: f32[$length] part "w" [99] from [36] return',
            "port %x: part: expected one of [$length] within a tensor [99], got one from [36]",
        ),
        (
            'func main { input %x: f32[$batch] call(callee="f", operands=[%x]) return }'
            " func f { input %y: f32[$length] return }",
            "operands, position 0: expected f32[$length], got f32[$batch]",
        ),
    ],
)
def test_open_sizes_of_serial_programs(text: str, message: str) -> None:
    (problem,) = problems_of(f"{SERIAL} {text}")
    assert message in problem


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            (Size("b"), Size("b", 1, 2, 2)),
            "open size $b: expected one range, 0..2147483647 planned 8, got 1..2 planned 2",
        ),
        ((Size("b c"),), "an open size: expected an identifier as its name, got 'b c'"),
        ((Size("b", 3, 2),), "open size $b: expected a range of numbers >= 0, got 3..2"),
        ((Size("b", -1, 2),), "open size $b: expected a range of numbers >= 0, got -1..2"),
    ],
)
def test_what_open_sizes_are(sizes: tuple[Size, ...], message: str) -> None:
    (problem,) = problems_of(with_op(args=(("self", Ref("x")), ("sizes", sizes))))
    assert problem == message


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ("$b <= 4", "relation $b <= 4: expected one that holds of the sizes as planned, got anot"),
        ("$b <= tp", "relation $b <= tp: expected one of sizes, without mesh axes, got $b <= tp"),
        ("$c <= 4", "relation $c <= 4: expected one of open sizes of inputs, got c"),
        ("1 <= 4", "relation 1 <= 4: expected one of open sizes of inputs, got "),
        ("$b <= 8", None),
        ("$b // 4 * 4 == $b", None),
    ],
)
def test_what_relations_are(relation: str, message: str | None) -> None:
    sizes = "size $b = 0.. planned 8 size $c = 0.. planned 2"
    found = problems_of(f"program serial {sizes} relation {relation} input %x: f32[$b] return %x")
    assert bool(found) == bool(message)
    assert all(message is not None and each.startswith(message) for each in found)


def test_the_shape_of_a_port_is_global() -> None:
    port = Port("x", "x", "f32", (Coord("tp"),), "input")
    value = Value("x", "f32", (Coord("tp"),), "input")
    main = Function("main", ("x",), (), {"x": value}, ())
    program = Program({"main": main}, Signature((port,)), level="executable")
    assert problems_of(program) == ("port %x: shape: expected global sizes, got [tp]",)


def test_a_part_of_the_mesh_is_within_it() -> None:
    assert problems_of("mesh dp=2, tp=2 input %x: f32[8@tp] on mesh[dp=1] return") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'mesh tp=2 %y: f32[] = comm.all_reduce(axes=["tp"]) return',
            "op: expected no collective in a serial program, got comm.all_reduce",
        ),
        (
            "program partitioned mesh tp=2 comm.all_reduce() return",
            "argument axes: expected different axes of the mesh (tp), got None",
        ),
        (
            'program partitioned mesh tp=2 comm.all_reduce(axes=["tp", "tp"]) return',
            "argument axes: expected different axes of the mesh (tp), got ('tp', 'tp')",
        ),
        (
            'program partitioned mesh tp=2 comm.all_reduce(axes=["dp"]) return',
            "argument axes: expected different axes of the mesh (tp), got ('dp',)",
        ),
        (
            "program partitioned mesh tp=2 some.op(start=dp) return",
            "argument start: expected axes of tp=2, got dp",
        ),
        (
            'program executable comm.all_reduce(axes=["tp"]) return',
            "argument group: expected the name of a process group, got None",
        ),
        (
            'program partitioned mesh tp=2 comm.all_reduce(group="tp", axes=["tp"]) return',
            "argument axes: expected none beside a process group, got ('tp',)",
        ),
    ],
)
def test_collectives(text: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(text))


def test_mapped_collectives_name_a_group() -> None:
    text = 'program partitioned mesh tp=2 comm.all_reduce(group="tp") return'
    assert problems_of(text) == ()


def test_an_executable_program_says_nothing_about_distribution() -> None:
    text = """
        program executable
        mesh @m tp=2
        input %x: f32[8] on @m ~chosen
        some.op() {on @m} ~chosen
        return
        """
    first, second = problems_of(text)
    assert "in main: %x: distribution: expected none after strip, got [8] chosen" in first
    assert "distribution: expected none after strip, got chosen\n      some.op() {on @m1}" in second


def loop(old: str, new: str) -> tuple[str, ...]:
    """What is found in the loop with a part of it changed."""
    assert old in programs.LOOP
    return problems_of(programs.LOOP.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('callee="double"', 'callee="dobule"', "argument callee: expected one of main, step, dou"),
        ('callee="double"', "callee=3", "argument callee: expected one of"),
        ("operands=[%total]", "operands=[%all]", "operands, position 0: expected f32[4], got f32"),
        ("operands=[%total]", "operands=[]", "number of operands: expected 1, got 0"),
        ("operands=[%total]", "operands=%total", "argument operands: expected a list of values"),
        ("%end: f32[4]", "%end: f16[4]", "results, position 0: expected f32[4], got f16[4]"),
        ('body="step"', 'body="stop"', "argument body: expected one of main, step, double; did"),
        ("trip=3", "trip=tp", "argument trip: expected a number of iterations >= 0, got tp"),
        ("trip=3", "trip=-1", "argument trip: expected a number of iterations >= 0, got -1"),
        ("trip=3", "trip=true", "argument trip: expected a number of iterations >= 0, got True"),
        ("trip=3", "trip=2", "sliced operand %xs: expected 2 slices along dimension 0, got f32["),
        ("trip=3", "trip=2", "results, position 1: expected f32[2, 4], got f32[3, 4]"),
        (
            "invariant=[%k]",
            "invariant=[]",
            "number of carried, sliced and invariant operands: expected 3, got 2",
        ),
        (
            "carried=[%acc]",
            "carried=[%k]",
            "carried, sliced and invariant operands, position 0: expected f32[4], got f32[]",
        ),
        (
            "%s: f32[4]",
            "%s: f32[5]",
            "carried outputs of the body, position 0: expected f32[4], got f32[5]",
        ),
        ("operands=[%end, %all]", "operands=[%all, %end]", "results, position 0: expected f32[3"),
        ("operands=[%end, %all]", "operands=[%end]", "number of results: expected 1, got 2"),
    ],
)
def test_calls_repeats_and_barriers(old: str, new: str, message: str) -> None:
    assert any(message in problem for problem in loop(old, new))


def test_functions_do_not_call_themselves() -> None:
    program = parse_program(
        """
        func main { call(callee="f", operands=[]) return }
        func f { repeat(body="g", trip=1) return }
        func g { call(callee="f", operands=[]) return }
        """
    )
    assert problems_of(program) == (
        "function f: expected no call of itself, also through others, got one",
        "function g: expected no call of itself, also through others, got one",
    )


def test_a_broken_call_is_reported_once() -> None:
    op = Op("call", (("callee", "main"), ("operands", (Ref("gone"),))), ())
    program = Program({"main": Function("main", (), (), {}, (op,))})
    assert len([problem for problem in problems_of(program) if "%gone" in problem]) == 1


def test_no_mesh_at_all_for_a_layout() -> None:
    mesh = ProcessMesh.of_shape((2,), ("tp",))
    value = Value("x", "f32", (Coord("tp"),), "input", Layout.replicated(mesh, (1,)), Origin("x"))
    program = Program({"main": Function("main", ("x",), (), {"x": value}, ())}, level="partitioned")
    assert "expected the program's mesh None or a part of it" in problems_of(program)[0]
