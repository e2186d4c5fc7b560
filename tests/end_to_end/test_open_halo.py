"""Windows over dimensions of open size are split: at any size, and only halos are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import autopar
from autopar.base.errors import VerificationError
from autopar.cost import Cluster
from autopar.ir.collectives import REDISTRIBUTE
from autopar.ir.deployment import Deployment
from autopar.ir.expr.expression import Expr
from autopar.mapping.prove import prove
from autopar.runtime.api import run
from autopar.runtime.execute.session import Session
from autopar.runtime.job.processes import Processes
from tests.given.clusters import without_latency
from tests.runtime.job.real import run_ranks

Code = Callable[[Tensor], Tensor]

CLUSTER = without_latency(Cluster.load("cpu"))
"""On it bytes decide also where they are few."""


class Cnn(nn.Module):
    """Convolutions, strided and dilated, pools, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.strided = nn.Conv2d(4, 4, (5, 3), stride=2, padding=(2, 1))
        self.dilated = nn.Conv2d(4, 4, 3, padding=(2, 4), dilation=(2, 4), groups=2)
        self.back = nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1)
        self.last = nn.Conv2d(3, 2, (3, 5), padding="same")

    def forward(self, x: Tensor) -> Tensor:
        """Returns an image about half as large as `x`."""
        x = F.max_pool2d(F.relu(self.first(x)), 3, 1, 1)
        x = self.dilated(self.strided(x))
        x = F.avg_pool2d(x, 2, 1)
        found: Tensor = self.last(self.back(F.max_pool2d(x, 3, 2, 1)))
        return found


IMAGES = ((1, 32, 32), (3, 10, 9), (2, 9, 11), (7, 20, 13), (1, 64, 17))
SMALL = ((0, 9, 9), (1, 4, 4), (2, 3, 7), (1, 17, 40), (4, 6, 5))
"""Batch, height and width. Of small ones ranks have nothing, or less than their halo."""

OPEN = {0: "batch", 2: "height", 3: "width"}

PINS: dict[str, Sequence[str | None]] = {
    "2": [None, None, "0", None],
    "3": [None, None, "0", None],
    "2x2": [None, None, "0", "1"],
    "3x2": [None, None, "0", "1"],
}


def image(batch: int, height: int, width: int) -> Tensor:
    """Returns random pixels, the same for the same sizes."""
    random = torch.Generator().manual_seed(batch + 100 * height + 10000 * width)
    return torch.randn(batch, 3, height, width, generator=random)


def collectives(done: autopar.CompiledModel) -> set[str]:
    """Returns the kinds of collectives that a summary lists."""
    kinds = ("redistribute", "all_gather", "all_to_all", "all_reduce", "permute")
    return {kind for kind in kinds if f"\n{kind} " in done.summary()}


def compile_cnn(mesh: str) -> autopar.CompiledModel:
    """Compiles the network with all sizes open, and the image split as `PINS` says."""
    return autopar.compile(
        Cnn().eval(),
        image(8, 96, 96),
        mesh=mesh,
        strategy="none",
        shard={"x": PINS[mesh]},
        dynamic={"x": OPEN},
        cluster=CLUSTER,
    )


@pytest.mark.parametrize("mesh", PINS)
def test_a_network_on_images_of_any_size(mesh: str, tmp_path: Path) -> None:
    done = compile_cnn(mesh)
    print(done.summary())
    done.save(tmp_path / "build")
    for sizes in (*IMAGES, *SMALL):
        x = image(*sizes)
        found = run(tmp_path / "build", {"x": x}, virtual=True)["output"]
        with torch.no_grad():
            torch.testing.assert_close(found, Cnn().eval()(x), rtol=1e-4, atol=1e-4)


def wrong_exchanges(deployment: Deployment) -> Iterator[Deployment]:
    """Yields a deployment with one open size of one exchange one more, or less, than it is."""
    (program,) = deployment.programs
    main = program.main
    for at, op in enumerate(main.ops):
        for name, arg in op.args if op.kind == REDISTRIBUTE else ():
            for other in (arg + 1, arg - 1) if isinstance(arg, Expr) else ():
                ops = list(main.ops)
                ops[at] = op.with_args({name: other})
                changed = program.with_main(replace(main, ops=tuple(ops)))
                yield replace(deployment, programs=(changed,))


def test_a_wrong_size_of_any_exchange_is_found() -> None:
    deployment = compile_cnn("2x2").deployment
    prove(deployment)
    wrong = list(wrong_exchanges(deployment))
    assert len(wrong) > 40
    for each in wrong:
        with pytest.raises(VerificationError, match="sizes differ"):
            prove(each)


PROCESSED = (*IMAGES[:2], *SMALL[:3])


def run_images(processes: Processes, build: str) -> list[dict[str, list[object]]]:
    """What each process does: runs the network on images of several sizes."""
    with Session(build, processes=processes) as session:
        found = [session.run({"x": image(*sizes)}) for sizes in PROCESSED]
    return [{name: each.tolist() for name, each in outputs.items()} for outputs in found]


