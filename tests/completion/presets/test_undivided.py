"""Presets that leave work undivided say so, with the ops that are the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers.integrations.moe  # noqa: F401  (it registers the products of experts)
from torch import Tensor, nn

import autopar
from autopar.runtime import run


def remarks(strategy: str, batch: int) -> list[str]:
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    compiled = autopar.compile(
        network, (torch.randn(batch, 16),), mesh="dp=2,tp=2", strategy=strategy
    )
    report = compiled.report
    found = [each for each in report if each.category == "undivided"]
    summary = compiled.summary().splitlines()
    assert [line for line in summary if " processes along " in line] == [
        f"{each.subject}: {each.detail} [{each.loc}]" for each in found
    ]
    return [f"{each.subject}: {each.detail}" for each in found]


def test_what_is_divided_needs_no_words() -> None:
    assert not remarks("data:dp,tensor:tp", 8)
    assert not remarks("fsdp:dp,tensor:tp", 8)
    assert not remarks("replicate", 8)
    assert not remarks("auto", 8)


@pytest.mark.parametrize("preset", ["data", "fsdp", "zero1"])
def test_a_batch_of_one(preset: str) -> None:
    assert remarks(f"{preset}:dp,tensor:tp", 1) == [
        f"{preset}:dp: all 2 processes along dp compute 100% of the flops (aten.addmm.default 100%)"
    ]


def test_presets_of_one_axis_are_named_together() -> None:
    [remark] = remarks("data:dp", 1)
    assert remark.startswith("data:dp: all 2 processes along dp compute 100%")


class Heads(nn.Module):
    """Attention with a table of positions that all heads share."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 32, bias=False)
        self.positions = nn.Parameter(torch.randn(7, 8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 4, 8).permute(2, 0, 3, 1, 4).reshape(3, -1, 16, 8)
        steps = torch.arange(4)
        table = self.positions[steps[:, None] - steps[None, :] + 3]
        biases = torch.einsum("bhwc,hkc->bhwk", q.reshape(-1, 4, 4, 8), table)
        scores = (q @ k.mT).reshape(-1, 4, 4, 4, 4) + biases[..., None]
        found = scores.reshape(-1, 16, 16).softmax(-1) @ v
        return self.out(found.reshape(-1, 4, 16, 8).transpose(1, 2).reshape(-1, 16, 32))


def test_a_table_that_heads_share_leaves_them_split() -> None:
    """So for each layer: what the second one does may not be what the first does."""
    model = nn.Sequential(*(Heads() for _ in range(2)))
    compiled = autopar.compile(
        model, (torch.randn(4, 16, 32),), mesh="dp=2,tp=2", strategy="data:dp,tensor:tp"
    )
    assert not [each for each in compiled.report if each.category == "undivided"]
    values = compiled.serial.main.values
    for layer in range(2):
        assert str(values[f"{layer}.qkv.weight"].dist) == "[(3)(32@tp), 32]"
        assert str(values[f"{layer}.positions"].dist) == "[7, 8]"


class Mixture(nn.Module):
    """Each row goes to one of four experts: rows are sorted by expert, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.randn(4, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        expert, order = self.router(x).argmax(-1).sort()
        ends = torch.histc(expert.double(), 4, 0, 3).cumsum(0).int()
        rows = torch.ops.transformers.grouped_mm_fallback(x[order], self.experts, ends)
        return x + rows[order.argsort()]


@pytest.mark.parametrize("strategy", ["fsdp:dp,tensor:tp", "data:dp,expert:tp"])
def test_rows_that_are_sorted_by_expert_are_divided(strategy: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Mixture().double(), torch.randn(15, 16, dtype=torch.float64)
    compiled = autopar.compile(model, (x,), mesh="dp=2,tp=2", strategy=strategy)
    assert not any("grouped_mm" in each.detail for each in compiled.report)
    compiled.save(tmp_path / "build")
    [found] = run(tmp_path / "build", [x], virtual=True).values()
    torch.testing.assert_close(torch.as_tensor(found), model(x), rtol=1e-12, atol=1e-12)


class Sorted(nn.Module):
    """Rows in another order: nothing of the batch is kept in its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[x.sum(1).argsort()]).square().sum()


def test_a_batch_in_another_order_is_a_batch() -> None:
    compiled = autopar.compile(Sorted(), (torch.randn(8, 16),), mesh="dp=2", strategy="data")
    assert not [each for each in compiled.report if each.category == "undivided"]


class Captioned(nn.Module):
    """Rows of a text, of which those that a mask selects come from images."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, images: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        rows = self.tower(images).flatten(0, 1)
        return text.masked_scatter(mask[..., None].expand_as(text), rows).square().sum()


def test_images_among_a_text_are_divided(tmp_path: Path) -> None:
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[:, 2:5] = True
    model, batch = Captioned(), (torch.randn(4, 3, 16), torch.randn(4, 9, 16), mask)
    compiled = autopar.compile(model, batch, mesh="dp=2", strategy="data")
    assert not [each for each in compiled.report if each.category == "undivided"]
    compiled.save(tmp_path / "build")
    [found] = run(tmp_path / "build", list(batch), virtual=True).values()
    torch.testing.assert_close(torch.as_tensor(found), model(*batch))


@torch.library.custom_op("undivided::centred", mutates_args=())
def centred(x: Tensor) -> Tensor:
    """An op that the compiler knows nothing about."""
    return x - x.mean()


@centred.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Centred(nn.Module):
    """An op without a rule between two layers, and no other input that has the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(centred(self.first(x).relu()))


@pytest.mark.parametrize("strategy", ["data", "fsdp"])
def test_a_batch_goes_on_behind_an_op_without_a_rule(strategy: str, tmp_path: Path) -> None:
    model, x = Centred(), torch.randn(8, 16)
    compiled = autopar.compile(model, (x,), mesh="dp=2", strategy=strategy)
    assert not [each for each in compiled.report if each.category == "undivided"]
    compiled.save(tmp_path / "build")
    [found] = run(tmp_path / "build", [x], virtual=True).values()
    torch.testing.assert_close(torch.as_tensor(found), model(x))


class Masked(nn.Module):
    """A mask and a weight of many ops, each of which reads the one before twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(torch.ones(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        mask, weight = torch.zeros(64), self.scale
        for _ in range(50):
            mask = mask + mask.flip(0)
            weight = weight + weight.flip(0)
        return self.second(((self.first(x) + mask) @ weight).relu())


def test_weights_of_many_ops_take_no_time() -> None:
    found = autopar.compile(
        Masked(), (torch.randn(8, 16),), mesh="dp=2,tp=2", strategy="fsdp:dp,tensor:tp"
    )
    assert not [each for each in found.report if each.category == "undivided"]
