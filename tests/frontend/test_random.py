"""Random ops of exported graphs: replaced by ops that draw the same under every partition."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.ir.program import Program
from autopar.ir.text import parse_program, print_program
from autopar.pipeline import CompileOptions, compile_program, write
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from tests.frontend.test_fx import listing, lowered
from tests.runtime.execute.targets import run_program
from tests.runtime.job.real import run_ranks

X = torch.linspace(0.1, 0.9, 35).reshape(5, 7)

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "dropout": (lambda x: F.dropout(x, 0.3, True), "autopar.dropout"),
    "rand": (lambda x: x + torch.rand(5, 7), "autopar.rand"),
    "rand_like": (lambda x: x + torch.rand_like(x), "autopar.rand"),
    "uniform_": (lambda x: x + torch.empty_like(x).uniform_(2, 3), "autopar.rand"),
    "randn": (lambda x: x + torch.randn(7), "autopar.randn"),
    "randn_like": (lambda x: x + torch.randn_like(x), "autopar.randn"),
    "normal_": (lambda x: x + torch.empty_like(x).normal_(2, 3), "autopar.randn"),
    "normal": (lambda x: torch.normal(x, x * 2), "autopar.randn"),
    "randint": (lambda x: x + torch.randint(-4, 9, (5, 7)), "autopar.randint"),
    "random_": (lambda x: x + torch.zeros(5, 7, dtype=torch.int32).random_(), "autopar.randint"),
    "bernoulli_": (lambda x: x + torch.empty_like(x).bernoulli_(x), "autopar.bernoulli"),
    "bernoulli.p": (lambda x: torch.bernoulli(x, 0.4) + x, "autopar.bernoulli_p"),
    "dropout1d": (lambda x: F.dropout1d(x[None], 0.4), "autopar.bernoulli_p"),
    "exponential_": (lambda x: x + torch.empty_like(x).exponential_(2), "autopar.exponential"),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(x), "autopar.exponential"),
    "cauchy_": (lambda x: x + torch.empty_like(x).cauchy_(), "autopar.cauchy"),
    "geometric_": (lambda x: x + torch.empty_like(x).geometric_(0.3), "autopar.geometric"),
    "log_normal_": (lambda x: x + torch.empty_like(x).log_normal_(), "autopar.log_normal"),
    "rrelu": (lambda x: F.rrelu(x - 0.5, training=True), "autopar.rrelu"),
    "randperm": (lambda x: x[torch.randperm(5)], "autopar.permutation"),
    "multinomial": (lambda x: torch.multinomial(x, 3), "autopar.multinomial"),
    "poisson": (lambda x: torch.poisson(x * 9), "autopar.seeded.aten.poisson.default"),
    "complex": (
        lambda x: x + torch.randn(5, 7, dtype=torch.complex64),
        "autopar.seeded.aten.randn.default",
    ),
}


def drawing(program: Program) -> list[str]:
    return [op.kind for op in program.main.ops if "seed" in op.operands]


def splits(rank: int) -> Iterator[tuple[str, str]]:
    """Yields meshes, and every split of a tensor of this rank over them."""
    for mesh, axes in (("2", ["d0"]), ("3", ["d0"]), ("2x2", ["d0", "d1"]), ("2x3", ["d0", "d1"])):
        names = ["-1", *axes, *(["(d0,d1)", "(d1,d0)"] if len(axes) == 2 else [])]
        for mapping in itertools.product(names, repeat=rank):
            used = [axis for entry in mapping for axis in entry.strip("()").split(",")]
            used = [axis for axis in used if axis != "-1"]
            if used and len(used) == len(set(used)):
                yield mesh, f"[{','.join(mapping)}]"


@pytest.fixture(scope="module")
def everything() -> Program:
    """A program with an output for each function."""
    return lowered(lambda x: tuple(function(x) for function, _ in FUNCTIONS.values()), X)


def outputs_of(program: Program, seed: int) -> dict[str, Tensor]:
    found = run_serial(program, {}, {"x0": X, "seed": seed})
    return dict(zip(FUNCTIONS, found.values(), strict=True))


def test_each_op_is_replaced_and_depends_on_the_seed(everything: Program) -> None:
    assert drawing(everything) == [kind for _, kind in FUNCTIONS.values()]
    expected, again, other = (outputs_of(everything, seed) for seed in (5, 5, 6))
    for name, tensor in expected.items():
        assert torch.equal(tensor, again[name]), name
        assert not torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(("mesh", "layout"), random.Random(0).sample(list(splits(2)), 6))
def test_every_mesh_draws_the_same(mesh: str, layout: str, everything: Program) -> None:
    compiled = compile_program(everything, options(mesh, layout))
    found = VirtualMesh(compiled.deployment, WeightFile()).run({"x0": X, "seed": 5})
    for (name, tensor), mine in zip(outputs_of(everything, 5).items(), found.values(), strict=True):
        torch.testing.assert_close(mine, tensor, rtol=1e-6, atol=0, msg=f"{name}")


def test_masks_are_those_of_one_device_for_every_split() -> None:
    program = lowered(lambda x: (F.dropout(x, 0.4, True),), X)
    expected = run_serial(program, {}, {"x0": X, "seed": 1})["out0"]
    assert 0 < int((expected == 0).sum()) < 35
    for mesh, layout in [("1", "[-1,-1]"), *splits(2)]:
        compiled = compile_program(program, options(mesh, layout))
        found = VirtualMesh(compiled.deployment, WeightFile()).run({"x0": X, "seed": 1})
        assert torch.equal(found["out0"], expected), f"{mesh} {layout}"
    assert "all_gather" not in str(compile_program(program, options("2x2", "[d0,d1]")).partitioned)


def options(mesh: str, layout: str) -> CompileOptions:
    return CompileOptions.from_text(mesh=mesh, shards=[f"x0={layout}"])


def test_arguments_of_the_ops() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return F.dropout(x, 0.3, True), torch.randint(3, (4,)), torch.empty(2, 3).uniform_(2, 3)

    program = lowered(function, X)
    assert [line.partition(" = ")[2] for line in listing(program)] == [
        "autopar.dropout(self=Ref(name='x0'), p=0.3, seed=Ref(name='seed'), number=0)",
        "autopar.randint(low=0, high=3, size=(4,), dtype=DType(name='i64'),"
        " seed=Ref(name='seed'), number=1)",
        "autopar.rand(low=2.0, high=3.0, size=(2, 3), dtype=DType(name='f32'),"
        " seed=Ref(name='seed'), number=2)",
    ]
    port = program.signature.inputs[-1]
    assert (port.label, port.role, port.dtype, port.shape) == ("seed", "seed", "i64", ())


def test_ops_draw_independently_and_the_seed_is_0_if_not_given() -> None:
    program = lowered(lambda x: (torch.rand_like(x), torch.rand_like(x)), X)
    found = run_serial(program, {}, {"x0": X})
    assert not torch.equal(found["out0"], found["out1"])
    again = run_serial(program, {}, {"x0": X, "seed": 0})
    assert torch.equal(found["out0"], again["out0"])


def test_programs_that_draw_nothing_have_no_seed() -> None:
    program = lowered(lambda x: (F.dropout(x, 0.3, False), F.rrelu(x)), X)
    assert [port.label for port in program.signature.inputs] == ["x0"]


def test_the_backward_pass_uses_the_mask() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
    from autopar.frontend.lower.fx import lower

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = torch.native_dropout(x, 0.4, True)[0]
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    graph = make_fx(step)(X).graph
    (placeholder,) = (node for node in graph.nodes if node.op == "placeholder")
    outputs = [GraphOutput(node, f"out{at}") for at, node in enumerate(graph.output_node().args[0])]
    program = lower(graph, Lowering({placeholder: GraphInput("x0", "input")}, outputs))
    assert drawing(program) == ["autopar.dropout"]
    found = run_serial(program, {}, {"x0": X, "seed": 3})
    assert torch.equal(found["out0"] != 0, found["out1"] != 0)


def test_real_processes_draw_the_same(tmp_path: Path) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x, 0.4, True), torch.poisson(x * 9)

    program = lowered(function, X)
    expected = run_serial(program, {}, {"x0": X, "seed": 8})
    compiled = compile_program(program, options("2x2", "[d0,d1]"))
    write(compiled, {}, tmp_path / "build")
    found = run_ranks(4, run_program, [tmp_path / "build"], {"x0": X, "seed": 8})
    outputs, _ = found[0]
    for name, tensor in expected.items():
        assert torch.equal(torch.as_tensor(outputs[name]), tensor)


def test_the_ranks_program_prints_and_parses() -> None:
    program = lowered(lambda x: (F.dropout(x, 0.4, True),), X)
    partitioned = compile_program(program, options("2x3", "[d0,d1]")).partitioned
    text = print_program(partitioned)
    assert "grid=[[min(d0 * 3, 5), max(0, min(3, d0 * -3 + 5)), 7], [min(d1 * 3, 7), " in text
    assert print_program(parse_program(text)) == text
