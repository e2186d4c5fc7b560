"""`shard_op`: which tensors of a call are marked, and which are asked for in vain."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.annotate import ProcessMesh, shard_op
from autopar.base.errors import AnnotationError
from autopar.ir.mark import Mark
from autopar.ir.text.layouts import Entry

MESH = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])
X, Y = torch.ones(4, 6), torch.ones(6, 8)
Pair = namedtuple("Pair", "total largest")

DimsMappings = dict[str | int, Sequence[Entry]]


def product(x: Tensor, weight: Tensor, *, scale: float = 1.0) -> Tensor:
    return x @ weight * scale


def pair(x: Tensor) -> Pair:
    return Pair(x.sum(1), x.amax(1))


def marked(call: Callable[..., Any], *tensors: Tensor) -> list[object]:
    """Returns what is marked in a call, by what computes it."""
    graph = make_fx(call)(*tensors).graph
    op = torch.ops.autopar.shard.default
    return [
        (node.args[0].name, Mark.parse(str(node.args[1])).dims_mapping)  # type: ignore[union-attr]
        for node in graph.nodes
        if node.target is op
    ]


@pytest.mark.parametrize(
    "mappings",
    [
        {0: ["dp", None], 1: [None, "tp"], "result": ["dp", "tp"]},
        {"x": ["dp", None], "weight": [None, "tp"], "result": ["dp", "tp"]},
    ],
)
def test_operands_go_by_position_or_parameter(mappings: DimsMappings) -> None:
    found = marked(shard_op(product, MESH, mappings), X, Y)
    assert found == [("arg0_1", ("dp", None)), ("arg1_1", (None, "tp")), ("mul", ("dp", "tp"))]


def test_operands_by_keyword() -> None:
    call = shard_op(product, MESH, {"weight": [None, "tp"]})
    assert marked(lambda x, y: call(x, weight=y, scale=2.0), X, Y) == [("y_1", (None, "tp"))]


def test_a_layer_and_a_builtin_function() -> None:
    layer = nn.Linear(6, 8)
    assert marked(shard_op(layer, MESH, {"input": ["dp", None]}), X) == [("arg0_1", ("dp", None))]
    assert marked(shard_op(torch.matmul, MESH, {1: [None, "tp"]}), X, Y)[0][1] == (None, "tp")  # type: ignore[index]


def test_several_results_keep_their_type() -> None:
    call = shard_op(pair, MESH, {"result.1": ["dp"]})
    assert isinstance(call(X), Pair)
    assert marked(call, X) == [("amax", ("dp",))]
    assert isinstance(shard_op(torch.max, MESH, {"result.0": ["dp"]})(X, 1), torch.return_types.max)


def test_the_results_are_those_of_the_function() -> None:
    call = shard_op(product, MESH, {0: ["dp", None], "result": ["dp", "tp"]})
    assert torch.equal(call(X, Y, scale=3.0), product(X, Y, scale=3.0))


@pytest.mark.parametrize(
    ("function", "mappings", "message"),
    [
        (product, {2: ["dp"]}, "no operand 2, only 0, 1, x, weight"),
        (product, {"wieght": ["dp"]}, "no operand 'wieght'.*did you mean weight"),
        (product, {"result.0": ["dp", None]}, "no result 'result.0', only result"),
        (pair, {"result": ["dp"]}, "no result 'result', only result.0, result.1"),
        (product, {0: ["dp"]}, "one entry per dimension"),
        (product, {0: ["dp", -1], "x": [-1, "dp"]}, "two of 0, 'x' are the same operand"),
    ],
)
def test_what_the_call_lacks_is_an_error(
    function: Callable[..., Any], mappings: DimsMappings, message: str
) -> None:
    tensors = (X, Y) if function is product else (X,)
    with pytest.raises(AnnotationError, match=message):
        shard_op(function, MESH, mappings)(*tensors)


def test_a_copy_of_a_model_calls_its_own_layer() -> None:
    layer = nn.Linear(6, 8)
    copied, call = copy.deepcopy((layer, shard_op(layer, MESH, {0: ["dp", None]})))
    assert call.fn is copied
    assert call.fn is not layer
