"""One build computes in chunks what one device computes at once, at any size."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.annotate import parse_mesh
from autopar.base.errors import AnnotationError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, memory_timeline, peak_rank_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.program import Program
from autopar.pipeline import CompileOptions, compile_program
from autopar.planning.chunk import chunked
from autopar.runtime import run
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.job.processes import Processes
from autopar.runtime.ports.open_inputs import deployment_at
from autopar.runtime.verification.verification import verify_mesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.cli.command import autopar as command
from tests.end_to_end.test_chunks import (
    CLASSES,
    EFFORT,
    LOSSES,
    Attention,
    Head,
    Images,
    Language,
    Mixed,
    Perceptron,
    check,
    compiled,
    possible,
    trips,
)
from tests.given.random_pins import random_pins
from tests.judges.steps import Steps, stored_values
from tests.planning.test_chunks_by_memory import Words, shifted
from tests.runtime.job.real import run_ranks

MESHES = ("1", "2", "3x2", "2x2")
ROWS = (16, 13, 3, 1, 4, 5, 40)
SIZES = ((4, 8), (3, 7), (1, 1), (2, 3), (5, 16), (4, 4))
"""What is planned for, no multiple of the parts, fewer than these, one, more, a multiple."""

Batches = Sequence[tuple[Tensor, Tensor]]


def opened(*dims: str) -> dict[int, dict[int, str]]:
    return {at: dict(enumerate(dims)) for at in (0, 1)}


def words(shape: Sequence[int]) -> Tensor:
    return torch.randint(0, CLASSES, shape)


def numbers(shape: Sequence[int]) -> Tensor:
    return torch.randn(*shape, 8).double()


Stepped = tuple[list[float], Any]


def stepped(step: CompiledModel, batches: Batches, folder: Path) -> Stepped:
    step.save(folder)
    with autopar.load(folder, virtual=True) as trainer:
        return [float(trainer.step(batch)) for batch in batches], trainer.state_dict()


def at_once(model: nn.Module, batches: Batches, folder: Path, *dims: str) -> Stepped:
    step = compiled(model.double(), batches[0], "1", dynamic=opened(*dims))
    return stepped(step, batches, folder)


def check_steps(
    model: nn.Module,
    batches: Batches,
    mesh: str,
    chunks: Any,
    folder: Path,
    *dims: str,
    whole: Stepped | None = None,
) -> CompiledModel:
    """Checks that a step that takes batches of all sizes does what it does at once."""
    model, asked = model.double(), {"dynamic": opened(*dims)}
    whole = whole or at_once(model, batches, folder / "whole", *dims)
    step = compiled(model, batches[0], mesh, chunks=chunks, **asked)
    check(stepped(step, batches, folder / "chunks"), whole)
    return step


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "by row"])
def test_a_head_with_a_loss(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = [(numbers((rows,)), torch.randint(0, CLASSES, (rows,))) for rows in ROWS]
    mesh = MESHES[list(LOSSES).index(name) % len(MESHES)]
    step = check_steps(Head(LOSSES[name]), batches, mesh, {"head": (0, 4)}, tmp_path, "batch")
    assert set(trips(step).values()) == {4}


class Highest(nn.Module):
    """Scores beside the highest and the least of each column."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.head = nn.Linear(8, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = self.head(torch.tanh(self.pre(x)))
        found = scores.amax(0, keepdim=True) * scores.sin() - scores.amin(0, keepdim=True) * scores
        return (found.sum(-1) * target[:, 0]).mean()


