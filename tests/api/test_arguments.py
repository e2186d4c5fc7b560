"""Whatever a Python caller gives for an argument, it is taken or refused in words, by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autopar
from autopar import runtime
from autopar.base.errors import AutoparError
from tests.frontend.onnx.graphs import FLOAT, graph, model, node

NET = nn.Linear(4, 4)
X = torch.ones(4, 4)


class Broken(nn.Module):
    """Never called."""


def odd_values() -> Mapping[str, Any]:
    """Things of every kind, none of which suits most arguments."""
    return {
        "None": None,
        "3": 3,
        "-1": -1,
        "1.5": 1.5,
        "nan": float("nan"),
        "True": True,
        "text": "zzz",
        "nothing": "",
        "nul": "a\0b",
        "long": "q" * 5000,
        "bytes": b"zz",
        "[]": [],
        "[1]": [1],
        "{}": {},
        "{x: 1}": {"x": 1},
        "tensor": torch.ones(3),
        "array": np.ones(3),
        "path": Path("/dev/null/zz"),
        "generator": (each for each in range(2)),
        "set": {1},
        "object": object(),
        "class": Broken,
        "module": NET,
        "dtype": torch.float32,
    }


@dataclass(frozen=True)
class Made:
    """What entries are tried on.

    Attributes:
        onnx: An ONNX file.
        build: A build of it.
        trains: A build that trains.
    """

    onnx: Path
    build: Path
    trains: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    found = Made(folder / "m.onnx", folder / "build", folder / "trains")
    weights = {"w": np.ones(4, np.float32)}
    body = graph([node("Add", "x w", "y")], {"x": (FLOAT, ["batch", 4])}, ["y"], weights)
    found.onnx.write_bytes(model(body).SerializeToString())
    autopar.compile_onnx(found.onnx, found.build, mesh="2", dims={"batch": 4}, strategy="none")
    training(made=found).save(found.trains)
    return found


def forward(made: Made, **given: Any) -> Any:
    del made
    options = {"mesh": "2", "strategy": "none", **given}
    return autopar.compile(options.pop("model", NET), options.pop("inputs", (X,)), **options)


def shaped(made: Made, **given: Any) -> Any:
    del made
    return autopar.compile(NET, (X,), **given)


def training(made: Made, **given: Any) -> Any:
    del made
    sgd = torch.optim.SGD(NET.parameters(), lr=0.1)
    options = {"loss": nn.MSELoss(), "optimizer": sgd, **given}
    return autopar.compile(NET, (X, X), mesh="2", strategy="none", **options)


def stepping(made: Made, **given: Any) -> Any:
    return training(made, loss=None, **given)


def from_onnx(made: Made, **given: Any) -> Any:
    options = {"model": made.onnx, "build": made.onnx, "dims": {"batch": 4}, "mesh": "2", **given}
    return autopar.compile_onnx(options.pop("model"), options.pop("build"), **options)


def differing(made: Made, **given: Any) -> Any:
    options = {"first": made.build, "second": made.build, **given}
    return autopar.diff(options.pop("first"), options.pop("second"), **options)


def called(name: str, **how: Any) -> Callable[..., Any]:
    def call(made: Made, **given: Any) -> Any:
        options = {"build": made.build, "inputs": {"x": X}, **how, **given}
        return getattr(runtime, name)(options.pop("build"), options.pop("inputs"), **options)

    return call


def on_build(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda made, **given: function(made.build, **given)


def on_trainer(made: Made, method: str, **given: Any) -> Any:
    with autopar.load(made.trains, virtual=True) as trainer:
        return getattr(trainer, method)(**given)


def loaded(made: Made, **given: Any) -> Any:
    autopar.load(made.trains, **{"virtual": True, **given}).close()


def session(made: Made, **given: Any) -> Any:
    runtime.Session(made.build, **given).close()


def parallel(made: Made, **given: Any) -> Any:
    del made
    options = {"model": NET, "inputs": (X,), "mesh": "1", "strategy": "none", **given}
    return autopar.parallelize(options.pop("model"), options.pop("inputs"), **options)


def refusing(size: int) -> Any:
    raise AutoparError(f"compile({size})")


def elastic(made: Made, **given: Any) -> Any:
    options = {"compile": refusing, "builds": made.trains.with_name("elastic"), **given}
    return autopar.elastic.load(options.pop("compile"), **options)


def profiled(made: Made, **given: Any) -> Any:
    del made
    options = {"target": NET, "inputs": (X,), **given}
    return autopar.profile(options.pop("target"), **options)


def meshed(made: Made, **given: Any) -> Any:
    del made
    return autopar.ProcessMesh(given.pop("mesh", [0, 1]), **given)


RUN = ("build", "inputs")
ENTRIES: Mapping[str, tuple[Callable[..., Any], Mapping[str, str]]] = {
    "compile": (
        forward,
        {
            "model": "module",
            "inputs": "",
            "mesh": "3",
            "strategy": "None nothing",
            "shard": "None {}",
            "cluster": "",
            "placement": "",
            "memory": "None",
            "time_limit": "None 3 1.5",
            "effort": "3 1.5",
            "plan": "None",
            "activations": "None {}",
            "pipeline": "nothing",
            "schedule": "",
            "stages": "None",
            "microbatches": "3",
            "offload": "None []",
        },
    ),
    "compile, devices": (shaped, {"devices": "3"}),
    "compile, training": (
        training,
        {
            "loss": "",
            "optimizer": "",
            "clip_grad_norm": "None 3 1.5",
            "accumulate": "3",
            "loss_denominator": "",
            "autocast": "None dtype",
            "master_dtype": "None dtype",
            "scaler": "None",
            "fetch": "[]",
            "more_batches": "[]",
        },
    ),
    "compile, a step": (stepping, {"training_step": ""}),
    "compile_onnx": (
        from_onnx,
        {"model": "", "build": "None text", "dims": "", "input_shapes": "", "mesh": ""},
    ),
    "diff": (differing, {"first": "", "second": "", "cluster": "None", "names": ""}),
    "explain": (on_build(autopar.explain), {"name": "None", "cluster": "None"}),
    "profile": (profiled, {"target": "module", "inputs": "", "loss": "None", "cluster": "None"}),
    "plan_of": (lambda made, **given: autopar.plan_of(**given), {"what": ""}),
    "save_plan": (on_build(autopar.save_plan), {"path": "text"}),
    "Cluster.load": (lambda made, **given: autopar.Cluster.load(**given), {"name_or_path": ""}),
    "ProcessMesh": (meshed, {"mesh": "[1]", "dim_names": "None", "parent": "None"}),
    "read_program": (on_build(runtime.read_program), {"rank": "None"}),
    "run": (
        called("run"),
        {
            **dict.fromkeys((*RUN, "backend"), ""),
            "virtual": "True",
            "serial": "True",
            "torch_compile": "True",
            "timeout": "3 1.5",
            "threads": "3",
        },
    ),
    "run, virtual": (
        called("run", virtual=True),
        {
            **dict.fromkeys((*RUN, "device", "backend", "timeout"), ""),
            "modules": "[]",
            "updates": "True",
        },
    ),
    "run, serial": (called("run", serial=True), dict.fromkeys((*RUN, "device", "updates"), "")),
    "verify": (
        called("verify"),
        {**dict.fromkeys(RUN, ""), "per_op": "True", "tolerance": "None 3 1.5"},
    ),
    "load": (
        loaded,
        {
            "kind": "None",
            "check_loss": "True",
            "init": "None",
            "resume": "None text path",
            "seed": "None 3 -1",
            "virtual": "True",
        },
    ),
    "Session": (
        session,
        {
            "timeout": "3 1.5",
            "start_timeout": "3 1.5",
            "torch_compile": "None True",
            "cuda_graphs": "",
            "check_inputs": "True",
        },
    ),
    **{
        f"Trainer.{method}": (partial(on_trainer, method=method), {argument: takes})
        for method, argument, takes in (
            ("step", "batch", ""),
            ("resume", "folder", "text path"),
            ("load_checkpoint", "path", ""),
            ("save_checkpoint", "path", "text"),
            ("save_weights", "path", "text"),
            ("load_weights", "path", ""),
            ("initialize", "make_model", ""),
        )
    },
    "parallelize": (
        parallel,
        {
            "model": "module",
            "inputs": "",
            "mesh": "",
            "outputs": "[]",
            "seed": "3 -1",
            "torch_compile": "None True",
            "check_inputs": "True",
            "local": "True",
            "parameters": "",
            "placement": "",
            "memory": "None",
            "time_limit": "None 3 1.5",
            "effort": "3 1.5",
            "plan": "None",
            "activations": "None {}",
        },
    ),
    "elastic.load": (
        elastic,
        dict.fromkeys(("compile", "builds", "resume", "compile_timeout", "config"), ""),
    ),
}
"""By what is called: how, and by argument the values that are taken, for whatever they mean."""

CALLED_BACK = ("loss", "training_step", "make_model", "init", "compile")
"""Arguments that are called; what a class or module raises then is its user's to see."""


@pytest.mark.parametrize(
    ("entry", "argument"), [(entry, name) for entry in ENTRIES for name in ENTRIES[entry][1]]
)
def test_odd_values(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, argument: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call, takes = ENTRIES[entry]
    wrong: list[str] = []
    fine = [*takes[argument].split(), *(("class", "module") if argument in CALLED_BACK else ())]
    for name, value in odd_values().items():
        if name in fine:
            continue
        try:
            call(made, **{argument: value})
        except AutoparError as error:
            wrong += [f"{name}: {error}"] if " object at 0x" in str(error) else []
        except Exception as error:  # it is to be shown with the others
            wrong.append(f"{name}: {error!r:.200}")
        else:
            wrong.append(f"{name} was taken")
    assert not wrong
