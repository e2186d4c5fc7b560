"""Marks in captured graphs become pins of the program."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.analysis.reports.inspection import show_program
from autopar.annotate import ProcessMesh, offload, pipeline_stage, shard, shard_mask, shard_op
from autopar.base.errors import AnnotationError
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh as Mesh
from autopar.ir.program import Program, Value
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program
from autopar.pipeline import CompileOptions, compile_program
from tests.judges import captured

MESH = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])
MORE = "; or compile with pipeline= an axis of the mesh"
X = torch.linspace(-1, 1, 8 * 16).view(8, 16)


class Model(nn.Module):
    """Two layers around a function that marks."""

    def __init__(self, mark: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 16)
        self.mark = mark

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.mark(self.first(x))))
        return y


def exported(
    module: nn.Module, x: Tensor = X, mesh: Mesh | None = None, strict: bool = False
) -> Program:
    done = torch.export.export(module, (x,), strict=strict)
    weights = done.graph_signature.inputs_to_parameters
    inputs = {
        node: GraphInput(weights[node.name], "parameter")
        if node.name in weights
        else GraphInput(node.name, "input")
        for node in done.graph.nodes
        if node.op == "placeholder"
    }
    (returned,) = done.graph.output_node().args
    outputs = [GraphOutput(node, f"y{at}") for at, node in enumerate(returned)]  # type: ignore[arg-type,misc]
    return lower(done.graph, Lowering(inputs, outputs, mesh=mesh))


def pins(program: Program) -> dict[str, str]:
    return {name: str(v.dist) for name, v in program.main.values.items() if v.dist is not None}


def place(value: Value) -> str:
    assert value.origin is not None
    assert value.origin.kind == "annotated"
    return value.origin.detail


@pytest.mark.parametrize("strict", [False, True])
def test_a_mark_pins_the_value_itself(strict: bool) -> None:
    program = exported(Model(lambda h: shard(h, MESH, ["dp", "tp"])), strict=strict)
    assert program.mesh == MESH
    assert pins(program) == {"linear": "[8@dp, 32@tp]"}
    assert [op.kind for op in program.main.ops] == [
        "aten.linear.default",
        "aten.relu.default",
        "aten.linear.default",
    ]
    line = test_a_mark_pins_the_value_itself.__code__.co_firstlineno + 2
    assert place(program.main.values["linear"]).startswith(f"{__file__}:{line}")


def test_inputs_and_parameters_are_pinned_by_marks_in_forward() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(32, 16))

        def forward(self, x: Tensor) -> Tensor:
            shard(x, MESH, [0, -1])
            return F.linear(x, shard(self.weight, MESH, ["tp", None]))

    program = exported(Marked())
    assert pins(program) == {"weight": "[32@tp, 16]", "x": "[8@dp, 16]"}
    assert [op.kind for op in program.main.ops] == ["aten.linear.default"]


def test_parts_of_a_tuple_are_pinned() -> None:
    class Split(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            left, right = x.split(8, dim=1)
            return shard(left, MESH, ["dp", None]) * right

    assert list(pins(exported(Split())).values()) == ["[8@dp, 8]"]


def test_equal_marks_of_one_value_are_one_pin() -> None:
    def mark(h: Tensor) -> Tensor:
        return shard(shard(h, MESH, ["dp", -1]), MESH, [0, None])

    assert pins(exported(Model(mark))) == {"linear": "[8@dp, 32]"}


def test_a_value_marked_twice_keeps_both_layouts() -> None:
    def mark(h: Tensor) -> Tensor:
        return shard(shard(h, MESH, ["dp", "tp"]), MESH, ["dp", None])

    program = exported(Model(mark))
    assert pins(program) == {"linear": "[8@dp, 32@tp]", "shard_1": "[8@dp, 32]"}
    (alias,) = [op for op in program.main.ops if op.kind == "aten.alias.default"]
    assert (alias.operands, alias.results) == (("linear",), ("shard_1",))


def test_marks_without_a_mesh_take_the_compilers() -> None:
    model = Model(lambda h: shard(h, None, ["dp", "tp"]))
    assert pins(exported(model, mesh=MESH)) == {"linear": "[8@dp, 32@tp]"}
    other = Mesh([[0, 1, 2, 3]], ["dp", "tp"])
    assert pins(exported(model, mesh=other)) == {"linear": "[8, 32@tp]"}


def test_one_mark_with_a_mesh_is_enough() -> None:
    def mark(h: Tensor) -> Tensor:
        return torch.tanh(shard(h, MESH, ["dp", None])) + shard(h * 2, None, [None, "tp"])

    program = exported(Model(mark))
    assert sorted(pins(program).values()) == ["[8, 32@tp]", "[8@dp, 32]"]


def test_a_statement_puts_the_tensor_itself_on_a_slice() -> None:
    def mark(h: Tensor) -> Tensor:
        shard(h, MESH[1], ["tp", None])
        return h

    assert pins(exported(Model(mark))) == {"linear": "[8@tp, 32] on dp=1"}


@pytest.mark.parametrize(
    "part",
    [MESH[1], MESH["dp", 1], Mesh([2, 3], ["tp"]), Mesh([2, 3], ["x"], parent=MESH)],
)
def test_a_mark_on_a_slice_stays_and_pins_what_it_returns(part: Mesh) -> None:
    program = exported(Model(lambda h: shard(h, part, [part.dim_names[0], None])), mesh=MESH)
    (pinned,) = (value for value in program.main.values.values() if value.dist is not None)
    assert pinned.dist == Layout.from_dims_mapping(MESH["dp", 1], (8, 32), ["tp", None])
    (mark,) = (op for op in program.main.ops if op.results == (pinned.name,))
    assert mark.kind == "aten.alias.default"
    assert mark.operands != mark.results


BAD: Mapping[str, tuple[Callable[[Tensor], Tensor], Mesh | None, str]] = {
    "no mesh": (lambda h: shard(h, None, ["dp", None]), None, "leaves the mesh open"),
    "no slice": (
        lambda h: shard(h, Mesh([0, 3], ["tp"], parent=MESH), ["tp", None]),
        None,
        r"on mesh tp=2 of processes \[0, 3\], which are no slice of .*mesh\['dp', 0\]",
    ),
    "other mesh": (
        lambda h: shard(h, MESH, ["dp", None]),
        Mesh([[0, 2], [1, 3]], ["dp", "tp"]),
        r"of processes \[0, 1, 2, 3\], but .* of processes \[0, 2, 1, 3\]; use one mesh",
    ),
    "axis": (lambda h: shard(h, None, ["pp", None]), MESH, "no axis 'pp'"),
    "mask": (lambda h: shard_mask(h, [1, 0]), MESH, r"a mask of shape \[2\]"),
    "unused": (
        lambda h: (shard(h, MESH, ["dp", None]), shard(h, MESH, [None, "dp"]))[0],
        None,
        r"is marked otherwise by .*test_marks.py:\d+, and nothing uses the marked one",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_an_error_with_the_users_line(case: str) -> None:
    mark, mesh, message = BAD[case]
    with pytest.raises(AnnotationError, match=message) as error:
        exported(Model(mark), mesh=mesh)
    assert str(error.value).startswith(f"{__file__}:{mark.__code__.co_firstlineno}: ")


def test_a_pending_output_is_an_error() -> None:
    class Returned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return shard(x * 2, MESH, [None, None], partial={"tp": "sum"})

    with pytest.raises(AnnotationError, match=r"test_marks.py:\d+: .*but the model returns it"):
        exported(Returned())


def test_the_program_must_be_compiled_for_the_mesh_of_its_marks() -> None:
    program = exported(Model(lambda h: shard(h, MESH, ["dp", "tp"])))
    with pytest.raises(AnnotationError, match=r"annotated for .*test_marks.py:\d+, not for .*tp=4"):
        compile_program(program, CompileOptions.from_text(mesh="dp=1,tp=4"))


def step(weights: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A training step whose values are marked in every way that is carried out."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
    first = shard(leaves["first"], MESH, [None, "tp"])
    h = shard(torch.relu(shard(inputs["x"], MESH, ["dp", None]) @ first), MESH, ["dp", "tp"])
    h = h + torch.tanh(shard(h, MESH, [("dp", "tp"), None]))
    y = shard(h @ leaves["second"], MESH, ["dp", None], partial={"tp": "sum"})
    y = shard(y + y, None, ["dp", None])
    loss = (y * y).mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"loss": loss, **{f"{n}.grad": g for n, g in zip(leaves, gradients, strict=True)}}


@functools.cache
def training() -> captured.Captured:
    weights = {"first": torch.sin(torch.arange(512.0)), "second": torch.cos(torch.arange(512.0))}
    shapes = {"first": (16, 32), "second": (32, 16)}
    return captured.capture(step, {n: w.view(shapes[n]) for n, w in weights.items()}, {"x": X})


def test_marks_of_a_training_step_pin_the_gradients_too() -> None:
    program = training().program
    assert pins(program) == {
        "x": "[8@dp, 16]",
        "first": "[16, 32@tp]",
        "relu": "[8@dp, 32@tp]",
        "shard_3": "[8@(dp,tp), 32]",
        "mm_1": "[8@dp, 16] sum@tp",
        "add_1": "[8@dp, 16]",
        # From here on gradients: of y + y, of h @ second, of tanh's operand, of relu's result.
        "add_2": "[8@dp, 16]",
        "add_3": "[8@dp, 16]",
        "tanh_backward": "[8@(dp,tp), 32]",
        "add_4": "[8@dp, 32@tp]",
    }
    places = {name: place(program.main.values[name]) for name in ("relu", "add_4")}
    assert places["add_4"] == f"{places['relu']} (gradient)"


def test_a_marked_training_step_computes_what_one_device_does() -> None:
    case = training()
    done = captured.compiled(case, "dp=2,tp=2")
    captured.check(case, done)
    assert {n: str(done.serial.main.values[n].dist) for n in pins(case.program)} == pins(
        case.program
    )


def test_an_operation_pins_its_operands_and_results() -> None:
    class Operation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(16, 32)
            self.marked = shard_op(
                self.layer, MESH, {"input": ["dp", None], "result": ["dp", "tp"]}
            )

        def forward(self, x: Tensor) -> Tensor:
            matmul = shard_op(torch.matmul, None, {0: ["dp", "tp"], 1: ["tp", None]})
            y: Tensor = matmul(self.marked(x), self.layer.weight)
            return y

    program = exported(Operation())
    assert pins(program) == {
        "layer.weight": "[32@tp, 16]",
        "x": "[8@dp, 16]",
        "linear": "[8@dp, 32@tp]",
    }


class Staged(nn.Module):
    """A model with everything that is recorded only."""

    def forward(self, x: Tensor) -> Tensor:
        with pipeline_stage(1):
            h = torch.relu(x)
        h = shard(offload(h * 2, "disk"), MESH, ["dp", None])
        return self.later(h) + 1

    @pipeline_stage(2)
    def later(self, h: Tensor) -> Tensor:
        return shard_mask(torch.tanh(h), [[1, 0], [1, 1]])


@pytest.mark.parametrize("strict", [False, True])
def test_stages_masks_and_memories_are_recorded(strict: bool) -> None:
    program = exported(Staged(), strict=strict)
    assert {op.kind.split(".")[1]: op.stage for op in program.main.ops} == {
        "relu": 1,
        "mul": 0,
        "tanh": 2,
        "add": 0,
    }
    layouts = {name: value.dist for name, value in program.main.values.items() if value.dist}
    assert {name: (str(d), d.offload, d.mask) for name, d in layouts.items()} == {
        "mul": ("[8@dp, 16]", "disk", None),
        "tanh": ("[8, 16]", "", (0, 2, 3)),
    }


def test_what_is_recorded_is_stored_and_shown() -> None:
    program = exported(Staged())
    assert program_from_bytes(program_to_bytes(program)) == program
    text = show_program(program, "text")
    assert parse_program(text) == program
    for words in ("stage=1", "stage=2", "offload disk", "mask [0, 2, 3]"):
        assert words in text
    ops = json.loads(show_program(program, "json"))["functions"]["main"]["ops"]
    assert [op["stage"] for op in ops] == [1, 0, 2, 0]
    layouts = [result.get("dist", {}) for op in ops for result in op["results"]]
    assert [layout.get("offload") for layout in layouts] == [None, "disk", None, None]
    assert [layout.get("mask") for layout in layouts] == [None, None, [0, 2, 3], None]


def test_what_is_not_carried_out_yet_is_refused_at_the_users_line() -> None:
    program = exported(Staged())
    with pytest.raises(AnnotationError) as error:
        compile_program(program, CompileOptions.from_text(mesh="dp=2,tp=2"))
    first = Staged.forward.__code__.co_firstlineno
    lines = str(error.value).splitlines()
    assert lines == [
        "the program asks for what isn't carried out yet; remove:",
        f"  - {__file__}:{first + 3}: offload of %mul to disk",
        f"  - {__file__}:{first + 8}: shard_mask, by which not all processes hold %tanh; or take"
        " the nearest one that is a box of the mesh, [[1, 0], [1, 0]] (tp=0)",
        f"  - {__file__}:{first + 2}: forward: pipeline_stage(1){MORE}",
        # Torch notes where a decorated function is called.
        f"  - {__file__}:{first + 4}: forward: pipeline_stage(2){MORE}",
    ]


@pytest.mark.parametrize("marked", [False, True])
def test_what_stays_pending_is_reduced_once(marked: bool) -> None:
    mesh = Mesh([0, 1], ["tp"])

    def pending(y: Tensor) -> Tensor:
        return shard(y, mesh, [None, None], partial={"tp": "sum"}) if marked else y

    def step(weights: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = shard(inputs["x"], mesh, [None, "tp"])
        first, second = (pending(x @ weight) for weight in weights.values())
        return {"y": torch.relu(pending(first + second).view(-1))}

    weights = {"first": X[:, :4].reshape(16, 2), "second": X[:, 4:8].reshape(16, 2)}
    case = captured.capture(step, weights, {"x": X})
    done = captured.compiled(case, "tp=2")
    captured.check(case, done)
    assert captured.kinds(done) == {"all_reduce": 1}
