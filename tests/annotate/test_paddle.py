"""The spellings of Paddle's first annotation interface mean what ours mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import autopar
from autopar.annotate import paddle
from autopar.ir.mark import Mark

MESH = paddle.ProcessMesh([[0, 1], [2, 3]])


def marks(function: object, *tensors: Tensor) -> list[Mark]:
    graph = make_fx(function)(*tensors).graph  # type: ignore[arg-type]
    op = torch.ops.autopar.shard.default
    return [Mark.parse(str(node.args[1])) for node in graph.nodes if node.target is op]


def test_a_mesh() -> None:
    part = paddle.ProcessMesh([2, 3], MESH)
    assert autopar.ProcessMesh([[0, 1], [2, 3]]) == MESH
    assert (MESH.topology, MESH.process_group, MESH.ndim) == ((2, 2), (0, 1, 2, 3), 2)
    assert part.parent == MESH


def test_statements_without_a_result_mark_too() -> None:
    def model(x: Tensor) -> Tensor:
        paddle.shard_tensor(x, MESH, [0, -1])
        paddle.set_shard_mask(x, [[1, 0], [1, 1]])
        paddle.set_offload_device(x, "cpu")
        return x + 1

    layout, mask, memory = marks(model, torch.ones(2, 2))
    assert (layout.mesh, layout.dims_mapping) == (MESH, (0, -1))
    assert (mask.mask, memory.offload) == (((2, 2), (1, 0, 1, 1)), "cpu")
    assert layout.place.startswith(f"{__file__}:")


def test_an_operation() -> None:
    x, y = torch.ones(2, 2), torch.ones(2, 2)

    def model(x: Tensor, y: Tensor) -> list[Tensor]:
        return paddle.shard_op(
            torch.add, MESH, {"input": [0, -1], "other": [-1, 1]}, input=x, other=y
        )

    assert [mark.dims_mapping for mark in marks(model, x, y)] == [(0, -1), (-1, 1)]
    (total,) = paddle.shard_op(torch.add, MESH, None, input=x, other=y)
    assert torch.equal(total, x + y)
