"""Judges what autopar makes of a model: training on meshes against eager PyTorch, and inference."""

from __future__ import annotations

import copy
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

import autopar
from autopar.completion.undivided import UNDIVIDED
from autopar.frontend.torch import Recipe, capture
from autopar.ir.errors import AutoparError
from autopar.ir.mesh import ProcessMesh
from autopar.modules import CompiledModule
from autopar.reports.summary import summarize_programs
from autopar.runtime import run_virtual
from tests.random_pins import random_pins
from tests.sweep.building import Case, is_drawn

STEPS = 3
LEARNING_RATE = 1e-3
TOLERANCE = 1e-9
"""Of losses, parameters and outputs, relative to the largest element, or to 1."""

DIVIDED = 0.5
"""The part of the flops that `fsdp` may leave whole along an axis."""

_PART = re.compile(r"compute (\d+)% of the flops")

SEARCH_SECONDS = 15.0


@dataclass(frozen=True)
class Check:
    """One way to compile a model.

    Attributes:
        mesh: Sizes of the axes `a` and `b`.
        strategy: The presets.
        pinned: Whether a value that is drawn is split; the rest is searched.
        dropout: Whether the model drops what it does by default.
        trains: Whether training is judged, or inference.
    """

    mesh: tuple[int, int]
    strategy: str = "auto"
    pinned: bool = False
    dropout: bool = False
    trains: bool = True


CHECKS: Mapping[str, Check] = {
    "fsdp": Check((2, 2), "fsdp:a,tensor:b"),
    "inference": Check((2, 2), trains=False),
    "drawn": Check((2, 2), "fsdp:a,tensor:b", dropout=True),
    "auto": Check((2, 2)),
    "3x2": Check((3, 2), "fsdp:a,tensor:b"),
    "pin": Check((2, 2), pinned=True),
}
"""All checks by name. `drawn` is for models that drop something by default: the serial program is
what they are compared with, since PyTorch draws other numbers; all others drop nothing."""


@dataclass(frozen=True)
class Trained:
    """Losses of steps, and the state that they leave."""

    losses: list[float]
    state: dict[str, Tensor]


class _Judging:
    """What a stage of a judgement is called, for whoever asks why it failed."""

    stage = "eager"


def judge(case: Case, name: str) -> dict[str, Any]:
    """Returns the record of a check: its outcome, seconds, ops, and flops that aren't divided."""
    record: dict[str, Any] = {"check": name}
    start = time.process_time()
    stage = _Judging()
    try:
        _checked(case, name, CHECKS[name], record, stage)
    except AutoparError as error:
        record |= {"outcome": "refused", "reason": _first_line(error), "stage": stage.stage}
    except Exception as error:  # whatever else comes out of autopar is a crash
        told = f"{type(error).__name__}: {_first_line(error)}"
        outcome = "unbuilt" if stage.stage == "eager" else "crash"
        record |= {"outcome": outcome, "reason": told, "stage": stage.stage, "at": _place(error)}
    return record | {"seconds": round(time.process_time() - start, 1)}


def _checked(case: Case, name: str, check: Check, record: dict[str, Any], stage: _Judging) -> None:
    model = case.model(check.dropout)
    model.train(check.trains)
    wrapped = case.training(model) if check.trains else case.inference(model)
    batches = [case.batch(model, number) for number in range(STEPS)]
    draws = check.trains and case.draws and is_drawn(wrapped, batches[0])
    if not check.trains:
        expected: Any = _inferred(wrapped, batches[0])
    elif not draws:
        expected = _trained(wrapped, batches)
    stage.stage = "compile"
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        compiled = _compiled(wrapped, batches[0], check, case.model_type)
        record |= _measured(compiled)
        compiled.save(build)
        stage.stage = "run"
        if not check.trains:
            found = list(run_virtual(build, list(batches[0].values())).values())
            record |= _verdict(_errors_of_outputs(found, expected))
        else:
            if draws:
                alone = Path(folder) / "alone"
                one = ProcessMesh.of_shape((1,), ("a",))
                _step(wrapped, batches[0], one, "data:a", {}).save(alone)
                expected = _trained_on_mesh(alone, batches)
            record |= _verdict(_errors(_trained_on_mesh(build, batches), expected))
    suspect = record["outcome"] == "wrong" and not draws
    if suspect and exports_otherwise(case.inference(model), batches[0]):
        record |= {"outcome": "inconsistent", "reason": EXPORTED}
    if name == "fsdp" and record["outcome"] == "right" and record["undivided"] >= DIVIDED:
        record |= {"outcome": "undivided", "reason": "; ".join(record["left"])}


EXPORTED = "the library itself computes something else where torch.export traces it"


