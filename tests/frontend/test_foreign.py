"""Ops of other libraries: computed by every rank from gathered operands, and right in any form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.program import Program
from autopar.pipeline import Compiled, CompileOptions, compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from tests.frontend import foreign_ops

OPS = foreign_ops.OPS
X = torch.arange(30.0).reshape(5, 6)
MESHES = {"2": "[d0,-1]", "3": "[-1,d0]", "2x2": "[d1,d0]", "2x3": "[(d1,d0),-1]"}


class Model(torch.nn.Module):
    """A module around a function, with a buffer."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("count", torch.ones(5, 6))

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def captured(function: Callable[[Model, Tensor], object]) -> Program:
    """Exports a model; updates of its buffer and input become outputs that share their storage."""
    program = torch.export.export(Model(function), (X,), strict=False).run_decompositions()
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = {
        node: GraphInput("x" if name.startswith("x") else "count", "input", kept=False)
        for name, node in placeholders.items()
    }
    signature = program.graph_signature
    buffers = {target: name for name, target in signature.inputs_to_buffers.items()}
    changed = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    outputs = []
    for at, node in enumerate(program.graph.output_node().args[0]):  # type: ignore[arg-type]
        source = changed.get(node.name)
        updates = placeholders[buffers.get(source, source)] if source is not None else None
        outputs.append(GraphOutput(node, f"out{at}", updates))
    return lower(program.graph, Lowering(inputs, outputs))


def compiled(program: Program, mesh: str) -> Compiled:
    shards = [f"{port.name}={MESHES[mesh]}" for port in program.signature.inputs if port.shape]
    return compile_program(program, CompileOptions.from_text(mesh=mesh, shards=shards))


def check(program: Program, expected: list[Tensor]) -> None:
    """Compares the serial program, and the ranks of several meshes, with what torch computes."""
    ports = [port.name for port in program.signature.inputs if port.shape]
    inputs = {name: X if name == "x" else torch.ones(5, 6) for name in ports}
    results = [run_serial(program, {}, inputs)]
    results += [
        VirtualMesh(compiled(program, mesh).deployment, WeightFile()).run(inputs) for mesh in MESHES
    ]
    for found in results:
        for at, tensor in enumerate(expected):
            torch.testing.assert_close(found[f"out{at}"], tensor)
    assert torch.equal(X, torch.arange(30.0).reshape(5, 6)), "an op wrote to its operand"


def pure(model: Model, x: Tensor) -> Tensor:
    return OPS.scaled((x + 1).t().contiguous(), 2.0).t() + x


