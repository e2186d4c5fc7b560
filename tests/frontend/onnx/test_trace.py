"""What translations run is recorded as a graph without writes that computes the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from autopar.frontend.onnx.trace.node import Node
from autopar.frontend.onnx.trace.trace import Trace, origin_of, stand_in
from tests.frontend.onnx.graphs import node

X = torch.randn(3, 4)
ROW = X[0].numpy()
NODE = Node(node("Own", "x", "y"), "own", "", 17, {})


def recorded(function: Callable[..., torch.Tensor]) -> Trace:
    """The trace of a translation of one tensor like `X`, one more having gone before."""
    trace = Trace()
    given = stand_in(X, trace.mode)
    first = trace.run(NODE, lambda _, x: x.neg(), [given])
    result = trace.run(NODE, lambda _, x: function(x), [first])
    assert isinstance(result, torch.Tensor)
    trace.finish([trace.node_of(result)])
    return trace


def run(trace: Trace) -> torch.Tensor:
    placeholders = trace.graph.find_nodes(op="placeholder")
    inputs = [trace.constants.get(place, X) for place in placeholders]
    (result,) = fx.Interpreter(torch.nn.Module(), graph=trace.graph).run(*inputs)
    assert isinstance(result, torch.Tensor)
    return result


def ops(trace: Trace) -> list[str]:
    return [str(node.target) for node in trace.graph.nodes if node.op == "call_function"]


def bordered(x: torch.Tensor) -> torch.Tensor:
    result = x.new_zeros(4, 6)
    result[1:, 1:5] += x * 2
    result[0].fill_(3)
    return result


def with_constant(x: torch.Tensor) -> torch.Tensor:
    return x * torch.from_numpy(ROW) + torch.tensor([1.0, 2.0, 3.0, 4.0])


def parts(x: torch.Tensor) -> torch.Tensor:
    first, second = x.split([1, 2])
    values, places = second.max(0)
    return first + values + places


@pytest.mark.parametrize("function", [bordered, with_constant, parts, F.gelu, torch.special.expit])
def test_computes_the_same(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    trace = recorded(function)
    assert torch.equal(run(trace), function(X.neg()))
    trace.graph.lint()


def test_writes_become_results() -> None:
    trace = recorded(bordered)
    made = [node.target for node in trace.graph.nodes if node.op == "call_function"]
    assert not any(target._schema.is_mutable for target in made)
    assert len(trace.graph.find_nodes(op="placeholder")) == 1


def test_what_was_tried_leaves_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        result = x * torch.from_numpy(ROW)
        result.add_(1)
        return result

    trace = recorded(function)
    assert len(trace.constants) == 1
    assert ops(trace).count("aten.mul.Tensor") == 1


def test_constants_are_placeholders_with_content() -> None:
    trace = recorded(with_constant)
    assert sorted(map(tuple, (each.shape for each in trace.constants.values()))) == [(4,), (4,)]
    assert all(place.op == "placeholder" for place in trace.constants)


def test_fused_ops_stay_and_others_are_decomposed() -> None:
    assert ops(recorded(F.gelu))[1:] == ["aten.gelu.default"]
    assert "aten.count_nonzero.default" not in ops(recorded(lambda x: torch.count_nonzero(x)))


def test_each_op_tells_of_its_node() -> None:
    trace = recorded(parts)
    made = [each for each in trace.graph.nodes if each.op == "call_function"]
    assert all(origin_of(each) is NODE for each in made)
