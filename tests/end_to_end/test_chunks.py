"""What is computed in chunks is what one device computes at once, on any mesh and of any size."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.annotate import ChunkPin, parse_mesh
from autopar.base.errors import AnnotationError
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, peak_rank_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import Program
from autopar.pipeline import CompileOptions, compile_program
from autopar.planning.chunk import chunked
from autopar.runtime import run
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.verification.verification import verify_mesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.given.random_pins import random_pins
from tests.judges.steps import Steps, stored_values

MESHES = ("1", "3", "3x2", "2x2x2")
CLASSES = 40
STEPS = 2
EFFORT = 0.1
"""Of a search whose plan only has to be one of several processes."""


class Head(nn.Module):
    """Scores of many classes, and a loss."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.pre, self.head, self.loss = nn.Linear(8, 3), nn.Linear(3, CLASSES), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.head(torch.relu(self.pre(x))), target)


def cross_entropy(**options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, target: F.cross_entropy(scores, target, **options)


def each(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores, target, reduction="none")


def hot(scores: Tensor, target: Tensor) -> Tensor:
    return F.one_hot(target, CLASSES).to(scores)


def margin(scores: Tensor, target: Tensor) -> Tensor:
    """What the best of other classes is ahead: gradients don't read scores."""
    own = target[:, None]
    others = scores.scatter(1, own, float("-inf")).max(1).values
    return torch.relu(1 + others - scores.gather(1, own)[:, 0]).mean()


WEIGHT = torch.linspace(0.1, 1, CLASSES, dtype=torch.float64)
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": cross_entropy(),
    "sum": cross_entropy(reduction="sum"),
    "ignored": cross_entropy(ignore_index=3),
    "smoothed": cross_entropy(label_smoothing=0.1, ignore_index=3),
    "weighted": cross_entropy(weight=WEIGHT),
    "all": cross_entropy(weight=WEIGHT, label_smoothing=0.1, ignore_index=3),
    "by row": lambda s, t: (each(s, t) * torch.arange(len(s))).sum(),
    "squared": lambda s, t: (each(s, t) ** 2).mean(),
    "of two outputs": lambda s, t: F.cross_entropy(s, t) + (s.logsumexp(-1) ** 2).mean() / 100,
    "normalized": lambda s, t: (each(s, t) ** 2 / each(s, t).sum()).sum(),
    "nll": lambda s, t: F.nll_loss(F.log_softmax(s, -1), t),
    "bce": lambda s, t: F.binary_cross_entropy_with_logits(s, hot(s, t)),
    "kl": lambda s, t: F.kl_div(F.log_softmax(s, -1), hot(s, t), reduction="batchmean"),
    "mse": lambda s, t: F.mse_loss(s, hot(s, t)),
    "margin": margin,
    "smooth l1": lambda s, t: F.smooth_l1_loss(s, hot(s, t)),
}

ONE_LOOP = set(LOSSES) - {"normalized"}
"""Where the gradients of a chunk depend on nothing of the others."""


def compiled(model: nn.Module, batch: Any, mesh: str, **options: Any) -> CompiledModel:
    return autopar.compile(
        model,
        batch,
        mesh=mesh,
        training_step=lambda module, given: module(*given),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        **{"strategy": None if mesh == "1" else "auto", "effort": EFFORT, **options},
    )


Trained = tuple[list[float], Mapping[str, Tensor]]


def trained(step: CompiledModel, batch: Any, folder: Path) -> Trained:
    step.save(folder)
    with autopar.load(folder, virtual=True) as trainer:
        losses = [float(trainer.step(batch)) for _ in range(STEPS)]
        return losses, trainer.state_dict()


def check(found: Trained, expected: Trained) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    for name, tensor in expected[1].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-9, atol=1e-11)


def trips(step: CompiledModel) -> dict[str, int]:
    """Returns how often each loop of a step runs."""
    return {name: trip for op in step.serial.main.ops for name, trip in op.loops}


def rows_of(step: CompiledModel) -> int:
    """Returns how many rows of scores there are at once at most."""
    shapes = [value.shape for value in step.serial.main.values.values()]
    return max(shape[0] for shape in shapes if len(shape) == 2 and shape[1] == CLASSES)


