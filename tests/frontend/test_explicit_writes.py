"""Writes that torch's functionalization misses: running statistics and fused optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.explicit_writes import make_writes_explicit
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.runtime.execute.serial import run_serial
from tests.judges.captured import capture, check, compiled, kinds

Tensors = dict[str, Tensor]

STATE = {"mean": torch.zeros(3), "var": torch.ones(3)}
LEARNED = {"w": torch.linspace(0.5, 1.5, 3), "b": torch.linspace(-1, 1, 3)}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def twice(x: Tensor, mean: Tensor, var: Tensor) -> list[Tensor]:
    before = mean.clone()
    y = F.batch_norm(x, mean, var, training=True)
    y = F.batch_norm(y * 2, mean, var, training=True)
    return [y, mean + 0, var, before]


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def test_statistics_that_are_read_after_a_write_are_the_new_ones() -> None:
    given = (draw(4, 3, 5), STATE["mean"], STATE["var"])
    traced = make_fx(twice)(*copies(given))
    make_writes_explicit(traced.graph)
    traced.graph.lint()
    traced.recompile()
    kept = copies(given)
    found, expected = traced(*kept), twice(*copies(given))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(kept, copies(given))


def test_a_program_returns_what_becomes_of_statistics() -> None:
    """The exporter names the placeholder as what it returns, and gets its last content."""
    given = (draw(4, 3, 5), STATE["mean"], STATE["var"])
    graph = make_fx(twice)(*copies(given)).graph
    nodes = list(graph.nodes)
    inputs = {node: GraphInput(node.name, "input") for node in nodes if node.op == "placeholder"}
    _, mean, var = inputs
    outputs = [
        GraphOutput(nodes[-1].args[0][0], "y"),
        GraphOutput(mean, "mean", updates=mean),
        GraphOutput(var, "var", updates=var),
    ]
    program = lower(graph, Lowering(inputs, outputs))
    tensors = {node.name: tensor for node, tensor in zip(inputs, given, strict=True)}
    y, new_mean, new_var, _ = twice(*copies(given))
    found = run_serial(program, {}, tensors)
    torch.testing.assert_close(dict(found), {"y": y, "mean": new_mean, "var": new_var})
    assert [old for _, old in program.main.aliases] == [mean.name, var.name]


def test_a_view_that_is_read_after_a_write_is_refused() -> None:
    def step(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        view = mean.view(3, 1)
        return F.batch_norm(x, mean, var, training=True) + view

    graph = make_fx(step)(*copies((draw(4, 3, 5), STATE["mean"], STATE["var"]))).graph
    with pytest.raises(InvalidInputError, match="later reads the view"):
        make_writes_explicit(graph)


@pytest.mark.parametrize("mesh", ["dp=2", "dp=3", "dp=2,tp=2"])
def test_statistics_of_a_split_batch_are_those_of_all_of_it(mesh: str) -> None:
    """A training step of data parallelism: statistics, gradients and running statistics.

    The images are large enough that gathering them costs more than the reductions.
    """

    def step(w: Tensors, given: Tensors) -> Tensors:
        mean, var = w["mean"].clone(), w["var"].clone()
        kernel, scale = (w[name].detach().requires_grad_() for name in ("kernel", "w"))
        y = F.conv2d(given["x"], kernel, padding=1)
        y = F.relu(F.batch_norm(y, mean, var, scale, w["b"], training=True, momentum=0.3))
        gradients = torch.autograd.grad((y * y).sum(), [kernel, scale])
        return {"y": y, "mean": mean, "var": var, "dk": gradients[0], "dw": gradients[1]}

    weights = {**STATE, **LEARNED, "kernel": draw(3, 2, 3, 3)}
    weights = {name: tensor.double() for name, tensor in weights.items()}
    captured = capture(step, weights, {"x": draw(7, 2, 320, 320).double()})
    done = compiled(captured, mesh, "none", "x=[dp,-1,-1,-1]", "y=[dp,-1,-1,-1]")
    check(captured, done)
    assert "aten._native_batch_norm_legit_functional.default" in [
        op.kind for op in captured.program.main.ops
    ]
    assert set(kinds(done)) == {"all_reduce"}


def fused(name: str, **options: float | bool) -> Callable[[Tensors, Tensors], Tensors]:
    """Returns two fused steps of an optimizer."""
    lists = {"adam": 5, "adamw": 5, "sgd": 3, "adagrad": 3}[name]

    def step(w: Tensors, given: Tensors) -> Tensors:
        state = {key: tensor.clone() for key, tensor in w.items()}
        parts = [[state[f"{key}{at}"] for at in range(2)] for key in "pgmvx"[:lists]]
        if name.startswith("adam") and not options["amsgrad"]:
            parts[4] = []
        steps = [] if name == "sgd" else [[given["step"]] * 2]
        for _ in range(2):
            getattr(torch, f"_fused_{name}_")(*parts, *steps, **options)
        return {key: tensor for key, tensor in state.items() if key[0] in "pmvx"[: lists - 1]}

    return step


ADAM = {
    "lr": 0.1,
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.01,
    "eps": 1e-8,
    "maximize": False,
}
SGD = {
    "weight_decay": 0.1,
    "momentum": 0.9,
    "lr": 0.1,
    "dampening": 0.0,
    "nesterov": False,
    "maximize": False,
    "is_first_step": False,
}
ADAGRAD = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}


@pytest.mark.parametrize(
    "step",
    [
        fused("adam", amsgrad=False, **ADAM),
        fused("adamw", amsgrad=True, **ADAM),
        fused("sgd", **SGD),
        fused("adagrad", **ADAGRAD),
    ],
    ids=["adam", "adamw", "sgd", "adagrad"],
)
def test_a_fused_step_is_split_as_its_parameters_are(
    step: Callable[[Tensors, Tensors], Tensors],
) -> None:
    """Each parameter has a layout of its own, whatever the others of the list have."""
    weights = {}
    for at, shape in enumerate([(5, 4), (6,)]):
        weights |= {f"{key}{at}": draw(*shape, seed=ord(key)) for key in "pg"}
        weights |= {f"{key}{at}": draw(*shape, seed=ord(key)).abs() for key in "mvx"}
    captured = capture(step, weights, {"step": torch.tensor(3.0)})
    assert len([op for op in captured.program.main.ops if "_fused_" in op.kind]) == 4
    names = [name for name in captured.expected if name.endswith("0")]
    done = compiled(captured, "x=2", "none", *(f"{name}=[-1,x]" for name in names), "p1=[x]")
    check(captured, done)
    main = done.partitioned.main
    steps = [op for op in main.ops if "_fused_" in op.kind]
    split = {tuple(main.values[op.results[0]].shape) for op in steps}
    assert split == {(5, 2), (3,)}