def test_processes_run_images_of_any_size(tmp_path: Path) -> None:
    compile_cnn("3").save(tmp_path / "build")
    first, *_ = run_ranks(3, run_images, str(tmp_path / "build"))
    for sizes, outputs in zip(PROCESSED, first, strict=True):
        with torch.no_grad():
            wanted = Cnn().eval()(image(*sizes))
        found = torch.tensor(outputs["output"]).reshape(wanted.shape)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


class Trained(nn.Module):
    """Two convolutions with a pool between them, and the mean of all positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """Returns two numbers per image."""
        x = F.max_pool2d(F.relu(self.first(x)), 3, 1, 1)
        return F.relu(self.last(x)).mean((2, 3))


BATCHES = ((2, 24, 24), (3, 10, 9), (1, 7, 13), (2, 5, 4), (1, 1, 1))


def target(batch: int) -> Tensor:
    """Returns what is to come of a batch."""
    return torch.arange(2.0 * batch).reshape(batch, 2)


def train_eagerly() -> list[float]:
    """Returns the losses of one device."""
    model, losses = Trained(), []
    optimizer = AdamW(model.parameters(), 1e-2)
    for sizes in BATCHES:
        optimizer.zero_grad()
        loss = F.mse_loss(model(image(*sizes)), target(sizes[0]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mesh", ["2", pytest.param("3x2", marks=pytest.mark.slow)])
def test_training_on_images_of_any_size(mesh: str, tmp_path: Path) -> None:
    model = Trained()
    done = autopar.compile(
        model,
        (image(8, 96, 96), target(8)),
        mesh=mesh,
        strategy="none",
        shard={"x": PINS[mesh]},
        loss=F.mse_loss,
        optimizer=AdamW(model.parameters(), 1e-2),
        dynamic={"x": OPEN, "target": {0: "batch"}},
        cluster=CLUSTER,
    )
    assert collectives(done) == {"redistribute", "all_reduce"}
    done.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        losses = [trainer.step((image(*sizes), target(sizes[0]))).item() for sizes in BATCHES]
    torch.testing.assert_close(losses, train_eagerly(), rtol=1e-5, atol=0)


ONES = torch.ones(2, 2, 3, dtype=torch.float64)

FUNCTIONS: dict[str, tuple[Code, int]] = {
    "slice": (lambda x: x[:, 3:-2] * 2, 5),
    "slice with a step": (lambda x: x[:, 1::3] * 2, 0),
    "last ones": (lambda x: x[:, -4:] * 2, 4),
    "shift": (lambda x: x[:, 1:] - x[:, :-1], 1),
    "roll": (lambda x: x.roll(4, 1) + x, 1),
    "flip": (lambda x: x.flip(1) * 2, 0),
    "zero pad": (lambda x: F.pad(x, (2, 9)) * 2, 0),
    "crop and pad": (lambda x: F.pad(x, (-3, 1), value=3.0) * 2, 3),
    "reflect": (lambda x: F.pad(x, (4, 3), mode="reflect") * 2, 5),
    "replicate": (lambda x: F.pad(x, (5, 1), mode="replicate") * 2, 1),
    "cat": (lambda x: torch.cat([x, x * 2, x[:, 2:]], 1), 2),
    "windows": (lambda x: x.unfold(1, 5, 2).sum(-1), 5),
    "convolution": (lambda x: F.conv1d(x[None], ONES, stride=3, padding=4)[0], 1),
    "causal": (lambda x: F.conv1d(F.pad(x[None], (4, 0)), ONES, dilation=2), 1),
    "transposed": (lambda x: F.conv_transpose1d(x[None], ONES, stride=3)[0], 1),
    "largest": (lambda x: F.max_pool2d(x[None], (1, 3), (1, 2), (0, 1))[0], 1),
    "average": (lambda x: F.avg_pool2d(x[None], (1, 4), (1, 3), (0, 2))[0], 1),
    "two": (lambda x: F.avg_pool1d(F.conv1d(x[None], ONES, padding=1)[0], 2), 2),
}
"""What is computed of (2, length), and from which length on."""

LENGTHS = (0, 1, 2, 3, 5, 7, 12, 13, 40)


class Function(nn.Module):
    """A module that is a function."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        """Returns what the function makes of `x`."""
        return self.code(x)


@pytest.mark.parametrize("mesh", ["2", "3", pytest.param("6", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ops_along_a_sequence_of_any_length(name: str, mesh: str, tmp_path: Path) -> None:
    code, least = FUNCTIONS[name]
    length = f"length={least}:" if least else "length"
    done = autopar.compile(
        Function(code),
        torch.ones(2, 400, dtype=torch.float64),
        mesh=mesh,
        strategy="none",
        shard={"x": [None, "0"]},
        dynamic={"x": {1: length}},
        cluster=CLUSTER,
    )
    assert collectives(done) <= {"redistribute"}, done.summary()
    done.save(tmp_path / "build")
    for size in LENGTHS:
        x = torch.randn(2, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
        if size >= least:
            (found,) = run(tmp_path / "build", {"x": x}, virtual=True).values()
            torch.testing.assert_close(found, code(x))
