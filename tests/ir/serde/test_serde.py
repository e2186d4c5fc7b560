"""Bytes of programs, rank tables and manifests: round trips, determinism, and bad input."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from autopar.base.errors import InvalidInputError, Loc
from autopar.ir import program_pb2 as pb
from autopar.ir import serde
from autopar.ir.builds.manifest import Manifest
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.dims import SubDim
from autopar.ir.expr.expression import Binary, Coord, IntExpr, Size
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import DType, Function, Op, Program, Ref, Value
from autopar.ir.serde import (
    content_of,
    deployment_from_bytes,
    deployment_to_bytes,
    manifest_from_bytes,
    manifest_to_bytes,
    program_from_bytes,
    program_to_bytes,
)
from autopar.ir.text import parse_program, print_program
from tests.ir import programs, strategies

COMPLETED = parse_program(programs.COMPLETED)


@settings(max_examples=100)
@given(strategies.programs())
def test_every_program_comes_back_equal(program: Program) -> None:
    read = program_from_bytes(program_to_bytes(program))
    assert read == program
    # Text tells apart what is equal to Python: 1, 1.0 and True, 0.0 and -0.0.
    assert print_program(read) == print_program(program)


@given(strategies.deployments())
def test_every_rank_table_comes_back_equal(deployment: Deployment) -> None:
    data = deployment_to_bytes(deployment)
    assert deployment_from_bytes(data, deployment.programs) == deployment
    assert deployment_from_bytes(data).ranks == deployment.ranks


@given(strategies.manifests)
def test_every_manifest_comes_back_equal(manifest: Manifest) -> None:
    assert manifest_from_bytes(manifest_to_bytes(manifest)) == manifest


def test_the_order_in_mappings_does_not_reach_the_bytes() -> None:
    loop = parse_program(programs.LOOP)
    main = loop.main
    values = dict(reversed(list(main.values.items())))
    backwards = dict(reversed(list(loop.functions.items())))
    shuffled = Program(
        {**backwards, "main": Function("main", main.inputs, main.outputs, values, main.ops)},
        loop.signature,
        name=loop.name,
    )
    assert shuffled == loop
    assert program_to_bytes(shuffled) == program_to_bytes(loop)


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import hashlib; from autopar.ir.serde import program_to_bytes;"
        "from autopar.ir.text import parse_program; from tests.ir import programs;"
        "print(hashlib.sha256(b''.join(program_to_bytes(parse_program(text))"
        " for text in programs.ALL.values())).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_repeated_layers_take_few_bytes_each() -> None:
    def deep(layers: int) -> int:
        lines = [
            f"%h{at}: f32[8@dp, 12@tp] = aten.relu.default(self=%h{at - 1})"
            f' {{i0: 8@dp, i1: 12@tp}} ~implied("by x") loc("a/long/path/to/model.onnx", {at})'
            for at in range(1, layers + 1)
        ]
        text = "\n".join(("mesh dp=2, tp=4", "input %h0: f32[8@dp, 12@tp]", *lines, "return %h0"))
        return len(program_to_bytes(parse_program(text)))

    assert (deep(300) - deep(200)) / 100 < 80


def test_the_rank_table_of_a_large_array_is_small() -> None:
    mesh = ProcessMesh.of_shape((64, 64), ("dp", "tp"))
    ranks = tuple(RankEntry(0, divmod(at, 64), at) for at in range(mesh.size))
    rows = tuple(tuple(range(at, at + 64)) for at in range(0, mesh.size, 64))
    columns = tuple(tuple(range(at, mesh.size, 64)) for at in range(64))
    deployment = Deployment((), ("dp", "tp"), ranks, {"tp": rows, "dp": columns})
    data = deployment_to_bytes(deployment)
    assert len(data) < 100
    assert deployment_from_bytes(data) == deployment


def test_all_nan_are_one_object_so_that_programs_compare_equal() -> None:
    value = Value("y", "f32", ())
    op = Op("aten.full.default", (("fill_value", float("nan")),), ("y",))
    program = Program({"main": Function("main", (), ("y",), {"y": value}, (op,))})
    read = program_from_bytes(program_to_bytes(program))
    assert read.main.ops[0].arg("fill_value") is math.nan
    assert read == program_from_bytes(program_to_bytes(read))


def test_what_a_file_holds() -> None:
    assert content_of(program_to_bytes(COMPLETED)) == "program"
    assert content_of(manifest_to_bytes(Manifest("1"))) == "manifest"
    assert content_of(deployment_to_bytes(Deployment((), (), ()))) == "deployment"


# Writing what can't be written.


def test_more_than_two_gib_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serde, "MAX_BYTES", 100)
    with pytest.raises(InvalidInputError, match=r"'mlp' takes \d+ bytes, but .* more than 100;"):
        program_to_bytes(COMPLETED)


def with_op(**changes: object) -> Program:
    op = Op(**{"kind": "aten.relu.default", "args": (), "results": ("y",), **changes})  # type: ignore[arg-type]
    value = Value("y", "f32", ())
    return Program({"main": Function("main", (), (), {"y": value}, (op,))})


def nested(depth: int) -> tuple[object, ...]:
    inner: tuple[object, ...] = ()
    for _ in range(depth):
        inner = (inner,)
    return inner


def add_size(program: pb.Program, least: int, most: int) -> None:
    """Adds an open size that is called as the program is."""
    program.exprs.add(kind=pb.Expr.SIZE, name=program.name, least=least, most=most)


def chain(depth: int) -> IntExpr:
    expr: IntExpr = Coord("tp")
    for _ in range(depth):
        expr = Binary("+", expr, 1)
    return expr


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_op(args=(("self", Ref("x")),)), "no value %x"),
        (with_op(results=("z",)), "no value %z"),
        (with_op(stage=-1), "can't be stored"),
        (with_op(args=(("sizes", nested(40)),)), "argument sizes of aten.relu.default is too deep"),
        (with_op(args=(("sizes", nested(5000)),)), "is too deep a list"),
        (with_op(args=(("start", chain(200)),)), "a rank expression is 101 deep"),
        (with_op(args=(("start", chain(5000)),)), "can't be stored"),
        (
            with_op(args=(("sizes", (Size("b"), Size("b", 1))),)),
            r"can't be stored: there are two different open sizes \$b",
        ),
        (with_op(args=(("size", Size("b c")),)), "an open size can't be called 'b c'"),
        (with_op(args=(("size", Size("b", 3, 2)),)), r"open size \$b is at least 3 and at most 2"),
        (with_op(args=(("size", Size("b", -1)),)), "can't be stored"),
        (with_op(args=(("start", Binary("+", Coord("tp"), 1 << 70)),)), "can't be stored"),
        (Program({"main": Function("f", (), (), {}, ())}), "main is filed under a wrong name"),
        (
            Program({"main": Function("main", (), (), {"a": Value("b", "f32", ())}, ())}),
            "%a is filed under a wrong name",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused(program: Program, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        program_to_bytes(program)


def test_an_argument_of_a_foreign_type_is_a_defect() -> None:
    with pytest.raises(TypeError, match="argument dim is a bytes, which no op takes"):
        program_to_bytes(with_op(args=(("dim", b""),)))


# Reading what isn't right.


def envelope(**fields: object) -> bytes:
    file = pb.File(magic="autopar", format_version=1, minimum_reader_version=1)
    file.MergeFrom(pb.File(**fields))  # type: ignore[arg-type]
    return file.SerializeToString()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"m\.pb: not a file of autopar's \(0 bytes\)"),
        (b"\x08\x07\x12\x04onnx", r"m\.pb: not a file of autopar's"),
        (b"PK\x03\x04 some archive", r"m\.pb: not a file of autopar's, or truncated"),
        (envelope(), r"m\.pb: has no content; the file is truncated"),
        (envelope(manifest=pb.Manifest()), r"m\.pb: holds a manifest, not a program"),
        (
            envelope(format_version=18, minimum_reader_version=17, program=pb.Program()),
            r"m\.pb: has format version 18 and needs a reader of version 17 or newer, this is"
            r" version 16; update autopar",
        ),
    ],
)
def test_foreign_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        program_from_bytes(data, "m.pb")


def test_a_newer_format_that_old_readers_understand_is_read() -> None:
    file = pb.File.FromString(program_to_bytes(COMPLETED))
    file.format_version = 10
    # A field that this version doesn't know: number 1000, a varint.
    assert program_from_bytes(file.SerializeToString() + b"\xc0\x3e\x01") == COMPLETED


def test_only_files_with_parts_need_a_reader_that_knows_them() -> None:
    for part, oldest in (("", 2), (' part "v" [8] from [4]', 4)):
        program = parse_program(f"program serial parameter %w: f32[4]{part} return %w")
        file = pb.File.FromString(serde.program_to_bytes(program))
        assert file.minimum_reader_version == oldest


def test_only_files_with_open_sizes_need_a_reader_that_knows_them() -> None:
    for size, versions in (("4", (8, 2)), ("$batch", (9, 9))):
        program = parse_program(f"program serial size $batch input %x: f32[{size}] return %x")
        file = pb.File.FromString(program_to_bytes(program))
        assert (file.format_version, file.minimum_reader_version) == versions


def test_only_files_with_counted_loops_need_a_reader_that_knows_them() -> None:
    for index, versions in (("", (8, 2)), (", index=$t", (16, 16))):
        program = parse_program(
            f"""program executable {"size $t = 0..2 planned 0" if index else ""}
            func main {{
              input %x: f32[4]
              %y: f32[4] = repeat(body="body", trip=3{index}, carried=[%x])
              return %y
            }}
            func body {{
              activation %a: f32[4]
              %b: f32[4] = aten.add.Scalar(self=%a, other={"$t" if index else "1"})
              return %b
            }}"""
        )
        data = program_to_bytes(program)
        assert program_from_bytes(data) == program
        file = pb.File.FromString(data)
        assert (file.format_version, file.minimum_reader_version) == versions


def test_only_files_with_relations_need_a_reader_that_checks_them() -> None:
    size = "size $n = 0.. planned 4"
    for relation, oldest in (("", 9), ("relation $n // 4 * 4 == $n", 11)):
        program = parse_program(f"program serial {size} {relation} input %x: f32[$n] return %x")
        data = program_to_bytes(program)
        assert pb.File.FromString(data).minimum_reader_version == oldest
        assert program_from_bytes(data) == program


def test_numbers_keep_their_bytes_where_sizes_may_be_open_now() -> None:
    """A size of a layout, a box and a port is a varint, as it was when it was unsigned."""
    box = pb.Signature.BoxDim(size=300, start=1, length=2)
    assert box.SerializeToString() == b"\x08\xac\x02\x10\x02\x18\x04"
    assert pb.Dim.SubDim(size=300).SerializeToString() == b"\x08\xac\x02"
    assert pb.Signature.Port(shape=[300]).SerializeToString() == b"\x22\x02\xac\x02"


def test_every_truncation_is_refused() -> None:
    data = program_to_bytes(COMPLETED)
    for length in range(len(data)):
        with pytest.raises(InvalidInputError, match=r"m\.pb: "):
            program_from_bytes(data[:length], "m.pb")


@pytest.mark.parametrize("kind", ["program", "deployment", "manifest"])
def test_damaged_bytes_give_an_error_or_something_sound(kind: str) -> None:
    mesh = ProcessMesh.of_shape((2, 3), ("dp", "tp"))
    ranks = tuple(RankEntry(0, divmod(at, 3), at) for at in range(6))
    deployment = Deployment((COMPLETED,), mesh.dim_names, ranks, {"tp": ((0, 1, 2), (3, 4, 5))})
    data, read = {
        "program": (program_to_bytes(COMPLETED), program_from_bytes),
        "deployment": (deployment_to_bytes(deployment), deployment_from_bytes),
        "manifest": (manifest_to_bytes(Manifest("1", "m")), manifest_from_bytes),
    }[kind]
    chance = random.Random(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read(bytes(damaged))  # type: ignore[operator]
        except InvalidInputError:
            refused += 1
    assert refused > 50


Edit = Callable[[pb.Program], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p: p.functions[0].ops[0].args[0].__setattr__("ref", 99), "no value number 99"),
        (lambda p: p.functions[0].ops[0].results.append(99), "no value number 99"),
        (lambda p: p.functions[0].outputs.append(99), "no value of function main number 99"),
        (lambda p: p.functions[0].aliases.append(0), "aliases: 1 entries are not pairs"),
        (lambda p: p.functions[0].values.append(p.functions[0].values[0]), "is called 'x'"),
        (lambda p: p.functions.append(p.functions[0]), "more than one function is called 'main'"),
        (lambda p: p.functions[0].values[0].__setattr__("dtype", 1), "unknown dtype 'mlp'"),
        (lambda p: p.functions[0].values[0].__setattr__("role", 1), "unknown role 'mlp'"),
        (lambda p: p.functions[0].values[0].__setattr__("layout", 77), "no layout number 76"),
        (lambda p: p.functions[0].values[0].shape.append(-5), "no expression number 4"),
        (lambda p: p.functions[0].ops[0].__setattr__("phase", 1), "unknown phase 'mlp'"),
        (lambda p: p.functions[0].ops[0].__setattr__("loc", 99), "no location number 99"),
        (lambda p: p.functions[0].ops[0].__setattr__("kind", 999), "no string number 999"),
        (lambda p: p.functions[0].ops[0].plan.append(1), "plan: 1 entries are not pairs"),
        (lambda p: p.__setattr__("level", 1), "unknown level 'mlp'"),
        (lambda p: p.__setattr__("mesh", 9), "no mesh number 8"),
        (lambda p: p.strings.append(b"\xff"), "a string is not UTF-8"),
        (lambda p: p.layouts[0].partial.extend([1, 1]), "unknown reduction 'mlp'"),
        (lambda p: p.meshes[0].array.shape.append(3), r"shape \[2, 4, 3\] has 8 processes"),
        (lambda p: p.meshes[0].array.shape.append(1 << 31), "more than 16777216 processes"),
        (lambda p: p.meshes[0].array.ids.runs.append(1), "list of integers is malformed"),
        (lambda p: p.meshes[0].array.ids.runs.__setitem__(2, 1 << 40), "claims 1099511627776"),
        (lambda p: p.meshes[0].array.dim_names.__setitem__(0, 0), "must be identifiers"),
        (lambda p: p.meshes.add(), "neither an array of processes nor a slice"),
        (lambda p: p.meshes.add(parent=2).slice.SetInParent(), "no mesh number 1"),
        (lambda p: p.meshes.add(parent=1).slice.SetInParent(), "mesh has no axis ''"),
        (lambda p: p.exprs.add(kind=99), "unknown kind of expression 99"),
        (lambda p: p.exprs.add(kind=pb.Expr.ADD, lhs=-1, rhs=0), "no expression number 0"),
        (lambda p: p.exprs.add(kind=pb.Expr.SIZE), "an open size can't be called ''"),
        (lambda p: add_size(p, 3, 2), r"open size \$mlp is at least 3 and at most 2"),
        (
            lambda p: (add_size(p, 3, 4), add_size(p, 3, 5)),
            r"there are two different open sizes \$mlp",
        ),
        (
            lambda p: p.layouts[0].dims[0].sub_dims[0].__setattr__("size", -99),
            "there is no expression number 98",
        ),
        (
            lambda p: p.signature.inputs[0].shape.__setitem__(0, -99),
            "there is no expression number 98",
        ),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(edit: Edit, message: str) -> None:
    file = pb.File.FromString(program_to_bytes(COMPLETED))
    edit(file.program)
    with pytest.raises(InvalidInputError, match=rf"m\.pb: damaged: .*{message}"):
        program_from_bytes(file.SerializeToString(), "m.pb")


def test_an_expression_that_would_take_for_ever_is_refused() -> None:
    file = pb.File.FromString(program_to_bytes(COMPLETED))
    file.program.exprs.add(kind=pb.Expr.COORD)
    for number in range(1, 60):
        file.program.exprs.add(kind=pb.Expr.ADD, lhs=-number, rhs=-number)
    with pytest.raises(InvalidInputError, match="a rank expression is 14 deep and has 16383 nodes"):
        program_from_bytes(file.SerializeToString())


RankEdit = Callable[[pb.Deployment], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.program.runs.__setitem__(2, 5), "5 ranks have a program, 6 a process id"),
        (lambda d: d.program.runs.__setitem__(0, 3), "a rank runs program 3 of 1"),
        (lambda d: d.shape.__setitem__(0, 3), r"6 ranks don't fill an array of shape \[3, 3\]"),
        (lambda d: d.process_id.runs.__setitem__(0, 4), "don't number the array of ranks"),
        (lambda d: d.groups[0].axes.append(7), r"no axes \[1, 7\] in shape \[2, 3\]"),
        (lambda d: d.groups.append(d.groups[0]), "two groups are called 'tp'"),
        (lambda d: d.groups.add(name="x", ranks=pb.Ints(values=[1])), "1 ranks in lists of 0"),
        (
            lambda d: d.groups.add(
                name="x", ranks=pb.Ints(values=[9]), lengths=pb.Ints(values=[1])
            ),
            "'x' names rank 9 of 6",
        ),
        (lambda d: d.__setattr__("program_count", 2), "is for 2 programs, not 1"),
        (lambda d: d.__setattr__("row_major", False), "0 columns of coordinates for 2 axes"),
    ],
)
def test_a_rank_table_that_contradicts_itself_is_refused(edit: RankEdit, message: str) -> None:
    ranks = tuple(RankEntry(0, divmod(at, 3), at) for at in range(6))
    groups = {"tp": ((0, 1, 2), (3, 4, 5))}
    deployment = Deployment((COMPLETED,), ("dp", "tp"), ranks, groups)
    file = pb.File.FromString(deployment_to_bytes(deployment))
    edit(file.deployment)
    with pytest.raises(InvalidInputError, match=re.escape("ranks.pb: damaged: ") + f".*{message}"):
        deployment_from_bytes(file.SerializeToString(), (COMPLETED,), "ranks.pb")


def test_layouts_of_all_forms() -> None:
    """The parts of a layout that the random ones reach seldom, together."""
    root = ProcessMesh([[3, 1], [7, 5]], ["dp", "tp"])
    part = ProcessMesh([7, 3], ["x"], parent=root)
    layout = Layout(
        root["dp", 1],
        ((SubDim(12, ("tp",)), SubDim(64)), (), (SubDim(0),)),
        (("dp", "max"),),
        (7, 5),
        "cpu",
    )
    loc = Loc("a", 2, "b")
    values = {
        "x": Value("x", "bf16", (768, 1, 0), "input", layout, loc=loc),
        "y": Value("y", "u64", (4,), "buffer", Layout(part, ((SubDim(4, ("x",)),),)), loc=loc),
    }
    op = Op("aten.cat.default", (("dtype", DType("f32")), ("big", 1 << 64)), ())
    program = Program({"main": Function("main", ("x", "y"), (), values, (op,))}, mesh=root)
    assert program_from_bytes(program_to_bytes(program)) == program
