"""Modules and training steps that are compiled once for any batch and length do as PyTorch does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import autopar
from autopar import ProcessMesh, annotate
from autopar.base.errors import InvalidInputError
from autopar.runtime.api import run
from autopar.runtime.job.processes import Processes
from tests.runtime.job.real import run_ranks
from tests.zoo.models import bert

WORDS, WIDTH, LONGEST = 23, 12, 16

Sizes = tuple[int, int]
"""Batch and length."""

Batch = tuple[Tensor, Tensor]

BATCHES: Sequence[Sizes] = ((32, 8), (31, 8), (7, 5), (1, 1), (3, 16), (32, 8))


class Mlp(nn.Module):
    """Two linear layers with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 10), nn.LayerNorm(10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.norm(torch.relu(self.up(x))))
        return out


class Transformer(nn.Module):
    """A causal layer of three heads between tables and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.words(ids) + self.places(torch.arange(length))
        parts = self.qkv(self.norm(x)).split(WIDTH, -1)
        q, k, v = (each.view(batch, length, 3, 4).transpose(1, 2) for each in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        out: Tensor = self.head(x + self.down(F.gelu(self.up(x))))
        return out


class Marked(Mlp):
    """The same, marked: an input by its rows, a parameter, an activation, and one pending."""

    def forward(self, x: Tensor) -> Tensor:
        mesh = ProcessMesh([[0, 1], [2, 3], [4, 5]], ["dp", "tp"])
        x = annotate.shard(x, mesh, [("dp", "tp"), -1])
        annotate.shard(self.down.weight, mesh, [-1, "tp"])
        hidden = annotate.shard(torch.relu(self.up(x)), mesh, ["dp", "tp"])
        out: Tensor = self.down(self.norm(hidden))
        return annotate.shard(out, mesh, ["dp", -1], partial={"tp": "sum"}) * 2


def numbers(batch: int, length: int) -> Batch:
    random = torch.Generator().manual_seed(1000 * batch + length)
    x = torch.randn(batch, 8, generator=random)
    return x, torch.randn(batch, 4, generator=random)


def words(batch: int, length: int) -> Batch:
    random = torch.Generator().manual_seed(1000 * batch + length)
    ids = torch.randint(WORDS, (batch, length + 1), generator=random)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def per_word(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


Case = tuple[type[nn.Module], Callable[..., Tensor], Callable[[int, int], Batch], Any]

BOTH = {0: "batch", 1: "length"}
MLP: Case = (Mlp, F.mse_loss, numbers, {"x": {0: "batch"}, "target": {0: "batch"}})
MARKED: Case = (Marked, *MLP[1:])
TRANSFORMER: Case = (Transformer, per_word, words, {"ids": BOTH, "target": BOTH})


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case[0]()


def train_eagerly(case: Case) -> list[float]:
    model, (_, loss, batch_of, _) = model_of(case), case
    optimizer = AdamW(model.parameters(), 1e-2)
    losses = []
    for sizes in BATCHES:
        x, target = batch_of(*sizes)
        optimizer.zero_grad()
        found = loss(model(x), target)
        found.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(found.item())
    return losses


def compile_step(case: Case, build: Path, mesh: str, strategy: str, **options: Any) -> None:
    model, (_, loss, batch_of, dynamic) = model_of(case), case
    autopar.compile(
        model,
        batch_of(*BATCHES[0]),
        mesh=mesh,
        strategy=strategy,
        loss=loss,
        optimizer=AdamW(model.parameters(), 1e-2),
        clip_grad_norm=1.0,
        dynamic=dynamic,
        **options,
    ).save(build)


@pytest.mark.parametrize("case", [MLP, TRANSFORMER], ids=["mlp", "transformer"])
@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("1", "none"),
        ("2x2", "ddp:0,tensor:1"),
        ("3x2", "fsdp:0,tensor:1,sequence:1"),
        ("3x2", "auto"),
    ],
)
def test_steps_take_batches_of_any_size(
    case: Case, tmp_path: Path, mesh: str, strategy: str
) -> None:
    compile_step(case, tmp_path / "build", mesh, strategy)
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        losses = [trainer.step(case[2](*sizes)).item() for sizes in BATCHES]
    torch.testing.assert_close(losses, train_eagerly(case), rtol=1e-5, atol=0)


@pytest.mark.parametrize("strategy", ["none", "auto"])
def test_marks_hold_at_any_size(tmp_path: Path, strategy: str) -> None:
    compile_step(MARKED, tmp_path / "build", "dp=3,tp=2", strategy)
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        losses = [trainer.step(numbers(*sizes)).item() for sizes in BATCHES]
    torch.testing.assert_close(losses, train_eagerly(MARKED), rtol=1e-5, atol=0)


def train_rank(processes: Processes, build: str) -> tuple[list[float], list[str]]:
    """What each process does: trains, and hands over what can't be trained on."""
    refused = []
    with autopar.load(build, backend="gloo", processes=processes) as trainer:
        losses = [trainer.step(words(*sizes)).item() for sizes in BATCHES[:2]]
        x, target = words(3, 4)
        unlike = words(3 + processes.rank % 2, 4)
        for batch, local in (((x, target[:, :2]), False), (unlike, False), ((x, target), True)):
            try:
                trainer.step(batch, local=local)
            except InvalidInputError as error:
                refused.append(str(error))
        losses += [trainer.step(words(*sizes)).item() for sizes in BATCHES[2:]]
    return losses, refused


