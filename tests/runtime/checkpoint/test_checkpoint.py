"""Checkpoints: written by one mesh, read by another, or by plain PyTorch."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import lr_scheduler

from autopar.base.errors import InvalidInputError
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.checkpoint.checkpoint import open_checkpoint, read_checkpoint, write_checkpoint
from autopar.runtime.checkpoint.files import rectangles_of
from autopar.runtime.checkpoint.series import Place
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.boxes import Extent, take, whole_box
from autopar.runtime.state.state import Content, Held, Key, Piece
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.execute.targets import die_in_checkpoint
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import (
    LAYOUTS,
    Layout,
    Reference,
    assert_same,
    batches,
    training_build,
)

MIXED, COLUMNS, COLUMNS_OF_TWO = LAYOUTS[7], LAYOUTS[4], LAYOUTS[2]

# torch's own functions say that there are no other processes.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def content(key: Key, pieces: list[Piece]) -> Content:
    return Content([Held((key,), pieces[0].tensor.dtype, pieces[0].shape, pieces)], {})


def written(folder: Path, held: Content) -> None:
    write_checkpoint(Place(folder), held, rectangles_of(held), Messages(dist.HashStore()))


def read(folder: Path, held: Content) -> None:
    read_checkpoint(folder, open_checkpoint(folder), held)


def opened(folder: Path, layout: Layout) -> Trainer:
    return open_trainer(training_build(folder, layout), virtual=True)


@pytest.mark.parametrize(
    ("first", "second"), [(MIXED, COLUMNS), (COLUMNS, MIXED), (MIXED, LAYOUTS[0])]
)
def test_training_goes_on_on_another_mesh(tmp_path: Path, first: Layout, second: Layout) -> None:
    one = Reference.of_seed()
    before, after = opened(tmp_path / "a", first), opened(tmp_path / "b", second)
    *done, last = batches(3)
    for batch in done:
        before.step(batch)
        one.step(batch)
    before.optimizer.param_groups[1]["lr"] = one.optimizer.param_groups[1]["lr"] = 0.5
    before.seed = 7
    before.save_checkpoint(tmp_path / "c")
    after.load_checkpoint(tmp_path / "c")
    assert (after.steps, after.seed) == (2, 7)
    assert_same(after.state_dict(), one.model.state_dict())
    assert after.step(last).item() == pytest.approx(one.step(last), rel=1e-5)
    assert_same(after.state_dict(), one.model.state_dict())


@pytest.mark.parametrize("through", ["checkpoint", "state dict"])
def test_schedulers_go_on_where_they_were(tmp_path: Path, through: str) -> None:
    done, last = batches(2)
    before, after = (opened(tmp_path / "b", MIXED) for _ in range(2))
    for make in (
        lambda optimizer, at: lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=at),
        lambda optimizer, at: lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=9, cycle_momentum=False, last_epoch=at
        ),
    ):
        scheduler = make(before.optimizer, -1)
        before.steps = 0
        before.step(done)
        scheduler.step()
        if through == "checkpoint":
            before.save_checkpoint(tmp_path / "c")
            after.load_checkpoint(tmp_path / "c")
        else:
            after.load_optimizer_state_dict(before.optimizer_state_dict())
        other = make(after.optimizer, before.steps - 1)
        assert other.get_last_lr() == scheduler.get_last_lr()
        for each, trainer in ((scheduler, before), (other, after)):
            trainer.step(last)
            each.step()
        assert other.get_last_lr() == pytest.approx(scheduler.get_last_lr(), rel=1e-12)


def test_plain_pytorch_reads_it(tmp_path: Path) -> None:
    trainer = opened(tmp_path / "b", MIXED)
    for batch in batches(2):
        trainer.step(batch)
    trainer.save_checkpoint(tmp_path / "c")
    one = Reference.of_seed(9)
    one.step(batches(1)[0])
    model, optimizer = get_state_dict(one.model, one.optimizer)
    read = {"model": model, "optimizer": {"state": optimizer["state"]}}
    dcp.load(read, checkpoint_id=tmp_path / "c", no_dist=True)
    assert_same(read["model"], trainer.state_dict())
    for name, state in trainer.optimizer_state_dict()["state"].items():
        assert_same(read["optimizer"]["state"][name], state)


def test_a_checkpoint_of_plain_pytorch_is_read(tmp_path: Path) -> None:
    one = Reference.of_seed(3)
    first, second = batches(2)
    one.step(first)
    model, optimizer = get_state_dict(one.model, one.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path / "c", no_dist=True)
    trainer = opened(tmp_path / "b", MIXED)
    trainer.load_checkpoint(tmp_path / "c")
    assert trainer.step(second).item() == pytest.approx(one.step(second), rel=1e-5)
    set_state_dict(
        one.model,
        one.optimizer,
        model_state_dict=trainer.state_dict(),
        optim_state_dict=optimizer,
    )


def test_a_checkpoint_without_an_index_is_read(tmp_path: Path) -> None:
    """As autopar wrote them before it had one, with pieces of several ranks."""
    trainer = opened(tmp_path / "b", MIXED)
    trainer.step(batches(1)[0])
    trainer.save_checkpoint(tmp_path / "c")
    (tmp_path / "c" / "index.jsonl").unlink()
    metadata = pickle.loads((tmp_path / "c" / ".metadata").read_bytes())
    del metadata.state_dict_metadata["trainer.index"]
    (tmp_path / "c" / ".metadata").write_bytes(pickle.dumps(metadata))
    other = opened(tmp_path / "d", COLUMNS)
    other.load_checkpoint(tmp_path / "c")
    assert (other.steps, other.seed) == (1, trainer.seed)
    assert_same(other.state_dict(), trainer.state_dict())


def test_what_is_tied_is_written_once(tmp_path: Path) -> None:
    whole = torch.arange(8.0)
    piece = Piece(whole, whole_box((8,)), (8,))
    tied = Held((("model", "a"), ("model", "b")), whole.dtype, (8,), [piece])
    written(tmp_path / "c", Content([tied], {}))
    state = {"model": {"a": torch.zeros(8), "b": torch.zeros(8)}}
    dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
    assert torch.equal(state["model"]["a"], whole)
    assert torch.equal(state["model"]["b"], whole)
    assert (tmp_path / "c" / "__0_0.distcp").stat().st_size < 2000


def test_nothing_is_written_of_tensors_without_elements(tmp_path: Path) -> None:
    empty = Piece(torch.zeros(0, 3), whole_box((0, 3)), (0, 3))
    written(tmp_path / "c", content(("model", "a"), [empty]))
    read(tmp_path / "c", content(("model", "a"), [empty]))
    state = {"model": {"a": torch.zeros(0, 3)}}
    dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)


def test_all_that_does_not_fit_is_named(tmp_path: Path) -> None:
    wrong = {"model": {"up.weight": torch.zeros(3), "other": torch.zeros(2)}}
    dcp.save(wrong, checkpoint_id=tmp_path / "c", no_dist=True)
    trainer = opened(tmp_path / "b", LAYOUTS[0])
    with pytest.raises(InvalidInputError) as raised:
        trainer.load_checkpoint(tmp_path / "c")
    message = str(raised.value)
    assert "'model.up.weight' is [3], it must be [8, 4]" in message
    assert "'model.other' is surplus" in message
    assert "'optimizer.state.up.weight.exp_avg' is missing" in message
    with pytest.raises(InvalidInputError, match="is no checkpoint"):
        trainer.load_checkpoint(tmp_path / "nowhere")


def test_pieces_of_fused_matrices_are_put_where_they_belong(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(12, 2)
    key = ("model", "qkv")
    boxes = [((Extent(3, 0, 3), Extent(4, at * 2, 2)), (Extent(2, 0, 2),)) for at in range(2)]
    pieces = [Piece(take(whole, box), box, (12, 2)) for box in boxes]
    written(tmp_path / "c", content(key, pieces))
    state = {"model": {"qkv": torch.zeros(12, 2)}}
    dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
    assert torch.equal(state["model"]["qkv"], whole)
    rows = ((Extent(12, 3, 6),), (Extent(2, 1, 1),))
    other = Piece(torch.zeros(6, 1), rows, (12, 2))
    read(tmp_path / "c", content(key, [other]))
    assert torch.equal(other.tensor, take(whole, rows))


def test_parts_of_a_weight_are_put_where_they_belong(tmp_path: Path) -> None:
    whole = torch.arange(14.0).reshape(7, 2)
    key = ("model", "kv")
    parts: list[tuple[tuple[int, int], ...]] = [((0, 4), (0, 2)), ((4, 3), (0, 2))]
    pieces = []
    for part in parts:
        (_, size), _ = part
        for start, length in ((0, 2), (2, size - 2)):
            box = ((Extent(size, start, length),), (Extent(2, 0, 2),))
            bare = Piece(torch.empty(0), box, (7, 2), part)
            pieces.append(bare._replace(tensor=bare.of(whole)))
    written(tmp_path / "c", content(key, pieces))
    state = {"model": {"kv": torch.zeros(7, 2)}}
    dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
    assert torch.equal(state["model"]["kv"], whole)


def test_an_interrupted_checkpoint_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = opened(tmp_path / "b", MIXED)
    trainer.save_checkpoint(tmp_path / "c")
    before = trainer.state_dict()
    trainer.step(batches(1)[0])

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.save_checkpoint(tmp_path / "c")
    trainer.load_checkpoint(tmp_path / "c")
    assert_same(trainer.state_dict(), before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


@pytest.mark.slow
def test_a_rank_that_dies_leaves_the_old_one(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", COLUMNS_OF_TWO)
    before = Reference.of_seed().model.state_dict()
    folder = tmp_path / "c"
    first, second = run_ranks(2, die_in_checkpoint, build, batches(1)[0], folder)
    assert second == -9
    assert first.startswith("! rank 0 failed: ")
    with open_trainer(build, virtual=True) as trainer:
        trainer.step(batches(1)[0])
        trainer.load_checkpoint(folder)
        assert (trainer.steps, sorted(path.name for path in tmp_path.iterdir())) == (0, ["b", "c"])
        assert_same(trainer.state_dict(), before)


def test_only_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    trainer = opened(tmp_path / "b", LAYOUTS[0])
    with pytest.raises(InvalidInputError, match="is not empty and not a checkpoint"):
        trainer.save_checkpoint(tmp_path / "b")