def exports_otherwise(model: nn.Module, batch: dict[str, Tensor]) -> bool:
    """Whether PyTorch's own export of a model that returns tensors computes something else."""
    try:
        exported = torch.export.export(model, (), batch).module()
        with torch.no_grad():
            pairs = zip(exported(**batch), model(**batch), strict=True)
            return any(_error(one, other) > TOLERANCE for one, other in pairs)
    except Exception:  # what can't be exported tells nothing
        return False


def _inferred(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [each.clone() for each in model(**batch)]


def _trained(model: nn.Module, batches: list[dict[str, Tensor]]) -> Trained:
    """Trains a copy of a model as PyTorch does."""
    model = copy.deepcopy(model)
    optimizer = AdamW(model.parameters(), LEARNING_RATE)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, dict(model.state_dict()))


def _trained_on_mesh(build: Path, batches: list[dict[str, Tensor]]) -> Trained:
    with autopar.load(build, virtual=True) as trainer:
        losses = [trainer.step(batch).item() for batch in batches]
        return Trained(losses, dict(trainer.state_dict()))


def _compiled(
    model: nn.Module, batch: dict[str, Tensor], check: Check, model_type: str
) -> CompiledModule:
    mesh = ProcessMesh.of_shape(check.mesh, ("a", "b"))
    if not check.trains:
        return autopar.compile(
            model, batch, mesh=mesh, strategy=check.strategy, seconds_limit=SEARCH_SECONDS
        )
    pins = {}
    if check.pinned:
        optimizer = AdamW(model.parameters(), LEARNING_RATE)
        program = capture(model, batch, Recipe(optimizer=optimizer)).program
        pins = {
            pin.pattern: pin.dims_mapping for pin in random_pins(program, mesh, model_type, 0)[:1]
        }
    return _step(model, batch, mesh, check.strategy, pins)


def _step(
    model: nn.Module,
    batch: dict[str, Tensor],
    mesh: ProcessMesh,
    strategy: str,
    pins: Mapping[str, Any],
) -> CompiledModule:
    optimizer = AdamW(model.parameters(), LEARNING_RATE)
    limit = {"seconds_limit": SEARCH_SECONDS} if strategy == "auto" else {}
    return autopar.compile(
        model, batch, mesh=mesh, optimizer=optimizer, strategy=strategy, shard=pins, **limit
    )


def _measured(compiled: CompiledModule) -> dict[str, Any]:
    """Returns the number of ops, and how much of the flops isn't divided.

    `repeated` is of all flops the part that ranks compute more than once: 0 where they are divided
    by all ranks, and 1 where every rank computes everything. `undivided` is the part that the
    presets leave whole along one axis of the mesh, of that axis along which it is more.
    """
    programs = compiled.compiled
    found = summarize_programs(programs.serial, programs.deployment, programs.report)
    whole, ranks = found.flops_serial, found.world_size
    share = found.flops_max / whole if whole else 1 / ranks
    repeated = max(share - 1 / ranks, 0.0) / (1 - 1 / ranks)
    left = [each.detail for each in programs.report if each.category == UNDIVIDED]
    parts = [int(part) / 100 for detail in left for part in _PART.findall(detail)]
    return {
        "ops": found.serial_ops,
        "repeated": round(repeated, 3),
        "undivided": max(parts, default=0.0),
        "left": left,
        "assumes": len(found.assumes),
    }


def _errors(found: Trained, expected: Trained) -> Iterator[tuple[str, float]]:
    for step, (one, other) in enumerate(zip(found.losses, expected.losses, strict=True)):
        yield f"loss {step}", abs(one - other) / max(1.0, abs(other))
    if found.state.keys() != expected.state.keys():
        yield f"names {sorted(found.state.keys() ^ expected.state.keys())[:3]}", float("inf")
    for name in found.state.keys() & expected.state.keys():
        yield name, _error(found.state[name], expected.state[name])


def _errors_of_outputs(found: list[Any], expected: list[Tensor]) -> Iterator[tuple[str, float]]:
    if len(found) != len(expected):
        yield f"{len(found)} outputs, not {len(expected)}", float("inf")
        return
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        yield f"output {at}", _error(torch.as_tensor(one), other)


def _error(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not other.numel():
        return 0.0
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    found = (one - other).abs() / other.nan_to_num(0, 0, 0).abs().max().clamp(min=1.0)
    return float(found.masked_fill(same, 0).nan_to_num(float("inf")).max())


def _verdict(errors: Iterator[tuple[str, float]]) -> dict[str, Any]:
    where, largest = max(errors, key=lambda each: each[1], default=("", 0.0))
    outcome = "right" if largest <= TOLERANCE else "wrong"
    told = {} if outcome == "right" else {"reason": f"{where} is off by {largest:.1e}"}
    return {"outcome": outcome, "error": min(largest, 1e300), **told}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:400]


def _place(error: BaseException) -> str:
    """Returns the innermost line of autopar in a traceback."""
    found, at = "", error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if "/autopar/" in file:
            found = f"{file.rpartition('/autopar/')[2]}:{at.tb_lineno}"
        at = at.tb_next
    return found
