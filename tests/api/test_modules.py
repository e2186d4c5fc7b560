"""Compiling torch modules: several shapes of batches over one state, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import autopar
from autopar import runtime
from autopar.analysis.reports.summary import render_summary, summarize
from autopar.base.errors import AnnotationError, AutoparError, InvalidInputError
from autopar.compiled import CompiledModel
from tests.judges.captured import collectives


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))


def batch(seed: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randn(size, 4, generator=generator)


@pytest.mark.parametrize("strategy", ["fsdp:d0", "ddp:d0", "tensor:d0"])
def test_a_short_last_batch_trains_the_same_state(strategy: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    autopar.compile(
        model,
        batch(0, 6),
        mesh="3",
        loss=F.mse_loss,
        optimizer=optimizer,
        more_batches=[batch(0, 2), batch(0, 1)],
        strategy=strategy,
    ).save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        for number, size in enumerate((6, 2, 6, 1, 6)):
            x, target = batch(number, size)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            torch.testing.assert_close(trainer.step((x, target)), loss.detach())
        for name, tensor in trainer.state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[name])
        with pytest.raises(InvalidInputError, match=r"f32\[5, 6\], it must be f32\[6, 6\]"):
            trainer.step(batch(0, 5))


class Numbered(nn.Module):
    """Computes more for large batches, so that what follows is numbered otherwise."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 4)
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 2:
            x = x.relu()
        hidden = self.up(x)
        for _ in range(self.more if x.shape[0] > 2 else 1):
            hidden = hidden.relu()
        out: Tensor = self.down(hidden)
        return out


def compile_numbered(more: int) -> CompiledModel:
    """Compiles for two batches, with a pin of what the first program calls `relu_1`."""
    model = Numbered(more)
    return autopar.compile(
        model,
        batch(0, 4),
        mesh="2",
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        more_batches=[batch(0, 2)],
        strategy=None,
        shard={"relu_1": [None, 0]},
    )


def test_pins_mean_the_same_values_in_all_batches() -> None:
    (short,) = compile_numbered(more=1).variants
    values = short.serial.main.values
    dist = values["relu"].dist
    assert "relu_1" not in values
    assert dist is not None
    assert dist.dims_mapping == (-1, 0)


def test_pins_without_a_counterpart_in_another_batch_are_refused() -> None:
    with pytest.raises(AnnotationError, match=r"%relu_1 \(.*modules.py:\d+.* no one counterpart"):
        compile_numbered(more=2)


def test_a_program_for_a_further_batch_communicates_like_one_of_its_own() -> None:
    """Though its parameters are given, they are gathered where they are used."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 4))

    def compiled(first: int, *more: int) -> CompiledModel:
        return autopar.compile(
            model,
            batch(0, first),
            mesh="2",
            loss=F.mse_loss,
            optimizer=torch.optim.AdamW(model.parameters()),
            more_batches=[batch(0, size) for size in more],
            strategy="fsdp:d0",
        )

    (short,) = compiled(96, 64).variants
    alone = compiled(64)
    moved = [[(one.kind, one.shape) for one in collectives(each)] for each in (short, alone)]
    assert sorted(moved[0]) == sorted(moved[1])
    origins = {v.origin.kind for v in short.serial.main.values.values() if v.origin}
    assert "inherited" in origins
    assert "annotated" not in origins


class Attention(nn.Module):
    """Has a fused weight, between whose parts a user's pin would be placed."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attend(x, x, x, need_weights=False)[0]
        return found


def test_a_fused_weight_lies_alike_for_all_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, target = torch.randn(4, 3, 6), torch.randn(4, 3, 6)
    parts = [(x, target), (x[:2], target[:2])]
    autopar.compile(
        model,
        parts[0],
        mesh="2",
        loss=F.mse_loss,
        optimizer=optimizer,
        more_batches=parts[1:],
        strategy="fsdp:d0",
    ).save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        for given, wanted in parts:
            optimizer.zero_grad()
            loss = F.mse_loss(model(given), wanted)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            torch.testing.assert_close(trainer.step((given, wanted)), loss.detach())
        torch.testing.assert_close(trainer.state_dict(), dict(model.state_dict()))


