"""What runs through `torch.compile` says what went wrong as it does without."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.exc import BackendCompilerFailed

from autopar.ir import emitted
from autopar.ir.expr.expression import Size
from autopar.ir.program import Op, Ref
from autopar.runtime.collectives.windows import window
from autopar.runtime.execute.torch_compile import through_torch_compile


def below_nine(x: Tensor) -> tuple[Tensor]:
    torch._assert_async((x < 9).all(), "it is out of range")
    return (x + 1,)


def compiles() -> bool:
    """Whether torch makes code of it by itself that this machine's compiler takes."""
    try:
        torch.compile(fx.symbolic_trace(below_nine))(torch.ones(3))
    except BackendCompilerFailed:
        return False
    return True


def test_the_error_of_an_op_is_raised_and_not_one_of_the_compiler() -> None:
    if not compiles():
        pytest.skip("torch.compile itself fails here")
    compiled = through_torch_compile(fx.symbolic_trace(below_nine), whole=True)
    assert compiled(torch.ones(3))[0].tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match=r"^it is out of range$"):
        compiled(torch.full((3,), 9.0))
    assert compiled(torch.zeros(3))[0].tolist() == [1.0] * 3


def windowed() -> fx.GraphModule:
    """Returns what adds 1 to a window of a vector, from before its beginning to an open end."""
    graph = fx.Graph()
    x, end = graph.placeholder("x"), graph.placeholder("end")
    read = graph.call_function(window, (x, 0, -1, end, 0))
    args = (("self", Ref("x")), *emitted.window(0, -1, Size("n"), 0).args)
    read.meta["op"] = Op(emitted.WINDOW, args, ("y",))
    graph.output((graph.call_function(torch.add, (read, 1)),))
    return fx.GraphModule({}, graph)


def test_windows_of_open_sizes_are_no_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    compiled, x, counts = through_torch_compile(windowed(), whole=True), torch.ones(5), []
    for end in (2, 3, 5, 6, 9, 1):
        (found,) = compiled(x, end)
        assert found.tolist() == [1.0, *[2.0] * min(end, 5), *[1.0] * (end - 5)][: end + 1]
        counts.append(len(graphs))
    assert counts[2:] == [counts[2]] * 4