def test_processes_agree_on_the_sizes_of_each_batch(tmp_path: Path) -> None:
    compile_step(TRANSFORMER, tmp_path / "build", "2x2", "ddp:0,tensor:1")
    for losses, refused in run_ranks(4, train_rank, str(tmp_path / "build")):
        torch.testing.assert_close(losses, train_eagerly(TRANSFORMER), rtol=1e-5, atol=0)
        assert "input 'target' is 2, but dimension 1 of input 'ids' is 4; both are" in refused[0]
        assert "batches of different shapes: ids i64[3, 4], target i64[3, 4] and" in refused[1]
        assert "sizes of the batch are open, and a rank's part doesn't tell" in refused[2]


def test_steps_recompute_at_any_size(tmp_path: Path) -> None:
    compile_step(TRANSFORMER, tmp_path / "build", "2", "ddp", activations={"*": "recompute"})
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        losses = [trainer.step(words(*sizes)).item() for sizes in BATCHES]
    torch.testing.assert_close(losses, train_eagerly(TRANSFORMER), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [("1", "none"), ("2x2", "data:0,tensor:1"), ("3x2", "fsdp:0,data:1"), ("3x2", "auto")],
)
def test_outputs_at_any_size(tmp_path: Path, mesh: str, strategy: str) -> None:
    model = model_of(TRANSFORMER).eval()
    ids, _ = words(8, 10)
    compiled = autopar.compile(
        model, ids, mesh=mesh, strategy=strategy, dynamic={"ids": {0: "batch", 1: "length=1:16"}}
    )
    assert "open     batch: 0 or more, planned for 8" in compiled.summary()
    compiled.save(tmp_path / "build")
    for sizes in ((0, 3), (1, 1), (3, 7), (5, 16), (8, 10)):
        ids, _ = words(*sizes)
        found = run(tmp_path / "build", {"ids": ids}, virtual=True)["output"]
        with torch.no_grad():
            torch.testing.assert_close(found, model(ids), rtol=1e-4, atol=1e-5)


def test_a_pretrained_kind_of_model_at_any_size(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = bert().model.eval()
    inputs = {"input_ids": torch.ones(6, 10, dtype=torch.int64)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    compiled = autopar.compile(
        model,
        copy.deepcopy(inputs),
        mesh="2x2",
        strategy="data:0,tensor:1",
        dynamic={"input_ids": BOTH, "attention_mask": BOTH},
    )
    assert "open     length: 1 to 16, planned for 10" in compiled.summary()
    compiled.save(tmp_path / "build")
    for batch, length in ((1, 1), (3, 7), (5, 16)):
        inputs = {"input_ids": words(batch, length)[0]}
        inputs["attention_mask"] = (torch.arange(length) < 5).long().expand(batch, length)
        found = run(tmp_path / "build", inputs, virtual=True)["logits"]
        with torch.no_grad():
            torch.testing.assert_close(found, model(**inputs).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"accumulate": 2}, "accumulate=2 cuts a batch into parts of known sizes"),
        ({"more_batches": [numbers(3, 0)]}, "more_batches= and dynamic= both say what batches"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidInputError, match=why):
        compile_step(MLP, tmp_path / "build", "2", "ddp", **options)


class Masked(nn.Module):
    """Attention of one head over the keys that a mask leaves."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = x[:, None]
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask[:, None, None])


@pytest.mark.parametrize("mesh", ["3", "2x2"])
def test_a_mask_of_keys_goes_with_any_length(mesh: str) -> None:
    example = torch.randn(4, 9, WIDTH), torch.ones(4, 9, dtype=torch.bool)
    sizes = {0: "batch", 1: "length"}
    compiled = autopar.compile(Masked(), example, mesh=mesh, dynamic={"x": sizes, "mask": sizes})
    random = torch.Generator().manual_seed(0)
    with autopar.InferenceSession(compiled, virtual=True) as session:
        for batch, length in ((4, 9), (1, 1), (5, 1), (1, 7), (3, 2), (0, 4)):
            x = torch.randn(batch, length, WIDTH, generator=random)
            mask = torch.rand(batch, length, generator=random) < 0.7
            mask[:, 0] = True
            (found,) = session.run(None, {"x": x, "mask": mask})
            torch.testing.assert_close(torch.from_numpy(found), Masked()(x, mask))
