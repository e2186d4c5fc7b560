"""What formulas spell out becomes one op, in any order of products and sums; near misses don't."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from autopar.ir.program import Program
from tests.frontend.recognize.spelled import (
    TOLERANCE,
    assert_equal,
    kinds,
    recognized,
)

SHAPES = ({"b": 3, "s": 5}, {"b": 1, "s": 1}, {"b": 2, "s": 0})


class Case(NamedTuple):
    """A program that spells something out; ops are `y: shape = kind(args)`, a line each.

    `B` is `$b, $s, 8`, `M` is `$b, $s, 1`, `T` is the dtype.
    """

    body: str
    kind: str
    dtypes: tuple[str, ...] = ("f32", "f64")
    numbers: tuple[tuple[str, float], ...] = ()


def text_of(body: str, dtype: str, returned: str = "%y") -> str:
    """Returns the text of a program of `x`, `w` and `c`."""
    lines = [
        "size $b",
        "size $s",
        "input %x: T[B]",
        "parameter %w: T[8]",
        "parameter %c: T[8]",
        "constant %one: T[]",
    ]
    for line in filter(None, body.splitlines()):
        name, _, rest = line.strip().partition(" ")
        shape, _, op = rest.partition(" = ")
        shown = shape if ":" in shape else f"T[{shape}]"
        lines.append(f"%{name}: {shown.removeprefix(':')} = aten.{op}")
    text = "\n".join((*lines, f"return {returned}"))
    return (
        text.replace("[B]", "[$b, $s, 8]").replace("[M]", "[$b, $s, 1]").replace("T[", f"{dtype}[")
    )


SQUARE = """
p B = pow.Tensor_Scalar(self=%x, exponent=2)
m M = mean.dim(self=%p, dim=[2], keepdim=true)
e M = add.Tensor(self=%m, other=1e-06)
"""
ROOT = f"""{SQUARE}
s M = sqrt.default(self=%e)
d M = div.Tensor(self=%one, other=%s)
n B = mul.Tensor(self=%x, other=%d)
"""
CENTERED = """
m M = mean.dim(self=%x, dim=[-1], keepdim=true)
d B = sub.Tensor(self=%x, other=%m)
p B = pow.Tensor_Scalar(self=%d, exponent=2.0)
v M = mean.dim(self=%p, dim=[-1], keepdim=true)
e M = add.Tensor(self=%v, other=1e-05)
s M = sqrt.default(self=%e)
n B = div.Tensor(self=%d, other=%s)
"""
WIDE = """
u :f32[B] = _to_copy.default(self=%x, dtype=f32)
p :f32[B] = mul.Tensor(self=%u, other=%u)
m :f32[M] = mean.dim(self=%p, dim=[2], keepdim=true)
e :f32[M] = add.Tensor(self=%m, other=1e-06)
r :f32[M] = rsqrt.default(self=%e)
n :f32[B] = mul.Tensor(self=%u, other=%r)
"""
CUBE = "0.044715"
CASES = {
    "silu": Case(
        "s B = sigmoid.default(self=%x)\ny B = mul.Tensor(self=%s, other=%x)",
        "silu",
        ("f16", "bf16", "f32", "f64"),
    ),
    "hard swish": Case(
        """
a B = add.Tensor(self=%x, other=3.0)
k B = clamp.default(self=%a, min=0.0, max=6.0)
m B = mul.Tensor(self=%x, other=%k)
y B = div.Tensor(self=%m, other=6.0)
""",
        "hardswish",
    ),
    "hard sigmoid": Case(
        """
m B = mul.Tensor(self=%x, other=0.16666666666666666)
a B = add.Tensor(self=%m, other=0.5)
y B = clamp.default(self=%a, min=0.0, max=1.0)
""",
        "hardsigmoid",
    ),
    "gelu": Case(
        """
d B = div.Tensor(self=%x, other=1.4142135381698608)
f B = erf.default(self=%d)
a B = add.Tensor(self=%f, other=%one)
m B = mul.Tensor(self=%x, other=%a)
y B = mul.Tensor(self=%m, other=0.5)
""",
        "gelu",
        ("f16", "bf16", "f32"),
    ),
    "gelu of a half": Case(
        """
h B = mul.Tensor(self=%x, other=0.5)
d B = mul.Tensor(self=%x, other=0.7071067811865476)
f B = erf.default(self=%d)
a B = add.Tensor(self=1.0, other=%f)
y B = mul.Tensor(self=%h, other=%a)
""",
        "gelu",
    ),
    "gelu by tanh": Case(
        f"""