def written(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y + 1
    OPS.scale_(y, 3.0)
    return y, z


def written_input(model: Model, x: Tensor) -> Tensor:
    x = x.clone()
    OPS.scale_(x, 3.0)
    return x


def written_slice(model: Model, x: Tensor) -> Tensor:
    y = x + 1
    OPS.scale_(y[1:4], 3.0)
    return y


def written_and_returned(model: Model, x: Tensor) -> tuple[Tensor, ...]:
    first, second, third = x + 1, x + 2, x * 2
    total, less = OPS.add_to_all_(first, x, [second, third])
    return first, second, third, total, less


def several(model: Model, x: Tensor) -> tuple[Tensor, ...]:
    low, high = OPS.extremes(x, [2.0, 20.0], "both", None)
    return low, high, OPS.pieces(x)[1]


FUNCTIONS = [pure, written, written_input, written_slice, written_and_returned, several]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_ops_are_right_on_every_mesh(function: Callable[[Model, Tensor], object]) -> None:
    expected = function(Model(function), X)
    results = list(expected) if isinstance(expected, tuple) else [expected]
    check(captured(function), results)  # type: ignore[arg-type]


def updated_state(model: Model, x: Tensor) -> Tensor:
    OPS.scale_(model.count, 3.0)
    OPS.scale_(x, 2.0)
    return x + model.count


def test_updates_are_stored_as_what_they_update() -> None:
    program = captured(updated_state)
    x, count = X.clone(), torch.ones(5, 6)
    assert len(program.main.aliases) == 2
    for mesh in MESHES:
        done = compiled(program, mesh)
        boxes = {port.name: port.box for port in done.deployment.programs[0].signature.inputs}
        results = done.deployment.programs[0].signature.outputs
        for port, (_, source) in zip(results, program.main.aliases, strict=False):
            assert port.box == boxes[source]
    expected = [count * 3, x * 2, x * 2 + count * 3]
    check(program, expected)


def test_only_the_input_is_pinned_and_its_update_follows() -> None:
    program = captured(updated_state)
    shards = ["count=[d0,d1]"]
    done = compile_program(program, CompileOptions.from_text(mesh="2x2", shards=shards))
    outputs = {port.label: port for port in done.deployment.programs[0].signature.outputs}
    inputs = {port.name: port for port in done.deployment.programs[0].signature.inputs}
    assert outputs["out0"].box == inputs["count"].box
    assert all(len({sub.length for sub in dim} - {5, 6}) for dim in inputs["count"].box)


def test_ranks_agree_on_what_an_op_draws() -> None:
    program = captured(lambda model, x: OPS.noise(x) * 2)
    expected = run_serial(program, {}, {"x": X, "seed": 4})["out0"]
    assert not torch.equal(run_serial(program, {}, {"x": X, "seed": 5})["out0"], expected)
    state = torch.random.get_rng_state()
    for mesh in MESHES:
        ranks = VirtualMesh(compiled(program, mesh).deployment, WeightFile())
        assert torch.equal(ranks.run({"x": X, "seed": 4})["out0"], expected)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_report_names_op_bytes_and_line() -> None:
    done = compiled(captured(written), "2x2")
    (replicated,) = (entry for entry in done.report if entry.category == "replicated")
    assert replicated.subject == f"{foreign_ops.LIBRARY}.scale_.default"
    assert replicated.bytes == 5 * 6 * 4
    assert replicated.loc.file.endswith("test_foreign.py")
    assert replicated.loc.line == Model.forward.__code__.co_firstlineno + 1
    gathered = [entry for entry in done.report if entry.category == "reshard"]
    assert any(entry.bytes and entry.loc == replicated.loc for entry in gathered)


def refusal(function: Callable[[Model, Tensor], object]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        captured(function)
    return str(caught.value)


def test_what_is_written_must_be_a_tensor_or_a_slice_of_one() -> None:
    def strided(model: Model, x: Tensor) -> Tensor:
        y = x + 1
        OPS.scale_(y.t()[1:, ::2], 3.0)
        return y

    def twice(model: Model, x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return (*OPS.add_to_all_(y[:2], x[:2], [y[2:4]]), y)

    message = refusal(strided)
    assert "test_foreign.py:" in message
    assert f"{foreign_ops.LIBRARY}.scale_.default: it writes to a view that is no slice" in message
    assert "writes to one tensor through several arguments" in refusal(twice)


def traced(function: Callable[[Tensor], Tensor]) -> Program:
    """Traces a function as it runs, without functionalization."""
    graph: fx.Graph = torch.fx.experimental.proxy_tensor.make_fx(function)(X.clone()).graph
    (placeholder,) = (node for node in graph.nodes if node.op == "placeholder")
    output = GraphOutput(graph.output_node().args[0], "out0")  # type: ignore[arg-type]
    return lower(graph, Lowering({placeholder: GraphInput("x", "input")}, [output]))


def test_ops_that_return_a_view_of_an_operand() -> None:
    program = traced(lambda x: OPS.without_first(x + 1) * 2 + OPS.without_first(x))
    check(program, [(X[1:] + 1) * 2 + X[1:]])


def test_writes_through_a_view_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"aten.add_.Tensor writes to its operand"):
        traced(lambda x: OPS.without_first(x + 1).add_(1))
    with pytest.raises(InvalidInputError, match=r"scale_.default writes to its operand"):
        traced(lambda x: (y := x + 1, OPS.scale_(y, 2.0))[0])


def through_a_view(x: Tensor) -> Tensor:
    y = x + 1
    part = y[1:]
    part.mul_(2)
    return y * 2


def to_the_caller(x: Tensor) -> Tensor:
    y = x * 2
    x.copy_(y)
    return y


def test_writes_that_nobody_reads() -> None:
    with pytest.raises(InvalidInputError, match=r"aten.mul_.Tensor writes to its operand"):
        traced(through_a_view)
    assert [op.kind for op in traced(to_the_caller).main.ops] == ["aten.mul.Tensor"]