@pytest.mark.parametrize("mesh", ["1", "2"])
def test_parts_without_a_row_have_no_extremum(mesh: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = [(numbers((rows,)), numbers((rows,))) for rows in ROWS]
    step = check_steps(Highest(), batches, mesh, {"head": (0, 3)}, tmp_path, "batch")
    assert set(trips(step).values()) == {3}


CASES: Mapping[str, tuple[Callable[[], nn.Module], Callable[[Sequence[int]], Tensor], Any]] = {
    "perceptron over places": (Perceptron, numbers, {"up": (1, 3)}),
    "perceptron": (Perceptron, numbers, {"up": 3}),
    "attention over queries": (Attention, numbers, {"soft": (2, 3)}),
    "attention over heads": (Attention, numbers, {"soft": (1, 2)}),
    "attention over rows": (Attention, numbers, {"soft": (0, 4)}),
    "language": (lambda: Language(tied=False), words, {"head": 4}),
    "tied language": (lambda: Language(tied=True), words, {"head": 4}),
}


def drawn_case(name: str) -> tuple[nn.Module, Batches]:
    torch.manual_seed(0)
    made, drawn, _ = CASES[name]
    batches = [(drawn(sizes), drawn(sizes)) for sizes in SIZES]
    return made(), batches


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stepped:
    """What a case does at once."""
    model, batches = drawn_case(request.param)
    return at_once(model, batches, tmp_path_factory.mktemp("whole"), "batch", "length")


@pytest.mark.parametrize("mesh", ["1", "2x2"])
@pytest.mark.parametrize(("name", "whole"), [(n, n) for n in CASES], indirect=["whole"], ids=CASES)
def test_a_part_of_a_model(name: str, whole: Stepped, mesh: str, tmp_path: Path) -> None:
    model, batches = drawn_case(name)
    asked = CASES[name][2], tmp_path, "batch", "length"
    assert trips(check_steps(model, batches, mesh, *asked, whole=whole))


def test_images(tmp_path: Path) -> None:
    batches = [(torch.randn(n, 3, 6, 6).double(), torch.randn(n, 3, 6, 6).double()) for n in ROWS]
    assert trips(check_steps(Images(), batches, "3", {"up": (0, 3)}, tmp_path, "batch"))


class Marked(Perceptron):
    """Says itself what is computed in chunks."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        hidden = annotate.chunk(self.up(self.pre(x)), 0, 4)
        return F.mse_loss(self.down(F.gelu(hidden)), target)


def test_a_mark(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = [(numbers((rows,)), numbers((rows,))) for rows in ROWS]
    assert trips(check_steps(Marked(), batches, "3", None, tmp_path, "batch"))


@pytest.mark.parametrize("mesh", MESHES)
def test_inference(mesh: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).double()
    x, asked = numbers((16,)), {"dynamic": {0: {0: "batch"}}}
    step = autopar.compile(model, (x,), mesh=mesh, chunks={"0": (0, 8)}, effort=EFFORT, **asked)
    assert trips(step)["c0"] == 8
    step.save(tmp_path / "build")
    for rows in (*ROWS, 0):
        x = numbers((rows,))
        (found,) = run(tmp_path / "build", (x,), virtual=True).values()
        torch.testing.assert_close(found, model(x))


def in_processes(processes: Processes, build: Path, batches: Batches) -> list[float]:
    with autopar.load(build, processes=processes) as trainer:
        return [float(trainer.step(batch)) for batch in batches]


@pytest.mark.parametrize(("ranks", "mesh"), [(2, "2"), (4, "2x2")])
def test_processes_compute_the_bits_of_the_virtual_mesh(
    ranks: int, mesh: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    batches = [(words(sizes), words(sizes)) for sizes in SIZES]
    asked = {"chunks": {"head": 3}, "dynamic": opened("batch", "length")}
    step = compiled(Language(tied=True), batches[0], mesh, strategy="data:0", **asked)
    wanted, _ = stepped(step, batches, tmp_path)
    assert run_ranks(ranks, in_processes, tmp_path, batches) == [wanted] * ranks


def by_memory(mesh: str, **said: Any) -> CompiledModel:
    """Returns a step of any size, of a model whose scores take most, with a shifted loss."""
    torch.manual_seed(0)
    model, ids = Words().double(), torch.randint(0, 1999, (4, 24))
    return autopar.compile(
        model,
        (ids, ids),
        mesh=mesh,
        loss=shifted,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        dynamic=opened("batch", "length=2:64"),
        **{"strategy": None if mesh == "1" else "auto", "effort": EFFORT, **said},
    )


def peak_at(program: Program, batch: int, length: int) -> int:
    return memory_timeline(at_sizes(program, {"batch": batch, "length": length})).peak_bytes


@pytest.mark.parametrize("mesh", ["1", "2"])
def test_a_limit_of_memory_holds_up_to_the_sizes_that_are_planned(
    mesh: str, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    batches = [(ids, ids) for ids in (torch.randint(0, 1999, s) for s in ((4, 24), (3, 7), (9, 2)))]
    whole = by_memory(mesh)
    limit = int(0.6 * peak_rank_timeline(whole.partitioned).peak_bytes)
    step = by_memory(mesh, memory=limit)
    assert step.options.chunks
    for program in step.deployment.programs:
        peaks = [peak_at(program, batch, length) for batch in range(5) for length in (2, 7, 24)]
        assert max(peaks) <= limit
    expected = stepped(whole, batches, tmp_path / "whole")
    check(stepped(step, batches, tmp_path / "chunks"), expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_shifted_loss(dim: int, tmp_path: Path) -> None:
    """A part of a sequence but for its last place is the same part of the sequence."""
    torch.manual_seed(1)
    batches = [(ids, ids) for ids in (torch.randint(0, 1999, s) for s in ((4, 24), (3, 5), (1, 2)))]
    expected = stepped(by_memory("1"), batches, tmp_path / "whole")
    step = by_memory("1", chunks={"head": (dim, 4)})
    assert trips(step)
    check(stepped(step, batches, tmp_path / "chunks"), expected)


@pytest.mark.parametrize(
    "asked", [("--memory", "100KiB"), ("--chunks", "/ffn.0/a=0:8"), ("--chunks", "/ffn.0=0:8")]
)
@pytest.mark.parametrize("mesh", ["1", "2x2"])
def test_a_file(mesh: str, asked: Sequence[str], tmp_path: Path) -> None:
    """Its batch is open; the command says what the limit is, or what is cut."""
    text = "mlp (float[batch, 16] x) => (float[batch, 16] y)"
    graph = onnx.parser.parse_graph(text + "{a = MatMul(x, up)  h = Relu(a)  y = MatMul(h, down)}")
    graph.node[0].output[0] = graph.node[1].input[0] = "/ffn.0/a"
    chance = numpy.random.default_rng(0)
    up, down = (chance.normal(size=s).astype("float32") for s in ((16, 256), (256, 16)))
    named = {"up": up, "down": down}.items()
    graph.initializer.extend(onnx.numpy_helper.from_array(each, name) for name, each in named)
    model, build = str(tmp_path / "mlp.onnx"), str(tmp_path / "build")
    onnx.save(onnx.helper.make_model(graph), model)
    words = ["--mesh", mesh, "--dims", "batch=64~0:256", "-o", build, *asked]
    done = command("compile", model, *words)
    assert done.exit_code == 0, done.output
    assert " of %/ffn.0/a, one after another" in done.stdout or mesh != "1"
    assert command("verify", build).exit_code == 0
    for rows in (64, 256, 63, 9, 7, 1, 0):
        x = chance.normal(size=(rows, 16)).astype("float32")
        (found,) = run(tmp_path / "build", {"x": x}, virtual=True).values()
        wanted = numpy.maximum(x @ up, 0) @ down
        numpy.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


def check_random(seed: int, folder: Path, effort: float = 1.0) -> None:
    """Checks a random step with random chunks and pins on a random mesh, value by value."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model, sizes = Mixed(chance).double(), chance.choice([(4, 8), (8, 5), (2, 12)])
    while model.loss is LOSSES["by row"]:
        model.loss = LOSSES[chance.choice(list(LOSSES))]
    recipe = Recipe(
        training_step=lambda module, given: module(*given),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )
    step = capture(model, (words(sizes), words(sizes)), recipe, dynamic=opened("batch", "length"))
    mesh = parse_mesh(chance.choice(["1", "2", "3", "3x2"]))
    names = chance.sample(["head", "up", "attention", "norm"], 2)
    entries = [(name, chance.choice([2, 5, 8, (0, 3), (1, 4), (2, 3)])) for name in names]
    cut = chunked(step.program, possible(step.program, entries))
    around = random_pins(cut, mesh, "chunk", seed)
    options = CompileOptions(mesh, Cluster.load("cpu"), "auto", around, effort=effort)
    done = compile_program(cut, options)
    weights, whole, parts = stored_values(step), Steps(step), Steps(step)
    write_weights(folder / "weights", weights)
    for batch, length in chance.sample(SIZES, 2):
        at = {"batch": batch, "length": length}
        whole.program, parts.program = at_sizes(step.program, at), at_sizes(cut, at)
        given = words((batch, length)), words((batch, length))
        torch.testing.assert_close(parts.take(given), whole.take(given), rtol=1e-9, atol=1e-12)
        for name, tensor in whole.stored.items():
            torch.testing.assert_close(parts.stored[name], tensor, rtol=1e-9, atol=1e-11)
        inputs = dict(zip(step.structure.labels, given, strict=True))
        with WeightFile(folder / "weights") as file:
            ranks = VirtualMesh(deployment_at(done.deployment, at), file)
            assert verify_mesh(at_sizes(done.serial, at), weights, ranks, inputs, forced=True).ok


def test_a_random_step(tmp_path: Path) -> None:
    check_random(1, tmp_path, EFFORT)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_many_random_steps(seed: int, tmp_path: Path) -> None:
    check_random(seed, tmp_path)


def test_what_can_not_be_cut_is_refused() -> None:
    x = torch.ones(5, 3, 6, 6)
    asked: Any = {"dynamic": {0: {2: "height=4:8"}, 1: {2: "height=4:8"}}}
    with pytest.raises(AnnotationError, match="through windows, for which the size must be known"):
        compiled(Images(), (x, x), "1", chunks={"up": (2, 4)}, **asked)