h B = mul.Tensor(self=%x, other=0.5)
q B = mul.Tensor(self=%x, other=%x)
k B = mul.Tensor(self=%q, other=%x)
b B = mul.Tensor(self=%k, other={CUBE})
i B = add.Tensor(self=%x, other=%b)
j B = mul.Tensor(self=%i, other=0.7978845608028654)
t B = tanh.default(self=%j)
a B = add.Tensor(self=%t, other=1.0)
y B = mul.Tensor(self=%h, other=%a)
""",
        "gelu",
        ("bf16", "f32", "f64"),
    ),
    "rms norm": Case(f"{ROOT}y B = mul.Tensor(self=%w, other=%n)", "rms_norm"),
    "rms norm without a weight": Case(ROOT.replace("n B", "y B"), "rms_norm"),
    "rms norm by rsqrt": Case(
        f"{SQUARE}r M = rsqrt.default(self=%e)\nz B = mul.Tensor(self=%x, other=%w)\n"
        "y B = mul.Tensor(self=%z, other=%r)",
        "rms_norm",
    ),
    "rms norm in f32": Case(
        f"{WIDE}q B = _to_copy.default(self=%n, dtype=T)\ny B = mul.Tensor(self=%w, other=%q)",
        "rms_norm",
        ("f16", "bf16"),
    ),
    "layer norm": Case(
        f"{CENTERED}g B = mul.Tensor(self=%n, other=%w)\ny B = add.Tensor(self=%g, other=%c)",
        "layer_norm",
    ),
    "layer norm without a weight": Case(CENTERED.replace("n B", "y B"), "layer_norm"),
}


def programs(case: Case, dtype: str, **more: object) -> tuple[Program, Program]:
    text = text_of(case.body.replace("dtype=T", f"dtype={dtype}"), dtype)
    return recognized(text, {"one": 1.0}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_what_is_spelled_out_becomes_one_op(name: str) -> None:
    case = CASES[name]
    for dtype in case.dtypes:
        spelled, program = programs(case, dtype)
        assert kinds(program) == [case.kind]
        assert "one" not in program.main.values
        for sizes in SHAPES:
            assert_equal(spelled, program, {"one": 1.0}, sizes, TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_elsewhere_stays(name: str) -> None:
    case = CASES[name]
    dtype = case.dtypes[-1]
    spelled, _ = programs(case, dtype)
    for op in spelled.main.ops[:-1]:
        (inner,) = op.results
        text = text_of(case.body.replace("dtype=T", f"dtype={dtype}"), dtype, f"%y, %{inner}")
        _, program = recognized(text, {"one": 1.0})
        assert inner in program.main.values
        assert len(program.main.ops) > 1


@pytest.mark.parametrize("name", CASES)
def test_what_is_pinned_stays(name: str) -> None:
    for op in programs(CASES[name], CASES[name].dtypes[0])[0].main.ops[:-1]:
        _, program = programs(CASES[name], CASES[name].dtypes[0], kept=op.results)
        assert op.results[0] in program.main.values


NEAR = {
    "a mean of other rows": ("rms norm", ("dim=[2]", "dim=[1]"), ("[$b, $s, 1]", "[$b, 1, 8]")),
    "another exponent": ("rms norm", ("exponent=2)", "exponent=3)")),
    "a negative epsilon": ("rms norm", ("other=1e-06", "other=-1e-06")),
    "no known number": ("rms norm", ("other=1e-06", "other=%w")),
    "another numerator": ("rms norm", ("self=%one, other=%s", "self=2.0, other=%s")),
    "a scaled sum": ("layer norm", ("other=1e-05", "other=1e-05, alpha=2")),
    "another mean": ("layer norm", ("mean.dim(self=%x, dim=[-1]", "mean.dim(self=%x, dim=[1]")),
    "the weight is the bias": ("layer norm", ("other=%c", "other=%x")),
    "another root": ("gelu", ("1.4142135381698608", "1.41421")),
    "another half": ("gelu", ("other=0.5", "other=0.25")),
    "a cut quotient": ("gelu", ("381698608", '381698608, rounding_mode="floor"')),
    "another cube": ("gelu by tanh", (CUBE, "0.0447")),
    "another bound": ("hard swish", ("max=6.0", "max=5.0")),
    "a bound is left out": ("hard sigmoid", ("min=0.0, ", "")),
    "another slope": ("hard sigmoid", ("0.16666666666666666", "0.2")),
    "the sigmoid of something else": (
        "silu",
        ("sigmoid.default(self=%x", "sigmoid.default(self=%w"),
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_stay(name: str) -> None:
    of, *changes = NEAR[name]
    case = CASES[of]
    text = text_of(case.body, "f32")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    _, program = recognized(text, {"one": 1.0})
    assert case.kind not in kinds(program) or (of == "layer norm" and len(kinds(program)) > 1)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["rms norm", "layer norm"])
def test_squares_that_may_be_infinite_stay(name: str, dtype: str) -> None:
    _, program = programs(CASES[name], dtype)
    assert CASES[name].kind not in kinds(program)


def test_the_place_is_that_of_the_result() -> None:
    spelled, program = programs(CASES["silu"], "f32")
    assert program.main.ops[0].loc == spelled.main.ops[-1].loc
