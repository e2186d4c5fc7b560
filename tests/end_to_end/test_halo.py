"""Networks over images that are split along space: every layer fetches its halo, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.cost import Cluster
from autopar.cost.summary import summarize_rank
from autopar.ir.text import parse_program, print_program
from autopar.pipeline import Compiled, CompileOptions, compile_program, write
from tests.fuzz.chains import chain
from tests.given.clusters import without_latency
from tests.judges import captured
from tests.judges.captured import Captured
from tests.runtime.execute.targets import run_program
from tests.runtime.job.real import run_ranks

Tensors = Mapping[str, Tensor]


def random(*shape: int) -> Tensor:
    """Returns random numbers, the same for the same shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1


def moved_bytes(done: Compiled) -> dict[str, int]:
    """Returns the bytes that the busiest rank gets, by kind of collective."""
    deployment = done.deployment
    summary = summarize_rank(deployment.programs[0], dict.fromkeys(deployment.axes, 0))
    found: dict[str, int] = {}
    for each in summary.collectives:
        found[each.kind] = found.get(each.kind, 0) + each.bytes
    return found


def compiled(model: Captured, mesh: str, *shards: str) -> Compiled:
    """Compiles for a cluster without latency, on which bytes decide also where they are few."""
    options = CompileOptions.from_text(mesh=mesh, strategy="none", shards=shards)
    cluster = without_latency(Cluster.load("cpu"))
    return compile_program(model.program, replace(options, cluster=cluster))


