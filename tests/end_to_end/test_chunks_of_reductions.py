"""What is cut along a dimension that ops reduce, or need all of, is what one device computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.base.errors import AnnotationError
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from autopar.runtime import run
from tests.end_to_end.test_chunks import EFFORT, check, check_step, compiled, trained, trips
from tests.judges.tracking import executed

ROWS, WIDTH = 5, 6
MESHES = ("1", "2", "3", "2x2")

Reduced = Callable[[Tensor], Tensor | tuple[Tensor, ...]]


class Scores(nn.Module):
    """Scores that are reduced."""

    def __init__(self, reduced: Reduced, size: int) -> None:
        super().__init__()
        self.head, self.reduced = nn.Linear(WIDTH, size, bias=False), reduced

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.reduced(self.head(x))


REDUCED: Mapping[str, Reduced] = {
    "softmax": lambda s: s.softmax(-1).square().sum(-1),
    "log softmax": lambda s: s.log_softmax(-1).square().sum(-1),
    "softmax of another": lambda s: s.softmax(-1) @ s.sin().T,
    "logsumexp": lambda s: s.logsumexp(-1),
    "highest": lambda s: s.amax(-1),
    "highest of halves": lambda s: s.bfloat16().amax(-1),
    "least": lambda s: s.amin(-1),
    "both": lambda s: torch.aminmax(s, dim=-1),
    "where": lambda s: s.argmax(-1),
    "where, of equals": lambda s: (3 * s).round().argmin(-1),
    "highest, and where": lambda s: s.max(-1),
    "least, and where": lambda s: s.min(-1),
    "highest of all": lambda s: s.max(),
    "product": lambda s: (1 + s / 10).prod(-1),
    "any": lambda s: (s > 1).any(-1),
    "all": lambda s: (s > -2).all(-1),
    "highest of integers": lambda s: (5 * s).round().long().amax(-1),
    "deviation": lambda s: s.std(-1),
    "norm": lambda s: torch.linalg.vector_norm(s, float("inf"), -1),
}


def inferred(model: nn.Module, x: Tensor, step: CompiledModel, folder: Path) -> None:
    """Checks what a build computes."""
    step.save(folder)
    expected = model(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = [*run(folder, (x,), virtual=True).values()]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other, equal_nan=True)


def shapes(step: CompiledModel) -> set[tuple[object, ...]]:
    """Returns the shapes of what is there at once."""
    return {value.shape for value in step.serial.main.values.values()}


@pytest.mark.parametrize("size", [40, 41])
@pytest.mark.parametrize("name", REDUCED)
def test_of_what_is_reduced(name: str, size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Scores(REDUCED[name], size).double(), torch.randn(ROWS, WIDTH).double()
    mesh = MESHES[(list(REDUCED).index(name) + size) % len(MESHES)]
    step = autopar.compile(model, (x,), mesh=mesh, chunks={"head": (1, 4)}, effort=EFFORT)
    assert trips(step)
    assert (ROWS, size) not in shapes(step)
    inferred(model, x, step, tmp_path / "build")


@pytest.mark.parametrize("name", ["highest", "least", "where", "highest, and where", "softmax"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_of_what_is_no_number(name: str, number: float, tmp_path: Path) -> None:
    """In the first part, in the last one, and in none."""

    def broken(scores: Tensor) -> Tensor | tuple[Tensor, ...]:
        at = torch.arange(41)[None] == torch.tensor([[0], [40], [-1], [17], [0]])
        return REDUCED[name](scores.masked_fill(at, number))

    model, x = Scores(broken, 41).double(), torch.randn(ROWS, WIDTH).double()
    step = autopar.compile(model, (x,), mesh="2", chunks={"head": (1, 4)}, effort=EFFORT)
    assert trips(step)
    inferred(model, x, step, tmp_path / "build")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda s: s.argmax(), "it needs all of what is cut at once"),
        (lambda s: s.sort(-1).values, "it needs all of what is cut at once"),
        (lambda s: s == s.amax(-1, keepdim=True), "it looks for an extremum in what is computed"),
        (lambda s: (s.amax(-1, True) - s) ** 1.5, "it looks for an extremum in what is computed"),
        (lambda s: (s.amax(-1, True) - s) ** -2, "it looks for an extremum in what is computed"),
    ],
)
def test_what_ends_a_piece(changed: Reduced, why: str) -> None:
    """A maximum of what is computed again is no element of it, to the last bit."""
    model, x = Scores(changed, 41).double(), torch.randn(ROWS, WIDTH).double()
    with pytest.raises(AnnotationError, match=why):
        autopar.compile(model, (x,), mesh="1", chunks={"head": (1, 4)})


class Towers(nn.Module):
    """Two, each of whose results is compared with each: CLIP's loss."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.logit_scale, self.twice = nn.Parameter(torch.tensor(2.0)), twice

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = F.normalize(self.first(x), dim=-1), F.normalize(self.second(y), dim=-1)
        labels, scale = torch.arange(len(x)), self.logit_scale.exp()
        scores = scale * a @ b.T
        others = (scale * b @ a.T) if self.twice else scores.T
        return (F.cross_entropy(scores, labels) + F.cross_entropy(others, labels)) / 2


