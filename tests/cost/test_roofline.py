"""Seconds of ops: arithmetic against memory traffic, on the rank with the largest part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cost import Cluster, least_op_seconds, local_bytes, local_operations, op_seconds
from autopar.cost.rates import FreshMemory, OpRate
from autopar.ir.dims import SubDim
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import RULES
from autopar.ir.ops.families import family_of
from autopar.ir.program import OpDist
from autopar.ir.rules.rule import OpCall, Rule, TensorType

MESH = ProcessMesh.of_shape((2, 4), ("x", "y"))
WHOLE = OpDist(MESH)


def rule(kind: str, types: list[TensorType]) -> Rule:
    found = RULES[kind](OpCall(kind, {}, tuple(types[:-1]), (types[-1],)))
    assert found is not None
    return found


MM = [TensorType((64, 10), "bf16"), TensorType((10, 32), "bf16"), TensorType((64, 32), "bf16")]
EMBEDDING = [TensorType((1000, 8), "f32"), TensorType((16,), "i64"), TensorType((16, 8), "f32")]


def test_product() -> None:
    mm = rule("aten.mm.default", MM)
    assert local_operations(mm, WHOLE, MM) == 2 * 64 * 10 * 32
    assert local_bytes(mm, WHOLE, MM) == 2 * (64 * 10 + 10 * 32 + 64 * 32)


def test_uneven_split_counts_the_largest_part() -> None:
    mm = rule("aten.mm.default", MM)
    dist = OpDist(MESH, (("m", (SubDim(64, ("x",)),)), ("k", (SubDim(10, ("y",)),))))
    assert local_operations(mm, dist, MM) == 2 * 32 * 3 * 32
    assert local_bytes(mm, dist, MM) == 2 * (32 * 3 + 3 * 32 + 32 * 32)


def test_a_table_is_read_only_where_it_is_looked_up() -> None:
    embedding = rule("aten.embedding.default", EMBEDDING)
    assert local_bytes(embedding, WHOLE, EMBEDDING) == 16 * 8 * 4 + 16 * 8 + 16 * 8 * 4


def test_an_op_that_joins_hundreds_of_tensors_only_moves() -> None:
    types = [*[TensorType((1000,), "f32")] * 300, TensorType((300_000,), "f32")]
    cat = rule("aten.cat.default", types)
    assert local_operations(cat, WHOLE, types) == 0
    assert local_bytes(cat, WHOLE, types) == 2 * 4 * 300_000


def test_without_a_rule_all_is_whole() -> None:
    types = [TensorType((8, 8), "f32"), TensorType((4,), "i64")]
    assert local_bytes(None, WHOLE, types) == 8 * 8 * 4 + 4 * 8
    assert local_operations(None, WHOLE, types) == 64


@pytest.mark.parametrize(("size", "bound"), [(16, "memory"), (8192, "compute")])
def test_the_slower_of_both_counts(size: int, bound: str) -> None:
    cluster = Cluster.load("h100")
    types = [TensorType((size, size), "bf16")] * 3
    mm = rule("aten.mm.default", types)
    compute = 2 * size**3 / cluster.flops("bf16")
    memory = 3 * 2 * size**2 / cluster.bytes_per_second
    assert op_seconds("aten.mm.default", mm, WHOLE, types, cluster) == pytest.approx(
        max(compute, memory)
    )
    assert (compute > memory) == (bound == "compute")


def test_what_was_measured_takes_the_place_of_the_roofline() -> None:
    """Between what was measured, by amount of work and intensity; with the memory of results."""
    mm, cluster = rule("aten.mm.default", MM), Cluster.load("cpu")
    work = 2 * 64 * 10 * 32
    intensity = work / local_bytes(mm, WHOLE, MM)
    rates = [((work / 4, 1e6), (work * 4, 4e6)), ((work, 8e6),)]
    low, high = (
        OpRate("product", each, "bf16", intensity * factor)
        for each, factor in zip(rates, (0.5, 2), strict=True)
    )
    measured = replace(cluster, op_rates=(low,))
    assert op_seconds("aten.mm.default", mm, WHOLE, MM, measured) == pytest.approx(work / 2e6)
    both = replace(cluster, op_rates=(low, high))
    assert op_seconds("aten.mm.default", mm, WHOLE, MM, both) == pytest.approx(work / 4e6)
    fresh = replace(both, fresh_memory=FreshMemory(2 * 64 * 32 - 1, 1e-3))
    seconds = op_seconds("aten.mm.default", mm, WHOLE, MM, fresh)
    assert seconds == pytest.approx(work / 4e6 + 2 * 64 * 32 * 1e-3)
    assert least_op_seconds("aten.mm.default", mm, WHOLE, MM, both) == pytest.approx(work / 8e6)
    others = [TensorType(each.shape, "f32") for each in MM]
    roofline = op_seconds("aten.mm.default", mm, WHOLE, others, cluster)
    assert op_seconds("aten.mm.default", mm, WHOLE, others, both) == roofline


@pytest.mark.parametrize(
    ("kind", "shapes", "family"),
    [
        ("aten._log_softmax.default", [(8, 9)], "log_softmax"),
        ("aten.sum.dim_IntList", [(8, 9)], "reduction"),
        ("aten.add_.Tensor", [(8,)], "elementwise"),
        ("aten.convolution.default", [(1, 8, 4, 4), (8, 1, 3, 3)], "depthwise_convolution"),
        (
            "aten.convolution_backward.default",
            [(1, 8, 4, 4), (1, 8, 4, 4), (8, 8, 1, 1)],
            "pointwise_convolution_backward",
        ),
        ("autopar.attention", [(1, 2, 9, 64)], "attention"),
        (
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            [(1, 2, 9, 32), (1, 2, 9, 32)],
            "narrow_attention_backward",
        ),
    ],
)
def test_families(kind: str, shapes: list[tuple[int, ...]], family: str) -> None:
    assert family_of(kind, [TensorType(shape, "f32") for shape in shapes]) == family
