"""Lowering of exported graphs: what is particular to torch is gone, the rest is there by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.base.errors import InvalidInputError, Loc
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.program import DType, Program, Ref

X = torch.arange(12.0).reshape(3, 4)
Y = X + 1


class Model(torch.nn.Module):
    """A module around a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> object:
        return self.function(*tensors)


def graph_of(function: Callable[..., object], *tensors: Tensor) -> fx.Graph:
    program = torch.export.export(Model(function), tensors, strict=False).run_decompositions()
    graph: fx.Graph = program.graph_module.graph
    return graph


def lowered(function: Callable[..., object], *tensors: Tensor, kept: bool = True) -> Program:
    graph = graph_of(function, *tensors)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = {
        node: GraphInput(f"x{at}", "input", kept=kept) for at, node in enumerate(placeholders)
    }
    (returned,) = graph.output_node().args
    outputs = [GraphOutput(node, f"out{at}") for at, node in enumerate(returned)]  # type: ignore[arg-type]
    names = {node: f"named_{node.name}" for node in graph.nodes if node.name.startswith("add")}

    def locate(node: fx.Node) -> Loc:
        return Loc("model.py", 3, node.name)

    return lower(graph, Lowering(inputs, outputs, names, locate, "model"))


def listing(program: Program) -> list[str]:
    return [
        f"{', '.join(op.results)} = {op.kind}({', '.join(f'{k}={v}' for k, v in op.args)})"
        for op in program.main.ops
    ]


def test_arguments_by_name_without_defaults_and_devices() -> None:
    program = lowered(lambda x: x.add(x, alpha=2).sum(1, dtype=torch.float64), X)
    add, total = program.main.ops
    assert add.args == (("self", Ref("x0")), ("other", Ref("x0")), ("alpha", 2))
    assert add.results == ("named_add",)
    assert add.loc == Loc("model.py", 3, "add")
    assert total.args == (("self", Ref("named_add")), ("dim", (1,)), ("dtype", DType("f64")))
    full = lowered(lambda x: x + torch.full((4,), 7, dtype=torch.int32), X).main.ops[0]
    assert full.args == (("size", (4,)), ("fill_value", 7), ("dtype", DType("i32")))


def test_copies_and_assertions_are_gone() -> None:
    def function(x: Tensor) -> Tensor:
        same = x.clone().detach().expand(3, 4).reshape(3, 4).to(torch.float32)
        return (same.t().contiguous() * 2).to(torch.int64)

    assert [op.kind for op in lowered(function, X).main.ops] == [
        "aten.permute.default",
        "aten.mul.Tensor",
        "aten._to_copy.default",
    ]


def test_views_spell_their_sizes() -> None:
    program = lowered(lambda x: (x.view(2, -1), x[:, None].expand(-1, 5, -1)), X)
    sizes = [dict(op.args).get("size") for op in program.main.ops]
    assert (2, 6) in sizes
    assert (3, 5, 4) in sizes


def test_several_results() -> None:
    program = lowered(lambda x: torch.split(x, [1, 2])[1] + torch.topk(x, 2, 0).values[:, :4], X)
    split, top = program.main.ops[:2]
    assert split.kind == "aten.split_with_sizes.default"
    assert len(split.results) == 2
    assert [program.main.values[name].shape for name in split.results] == [(1, 4), (2, 4)]
    assert [program.main.values[name].dtype for name in top.results] == ["f32", "i64"]


def test_dead_code_goes_and_inputs_stay() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        torch.sin(y)
        return x + 1

    assert lowered(function, X, Y).main.inputs == ("x0", "x1")
    assert lowered(function, X, Y, kept=False).main.inputs == ("x0",)
    assert [op.kind for op in lowered(function, X, Y).main.ops] == ["aten.add.Tensor"]


def test_outputs_that_are_the_same_value() -> None:
    program = lowered(lambda x: (x + 1, x, x.clone()), X)
    assert program.main.outputs == ("named_add", "x0", "x0")
    assert [port.label for port in program.signature.outputs] == ["out0", "out1", "out2"]


def test_what_has_no_place_in_a_program() -> None:
    graph = graph_of(lambda x: x.to(torch.float8_e4m3fnuz), X)
    (placeholder,) = (node for node in graph.nodes if node.op == "placeholder")
    (returned,) = graph.output_node().args
    outputs = [GraphOutput(returned[0], "y")]  # type: ignore[index,arg-type]
    with pytest.raises(InvalidInputError, match="float8_e4m3fnuz has no place in a program"):
        lower(graph, Lowering({placeholder: GraphInput("x", "input")}, outputs))
    with pytest.raises(InvalidInputError, match="a placeholder that nobody accounts for"):
        lower(graph, Lowering({}, outputs))


def test_ops_that_write_to_their_operands_are_refused() -> None:
    graph = make_fx(lambda x: x.sin().add_(1))(X).graph
    (placeholder,) = (node for node in graph.nodes if node.op == "placeholder")
    outputs = [GraphOutput(graph.output_node().args[0], "y")]  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"add_.Tensor writes to its operand; functional"):
        lower(graph, Lowering({placeholder: GraphInput("x", "input")}, outputs))


def test_results_that_nobody_asked_for_are_no_results() -> None:
    def gradient(x: Tensor, grad: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.ops.aten.convolution_backward(
            grad, x, weight, [2], [1], [0], [1], False, [0], 1, [True, False, True]
        )
        return found[0], found[2]

    tensors = (torch.ones(1, 3, 5), torch.ones(1, 2, 5), torch.ones(2, 3, 1))
    (op,) = lowered(gradient, *tensors).main.ops
    assert op.kind == "aten.convolution_backward.default"
    assert len(op.results) == 2


def test_arguments_may_be_complex() -> None:
    (op,) = lowered(lambda x: (torch.ops.aten.mul.Scalar(x, 1j),), X).main.ops
    assert op.arg("other") == 1j
