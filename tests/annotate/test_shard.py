"""`shard` within torch models."""

from __future__ import annotations

import pytest
import torch

from autopar.annotate import ProcessMesh, ShardSpec, shard
from autopar.annotate.mark import shard_op
from autopar.annotate.spec import spec_text
from autopar.ir.errors import AnnotationError
from autopar.ir.layout import DimMapping

MESH = ProcessMesh([[4, 5], [6, 7]], ["dp", "tp"])


def test_a_marked_tensor_is_a_copy() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    marked = shard(x, MESH, ["dp", -1])
    assert torch.equal(marked, x)
    assert marked.data_ptr() != x.data_ptr()


def test_the_op_passes_the_checks_of_torch() -> None:
    spec = spec_text(MESH, [("dp", 1), None])
    torch.library.opcheck(shard_op, (torch.randn(2, 3, requires_grad=True), spec))


def test_the_text_holds_mesh_and_mapping() -> None:
    spec = ShardSpec.parse(spec_text(MESH, [("dp", 1), None, ()]))
    assert spec == ShardSpec(MESH, (("dp", "tp"), -1, -1))
    assert str(spec.layout((4, 6, 2))) == "[4@(dp,tp), 6, 2]"


@pytest.mark.parametrize("text", ["", "{}", "(1, 2)", "((2,), ('a',), (0, 1))", "import os"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError, match="not the text of a shard annotation"):
        ShardSpec.parse(text)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shard(x * 2, MESH, ["dp", "tp"]).sum()


def marks(graph: torch.fx.Graph) -> list[ShardSpec]:
    op = torch.ops.autopar.shard.default
    return [
        ShardSpec.parse(node.args[1])
        for node in graph.nodes
        if node.target is op and isinstance(node.args[1], str)
    ]


@pytest.mark.parametrize("strict", [False, True])
def test_marks_survive_export(strict: bool) -> None:
    exported = torch.export.export(Model(), (torch.ones(4, 6),), strict=strict)
    assert marks(exported.graph) == [ShardSpec(MESH, ("dp", "tp"))]


def test_the_gradient_is_marked_alike() -> None:
    x = torch.ones(4, 6, requires_grad=True)
    seen: list[str] = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.autopar.shard.default:
                seen.append(args[1])
            return func(*args, **(kwargs or {}))

    loss = Model()(x)
    with Record():
        loss.backward()
    assert torch.equal(x.grad, torch.full((4, 6), 2.0))  # type: ignore[arg-type]
    assert [ShardSpec.parse(text).dims_mapping for text in seen] == [("dp", "tp")]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (["dp"], "one entry per dimension"),
        (["dp", 0], "uses mesh axis dp more than once"),
        (["pd", -1], "no axis 'pd'"),
        ([2, -1], "out of range"),
        ([-2, -1], "use -1"),
    ],
)
def test_a_mapping_that_does_not_fit_fails_at_the_call(
    mapping: list[DimMapping], message: str
) -> None:
    with pytest.raises(AnnotationError, match=message):
        shard(torch.ones(2, 3), MESH, mapping)
