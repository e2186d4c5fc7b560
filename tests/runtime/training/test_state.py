"""The state of a training as one device would have it: out of a trainer, and into it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.functional import mse_loss

from autopar.base.errors import InvalidInputError
from autopar.modules import compile
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.training.steps import (
    LAYOUTS,
    Layout,
    Model,
    Reference,
    assert_same,
    batches,
    training_build,
)

MIXED = LAYOUTS[7]


def opened(folder: Path, layout: Layout = MIXED) -> Trainer:
    return open_trainer(training_build(folder / "b", layout), virtual=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_state_is_that_of_one_device(tmp_path: Path, layout: Layout) -> None:
    trainer, one = opened(tmp_path, layout), Reference.of_seed()
    for batch in batches(3):
        trainer.step(batch)
        one.step(batch)
    assert_same(trainer.state_dict(), one.model.state_dict())
    found = trainer.optimizer_state_dict()
    expected = get_optimizer_state_dict(one.model, one.optimizer)
    for name, state in expected["state"].items():
        assert_same(found["state"][name], state)
    assert found["param_groups"] == expected["param_groups"]


def test_state_of_one_device_is_taken_over(tmp_path: Path) -> None:
    """A training goes on on a mesh where one device left it."""
    trainer, one = opened(tmp_path), Reference.of_seed(5)
    first, *rest = batches(4)
    one.step(first)
    trainer.load_state_dict(one.model.state_dict())
    trainer.load_optimizer_state_dict(get_optimizer_state_dict(one.model, one.optimizer))
    for batch in rest:
        assert trainer.step(batch).item() == pytest.approx(one.step(batch), rel=1e-5)


def unusual(model: Model) -> torch.optim.AdamW:
    """Returns an optimizer of which nothing is as it is by default."""
    return torch.optim.AdamW(model.parameters(), 0.02, (0.6, 0.8), eps=1e-5, weight_decay=0.3)


def test_a_training_goes_from_one_device_to_a_mesh_and_back(tmp_path: Path) -> None:
    """In torch's format, into an optimizer that knows none of the options."""
    one = Reference.of_seed()
    one.optimizer = unusual(one.model)
    compiled = compile(
        one.model, batches(1)[0], mesh="dp=2", loss=mse_loss, optimizer=unusual(one.model)
    )
    compiled.save(tmp_path / "b")
    trainer = open_trainer(tmp_path / "b", virtual=True)
    first, second, *rest = batches(6)
    one.step(first)
    trainer.load_state_dict(one.model.state_dict())
    trainer.load_optimizer_state_dict(get_optimizer_state_dict(one.model, one.optimizer))
    assert trainer.step(second).item() == pytest.approx(one.step(second), rel=1e-5)
    back = Reference.of_seed(7)
    back.optimizer = torch.optim.AdamW(back.model.parameters())
    back.model.load_state_dict(trainer.state_dict())
    set_optimizer_state_dict(back.model, back.optimizer, trainer.optimizer_state_dict())
    for batch in rest:
        assert back.step(batch) == pytest.approx(one.step(batch), rel=1e-5)


def test_options_of_the_optimizer_are_the_programs(tmp_path: Path) -> None:
    trainer = opened(tmp_path)
    state = trainer.optimizer_state_dict()
    state["param_groups"][0].update(betas=(0.5, 0.6), fused=True)
    with pytest.warns(
        UserWarning, match=r"with betas=\(0.5, 0.6\), .* compiled with \(0.9, 0.999\)"
    ):
        trainer.load_optimizer_state_dict(state)
    trainer.optimizer.param_groups[1]["weight_decay"] = 0.5
    with pytest.raises(InvalidInputError, match=r"weight_decay was changed to 0.5, but"):
        trainer.step(batches(1)[0])


def test_weights_go_to_a_file_and_back(tmp_path: Path) -> None:
    trainer = opened(tmp_path)
    trainer.step(batches(1)[0])
    trainer.save_weights(tmp_path / "w.safetensors")
    assert_same(load_file(tmp_path / "w.safetensors"), trainer.state_dict())
    other = opened(tmp_path / "other", LAYOUTS[4])
    other.load_weights(tmp_path / "w.safetensors")
    assert_same(other.state_dict(), trainer.state_dict())


