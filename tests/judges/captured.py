"""Programs captured from torch modules, and what becomes of them on a virtual mesh."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.frontend.lower.explicit_writes import make_writes_explicit
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.expr.expression import Expr, evaluate
from autopar.ir.program import Program
from autopar.pipeline import Compiled, CompileOptions, compile_program
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights

Tensors = Mapping[str, Tensor]
Step = Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]
"""(parameters, inputs) -> outputs, by name."""


@dataclass(frozen=True)
class Captured:
    """A serial program with the values that it was captured with.

    Attributes:
        program: The program.
        weights: Its parameters and buffers.
        inputs: Its inputs.
        expected: What torch computes for them.
    """

    program: Program
    weights: Tensors
    inputs: Tensors
    expected: Tensors


@dataclass(frozen=True)
class Collective:
    """A collective of a partitioned program.

    Attributes:
        kind: Such as `all_reduce`.
        value: The value it produces.
        shape: The local shape of its result, on the first rank.
        bytes: Size of its result on the first rank.
    """

    kind: str
    value: str
    shape: tuple[int, ...]
    bytes: int


def capture(step: Step, weights: Tensors, inputs: Tensors) -> Captured:
    """Captures what a function of parameters and inputs computes, its gradients too, as ATen."""
    names = [*weights, *inputs]
    labels: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(names, tensors, strict=True))
        found = step({n: given[n] for n in weights}, {n: given[n] for n in inputs})
        labels[:] = found
        return list(found.values())

    given = [tensor.detach().clone() for tensor in (*weights.values(), *inputs.values())]
    traced = make_fx(flat)(*given)
    make_writes_explicit(traced.graph)
    traced.recompile()
    pure = make_fx(torch.func.functionalize(traced))(*given)
    pure.graph.eliminate_dead_code()
    graph = pure.graph
    program = lower(graph, _lowering(graph, names, len(weights), labels))
    expected = dict(zip(labels, (t.detach() for t in flat(*given)), strict=True))
    return Captured(program, dict(weights), dict(inputs), expected)


def _lowering(
    graph: fx.Graph, names: Sequence[str], weights: int, labels: Sequence[str]
) -> Lowering:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = next(node for node in graph.nodes if node.op == "output").args
    return Lowering(
        {
            node: GraphInput(name, "parameter" if at < weights else "input")
            for at, (node, name) in enumerate(zip(placeholders, names, strict=True))
        },
        [GraphOutput(node, label) for node, label in zip(output, labels, strict=True)],
    )


def forward(module: nn.Module, **inputs: Tensor) -> Captured:
    """Captures a module's forward pass, in ATen ops below autograd."""
    weights = module.state_dict()

    def step(parameters: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            return {"y": torch.func.functional_call(module, parameters, (), given)}

    return capture(step, weights, inputs)


def exported(module: nn.Module, **inputs: Tensor) -> Captured:
    """Captures a module's forward pass as `torch.export` records it, ops such as linear whole."""
    program = torch.export.export(module, (), inputs, strict=False)
    signature = program.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    (output,) = next(node for node in program.graph.nodes if node.op == "output").args
    lowering = Lowering(
        {
            node: GraphInput(weights[node.name], "parameter")
            if node.name in weights
            else GraphInput(node.name, "input")
            for node in placeholders
        },
        [GraphOutput(output[0], "y")],
    )
    with torch.no_grad():
        expected = {"y": module(**inputs)}
    return Captured(lower(program.graph, lowering), module.state_dict(), inputs, expected)


def compiled(captured: Captured, mesh: str, strategy: str = "none", *shards: str) -> Compiled:
    """Compiles for a mesh."""
    options = CompileOptions.from_text(mesh=mesh, strategy=strategy, shards=shards)
    return compile_program(captured.program, options)


def run(captured: Captured, done: Compiled) -> dict[str, Tensor]:
    """Returns what the ranks compute."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        write_weights(path, captured.weights)
        with WeightFile(path) as weights:
            ranks = VirtualMesh(done.deployment, weights)
            return ranks.run({name: t.numpy() for name, t in captured.inputs.items()})


def check(captured: Captured, done: Compiled, tolerance: float = 2e-5) -> None:
    """Compares what the ranks compute with what torch does."""
    found = run(captured, done)
    for name, expected in captured.expected.items():
        torch.testing.assert_close(found[name], expected, rtol=tolerance, atol=tolerance)


def collectives(done: Compiled) -> list[Collective]:
    """Returns the collectives that a rank carries out, in order."""
    main = done.partitioned.main
    mesh = done.partitioned.mesh
    assert mesh is not None
    first = dict.fromkeys(mesh.dim_names, 0)
    found = []
    for op in main.ops:
        if op.kind.startswith("comm."):
            value = main.values[op.results[0]]
            shape = tuple(evaluate(s, first) if isinstance(s, Expr) else s for s in value.shape)
            nbytes = value.itemsize
            for size in shape:
                nbytes *= size
            found.append(Collective(op.kind.removeprefix("comm."), value.name, shape, nbytes))
    return found


def kinds(done: Compiled) -> Counter[str]:
    """Counts the collectives by kind."""
    return Counter(one.kind for one in collectives(done))
