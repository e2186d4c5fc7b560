"""Ops on lists of tensors, taken apart: each computes what its entry of the list is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.frontend.lower.lists import SINGLE, singles
from tests.ops.sample import Sample, compute, f, is_op, s
from tests.ops.split_run_combine import assert_equal

UNARY = """abs atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma neg round sigmoid sign
sin sinh tan tanh trunc zero acos asin log log10 log1p log2 reciprocal rsqrt sqrt"""

BINARY = "add sub mul div clamp_max clamp_min maximum minimum pow"


def samples() -> Iterator[Sample]:
    """Yields samples of ops on lists."""
    xs, ys = [f(3, 4, low=0.1, high=0.9), f(5, low=0.1, high=0.9)], [f(1, 4, low=0.2), f(5, low=2)]
    zs, values = [f(3, 1, low=0.3), f(5, low=0.5)], [2.0, 3.0]
    for name in UNARY.split():
        # torch 2.11 has none that clones.
        if is_op(f"aten._foreach_{name}.default"):
            yield s(f"_foreach_{name}", xs)
    for name in BINARY.split():
        yield s(f"_foreach_{name}.List", xs, ys)
        yield s(f"_foreach_{name}.Scalar", xs, 1.5)
        yield s(f"_foreach_{name}.ScalarList", xs, values)
    for name in ("add", "mul", "div"):
        yield s(f"_foreach_{name}.Tensor", xs, f(low=0.5))
    yield s("_foreach_add.List", xs, ys, alpha=2)
    yield s("_foreach_mul.Tensor", xs[:1], f())
    yield s("_foreach_pow.ScalarAndTensor", 2.0, xs)
    yield s("_foreach_copy", xs, ys)
    yield s("_foreach_lerp.List", xs, ys, zs)
    yield s("_foreach_lerp.Scalar", xs, [f(3, 4), f(5)], 0.3)
    yield s("_foreach_lerp.ScalarList", xs, [f(3, 4), f(5)], values)
    for name in ("addcmul", "addcdiv"):
        yield s(f"_foreach_{name}.Scalar", xs, ys, zs, 2)
        yield s(f"_foreach_{name}.ScalarList", xs, ys, zs, values)
    yield s("_foreach_max", xs)
    for order in (2, 1, 3, math.inf):
        yield s("_foreach_norm.Scalar", xs, order)
    yield s("_foreach_powsum.Scalar", xs, 3)


@pytest.mark.parametrize("sample", list(samples()), ids=str)
def test_each_op_computes_its_entry(sample: Sample) -> None:
    ops = singles(sample.op)
    tensors = {f"x{at}": tensor for at, tensor in enumerate(sample.tensors)}
    assert [op.results for op in ops] == [(name,) for name in sample.op.results]
    for op, whole in zip(ops, sample.results, strict=True):
        (found,) = compute(op.kind, dict(op.args), [tensors[name] for name in op.operands])
        assert_equal(found, whole, str(sample))


def test_a_fused_step_becomes_one_of_each_parameter() -> None:
    """Without `amsgrad` a list is empty, and stays so."""
    ps, gs, ms, vs = ([f(3, 4, low=at), f(5, low=at)] for at in range(4))
    scalars = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False}
    sample = s("_fused_adam", ps, gs, ms, vs, [], [f(), f()], **scalars, **flags)
    ops = singles(sample.op)
    assert [op.results for op in ops] == [("y0", "y2", "y4", "y6"), ("y1", "y3", "y5", "y7")]
    tensors = {f"x{at}": tensor for at, tensor in enumerate(sample.tensors)}
    whole = dict(zip(sample.op.results, sample.results, strict=True))
    for op in ops:
        found = compute(op.kind, dict(op.args), [tensors[name] for name in op.operands])
        for name, tensor in zip(op.results, found, strict=True):
            assert_equal(tensor, whole[name], name)


def test_every_op_has_a_sample() -> None:
    assert {sample.kind for sample in samples()} == {kind for kind in SINGLE if is_op(kind)}


def test_lists_of_a_graph_are_taken_apart() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return torch._foreach_add([x, y], 2.0)

    graph = make_fx(step)(f(3, 4), f(5)).graph
    nodes = list(graph.nodes)
    inputs = {node: GraphInput(node.name, "input") for node in nodes if node.op == "placeholder"}
    outputs = [GraphOutput(node, f"out{at}") for at, node in enumerate(nodes[-1].args[0])]
    main = lower(graph, Lowering(inputs, outputs)).main
    assert [op.kind for op in main.ops] == ["aten.add.Scalar"] * 2