def cnn(height: int, width: int = 6) -> Captured:
    """Returns convolutions, poolings and a transposed convolution, strided and dilated."""
    weights = {
        "first": random(4, 2, 3, 3),
        "wide": random(4, 4, 7, 1),
        "strided": random(4, 4, 5, 3),
        "back": random(4, 3, 4, 2),
        "bias": random(4),
    }

    def step(w: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        h = F.relu(F.conv2d(given["x"], w["first"], w["bias"], padding=1))
        h = F.max_pool2d(h, 3, 1, 1)
        h = F.conv2d(h, w["wide"], padding=(3, 0))
        h = F.avg_pool2d(h, 3, 1, 1)
        h = F.conv2d(h, w["strided"], stride=(2, 1), padding=(4, 1), dilation=(2, 1))
        return {"y": F.conv_transpose2d(h, w["back"], stride=2, padding=1)}

    return captured.capture(step, weights, {"x": random(1, 2, height, width)})


SPLITS = {
    "2": ("2", "0"),
    "3": ("3", "0"),
    "2x2 height": ("2x2", "0,1"),
    "7, shards smaller than the radius": ("7", "0"),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("height", [16, 17, 10])
def test_a_network_split_along_the_height(name: str, height: int) -> None:
    mesh, axes = SPLITS[name]
    entry = f"({axes})" if "," in axes else axes
    model = cnn(height)
    done = captured.compiled(model, mesh, "none", f"x=[-1,-1,{entry},-1]")
    captured.check(model, done, 1e-9)
    assert set(moved_bytes(done)) == {"redistribute"}


def test_a_split_in_both_directions_fetches_corners() -> None:
    model = cnn(13, 9)
    done = captured.compiled(model, "2x2", "none", "x=[-1,-1,0,1]")
    captured.check(model, done, 1e-9)
    assert set(moved_bytes(done)) == {"redistribute"}


def test_only_the_halo_is_fetched() -> None:
    done = captured.compiled(cnn(16), "2", "none", "x=[-1,-1,0,-1]")
    rows = {"first": 1 * 2, "max": 1 * 4, "wide": 3 * 4, "avg": 1 * 4, "strided": 4 * 4, "back": 4}
    assert moved_bytes(done) == {"redistribute": sum(rows.values()) * 6 * 8}


def test_the_cost_does_not_grow_with_the_ranks() -> None:
    sizes = {
        ranks: moved_bytes(captured.compiled(cnn(16 * ranks), str(ranks), "none", "x=[-1,-1,0,-1]"))
        for ranks in (3, 6, 12)
    }
    assert sizes[3] == sizes[6] == sizes[12]


def test_an_input_that_every_rank_holds_needs_no_communication() -> None:
    def step(w: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": F.conv1d(given["x"], w["kernel"], padding=2)}

    model = captured.capture(step, {"kernel": random(3, 2, 5)}, {"x": random(1, 2, 11)})
    done = captured.compiled(model, "3", "none", "x=[-1,-1,-1]", "y=[-1,-1,0]")
    captured.check(model, done, 1e-9)
    assert moved_bytes(done) == {}


def training(height: int, width: int = 6) -> Captured:
    """Returns a loss and the gradients of all parameters and of the input."""
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.Conv2d(4, 2, (5, 1), padding=(2, 0), groups=2),
        nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1),
    ).double()
    torch.manual_seed(0)
    weights = {name: torch.randn_like(each) for name, each in net.state_dict().items()}

    def step(parameters: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: each.detach().requires_grad_() for name, each in parameters.items()}
        x = given["x"].detach().requires_grad_()
        loss = torch.func.functional_call(net, leaves, (x,)).square().sum()
        grads = torch.autograd.grad(loss, [x, *leaves.values()])
        return {"loss": loss, **dict(zip(["dx", *leaves], grads, strict=True))}

    return captured.capture(step, weights, {"x": random(1, 2, height, width)})


@pytest.mark.parametrize(("mesh", "height"), [("2", 24), ("4", 64), ("3", 28), ("5", 25)])
def test_gradients_of_a_split_image(mesh: str, height: int) -> None:
    model = training(height, 64)
    done = compiled(model, mesh, "x=[-1,-1,0,-1]")
    captured.check(model, done, 1e-9)
    if height % (int(mesh) * 4) == 0:
        # Elsewhere the last layers have so few rows per rank that computing all of them is faster.
        assert set(moved_bytes(done)) == {"redistribute", "all_reduce"}


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[:, 3:-2] * 2,
    "slice with a step": lambda x: x[:, 1::3] * 2,
    "shift": lambda x: x[:, 1:] - x[:, :-1],
    "roll": lambda x: x.roll(4, 1) + x,
    "flip": lambda x: x.flip(1) * 2,
    "zero pad": lambda x: F.pad(x, (2, 9)) * 2,
    "crop and pad": lambda x: F.pad(x, (-3, 1), value=3.0) * 2,
    "reflect": lambda x: F.pad(x, (4, 3), mode="reflect") * 2,
    "replicate": lambda x: F.pad(x, (5, 1), mode="replicate") * 2,
    "circular": lambda x: F.pad(x[None], (3, 2), mode="circular")[0] * 2,
    "cat": lambda x: torch.cat([x, x * 2, x[:, 2:5]], 1),
    "windows": lambda x: x.unfold(1, 5, 2).sum(-1),
    "causal": lambda x: F.conv1d(F.pad(x[None], (4, 0)), torch.ones(2, 2, 3).double(), dilation=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("mesh", ["2", "3", "6"])
def test_ops_along_a_split_sequence(name: str, mesh: str) -> None:
    model = captured.capture(
        lambda _, given: {"y": FUNCTIONS[name](given["x"])}, {}, {"x": random(2, 13)}
    )
    done = compiled(model, mesh, "x=[-1,0]")
    captured.check(model, done, 1e-9)
    if name != "circular":
        # A circle is padded by copying both ends, of which every rank then has all.
        assert set(moved_bytes(done)) <= {"redistribute"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_real_processes(ranks: int, tmp_path: Path) -> None:
    model = cnn(10)
    done = captured.compiled(model, str(ranks), "none", "x=[-1,-1,0,-1]")
    write(done, dict(model.weights), tmp_path / "build")
    outcomes = run_ranks(ranks, run_program, [tmp_path / "build"], dict(model.inputs))
    assert not any(isinstance(outcome, str) for outcome in outcomes), outcomes
    found = torch.as_tensor(outcomes[0][0]["y"])
    torch.testing.assert_close(found, model.expected["y"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mesh", ["2", "3"])
def test_a_convolution_split_along_the_last_dimension(
    dims: int, transposed: bool, mesh: str
) -> None:
    """DTensor computes all six wrong without a word."""
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"

    def step(w: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": getattr(F, name)(given["x"], w["kernel"], w["bias"], padding=1)}

    weights = {"kernel": random(2, 2, *(3,) * dims), "bias": random(2)}
    model = captured.capture(step, weights, {"x": random(2, 2, *(4,) * (dims - 1), 11)})
    whole = "-1," * (dims + 1)
    done = compiled(model, mesh, f"x=[{whole}0]", f"y=[{whole}0]")
    captured.check(model, done, 1e-9)
    assert set(moved_bytes(done)) == {"redistribute"}


def random_chain(seed: int) -> None:
    """Compiles a random chain of windows, and checks it with and without latency."""
    dice = Random(seed)
    length, state = dice.randint(1, 24), dice.getstate()

    def step(w: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        dice.setstate(state)
        return {"y": chain(dice, given["x"], w) * 2}

    weights = {"b": random(2), **{str(size): random(2, 2, size) for size in range(1, 6)}}
    model = captured.capture(step, weights, {"x": random(2, 2, length)})
    mesh = dice.choice(("2", "3", "5", "2x2", "2x3"))
    entries = ("0", "1", "(0,1)", "(1,0)") if "x" in mesh else ("0",)
    ends = dice.choice(("x", "xy", "y"))
    pins = [f"{end}=[-1,-1,{dice.choice(entries)}]" for end in ends]
    for done in (compiled(model, mesh, *pins), captured.compiled(model, mesh, "none", *pins)):
        captured.check(model, done, 1e-9)
        assert parse_program(print_program(done.partitioned)) == done.partitioned


@pytest.mark.parametrize("first", range(0, 10, 5))
def test_random_chains(first: int) -> None:
    for seed in range(first, first + 5):
        random_chain(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 50))
def test_many_random_chains(first: int) -> None:
    for seed in range(first, first + 50):
        random_chain(seed)
