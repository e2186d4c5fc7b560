"""Ranks initialize their pieces as the constructor does on one device, within the memory of one
tensor beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import autopar
from autopar.base.errors import InvalidInputError
from autopar.runtime.init.record import record
from autopar.runtime.init.replay import replay
from tests.runtime.execute.targets import called, initialized
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import MEGATRON, Model, batches
from tests.zoo.models import ZOO

GENERATOR = 8192
"""Bytes that a generator's state and scalars take at most."""

MakeModel = Callable[[], nn.Module]


class Live(TorchDispatchMode):
    """Measures the largest number of bytes that are live at once of what ops return.

    Attributes:
        peak: That number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._live = {at: pair for at, pair in self._live.items() if not pair[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(
        [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
    )


def replayed(make_model: MakeModel) -> dict[str, Tensor]:
    construction = record(make_model)
    found: dict[str, Tensor] = {}
    replay(construction, construction.tensors, lambda name, t: found.update({name: t.clone()}))
    return found


def assert_replayed(make_model: MakeModel) -> None:
    torch.manual_seed(3)
    expected = tensors_of(make_model())
    after = torch.get_rng_state()
    torch.manual_seed(3)
    found = replayed(make_model)
    assert torch.equal(torch.get_rng_state(), after)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name", ZOO)
def test_models_from_elsewhere_get_the_values_of_their_constructors(name: str) -> None:
    assert_replayed(lambda: ZOO[name]().model)


class Everything(nn.Module):
    """Does what constructors do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4)
        nn.init.orthogonal_(self.first.weight)
        nn.init.trunc_normal_(self.second.weight, std=0.02)
        nn.init.sparse_(self.second.weight, 0.5)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.apart = nn.Parameter(2 * torch.randn(4))
        self.table = nn.Embedding(5, 3, padding_idx=1)
        self.third = nn.Linear(6, 4)
        self.third.weight.data = self.first.weight.data.t() * 2
        self.rates = [rate.item() for rate in torch.linspace(0, 0.5, 4)]
        self.register_buffer("mask", torch.ones(4, 4).tril().bool())
        self.scale = nn.Parameter(torch.tensor([1.0, self.rates[1]]))
        with torch.no_grad():
            self.first.bias[:2].normal_()
            self.first.bias[2:] *= 3
            self.scale.copy_(self.apart[2:])
        own = torch.Generator().manual_seed(5)
        self.own = nn.Parameter(torch.rand(3, generator=own) - torch.rand(3, generator=own))
        self.register_buffer("order", torch.randperm(5))
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        self.half = nn.Linear(3, 2).half()
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.recurrent = nn.LSTM(3, 4, 2)
        self.table.weight = self.norm.bias  # type: ignore[assignment]


def test_all_that_constructors_do_is_done_alike() -> None:
    assert_replayed(Everything)


def test_seeding_within_the_constructor_counts() -> None:
    def make_model() -> nn.Module:
        first = nn.Linear(3, 3)
        torch.manual_seed(8)
        return nn.Sequential(first, nn.Linear(3, 3))

    assert_replayed(make_model)


class Deep(nn.Module):
    """Layers that are initialized twice, as models of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(20))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)
        for layer in self.layers:
            layer.weight.data.div_(3.0)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("make_model", [Deep, lambda: ZOO["gpt2"]().model, lambda: nn.GRU(64, 99)])
def test_one_tensor_is_in_memory_at_a_time(make_model: MakeModel) -> None:
    construction = record(make_model)
    largest = max(construction.sizes[view.content] for view in construction.tensors.values())
    with Live() as live:
        replay(construction, construction.tensors, lambda name, tensor: None)
    assert largest <= live.peak <= largest + GENERATOR


def built(folder: Path, mesh: str, make_model: MakeModel = Model) -> Path:
    """Compiles a training step of a model on the meta device."""
    with torch.device("meta"):
        model = make_model()
    autopar.compile(
        model,
        batches(1)[0],
        mesh=mesh,
        strategy="none",
        shard=MEGATRON,
        loss=mse_loss,
        optimizer=torch.optim.Adam(model.parameters()),
    ).save(folder)
    return folder


@pytest.mark.parametrize("mesh", ["tp=1", "tp=3"])
def test_ranks_start_with_what_one_device_draws(tmp_path: Path, mesh: str) -> None:
    build = built(tmp_path / "b", mesh)
    torch.manual_seed(4)
    expected = Model().state_dict()
    torch.manual_seed(4)
    trainer = autopar.load(build, init=Model, virtual=True)
    found = trainer.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert trainer.step(batches(1)[0]).isfinite()


def test_processes_take_the_draws_of_the_first(tmp_path: Path) -> None:
    build = built(tmp_path / "b", "tp=2")
    (batch,) = batches(1)
    outcomes = run_ranks(2, initialized, build, Model, batch)
    torch.manual_seed(0)
    expected = mse_loss(Model()(batch[0]), batch[1]).item()
    assert outcomes == pytest.approx([expected, expected], rel=1e-5)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()


def test_a_forward_pass_is_initialized_too(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = small()
    x = torch.randn(3, 4)
    autopar.compile(model, x, mesh="1").save(tmp_path / "b")
    ((reason, found),) = run_ranks(1, called, tmp_path / "b", small, x)
    assert "no values of '0.bias'" in reason
    torch.manual_seed(0)
    torch.testing.assert_close(torch.from_numpy(found), small()(x))


def test_a_build_without_values_says_what_to_do(tmp_path: Path) -> None:
    build = built(tmp_path / "b", "tp=2")
    trainer = autopar.load(build, virtual=True)
    for use in (
        lambda: trainer.step(batches(1)[0]),
        trainer.state_dict,
        lambda: trainer.save_weights(tmp_path / "w"),
        lambda: trainer.save_checkpoint(tmp_path / "c"),
    ):
        with pytest.raises(
            InvalidInputError,
            match=r"no values of 'down\.bias', 'down\.weight', 'mean', 'up\.weight': .* init=",
        ):
            use()
    trainer.load_state_dict(Model().state_dict())
    assert trainer.step(batches(1)[0]).isfinite()


class Wider(Model):
    """Another model than the one that was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 9, bias=False)
        self.more = nn.Linear(2, 2)
        self.downs, self.down = self.down, None  # type: ignore[assignment]


def test_another_model_is_refused(tmp_path: Path) -> None:
    trainer = autopar.load(built(tmp_path / "b", "tp=2"), virtual=True)
    with pytest.raises(InvalidInputError, match="init makes another model") as raised:
        trainer.initialize(Wider)
    lines = str(raised.value).splitlines()
    assert "  - 'up.weight' is [9, 4], it must be [8, 4]" in lines
    assert any(line.startswith("  - 'down.weight' is missing; did you mean") for line in lines)
    assert any(line.startswith("  - 'more.bias' is surplus") for line in lines)
    with pytest.raises(InvalidInputError, match="init returned a dict"):
        trainer.initialize(dict)  # type: ignore[arg-type,return-value]


def _looks() -> nn.Module:
    model = nn.Linear(2, 2)
    return nn.Linear(2, 2) if model.weight.max() > 0 else model


def test_what_cannot_be_carried_out_so_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="looks at numbers that it drew"):
        record(_looks)
    with pytest.raises(InvalidInputError, match="tensors on meta"):
        record(lambda: nn.Linear(2, 2, device="meta"))
