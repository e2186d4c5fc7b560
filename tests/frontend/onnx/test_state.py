"""State: which outputs are inputs of the next call, and what can't be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from autopar.base.errors import InvalidInputError
from autopar.frontend.onnx import import_onnx
from autopar.ir.program import Program
from autopar.ir.used_sizes import used_sizes
from tests.frontend.onnx.graphs import FLOAT, graph, model, node

SHAPE = ["batch", "length"]


def imported(
    folder: Path,
    state: Mapping[str, str],
    *nodes: onnx.NodeProto,
    past: Any = ("batch", "past"),
    x: Any = SHAPE,
    outputs: str = "y past_out",
) -> Program:
    """Imports a model that puts x behind what is past."""
    nodes = nodes or (node("Concat", "past_in x", "past_out", axis=1), node("Neg", "x", "y"))
    inputs = {"x": (FLOAT, list(x)), "past_in": (FLOAT, list(past))}
    path = folder / "model.onnx"
    onnx.save(model(graph(list(nodes), inputs, outputs.split())), path)
    return import_onnx(path, state=state).program


@pytest.mark.parametrize("state", [{"past_in": "past_out"}, {"*_in": "*_out"}])
def test_state_is_kept(tmp_path: Path, state: dict[str, str]) -> None:
    program = imported(tmp_path, state)
    (old,) = (port for port in program.signature.inputs if port.role == "state")
    (new,) = (port for port in program.signature.outputs if port.label == "past_out")
    assert (old.label, old.fill) == ("past_in", 0.0)
    assert program.main.aliases == ((new.name, old.name),)
    assert [str(size) for size in new.shape] == ["$batch", "$length + $past"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"past": "past_out"}, "past=past_out: there is no input 'past'; did you mean past_in"),
        ({"past_in": "past"}, "past_in=past: there is no output 'past'; did you mean past_out"),
        ({"*_in": "past_out"}, r"\*_in=past_out must have one \* on both sides, or none"),
        ({"*": "past_out"}, r"one \* on both sides"),
        ({"x": "past_out", "past_in": "past_out"}, "'past_out' is the new content of two inputs"),
        ({"past_in": "past_out", "*_in": "*_out"}, None),
        ({"past_in": "past_out", "past_*": "y*"}, "there is no output 'yin'"),
        ({"past_in": 3}, r"state\['past_in'\]=3: give a text"),
    ],
)
def test_words_that_can_not_be_meant(
    tmp_path: Path, state: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert imported(tmp_path, state).main.aliases
        return
    with pytest.raises(InvalidInputError, match=message):
        imported(tmp_path, state)


CAST = node("Cast", "past_in", "past_out", to=onnx.TensorProto.DOUBLE)
Y = node("Neg", "x", "y")
SUM = node("ReduceSum", "x", "past_out", keepdims=0)


@pytest.mark.parametrize(
    ("nodes", "past", "message"),
    [
        (
            [CAST, Y],
            ("batch", "past"),
            r"is of another dtype or rank \(f32\[.*\$past\], f64\[.*\$past\]\)",
        ),
        ([SUM, Y], ("batch", "past"), "is of another dtype or rank"),
        ([], ("batch", 3), r"has 3 \+ \$length where 3 was|has \$length \+ 3 where 3 was"),
        (
            [node("Concat", "past_in x", "past_out", axis=0), Y],
            ("batch", "length"),
            r"where \$batch was",
        ),
    ],
)
def test_what_does_not_fit_the_next_call(
    tmp_path: Path, nodes: list[onnx.NodeProto], past: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"'past_in' of the next call: it.*{message}"):
        imported(tmp_path, {"past_in": "past_out"}, *nodes, past=past)


def test_a_size_that_must_equal_others_is_no_open_one(tmp_path: Path) -> None:
    nodes = (
        node("Concat", "past_in x", "past_out", axis=1),
        node("Add", "past_out mask", "y"),
    )
    inputs = {
        "x": (FLOAT, ["batch", "length"]),
        "past_in": (FLOAT, ["batch", "past"]),
        "mask": (FLOAT, ["batch", "total"]),
    }
    path = tmp_path / "model.onnx"
    onnx.save(model(graph(list(nodes), inputs, ["y", "past_out"])), path)
    program = import_onnx(path).program
    assert [size.name for size in used_sizes(program)] == ["batch", "length", "past"]
    (mask,) = (port for port in program.signature.inputs if port.label == "mask")
    assert str(mask.shape[1]) in ("$past + $length", "$length + $past")


def test_a_size_that_is_called_a_sum_is_one(tmp_path: Path) -> None:
    inputs = {
        "x": (FLOAT, ["batch", "length"]),
        "past_in": (FLOAT, ["batch", "past"]),
        "mask": (FLOAT, ["batch", "past + length"]),
        "more": (FLOAT, ["batch", "past + other"]),
    }
    nodes = [node("Neg", each, f"{each}_out") for each in inputs]
    path = tmp_path / "model.onnx"
    onnx.save(model(graph(nodes, inputs, [f"{each}_out" for each in inputs])), path)
    program = import_onnx(path, dims={"length": 3}).program
    shapes = {port.label: str(port.shape[1]) for port in program.signature.inputs}
    assert shapes["mask"] in ("$past + 3", "3 + $past")
    assert shapes["more"].startswith("$past___other")