@pytest.mark.parametrize("rows", [12, 13])
@pytest.mark.parametrize("name", LOSSES)
def test_a_head_with_a_loss(name: str, rows: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Head(LOSSES[name]).double()
    batch = torch.randn(rows, 8).double(), torch.randint(0, CLASSES, (rows,))
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    mesh = MESHES[(list(LOSSES).index(name) + rows) % len(MESHES)]
    step = compiled(model, batch, mesh, chunks={"head": (0, 4)})
    check(trained(step, batch, tmp_path / "chunks"), expected)
    assert rows_of(step) == -(-rows // 4)
    assert len(trips(step)) == 1 or name not in ONE_LOOP


class Perceptron(nn.Module):
    """Four times as wide inside, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.up = nn.Linear(8, 8), nn.Linear(8, 32)
        self.down, self.drop = nn.Linear(32, 8), nn.Dropout(0.5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = self.pre(x)
        return F.mse_loss(h + self.down(self.drop(F.gelu(self.up(h)))), target)


class Attention(nn.Module):
    """Scores written out, with a causal mask and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.soft, self.drop = nn.Softmax(-1), nn.Dropout(0.5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for layer in self.inner)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        mixed = self.drop(self.soft(scores)) @ v
        return F.mse_loss(mixed.transpose(1, 2).reshape(x.shape), target)


class Language(nn.Module):
    """Scores of each place of each sequence, perhaps by the table of the embeddings."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        return cross_entropy()(self.head(self.tokens(ids)).flatten(0, 1), target.flatten())


class Shifted(Language):
    """Each place tells the next one; the last one has none."""

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        scores = annotate.chunk(self.head(self.tokens(ids)), 1, 3)
        return cross_entropy()(scores[:, :-1].flatten(0, 1), target[:, 1:].flatten())


class Images(nn.Module):
    """Convolutions, whose images may be computed apart, and whose rows overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.down(torch.relu(self.up(x))), target)


class Sums(nn.Module):
    """Sums of all rows up to each."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(2)


class Added(Images):
    """Rows that are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.Sequential(Sums(), Sums())

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return super().forward(self.sums(x), target)


Case = tuple[nn.Module, Sequence[int], Any]
CASES: Mapping[str, Callable[[], Case]] = {
    "perceptron": lambda: (Perceptron(), (13, 8), {"up": 4}),
    "perceptron of sequences": lambda: (Perceptron(), (2, 7, 8), {"up": (1, 3)}),
    "attention over queries": lambda: (Attention(), (2, 7, 8), {"soft": (2, 3)}),
    "attention over heads": lambda: (Attention(), (2, 6, 8), {"soft": (1, 2)}),
    "language": lambda: (Language(tied=False), (2, 9), {"head": 4}),
    "tied language": lambda: (Language(tied=True), (2, 9), {"head": 4}),
    "images": lambda: (Images(), (5, 3, 6, 6), {"up": (0, 3)}),
    "rows": lambda: (Images(), (1, 3, 13, 6), {"up": (2, 3)}),
}


def drawn(shape: Sequence[int]) -> Tensor:
    return (
        torch.randint(0, CLASSES, shape)
        if len(shape) == 2 and shape[1] == 9
        else torch.randn(*shape).double()
    )


@pytest.mark.parametrize("mesh", ["1", "3x2"])
@pytest.mark.parametrize("name", CASES)
def test_a_part_of_a_model(name: str, mesh: str, tmp_path: Path) -> None:
    """Dropout draws what it draws at once, whatever is computed again."""
    torch.manual_seed(0)
    model, shape, chunks = CASES[name]()
    model, batch = model.double(), (drawn(shape), drawn(shape))
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    step = compiled(model, batch, mesh, chunks=chunks)
    assert trips(step)
    check(trained(step, batch, tmp_path / "chunks"), expected)


def test_targets_of_the_next_place_are_in_the_loop_of_scores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Shifted(tied=False).double()
    ids = torch.randint(0, CLASSES, (2, 11))
    step = compiled(model, (ids, ids), "3x2")
    assert [*trips(step).values()] == [2], "two times 4 places, and 3 of which 2 have a target"
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(STEPS):
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    check(trained(step, (ids, ids), tmp_path / "chunks"), (losses, model.state_dict()))


class Layers(nn.Module):
    """Layers alike, of which all that is large is as large."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5)) for _ in range(3)
        )

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, target)


def test_a_cut_that_others_follow_is_theirs_too(tmp_path: Path) -> None:
    """Loops aren't in one another; and what has too few elements is no dimension to cut."""
    torch.manual_seed(0)
    model = Layers().double()
    batch = torch.randn(3, 7, 8).double(), torch.randn(3, 7, 8).double()
    step = compiled(model, batch, "1", chunks={"layers.*": 4})
    assert set(trips(step).values()) == {3}, "7 places, but for the last one"
    assert {len(op.loops) for op in step.serial.main.ops} == {0, 1}
    assert "in 4 parts" in step.summary()
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    check(trained(step, batch, tmp_path / "chunks"), expected)


class Marked(Head):
    """Says itself that its scores are computed in chunks."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = annotate.chunk(self.head(torch.relu(self.pre(x))), 0, 4)
        return self.loss(scores, target)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_mark(accumulate: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Head(cross_entropy()).double()
    marked = Marked(cross_entropy()).double()
    marked.load_state_dict(model.state_dict())
    batch = torch.randn(24, 8).double(), torch.randint(0, CLASSES, (24,))
    step = compiled(marked, batch, "3x2", accumulate=accumulate)
    loops = {op.loops for op in step.serial.main.ops}
    assert {len(each) for each in loops} == ({0, 1} if accumulate == 1 else {0, 1, 2})
    expected = trained(compiled(model, batch, "1", accumulate=accumulate), batch, tmp_path / "a")
    check(trained(step, batch, tmp_path / "b"), expected)


def test_inference(tmp_path: Path) -> None:
    model, x = (
        nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).double(),
        torch.randn(10, 8).double(),
    )
    step = autopar.compile(model, (x,), mesh="3", chunks={"0": (0, 4)})
    assert trips(step) == {"c0": 3}
    step.save(tmp_path / "build")
    (found,) = run(tmp_path / "build", {"input": x.numpy()}, virtual=True).values()
    torch.testing.assert_close(torch.as_tensor(found), model(x))


def test_sums_of_halves_are_rounded_once() -> None:
    model = Head(cross_entropy()).bfloat16()
    batch = torch.randn(16, 8).bfloat16(), torch.randint(0, CLASSES, (16,))
    main = compiled(model, batch, "1", chunks={"head": (0, 4)}).serial.main
    sums = [op for op in main.ops if op.kind == "autopar.loop_reduce"]
    assert sums
    assert {main.values[op.results[0]].dtype for op in sums} == {"f32"}


class Mixed(nn.Module):
    """Parts that can be computed in chunks, as chance has them."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(CLASSES, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.drop = nn.Dropout(chance.choice([0.0, 0.5]))
        self.head = nn.Linear(8, CLASSES, bias=chance.random() < 0.5)
        self.loss = LOSSES[chance.choice(list(LOSSES))]

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        h = self.tokens(ids)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = self.norm(h + self.down(self.drop(torch.relu(self.up(h)))))
        return self.loss(self.head(h).flatten(0, 1), target.flatten())


def check_random(seed: int, folder: Path, effort: float = 1.0) -> None:
    """Checks a random step with random chunks and pins on a random mesh, value by value."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model = Mixed(chance).double()
    shape = chance.choice([1, 2, 3]), chance.choice([4, 7])
    batch = torch.randint(0, CLASSES, shape), torch.randint(0, CLASSES, shape)
    names = chance.sample(["head", "up", "attention", "norm"], 2)
    entries = [(name, chance.choice([2, 3, 5])) for name in names]
    check_step(model, batch, entries, chance.choice(MESHES), seed, folder, effort)


Entry = tuple[str, int | Sequence[int]]


def possible(program: Program, entries: Sequence[Entry]) -> list[ChunkPin]:
    """Returns the pins of entries that are possible, each beside those before it."""
    pins: list[ChunkPin] = []
    for entry in entries:
        try:
            pin = ChunkPin.from_entry(*entry)
            chunked(program, [*pins, pin])
            pins.append(pin)
        except AnnotationError:
            continue
    return pins


def check_step(
    model: nn.Module,
    batch: tuple[Tensor, ...],
    entries: Sequence[Entry],
    mesh_text: str,
    seed: int,
    folder: Path,
    effort: float = 1.0,
) -> int:
    """Checks a step with those chunks that are possible, and random pins, value by value.

    Returns:
        How many chunks are possible.
    """
    recipe = Recipe(
        training_step=lambda module, given: module(*given),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )
    step = capture(model, batch, recipe)
    mesh, pins = parse_mesh(mesh_text), possible(step.program, entries)
    cut = chunked(step.program, pins)
    around = random_pins(cut, mesh, "chunk", seed)
    options = CompileOptions(mesh, Cluster.load("cpu"), "auto", around, effort=effort)
    done = compile_program(cut, options)
    inputs = dict(zip(step.structure.labels, batch, strict=True))
    whole, parts = Steps(step), Steps(step)
    parts.program = cut
    expected, found = whole.take(batch), parts.take(batch)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for name, tensor in whole.stored.items():
        torch.testing.assert_close(parts.stored[name], tensor, rtol=1e-9, atol=1e-11)
    weights = stored_values(step)
    write_weights(folder / "weights", weights)
    with WeightFile(folder / "weights") as file:
        ranks = VirtualMesh(done.deployment, file)
        assert verify_mesh(done.serial, weights, ranks, inputs, forced=True).ok
    return len(pins)


# In 202 parts of a sum that is pending are given to iterations, by a plan that is searched for.
@pytest.mark.parametrize(("seed", "effort"), [(0, EFFORT), (1, EFFORT), (202, 1.0)])
def test_a_random_step(seed: int, effort: float, tmp_path: Path) -> None:
    check_random(seed, tmp_path, effort)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8), *range(100, 400)])
def test_many_random_steps(seed: int, tmp_path: Path) -> None:
    check_random(seed, tmp_path)


@pytest.mark.parametrize("mesh", ["pp=2", "pp=2,dp=2", "pp=3"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_chunks_of_the_last_stage(mesh: str, schedule: str, tmp_path: Path) -> None:
    """Tied to the first one; forward and backward in its backward passes."""
    torch.manual_seed(0)
    model = Language(tied=True).double()
    ids, target = (torch.randint(0, CLASSES, (12, 5)) for _ in range(2))
    batch, asked = (ids, target), {"accumulate": 3}
    expected = trained(compiled(model, batch, "1", **asked), batch, tmp_path / "whole")
    asked |= {"pipeline": "pp", "schedule": schedule}
    whole = compiled(model, batch, mesh, **asked)
    step = compiled(model, batch, mesh, chunks={"head": 4}, **asked)
    check(trained(step, batch, tmp_path / "chunks"), expected)
    assert peak_rank_timeline(step.partitioned).peak_bytes < (
        peak_rank_timeline(whole.partitioned).peak_bytes
    )


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ({"heads": 4}, "'heads' matches no module or value of the forward pass; did you mean head"),
        (
            {"sums.0": (2, 4)},
            "'sums.0' can't be .* all of what is cut at once",
        ),
        ({"up": (7, 4)}, "it has no dimension 7, as they are counted from 0"),
        ({"loss": 4}, "it has no dimension of two or more elements"),
        ({"up": (0, 1, 4)}, "is no dimension, counted from 0, and number of parts; write"),
        ({"up": (-1, 4)}, r"\(-1, 4\) is no dimension, counted from 0, and number of parts"),
        ({"up": 0}, r"chunks\['up'\]=0: give a number of parts, a whole one from 2 on"),
        ({"up": 1}, "one part is all of 'up'; give two or more, or leave it out"),
        ({"loss": 1}, "one part is all of 'loss'"),
        ({3: 4}, r"chunks\[3\]: give the name of a module or value"),
    ],
)
def test_what_can_not_be_cut_is_refused(chunks: Any, message: str) -> None:
    model = Head(cross_entropy()) if "heads" in chunks else Added()
    x = torch.ones(4, 8) if "heads" in chunks else torch.ones(5, 3, 6, 6)
    target = torch.ones(4, dtype=torch.int64) if "heads" in chunks else x
    with pytest.raises(autopar.AutoparError, match=message):
        compiled(copy.deepcopy(model), (x, target), "1", chunks=chunks)
