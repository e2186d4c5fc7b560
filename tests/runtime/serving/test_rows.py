"""Calls are put together only where a row depends on its row alone, by the factor rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from autopar import InferenceSession
from autopar.base.errors import InvalidInputError
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.expr.expression import Size
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.serving.rows import check_rows
from tests.frontend.onnx.graphs import FLOAT, graph, model, node
from tests.given.models import model_path


def program(*ops: str, returned: str = "y") -> Program:
    """Returns a program of `x: f32[$b, $l, 4]` and `w: f32[4, 4]`."""
    lines = "\n  ".join(ops)
    return parse_program(f"""
program "rows" serial
size $b = 0..64
size $l = 0..512
func main {{
  input     %x: f32[$b, $l, 4]
  parameter %w: f32[4, 4]
  parameter %scale: f32[1, 4]
  {lines}
  return %{returned}
}}
""")


def size_of(given: Program) -> Size:
    first = given.signature.inputs[0].shape[0]
    assert isinstance(first, Size)
    return first


FLAT = "%f: f32[$b * $l, 4] = aten.view.default(self=%x, size=[$b * $l, 4])"
KEPT = {
    "products of all tokens at once": (
        FLAT,
        "%p: f32[$b * $l, 4] = aten.mm.default(self=%f, mat2=%w)",
        "%s: f32[$b * $l, 4] = aten.mul.Tensor(self=%p, other=%scale)",
        "%y: f32[$b, $l, 4] = aten.view.default(self=%s, size=[$b, $l, 4])",
    ),
    "heads beside one another": (
        "%h: f32[$b, $l, 2, 2] = aten.view.default(self=%x, size=[$b, $l, 2, 2])",
        "%t: f32[2, $b, $l, 2] = aten.permute.default(self=%h, dims=[2, 0, 1, 3])",
        "%f: f32[$b * 2, $l, 2] = aten.view.default(self=%t, size=[$b * 2, $l, 2])",
        "%u: f32[$b * 2, 2, $l] = aten.transpose.int(self=%f, dim0=1, dim1=2)",
        "%p: f32[$b * 2, $l, $l] = aten.bmm.default(self=%f, mat2=%u)",
        "%a: f32[$b * 2, $l, $l] = aten._softmax.default(self=%p, dim=-1, half_to_float=false)",
        "%o: f32[$b * 2, $l, 2] = aten.bmm.default(self=%a, mat2=%f)",
        "%v: f32[2, $b, $l, 2] = aten.view.default(self=%o, size=[2, $b, $l, 2])",
        "%y: f32[$b, 2, $l, 2] = aten.transpose.int(self=%v, dim0=0, dim1=1)",
    ),
    "sums within a row": (
        "%s: f32[$b, 1, 4] = aten.mean.dim(self=%x, dim=[1], keepdim=true)",
        "%y: f32[$b, $l, 4] = aten.sub.Tensor(self=%x, other=%s)",
    ),
    "what is the same in all rows": (
        "%n: i64[$l] = aten.arange.default(end=$l)",
        "%o: i64[$b, $l] = aten.expand.default(self=%n, size=[$b, $l])",
        "%z: f32[$b, $l, 4] = aten.full.default(size=[$b, $l, 4], fill_value=2.0)",
        "%e: f32[$b, $l, 4] = aten.embedding.default(weight=%w, indices=%o)",
        "%s: f32[$b, $l, 4] = aten.add.Tensor(self=%e, other=%z)",
        "%y: f32[$b, $l, 4] = aten.add.Tensor(self=%s, other=%x)",
    ),
}


@pytest.mark.parametrize("ops", KEPT.values(), ids=KEPT.keys())
def test_rows_are_followed_and_each_is_the_same_by_itself(ops: tuple[str, ...]) -> None:
    given = program(*ops)
    check_rows(given, size_of(given))
    weights = {"w": torch.arange(16.0).reshape(4, 4), "scale": torch.full((1, 4), 0.5)}
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))

    def run(rows: torch.Tensor) -> torch.Tensor:
        at = at_sizes(given, {"b": len(rows), "l": 2})
        return run_serial(at, weights, {"x": rows})["y"]

    together = run(x)
    for at in range(3):
        torch.testing.assert_close(run(x[at : at + 1]), together[at : at + 1])


MIXED = {
    "a sum over them": (
        (
            "%s: f32[1, $l, 4] = aten.sum.dim_IntList(self=%x, dim=[0], keepdim=true)",
            "%y: f32[$b, $l, 4] = aten.sub.Tensor(self=%x, other=%s)",
        ),
        r"%s, by aten\.sum\.dim_IntList, mixes the rows of b .*puts them together",
    ),
    "a softmax along them": (
        ("%y: f32[$b, $l, 4] = aten._softmax.default(self=%x, dim=0, half_to_float=false)",),
        r"%y, by aten\._softmax\.default, mixes the rows of b",
    ),
    "a running sum": (
        ("%y: f32[$b, $l, 4] = aten.cumsum.default(self=%x, dim=0)",),
        r"%y, by aten\.cumsum\.default",
    ),
    "another order": (
        ("%y: f32[$b, $l, 4] = aten.flip.default(self=%x, dims=[0])",),
        r"%y, by aten\.flip\.default",
    ),
    "each with each": (
        (
            "%f: f32[$b, $l * 4] = aten.view.default(self=%x, size=[$b, $l * 4])",
            "%t: f32[$l * 4, $b] = aten.transpose.int(self=%f, dim0=0, dim1=1)",
            "%y: f32[$b, $b] = aten.mm.default(self=%f, mat2=%t)",
        ),
        r"%y, by aten\.mm\.default, .*takes other rows of %t",
    ),
    "their numbers": (
        ("%n: i64[$b] = aten.arange.default(end=$b)",),
        r"%n, by aten\.arange\.default, mixes the rows of b",
    ),
    "how many there are": (
        ("%y: f32[$b, $l, 4] = aten.mul.Tensor(self=%x, other=$b)",),
        r"%y, by aten\.mul\.Tensor, .*depends on how many there are",
    ),
    "an op without a rule": (
        ("%y: f32[$b, $l, 4] = mine.unknown.default(self=%x)",),
        r"%y, by mine\.unknown\.default, .*it has no rule",
    ),
    "tokens of several rows": (
        (
            FLAT,
            "%t: f32[4, $b * $l] = aten.transpose.int(self=%f, dim0=0, dim1=1)",
            "%y: f32[$b, $l, 4] = aten.view.default(self=%t, size=[$b, $l, 4])",
        ),
        r"%y, by aten\.view\.default",
    ),
}


@pytest.mark.parametrize(("ops", "message"), MIXED.values(), ids=MIXED.keys())
def test_rows_that_depend_on_others_are_refused(ops: tuple[str, ...], message: str) -> None:
    given = program(*ops, returned=ops[-1].partition(":")[0].strip("%"))
    with pytest.raises(InvalidInputError, match=message):
        check_rows(given, size_of(given))


def test_rows_elsewhere_than_in_the_first_dimension_are_refused() -> None:
    given = program("%y: f32[$l, $b, 4] = aten.transpose.int(self=%x, dim0=0, dim1=1)")
    with pytest.raises(InvalidInputError, match="output %y doesn't have its rows along its first"):
        check_rows(given, size_of(given))


def test_a_session_that_would_mix_rows_is_not_opened(tmp_path: Path) -> None:
    nodes = [
        node("ReduceSum", "x axes", "sums"),
        node("Div", "x sums", "y"),
    ]
    body = graph(nodes, {"x": (FLOAT, ["batch", 3])}, ["y"], {"axes": np.array([0])})
    onnx.save(model(body), tmp_path / "model.onnx")
    with pytest.raises(InvalidInputError, match=r"max_batch: .*%sums, by .*Leave max_batch out"):
        InferenceSession(tmp_path / "model.onnx", max_batch=8)
    with InferenceSession(tmp_path / "model.onnx") as session:
        (found,) = session.run(None, {"x": np.array([[1, 2, 4], [3, 6, 4]], np.float32)})
    np.testing.assert_allclose(found, [[0.25, 0.25, 0.5], [0.75, 0.75, 0.5]])


def test_each_call_that_writes_state_is_its_own() -> None:
    given = parse_program("""
program "state" serial
size $b = 0..64
func main {
  input  %x: f32[$b, 4]
  buffer %seen: f32[4]
  %y: f32[$b, 4] = aten.add.Tensor(self=%x, other=%seen)
  %new: f32[4] = aten.add.Tensor(self=%seen, other=1)
  alias %new -> %seen
  return %y, %new
}
""")
    with pytest.raises(InvalidInputError, match="each call writes %seen, which the next one reads"):
        check_rows(given, size_of(given))


@pytest.mark.models
def test_minilm_keeps_sentences_apart() -> None:
    with InferenceSession(model_path("minilm"), max_batch=8) as session:
        assert session.get_inputs()[0].type == f"tensor({np.dtype(np.int64)})"
