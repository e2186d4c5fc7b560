"""What other planners got wrong about figures and choices: units, prices, dropped strategies."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.base.units import parse_limit
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, CommunicationModel, evaluate, memory_timeline
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from tests.judges.captured import capture, check, collectives, compiled

# Bytes, not ratios; GiB, not bytes


def planned(memory: str | int | None = None) -> CompiledModel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval()
    return autopar.compile(
        model, torch.randn(32, 64), mesh="dp=2", strategy="replicate", memory=memory, chunks={}
    )


def peak_bytes(found: CompiledModel) -> int:
    return memory_timeline(found.partitioned).peak_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GiB", 24 * 2**30),
        ("24 GB", 24 * 10**9),
        ("0.5MiB", 2**19),
        ("1536", 1536),
        (1536, 1536),
    ],
)
def test_a_limit_is_a_number_of_bytes(text: str | int, nbytes: int) -> None:
    assert parse_limit(text) == nbytes


@pytest.mark.parametrize(
    "written",
    [int, str, lambda size: f"{size}B", lambda size: f"{size / 2**10!r}KiB"],
    ids=["number", "text", "B", "KiB"],
)
def test_a_plan_that_takes_a_byte_more_than_the_limit_is_refused(
    written: Callable[[int], str | int],
) -> None:
    needed = peak_bytes(planned())
    assert peak_bytes(planned(written(needed))) == needed
    with pytest.raises(autopar.AutoparError, match="limit"):
        planned(written(needed - 1))


def test_a_device_of_the_cluster_holds_bytes_not_gibibytes() -> None:
    for name in Cluster.profiles():
        assert 10**9 <= Cluster.load(name).memory_bytes <= 10**12


# An all_gather is priced on the full tensor


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_an_all_gather_takes_what_the_full_tensor_takes(ranks: int) -> None:
    cluster, mesh = Cluster.load("h100"), ProcessMesh.of_shape((ranks,), ("x",))
    step = capture(lambda _, given: {"y": -given["x"]}, {}, {"x": torch.zeros(64, 1024, 1024)})
    done = compiled(step, f"x={ranks}", "none", "x=[x,-1,-1]", "y=[-1,-1,-1]")
    (gathered,) = (
        cost
        for op, cost in zip(
            done.partitioned.main.ops, evaluate(done.partitioned, cluster).costs, strict=True
        )
        if op.kind == "comm.all_gather"
    )
    full = 64 * 2**22
    assert gathered.communicated_bytes == full
    nvlink = cluster.links[0]
    moved = (ranks - 1) / ranks * full * nvlink.beta_seconds_per_byte
    model = CommunicationModel(cluster, mesh)
    assert moved < model.all_gather(full, ["x"]) < 1.1 * moved
    assert gathered.communication_seconds >= model.all_gather(full, ["x"])


# No strategy is dropped because a dimension is smaller than the mesh, or not divisible by it


class Heads(nn.Module):
    """Causal attention of 12 heads, with little to gather and much to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(768, 2304, bias=False), nn.Linear(768, 768, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, 12, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return found


def searched(model: nn.Module, x: Tensor, mesh: str) -> CompiledModel:
    with torch.device("meta"):
        return autopar.compile(model, x, mesh=mesh, strategy="auto", cluster="h100")


def layouts(found: CompiledModel, kind: str) -> list[Layout]:
    """The layouts in which the results of ops of a kind are."""
    main = found.serial.main
    made = [name for op in main.ops if re.search(kind, op.kind) for name in op.results[:1]]
    return [layout for name in made if (layout := main.values[name].dist) is not None]


def test_twelve_heads_are_split_over_eight_devices() -> None:
    with torch.device("meta"):
        model, x = Heads().eval(), torch.randn(1, 4096, 768)
    (mixed,) = layouts(searched(model, x, "tp=8"), "autopar.attention")
    assert mixed.dims_mapping[1] == 0


@pytest.mark.parametrize(("rows", "ranks"), [(3, 4), (5, 4), (7, 8), (12, 8)])
def test_a_batch_of_any_size_is_split(rows: int, ranks: int) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()).eval()
        x = torch.randn(rows, 8, 1024, 1024)
    for mixed in layouts(searched(model, x, f"dp={ranks}"), "convolution|conv2d"):
        assert mixed.sharded_axes == ("dp",)


@pytest.mark.parametrize(("size", "ranks"), [(3, 4), (3, 8), (12, 8), (7, 4)])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_pinned_split_of_any_size_is_kept(size: int, ranks: int, dim: int) -> None:
    shape = [5, 5]
    shape[dim] = size
    pin = ["-1", "-1"]
    pin[dim] = "x"
    text = ",".join(pin)
    step = capture(lambda _, given: {"y": given["x"].exp()}, {}, {"x": torch.randn(shape)})
    done = compiled(step, f"x={ranks}", "auto", f"x=[{text}]", f"y=[{text}]")
    check(step, done)
    assert not collectives(done)
    held = [
        value.shape[dim] for value in done.partitioned.main.values.values() if len(value.shape) == 2
    ]
    assert held
    assert size not in held


# Outputs that are read whole as well


class Reading(nn.Module):
    """Returns a tensor, and what an op without a rule makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        found = self.layers(x)
        return found, found.masked_scatter(mask, found)


def test_outputs_may_be_gathered_once_for_all_that_need_them_whole() -> None:
    batch = torch.randn(512, 64), torch.randn(512, 64) > 0
    found = autopar.compile(Reading(), batch, mesh="a=2,b=2")
    main = found.serial.main
    assert main.values[main.outputs[0]].dist == Layout.replicated(found.serial.mesh, (512, 64))
    assert [each.kind for each in collectives(found)] == ["all_gather"]
