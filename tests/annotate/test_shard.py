"""`shard` within torch models: nothing in eager mode, a mark in every kind of graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.annotate import ProcessMesh, offload, shard, shard_mask
from autopar.annotate.mark import mark_op
from autopar.base.errors import AnnotationError
from autopar.ir.dims_mapping import DimMapping
from autopar.ir.mark import Mark

MESH = ProcessMesh([[4, 5], [6, 7]], ["dp", "tp"])
OP = torch.ops.autopar.shard.default


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return shard(x * 2, MESH, ["dp", "tp"]).sum()


def marks(graph: torch.fx.Graph) -> list[Mark]:
    return [Mark.parse(str(node.args[1])) for node in graph.nodes if node.target is OP]


def mappings(graph: torch.fx.Graph) -> list[object]:
    return [mark.dims_mapping for mark in marks(graph)]


@pytest.mark.parametrize(
    "mark",
    [
        lambda x: shard(x, MESH, ["dp", -1]),
        lambda x: shard(x, None, ("dp", None)),
        lambda x: shard(x, MESH, ["dp", -1], partial={"tp": "sum"}),
        lambda x: offload(x, "cpu"),
        lambda x: shard_mask(x, [[1, 0], [0, 1]]),
    ],
)
def test_in_eager_mode_a_mark_is_the_tensor_itself(mark: Callable[[Tensor], Tensor]) -> None:
    parameter = nn.Parameter(torch.ones(2, 3))
    assert mark(parameter) is parameter


def test_the_op_passes_the_checks_of_torch() -> None:
    text = Mark(MESH, (("dp", 1), None), place="model.py:3").text()
    torch.library.opcheck(mark_op, (torch.randn(2, 3, requires_grad=True), text))


def graphs() -> dict[str, Callable[[nn.Module, Tensor], torch.fx.Graph]]:
    def export(strict: bool) -> Callable[[nn.Module, Tensor], torch.fx.Graph]:
        def build(module: nn.Module, x: Tensor) -> torch.fx.Graph:
            program = torch.export.export(module, (x,), strict=strict)
            return program.run_decompositions().graph

        return build

    return {
        "export": export(False),
        "strict export": export(True),
        "make_fx": lambda module, x: make_fx(module)(x).graph,
        "make_fx, fake": lambda module, x: make_fx(module, tracing_mode="fake")(x).graph,
        "make_fx, before autograd": lambda module, x: make_fx(module, pre_dispatch=True)(x).graph,
        "symbolic_trace": lambda module, x: torch.fx.symbolic_trace(module).graph,
    }


@pytest.mark.parametrize("capture", graphs())
def test_marks_are_in_every_graph(capture: str) -> None:
    graph = graphs()[capture](Model(), torch.ones(4, 6))
    (mark,) = marks(graph)
    assert (mark.mesh, mark.dims_mapping) == (MESH, ("dp", "tp"))


@pytest.mark.parametrize("capture", ["export", "strict export", "make_fx"])
def test_a_mark_whose_result_is_not_used_stays(capture: str) -> None:
    class Unused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            shard(x, MESH, ["dp", None])
            return x + 1

    assert mappings(graphs()[capture](Unused(), torch.ones(4, 6))) == [("dp", None)]


def test_marks_reach_a_backend_of_compile() -> None:
    seen: list[object] = []

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        seen.extend(mappings(module.graph))
        return module.forward

    x = torch.ones(4, 6)
    assert torch.equal(torch.compile(Model(), backend=backend, fullgraph=True)(x), Model()(x))
    assert seen == [("dp", "tp")]


def test_the_gradient_is_marked_alike() -> None:
    def step(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(Model()(leaf), leaf)[0]

    traced = make_fx(step)(torch.ones(4, 6))
    forward, backward = marks(traced.graph)
    assert (backward.mesh, backward.dims_mapping) == (MESH, forward.dims_mapping)
    assert (backward.place, backward.is_gradient) == (forward.place, True)
    assert torch.equal(traced(torch.ones(4, 6)), torch.full((4, 6), 2.0))


def test_the_gradient_of_a_pending_sum_is_complete() -> None:
    def step(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        marked = shard(leaf * 2, MESH, ["dp", None], partial={"tp": "sum"})
        return torch.autograd.grad(marked.sum(), leaf)[0]

    forward, backward = marks(make_fx(step)(torch.ones(4, 6)).graph)
    assert (forward.partial, backward.partial) == ((("tp", "sum"),), ())


def test_the_gradient_of_what_has_no_layout_is_not_marked() -> None:
    def step(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        marked = shard_mask(offload(leaf * 2, "cpu"), [[1, 0], [0, 1]])
        return torch.autograd.grad(marked.sum(), leaf)[0]

    assert [mark.is_gradient for mark in marks(make_fx(step)(torch.ones(4, 6)).graph)] == [
        False
    ] * 2


def test_who_watches_the_ops_sees_the_mark() -> None:
    seen: list[object] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        Model()(torch.ones(4, 6))
    assert OP in seen


@pytest.mark.parametrize("capture", ["export", "make_fx"])
def test_the_line_is_that_of_the_call(capture: str) -> None:
    (mark,) = marks(graphs()[capture](Model(), torch.ones(4, 6)))
    line = Model.forward.__code__.co_firstlineno + 1
    assert mark.place == f"{__file__}:{line}"


BAD: list[tuple[list[DimMapping], str]] = [
    (["dp"], "one entry per dimension"),
    (["dp", 0], "uses mesh axis dp more than once"),
    (["pd", -1], "no axis 'pd'.*did you mean .*dp"),
    ([2, -1], "out of range"),
    ([-2, -1], "use -1"),
]


@pytest.mark.parametrize(("mapping", "message"), BAD)
def test_a_mapping_that_does_not_fit_fails_at_the_call(
    mapping: list[DimMapping], message: str
) -> None:
    with pytest.raises(AnnotationError, match=message):
        shard(torch.ones(2, 3), MESH, mapping)
    with pytest.raises(AnnotationError, match=message):
        make_fx(lambda x: shard(x, MESH, mapping))(torch.ones(2, 3))


def test_without_a_mesh_the_number_of_entries_is_checked() -> None:
    with pytest.raises(AnnotationError, match="one entry per dimension"):
        shard(torch.ones(2, 3), None, ["dp"])


@pytest.mark.parametrize(
    ("partial", "message"),
    [
        ({"dp": "sum"}, "mesh axis 'dp' is used more than once"),
        ({"tp": "mean"}, "unknown reduction 'mean'.*one of sum, max"),
        ({"pp": "sum"}, "no axis 'pp'"),
    ],
)
def test_a_pending_reduction_must_fit(partial: dict[int | str, str], message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        shard(torch.ones(2, 3), MESH, ["dp", -1], partial=partial)


def test_different_reductions_can_not_be_pending_at_once() -> None:
    with pytest.raises(AnnotationError, match="whose order would matter"):
        shard(torch.ones(2), MESH, [None], partial={"dp": "sum", "tp": "max"})


@pytest.mark.parametrize("mask", [[], 1, [[1, 0], [1]], [[0, 0], [0, 0]], [[1, 2], [0, 0]]])
def test_a_mask_is_nested_lists_of_0_and_1(mask: object) -> None:
    with pytest.raises(AnnotationError, match="mask"):
        shard_mask(torch.ones(2), mask)


def test_offload_names_a_memory() -> None:
    with pytest.raises(AnnotationError, match="as 'cpu'"):
        offload(torch.ones(2), "")
