"""Shapes for inputs: what is bound, what stays open, what contradicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from onnx import GraphProto, TensorProto, helper

from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.trace.bind import bind_inputs
from autopar.ir.expr.expression import IntExpr, Size
from tests.frontend.onnx.graphs import FLOAT, INT64, graph

TEXT = graph([], {"ids": (INT64, ["batch", "sequence"]), "mask": (INT64, ["batch", 8])}, [])
IMAGE = graph([], {"x": (FLOAT, ["?", 3, -1, None])}, [])


def bind(
    body: GraphProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | str] | None = None,
) -> tuple[dict[str, tuple[IntExpr, ...]], list[str]]:
    problems = Problems("model.onnx")
    bound = bind_inputs(body, shapes or {}, dims or {}, problems)
    return {item.name: item.shape for item in bound}, [str(problem) for problem in problems.found]


def test_symbols() -> None:
    assert bind(TEXT, dims={"batch": 2, "sequence": 5}) == ({"ids": (2, 5), "mask": (2, 8)}, [])


def test_a_shape_binds_the_symbols_of_other_inputs() -> None:
    assert bind(TEXT, {"ids": (4, 6)}) == ({"ids": (4, 6), "mask": (4, 8)}, [])


def test_unnamed_sizes() -> None:
    assert bind(IMAGE, {"x": (1, 3, 32, 64)}) == ({"x": (1, 3, 32, 64)}, [])


def test_symbols_that_nobody_binds_stay_open() -> None:
    shapes, problems = bind(TEXT, dims={"sequence": 5})
    batch = Size("batch", planned=8)
    assert (shapes, problems) == ({"ids": (batch, 5), "mask": (batch, 8)}, [])


def test_unnamed_sizes_are_called_as_their_input() -> None:
    shapes, problems = bind(IMAGE)
    rows, columns = (Size(f"x_{at}", planned=128) for at in (2, 3))
    assert (shapes, problems) == ({"x": (Size("x_0", planned=8), 3, rows, columns)}, [])


def test_unnamed_sizes_are_bound_by_their_input() -> None:
    shapes, problems = bind(IMAGE, dims={"x_0": 2, "x_2": "1:64"})
    columns = Size("x_3", planned=128)
    assert (shapes, problems) == ({"x": (2, 3, Size("x_2", 1, 64, 64), columns)}, [])


@pytest.mark.parametrize("dims", [{"ids_0": 2}, {"s77": 2}])
def test_sizes_that_torch_counts_are_called_as_the_first_input(dims: dict[str, int]) -> None:
    body = graph([], {"ids": (INT64, ["s77", "s27"]), "mask": (INT64, ["s77", "s27 + 1"])}, [])
    length = Size("ids_1", planned=128)
    assert bind(body, dims=dims) == ({"ids": (2, length), "mask": (2, length + 1)}, [])


def test_names_that_differ_in_signs_are_different_sizes() -> None:
    body = graph([], {"x": (FLOAT, ["a.b", "a-b", "a_b", "a-b"])}, [])
    shapes, problems = bind(body, dims={"a.b": "1:", "a_b_3": "2:", "a_b": "3:"})
    assert not problems
    names = [("a_b_2", 1, 8), ("a_b_3", 2, 128), ("a_b", 3, 128), ("a_b_3", 2, 128)]
    assert shapes == {"x": tuple(Size(n, least, planned=planned) for n, least, planned in names)}


def test_a_size_without_a_name_is_not_one_that_has_it() -> None:
    body = graph([], {"x": (FLOAT, [None]), "y": (FLOAT, ["x_0"]), "z.": (FLOAT, [None])}, [])
    names = {"x": "x_0_2", "y": "x_0", "z.": "z__0"}
    assert bind(body)[0] == {name: (Size(size, planned=8),) for name, size in names.items()}
    assert bind(body, dims={"z__0": 3})[0]["z."] == bind(body, dims={"z._0": 3})[0]["z."] == (3,)


def test_sizes_called_none_are_not_one() -> None:
    body = graph([], {"x": (FLOAT, ["None", "None"])}, [])
    assert bind(body)[0] == {"x": (Size("x_0", planned=8), Size("x_1", planned=128))}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("4:4", 4),
        ("1:64", Size("batch", 1, 64, 8)),
        ("32:", Size("batch", 32, planned=32)),
        (":4", Size("batch", 0, 4, 4)),
        ("16~1:64", Size("batch", 1, 64, 16)),
        ("16~", Size("batch", planned=16)),
    ],
)
def test_ranges(text: str, size: int | Size) -> None:
    shapes, problems = bind(TEXT, dims={"batch": text, "sequence": 5})
    assert (shapes["ids"], problems) == ((size, 5), [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("4:2", "no size is at least 4 and at most 2"),
        ("9~1:4", "9 isn't from 1 to 4"),
        ("many", "is no size: write a number, as 8; a range, as 1:64"),
    ],
)
def test_ranges_that_make_no_sense(text: str, problem: str) -> None:
    _, problems = bind(TEXT, dims={"batch": text})
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("shapes", "dims", "problem"),
    [
        ({}, {"batsh": 2}, "--dims: there is no symbolic dimension 'batsh'; did you mean batch?"),
        ({"idz": (1, 2)}, {}, "--input-shapes: there is no input 'idz'; did you mean ids?"),
        ({}, {"batch": -1}, "--dims batch=-1: a size can't be negative"),
        (
            {"ids": (4, 6)},
            {"batch": 2},
            "--input-shapes ids:4,6 contradicts --dims batch=2: dimension 'batch'",
        ),
        (
            {"ids": (4, 6), "mask": (3, 8)},
            {},
            "--input-shapes mask:3,8 contradicts --input-shapes ids:4,6: dimension 'batch'",
        ),
        (
            {"mask": (2, 9)},
            {},
            "input 'mask': its shape is [batch, 8], --input-shapes gives 9 for 8",
        ),
        (
            {"ids": (2,)},
            {},
            "input 'ids': its shape is [batch, sequence], --input-shapes gives 1 sizes",
        ),
        (
            {"ids": (2**40, 2**40)},
            {},
            f"--input-shapes ids:{2**40},{2**40}: that is {2**80} elements",
        ),
    ],
)
def test_mistakes(shapes: dict[str, tuple[int, ...]], dims: dict[str, int], problem: str) -> None:
    _, problems = bind(TEXT, shapes, dims)
    assert problem in problems


def test_inputs_that_are_initializers_are_none() -> None:
    body = graph([], {"x": (FLOAT, [2]), "w": (FLOAT, ["n"])}, [])
    body.initializer.append(helper.make_tensor("w", FLOAT, [1], [1.0]))
    assert bind(body) == ({"x": (2,)}, [])


def test_inputs_of_no_rank() -> None:
    body = graph([], {"x": (FLOAT, None)}, [])
    assert bind(body, {"x": (2, 3)}) == ({"x": (2, 3)}, [])
    assert "its rank and sizes aren't in the file" in bind(body)[1][0]


def test_inputs_that_are_no_tensors() -> None:
    body = graph([], {"words": (TensorProto.STRING, [1])}, [])
    body.input.append(helper.make_tensor_sequence_value_info("list", FLOAT, [1]))
    assert bind(body)[1] == [
        "input 'words': element type STRING isn't supported for inputs",
        "input 'list': is a sequence, not a dense tensor",
    ]