def pairs(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, WIDTH).double(), torch.randn(count, WIDTH).double()


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    ("count", "twice", "chunks"),
    [
        (24, False, {"mm": (0, 4)}),
        (25, False, {"mm": (0, 4)}),
        (25, False, {"mm": (1, 3)}),
        (25, False, {"mm": 5}),
        (25, True, {"mm*": 4}),
    ],
)
def test_a_contrastive_loss(
    count: int, twice: bool, chunks: Mapping[str, int], mesh: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, batch = Towers(twice=twice).double(), pairs(count)
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    step = compiled(model, batch, mesh, chunks=chunks)
    assert (count, count) not in shapes(step)
    check(trained(step, batch, tmp_path / "chunks"), expected)


@pytest.mark.parametrize("mesh", ["2", "2x2"])
def test_scores_that_processes_share(mesh: str, tmp_path: Path) -> None:
    """Each has a part of a part: a maximum is over iterations, and over processes."""
    torch.manual_seed(0)
    model, batch = Towers().double(), pairs(25)
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    axes = ["d0", -1] if mesh == "2" else ["d0", "d1"]
    step = compiled(model, batch, mesh, chunks={"mm": (0, 4)}, shard={"mm": axes, "mul": axes})
    check(trained(step, batch, tmp_path / "chunks"), expected)


@pytest.mark.parametrize("count", [256, 257])
def test_memory_alone_is_enough(count: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = Towers().double(), pairs(count)
    whole = compiled(model, batch, "1")
    (before,) = whole.deployment.programs
    limit = memory_timeline(before).peak_bytes // 5
    parts = compiled(model, batch, "1", memory=limit)
    (program,) = parts.deployment.programs
    peak = memory_timeline(program).peak_bytes
    assert executed(program, parts.weights).peak_bytes == peak <= limit
    assert peak < count * count * 8
    # What is alike is in the same loops: it isn't cut once more.
    assert len(parts.options.chunks or ()) == 1
    check(trained(parts, batch, tmp_path / "parts"), trained(whole, batch, tmp_path / "whole"))


def test_maxima_are_written_over_one_another() -> None:
    """Running ones, too: of many wide rows there are two of them, and not one for each part."""
    model = Scores(lambda s: s.amax(0), 1000)
    x = torch.randn(64, WIDTH)
    step = autopar.compile(model, (x,), mesh="1", chunks={"head": (0, 32)})
    (program,) = step.deployment.programs
    timeline = memory_timeline(program)
    assert executed(program, step.weights).peak_bytes == timeline.peak_bytes
    maxima, scores = 2 * 1000 * 4, 2 * 1000 * 4
    assert timeline.peak_bytes - timeline.stored_bytes <= 1.01 * (maxima + scores) + x.nbytes


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("parts", [4, 7])
def test_a_vocabulary_in_pieces(parts: int, mesh: str, tmp_path: Path) -> None:
    """Classes instead of rows, with all that a loss can ask for."""
    torch.manual_seed(0)
    weight = torch.linspace(0.1, 1, 40, dtype=torch.float64)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pre, self.head = nn.Linear(8, 3), nn.Linear(3, 40, bias=False)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            asked = {"weight": weight, "label_smoothing": 0.1, "ignore_index": 3}
            return F.cross_entropy(self.head(self.pre(x)), target, **asked)

    model = Head().double()
    batch = torch.randn(12, 8).double(), torch.randint(0, 40, (12,))
    expected = trained(compiled(model, batch, "1"), batch, tmp_path / "whole")
    step = compiled(model, batch, mesh, chunks={"head": (1, parts)})
    assert (12, 40) not in shapes(step)
    check(trained(step, batch, tmp_path / "chunks"), expected)


CHANGED: Sequence[Callable[[Tensor, int], Tensor]] = (
    lambda s, dim: s.softmax(dim) * len(s),
    lambda s, dim: s.log_softmax(dim),
    lambda s, dim: s - s.amax(dim, keepdim=True),
    lambda s, dim: s / (1 + s.abs().amax(dim, keepdim=True)),
    lambda s, dim: s - s.min(dim, keepdim=True).values,
    lambda s, dim: s - s.logsumexp(dim, keepdim=True),
    lambda s, dim: (s - s.mean(dim, keepdim=True)) / (1 + s.std(dim, keepdim=True)),
    lambda s, dim: F.normalize(s, dim=dim),
    lambda s, dim: s + s.argmax(dim, keepdim=True) / 10,
    lambda s, dim: s.masked_fill(s == s.amax(dim, keepdim=True), 0.5),
    lambda s, dim: s * (s > 0).any(dim, keepdim=True),
    lambda s, dim: s * (1 + s.detach() / 50).prod(dim, keepdim=True),
    lambda s, dim: s.cumsum(dim) / len(s),
    lambda s, dim: s.sort(dim).values,
    lambda s, dim: s + s.max() - s.argmin() / 10,
    lambda s, dim: F.dropout(s, 0.2),
    lambda s, dim: torch.tanh(s),
    lambda s, dim: s * s.detach().T.softmax(dim).T,
)


class Changed(nn.Module):
    """Scores of all pairs, changed by what reduces rows or columns, as chance has it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "ab")
        count = chance.randint(1, 3)
        self.changes = [(chance.choice(CHANGED), chance.choice([0, 1])) for _ in range(count)]
        self.sides = chance.choice(["rows", "columns", "both"])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.first(x) @ self.second(y).T
        # Else sums of gradients would be nothing but what is rounded: a softmax, say, has
        # none of what is added to all of its row.
        columns, rows = torch.linspace(0.5, 1.5, len(x)), torch.linspace(0.7, 1.3, len(x))
        for change, dim in self.changes:
            scores = change(scores, dim) * columns * rows[:, None]
        at = torch.arange(len(x))
        first, second = F.cross_entropy(scores, at), F.cross_entropy(scores.T, at)
        return {"rows": first, "columns": second, "both": (first + second) / 2}[self.sides]


def check_random(seed: int, folder: Path, effort: float = 1.0) -> int:
    """Checks a random step in random chunks on a random mesh; returns how many are possible."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model, batch = Changed(chance).double(), pairs(chance.choice([8, 13]))
    # Loops of these names are called as values of bodies are, too.
    names = ["mm", *chance.sample(["_log_softmax", "_softmax", "amax", "sub", "div", "mul"], 1)]
    entries = [(name, (chance.choice([0, 1]), chance.choice([2, 3, 5]))) for name in names]
    return check_step(model, batch, entries, chance.choice(MESHES), seed, folder, effort)


@pytest.mark.parametrize("seed", [*range(3), 31])
def test_a_random_step(seed: int, tmp_path: Path) -> None:
    check_random(seed, tmp_path, EFFORT)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_many_random_steps(seed: int, tmp_path: Path) -> None:
    check_random(seed, tmp_path)