def test_a_layer_norm_under_autocast_runs_on_meshes(tmp_path: Path) -> None:
    """Of halves, with weights in float32, it saves statistics in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    autopar.compile(
        model,
        batch(0, 6),
        mesh="2",
        loss=F.mse_loss,
        optimizer=optimizer,
        autocast=torch.bfloat16,
    ).save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        found = trainer.step(batch(0, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = F.mse_loss(model(batch(0, 6)[0]), batch(0, 6)[1])
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-2, atol=0)


def test_a_batch_norm_with_frozen_parts_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1)
    compiled = autopar.compile(
        model, batch(0, 6), mesh="2", loss=F.mse_loss, optimizer=optimizer, strategy="ddp"
    )
    compiled.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        for number in range(2):
            x, target = batch(number, 6)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            torch.testing.assert_close(trainer.step((x, target)), loss.detach())


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8)])
def test_norms_of_halves_train_under_autocast(norm: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    build = tmp_path / "build"
    autopar.compile(
        model,
        batch(0, 6),
        mesh="1",
        loss=F.mse_loss,
        optimizer=optimizer,
        autocast=torch.bfloat16,
    ).save(build)
    with autopar.load(build, virtual=True) as trainer:
        for number in range(2):
            x, target = batch(number, 6)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            torch.testing.assert_close(trainer.step((x, target)), loss.detach(), rtol=1e-5, atol=0)


def test_more_batches_are_for_training_which_is_said_before_anything_is_captured() -> None:
    model = make_model()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model is captured"))
    with pytest.raises(InvalidInputError, match="more_batches= is for training steps; for inputs"):
        autopar.compile(model, torch.zeros(6, 6), mesh="2", more_batches=[torch.zeros(2, 6)])


def test_the_summary_is_what_inspect_shows(tmp_path: Path) -> None:
    model = make_model()
    adam = torch.optim.Adam(model.parameters())
    step = autopar.compile(model, batch(0, 6), mesh="dp=2", loss=F.mse_loss, optimizer=adam)
    step.save(tmp_path / "build")
    shown = step.summary()
    assert shown == render_summary(summarize(tmp_path / "build"))
    assert shown.startswith("Sequential: 2 ranks (dp=2)\n")


def test_a_build_is_opened_as_what_it_is_for(tmp_path: Path) -> None:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    step = autopar.compile(model, batch(0, 6), mesh="2", loss=F.mse_loss, optimizer=sgd)
    step.save(tmp_path / "step")
    autopar.compile(model, batch(0, 6)[0], mesh="1").save(tmp_path / "pass")
    with autopar.load(tmp_path / "step", runtime.Trainer, virtual=True) as trainer:
        assert isinstance(trainer, runtime.Trainer)
    with autopar.load(tmp_path / "pass", runtime.Session) as session:
        found = session(batch(0, 6)[0])
    torch.testing.assert_close(found, model(batch(0, 6)[0]).detach())
    for options, message in (
        ({"kind": runtime.Trainer}, "trains nothing; compile with an optimizer, or open it as"),
        ({"virtual": True}, r"runtime\.run\(build, inputs, virtual=True\) runs all its ranks"),
        ({"seed": 3}, "there is nothing for seed= to be about"),
        ({"resume": tmp_path}, "the build doesn't train; load weights"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            autopar.load(tmp_path / "pass", **options)
    with pytest.raises(InvalidInputError, match=r"step trains; open it as a runtime\.Trainer"):
        autopar.load(tmp_path / "step", runtime.Session)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"virtual": True, "serial": True}, "virtual=True and serial=True: give one of them"),
        ({"virtual": True, "threads": 2}, "no processes are started, so leave out threads="),
        ({"serial": True, "modules": ["x"]}, "no processes are started, so leave out modules="),
        ({"serial": True, "updates": True}, "the serial program is run, so leave out updates="),
        ({"device": "meta"}, "ranks choose their devices, so leave out device="),
    ],
)
def test_ways_to_run_that_exclude_one_another(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        runtime.run("build", {}, **how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 1.5}, r"^accumulate=1\.5: give a whole number"),
        ({"scaler": True}, "^scaler=True: give a torch.amp.GradScaler"),
        ({"autocast": "bf16"}, "^autocast='bf16': give a dtype"),
        ({"fetch": "grad_norm"}, r"is a text; give a list of names, \['grad_norm'\]"),
        ({"memory": -5}, "^memory -5: "),
        ({"memory": "0"}, "^memory '0': "),
        ({"shard": {"0.weight": "tp"}}, r"^shard\['0.weight'\]: 'tp' is a text"),
        ({"shard": {"0.weight": [Shard(0), Replicate()]}}, "not a placement per mesh axis"),
    ],
)
def test_options_of_another_kind_are_refused(options: dict[str, Any], message: str) -> None:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters())
    with pytest.raises(AutoparError, match=message):
        autopar.compile(
            model, batch(0, 4), mesh="dp=2,tp=2", loss=F.mse_loss, optimizer=sgd, **options
        )


def test_a_class_is_no_model() -> None:
    with pytest.raises(InvalidInputError, match=r"^Linear is no torch\.nn\.Module object"):
        autopar.compile(nn.Linear, batch(0, 4)[0], mesh="2")  # type: ignore[arg-type]


def test_a_third_entry_of_a_batch_is_a_target_only_if_the_loss_needs_it() -> None:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters())
    triple = (*batch(0, 4), torch.ones(()))
    with pytest.raises(InvalidInputError, match="has 3 entries"):
        autopar.compile(model, triple, mesh="2", loss=F.mse_loss, optimizer=sgd)
    weighted = lambda out, target, weight: F.mse_loss(out, target) * weight  # noqa: E731
    autopar.compile(model, triple, mesh="2", loss=weighted, optimizer=sgd)


def test_complex_parameters_have_no_optimizer_state() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (self.factor * x).real

    model = Scale()
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(InvalidInputError, match="'factor' is complex"):
        autopar.compile(
            model, (torch.ones(3), torch.ones(3)), mesh="1", loss=F.mse_loss, optimizer=adam
        )
