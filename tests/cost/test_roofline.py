"""Seconds of ops: arithmetic against memory traffic, on the rank with the largest part."""

from __future__ import annotations

import pytest

from autopar.cost import Cluster, local_bytes, local_operations, op_seconds
from autopar.ir.dims import SubDim
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import RULES
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
    assert op_seconds(mm, WHOLE, types, cluster) == pytest.approx(max(compute, memory))
    assert (compute > memory) == (bound == "compute")
