"""Dropouts that an exported graph holds whole: copies at rest, else ops that draw by counter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.program import Program
from autopar.pipeline import CompileOptions, compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile

X = torch.linspace(0.5, 2.0, 4 * 6 * 5 * 3).reshape(4, 6, 5, 3)
DROPOUTS: dict[str, Callable[[float], nn.Module]] = {
    "elements": nn.Dropout,
    "features": nn.Dropout2d,
    "alpha": nn.AlphaDropout,
    "alpha of features": nn.FeatureAlphaDropout,
}


def exported(module: nn.Module) -> Program:
    """Lowers a module that `torch.export` recorded without decompositions."""
    graph = torch.export.export(module, (X,)).graph
    (placeholder,) = (node for node in graph.nodes if node.op == "placeholder")
    (returned,) = graph.output_node().args[0]  # type: ignore[misc]
    assert isinstance(returned, torch.fx.Node)
    inputs = {placeholder: GraphInput("x", "input")}
    return lower(graph, Lowering(inputs, [GraphOutput(returned, "y")]))


def draw(program: Program, seed: int = 1) -> Tensor:
    return run_serial(program, {}, {"x": X, "seed": seed})["y"]


def reference(kind: str, mask: Tensor, chance: float) -> Tensor:
    """Returns what torch computes where it keeps the elements of this mask."""
    if "alpha" not in kind:
        return X * mask / (1 - chance)
    alpha = 1.7580993408473766
    factor = ((alpha**2 * chance + 1) * (1 - chance)) ** -0.5
    kept = torch.where(mask.bool(), X, torch.tensor(-alpha))
    return kept * factor + alpha * factor * chance


@pytest.mark.parametrize("kind", DROPOUTS)
def test_the_same_arithmetic_as_torch_on_whatever_is_kept(kind: str) -> None:
    found = draw(exported(DROPOUTS[kind](0.4)))
    mask = (found > 0).float()  # What is kept of X is positive, what is dropped is not.
    assert 0.4 < mask.mean() < 0.8
    torch.testing.assert_close(found, reference(kind, mask, 0.4))
    if "features" in kind:
        assert torch.equal(mask, mask[:, :, :1, :1].expand_as(mask))


@pytest.mark.parametrize("kind", DROPOUTS)
def test_every_mesh_draws_the_same_without_communication(kind: str) -> None:
    program = exported(DROPOUTS[kind](0.4))
    for mesh, layout in (("3", "[d0,-1,-1,-1]"), ("2x2", "[-1,d1,d0,-1]")):
        options = CompileOptions.from_text(mesh=mesh, shards=[f"x={layout}"])
        done = compile_program(program, options)
        assert not any(op.kind.startswith("comm.") for op in done.partitioned.main.ops)
        found = VirtualMesh(done.deployment, WeightFile()).run({"x": X, "seed": 1})
        assert torch.equal(found["y"], draw(program))


@pytest.mark.parametrize("kind", DROPOUTS)
def test_what_drops_nothing_is_its_operand(kind: str) -> None:
    for module in (DROPOUTS[kind](0.4).eval(), DROPOUTS[kind](0.0)):
        assert not exported(module).main.ops


@pytest.mark.parametrize("kind", DROPOUTS)
def test_what_drops_everything_is_0(kind: str) -> None:
    assert not run_serial(exported(DROPOUTS[kind](1.0)), {}, {"x": X})["y"].any()