def test_all_that_does_not_fit_is_named(tmp_path: Path) -> None:
    trainer = opened(tmp_path)
    given = trainer.state_dict()
    given["up.wieght"] = given.pop("up.weight")
    given["mean"] = torch.zeros(2)
    message = (
        "the state dict doesn't fit the program:\n"
        "  - 'up.weight' is missing\n"
        r"  - 'mean' is f32\[2\], it must be f32\[5\]\n"
        r"  - 'up.wieght' is surplus; did you mean up.weight, down.weight\?"
    )
    with pytest.raises(InvalidInputError, match=message):
        trainer.load_state_dict(given)
    with pytest.raises(InvalidInputError, match=r"'exp_avg/up\.weight' is missing"):
        trainer.load_optimizer_state_dict({"state": {}})


def test_shards_are_the_memory_that_steps_write_to(tmp_path: Path) -> None:
    trainer = opened(tmp_path)
    (shard,) = trainer.shards()["up.weight"]
    assert (tuple(shard.tensor.shape), shard.shape) == ((3, 4), (8, 4))
    trainer.step(batches(1)[0])
    assert torch.equal(shard.tensor, shard.of(trainer.state_dict()["up.weight"]))


class Tied(nn.Module):
    """An embedding that is its output's weight, a parameter and a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight
        self.unread = nn.Parameter(torch.ones(3))
        self.register_buffer("places", torch.arange(3))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(ids))
        return found


def test_tied_and_unread_tensors_are_there_under_all_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    ids = torch.tensor([0, 3, 5, 2])
    compile(
        model,
        (ids, ids),
        mesh="tp=2",
        strategy="none",
        shard={"table.weight": ["tp", None]},
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    ).save(tmp_path / "b")
    trainer = open_trainer(tmp_path / "b", virtual=True)
    trainer.step((ids, ids))
    found = trainer.state_dict()
    assert sorted(found) == sorted(model.state_dict())
    assert found["head.weight"] is found["table.weight"]
    assert not torch.equal(found["head.weight"], model.head.weight)
    trainer.save_checkpoint(tmp_path / "c")
    trainer.save_weights(tmp_path / "w.safetensors")
    trainer.step((ids, ids))
    untied = {name: tensor for name, tensor in found.items() if name != "table.weight"}
    for put_back in (
        lambda: trainer.load_checkpoint(tmp_path / "c"),
        lambda: trainer.load_weights(tmp_path / "w.safetensors"),
        lambda: trainer.load_state_dict(untied),
    ):
        put_back()
        assert_same(trainer.state_dict(), found)
        trainer.step((ids, ids))
    model.load_state_dict(found)


def test_one_device_goes_on_without_autopar(tmp_path: Path) -> None:
    trainer, one = opened(tmp_path), Reference.of_seed(5)
    *first, last = batches(3)
    for batch in first:
        trainer.step(batch)
    trainer.optimizer.param_groups[0]["lr"] = 0.3
    trainer.copy_to(one.model, one.optimizer)
    assert trainer.step(last).item() == pytest.approx(one.step(last), rel=1e-5)
    assert_same(trainer.state_dict(), one.model.state_dict())
    with pytest.raises(InvalidInputError, match="the model isn't the one that was compiled"):
        trainer.copy_to(nn.Linear(2, 2))
    with pytest.raises(InvalidInputError, match="call optimizer_state_dict"):
        trainer.optimizer.state_dict()


def test_weights_may_come_from_files(tmp_path: Path) -> None:
    """A build without weights starts from files, under any of a tensor's names."""
    torch.manual_seed(1)
    ids = torch.tensor([0, 3, 5, 2])
    with torch.device("meta"):
        model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = nn.functional.cross_entropy
    compile(model, (ids, ids), mesh="2", loss=loss, optimizer=optimizer).save(tmp_path / "b")
    with pytest.raises(InvalidInputError, match="the build has no values of 'places'"):
        open_trainer(tmp_path / "b", virtual=True).state_dict()
    expected = Tied().state_dict()
    save_file({"unread": expected["unread"]}, tmp_path / "1.safetensors")
    rest = {name: expected[name] for name in ("head.weight", "places")}
    save_file(rest, tmp_path / "2.safetensors")
    files = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    trainer = open_trainer(tmp_path / "b", virtual=True, weights=files)
    assert_same(trainer.state_dict(), expected)
