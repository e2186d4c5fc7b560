"""What `forward` writes into buffers stays for the next call, on every mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from autopar.analysis.reports.summary import render_summary, summarize
from autopar.base.errors import InvalidInputError
from autopar.cost.memory.buffers import Execution
from autopar.cost.memory.lifetimes import lifetimes
from autopar.ir.builds.files import read_build
from autopar.modules import compile
from autopar.runtime.api import run, verify
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from autopar.runtime.weights.weights import WeightFile
from tests.runtime.execute.targets import draw_and_reset, go_on, keep_state, run_calls
from tests.runtime.job.real import run_ranks
from tests.runtime.state.stateful import (
    BATCH,
    CASES,
    MESHES,
    TOKENS,
    WIDTH,
    Cache,
    calls,
    expected,
    made,
    stateful_build,
)


def virtual(build: Path) -> VirtualMesh:
    found = read_build(build)
    with WeightFile(build=found) as weights:
        return VirtualMesh(found.deployment, weights)


def assert_outputs(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    outputs = {label: each for label, each in wanted.items() if not label.startswith("state/")}
    assert found.keys() == outputs.keys()
    for label, tensor in outputs.items():
        torch.testing.assert_close(found[label], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CASES)
def test_a_mesh_that_is_called_again_goes_on_where_it_was(
    tmp_path: Path, name: str, mesh: str
) -> None:
    build = stateful_build(tmp_path / "b", name, mesh)
    ranks, inputs = virtual(build), calls(name)
    for x, wanted in zip(inputs, expected(name, inputs), strict=True):
        assert_outputs(ranks.run({label_of(build): x}, updates=False), wanted)
        x.fill_(7.0)  # which nobody may have kept
    assert verify(build, {label_of(build): inputs[0]}).ok


def label_of(build: Path) -> str:
    (port,) = (p for p in read_build(build).serial.signature.inputs if p.role == "input")
    return port.label


@pytest.mark.parametrize(
    ("name", "mesh", "compiled"),
    [
        ("cache", "a=2,b=2", False),
        ("batch norm", "a=3,b=2", False),
        ("last", "a=2,b=1", False),
        ("assigned", "a=2,b=1", True),
        ("silent", "a=1,b=1", False),
    ],
)
def test_processes_that_are_called_again_go_on_where_they_were(
    tmp_path: Path, name: str, mesh: str, compiled: bool
) -> None:
    build = stateful_build(tmp_path / "b", name, mesh)
    inputs = calls(name)
    size = read_build(build).rank_table.world_size
    for outcome in run_ranks(size, run_calls, build, inputs, compiled):
        assert not isinstance(outcome, str), outcome
        for found, wanted in zip(outcome, expected(name, inputs), strict=True):
            assert_outputs({k: torch.from_numpy(v) for k, v in found.items()}, wanted)


def test_a_refused_call_changes_nothing(tmp_path: Path) -> None:
    ranks = virtual(stateful_build(tmp_path / "b", "batch norm", "a=2,b=1"))
    inputs = calls("batch norm")
    ranks.run({"input": inputs[0]})
    with pytest.raises(InvalidInputError, match="must be f32"):
        ranks.run({"input": inputs[1][:3]})
    second = expected("batch norm", inputs)[1]
    found = ranks.run({"input": inputs[1]})
    for key, tensor in second.items():
        torch.testing.assert_close(found[key.removeprefix("state/")], tensor)


def test_one_device_starts_anew_each_time(tmp_path: Path) -> None:
    """It has no session."""
    build = stateful_build(tmp_path / "b", "assigned", "a=1,b=1")
    (x,) = calls("assigned", 1)
    for _ in range(2):
        assert torch.equal(run(build, {"x": x}, serial=True)["output"], x)


@pytest.mark.parametrize("mesh", ["a=1,b=1", "a=2,b=1"])
def test_state_is_saved_loaded_and_reset(tmp_path: Path, mesh: str) -> None:
    build = stateful_build(tmp_path / "b", "cache", mesh)
    inputs = calls("cache")
    wanted = [each["output"] for each in expected("cache", inputs)]
    size = read_build(build).rank_table.world_size
    for outcome in run_ranks(size, keep_state, build, inputs, tmp_path):
        assert not isinstance(outcome, str), outcome
        found, names = outcome
        for at, call in enumerate([0, 1, 2, 1, 2, 0]):
            torch.testing.assert_close(torch.from_numpy(found[at]), wanted[call])
        model = made("cache")
        model.get_parameter("key.bias").data += 1
        torch.testing.assert_close(torch.from_numpy(found[6]), model(inputs[0]).detach())
        # What the model's own state dict has: no cache.
        assert names == sorted(model.state_dict())
    assert load_file(tmp_path / "state.safetensors").keys() == {"cache", "position"}


def test_state_from_another_mesh_is_taken_over(tmp_path: Path) -> None:
    inputs = calls("cache")
    for folder, mesh, size in (("one", "a=1,b=1", 1), ("two", "a=2,b=1", 2)):
        build = stateful_build(tmp_path / folder, "cache", mesh)
        outcomes = run_ranks(size, go_on, build, inputs, tmp_path / "state.safetensors")
        assert not isinstance(outcomes[0], str), outcomes[0]
    wanted = expected("cache", [inputs[0], inputs[1]])[1]["output"]
    torch.testing.assert_close(torch.from_numpy(outcomes[0]), wanted)


def test_a_program_without_state_says_so(tmp_path: Path) -> None:
    compile(nn.Linear(3, 2), torch.randn(4, 3), mesh="1").save(tmp_path / "b")
    (outcome,) = run_ranks(1, go_on, tmp_path / "b", calls("cache"), tmp_path / "s.safetensors")
    assert outcome == (
        "! the program keeps no state from call to call: the model's forward writes no buffer"
    )
    assert not (tmp_path / "s.safetensors").exists()


def test_a_drawn_model_is_reset_to_what_was_drawn(tmp_path: Path) -> None:
    """Of a model on the meta device, the build has no values to go back to."""
    with torch.device("meta"):
        model = Cache()
    compile(model, calls("cache")[0], mesh="2").save(tmp_path / "b")
    for outcome in run_ranks(2, draw_and_reset, tmp_path / "b", Cache, calls("cache")):
        assert outcome is True, outcome


def test_a_report_names_what_is_kept(tmp_path: Path) -> None:
    build = stateful_build(tmp_path / "b", "cache", "a=2,b=2")
    text = render_summary(summarize(build))
    assert "buffers  392 B per rank of 1.2 KiB kept from call to call (31.2%): cache" in text
    assert "position" in text


def test_memory_is_predicted_as_sessions_write(tmp_path: Path) -> None:
    """The state once and not twice: new content goes over the old one as soon as it is known."""
    serial = read_build(stateful_build(tmp_path / "b", "swapped", "a=1,b=1")).serial
    found = lifetimes(serial)
    once = max(found.at_bytes())
    twice = max(lifetimes(serial, execution=Execution(in_place=False)).at_bytes())
    assert once < twice


def training(folder: Path) -> Trainer:
    """Returns a trainer of a model with a buffer that is in no state dict."""
    model = made("cache")
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    x = calls("cache")[0]
    target = torch.zeros(BATCH, TOKENS, WIDTH)
    pins = CASES["cache"].pins
    compiled = compile(
        model,
        (x, target),
        loss=nn.functional.mse_loss,
        optimizer=sgd,
        mesh="a=2,b=1",
        shard=pins,
        strategy="none",
    )
    compiled.save(folder)
    return open_trainer(folder, virtual=True)


def test_checkpoints_have_what_state_dicts_lack(tmp_path: Path) -> None:
    trainer = training(tmp_path / "b")
    batches = [(x, torch.zeros(BATCH, TOKENS, WIDTH)) for x in calls("cache")]
    trainer.step(batches[0])
    assert trainer.state_dict().keys() == made("cache").state_dict().keys()
    trainer.copy_to(made("cache"))
    trainer.save_checkpoint(tmp_path / "c")
    wanted = [trainer.step(batch) for batch in batches[1:]]
    other = training(tmp_path / "b")
    other.load_checkpoint(tmp_path / "c")
    assert [other.step(batch) for batch in batches[1:]] == wanted
