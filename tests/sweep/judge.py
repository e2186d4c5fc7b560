"""Judges what autopar makes of a model: training on meshes against eager PyTorch, and inference."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import autopar
from autopar.completion.undivided import UNDIVIDED
from autopar.frontend.torch import Recipe, capture
from autopar.ir.errors import AutoparError
from autopar.ir.mesh import ProcessMesh
from autopar.modules import CompiledModule
from autopar.reports.summary import summarize_programs
from autopar.runtime import run_virtual
from tests.random_pins import random_pins
from tests.sweep.case import Case, is_drawn
from tests.sweep.training import (
    ROUNDING,
    Optimize,
    Trained,
    adamw,
    compile_step,
    error_of,
    errors,
    gradients,
    moved,
    train,
    train_alone,
    train_on_mesh,
)

STEPS = 3
TOLERANCE = 1e-9
"""Of losses, parameters and outputs, relative to the largest element, or to 1."""

DIVIDED = 0.5
"""The part of the flops that `fsdp` may leave whole along an axis."""

_PART = re.compile(r"compute (\d+)% of the flops")

SHARE = 0.1
"""Of an error, which PyTorch must make as well for rounding to explain it."""

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
    model = case.model(check.dropout).train(check.trains)
    wrapped = case.training(model) if check.trains else case.inference(model)
    batches = [case.batch(model, number) for number in range(STEPS)]
    draws = check.trains and case.draws and is_drawn(wrapped, batches[0])
    with tempfile.TemporaryDirectory() as folder:
        judged = _Judged(wrapped, batches, check, case.name, Path(folder), stage, draws)
        (_judge_training if check.trains else _judge_inference)(judged, record)
    suspect = record["outcome"] == "wrong" and not draws
    if suspect and exports_otherwise(case.inference(model), batches[0]):
        record |= {"outcome": "inconsistent", "reason": EXPORTED}
    if name == "fsdp" and record["outcome"] == "right" and record["undivided"] >= DIVIDED:
        record |= {"outcome": "undivided", "reason": "; ".join(record["left"])}


@dataclass(frozen=True)
class _Judged:
    """What is judged, how, and in which folder it is built."""

    model: nn.Module
    batches: list[dict[str, Tensor]]
    check: Check
    name: str
    folder: Path
    stage: _Judging
    draws: bool


def _judge_training(judged: _Judged, record: dict[str, Any]) -> None:
    expected = None if judged.draws else train(judged.model, judged.batches, adamw)
    judged.stage.stage = "compile"
    found, expected = _trained(judged, adamw, expected, record)
    record |= _verdict(errors(found, expected))
    if record["outcome"] == "wrong":
        record |= _unsteady(judged, record["error"], expected)


def _trained(
    judged: _Judged, optimize: Optimize, expected: Trained | None, record: dict[str, Any]
) -> tuple[Trained, Trained]:
    """Trains on a mesh, and alone unless it is known what that comes to."""
    folder = judged.folder / optimize.__name__
    compiled = _compiled(judged, optimize)
    record |= _measured(compiled)
    compiled.save(folder / "build")
    judged.stage.stage = "run"
    if expected is None:
        expected = train_alone(judged.model, judged.batches, optimize, folder / "alone")
    return train_on_mesh(folder / "build", judged.batches), expected


def _unsteady(judged: _Judged, error: float, expected: Trained) -> dict[str, Any]:
    """Returns another verdict if PyTorch blows rounding up as much, and gradients are right.

    Where a gradient is of the size of its rounding, AdamW makes full steps of that.
    """
    model, batches = judged.model, judged.batches
    again = train(model, batches, adamw) if judged.draws else expected
    alone = max(each for _, each in errors(train(moved(model), batches, adamw), again))
    if alone < SHARE * error:
        return {}
    first = replace(judged, batches=batches[:1])
    usual = None if judged.draws else train(model, first.batches, gradients)
    if _verdict(errors(*_trained(first, gradients, usual, {})))["outcome"] != "right":
        return {}
    told = f"so is PyTorch by {alone:.0e} if weights are by {ROUNDING:.0e}; gradients are right"
    return {"outcome": "unsteady", "reason": f"off by {error:.0e}, and {told}"}


def _judge_inference(judged: _Judged, record: dict[str, Any]) -> None:
    check, batch, build = judged.check, judged.batches[0], judged.folder / "build"
    expected = _inferred(judged.model, batch)
    judged.stage.stage = "compile"
    mesh = ProcessMesh.of_shape(check.mesh, ("a", "b"))
    compiled = autopar.compile(
        judged.model, batch, mesh=mesh, strategy=check.strategy, seconds_limit=SEARCH_SECONDS
    )
    record |= _measured(compiled)
    compiled.save(build)
    judged.stage.stage = "run"
    found = list(run_virtual(build, list(batch.values())).values())
    record |= _verdict(_errors_of_outputs(found, expected))


EXPORTED = "the library itself computes something else where torch.export traces it"


def exports_otherwise(model: nn.Module, batch: dict[str, Tensor]) -> bool:
    """Whether PyTorch's own export of a model that returns tensors computes something else."""
    try:
        exported = torch.export.export(model, (), batch).module()
        with torch.no_grad():
            pairs = zip(exported(**batch), model(**batch), strict=True)
            return any(error_of(one, other) > TOLERANCE for one, other in pairs)
    except Exception:  # what can't be exported tells nothing
        return False


def _inferred(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [each.clone() for each in model(**batch)]


def _compiled(judged: _Judged, optimize: Optimize) -> CompiledModule:
    check, model, batch = judged.check, judged.model, judged.batches[0]
    mesh = ProcessMesh.of_shape(check.mesh, ("a", "b"))
    pins = {}
    if check.pinned:
        program = capture(model, batch, Recipe(optimizer=optimize(model.parameters()))).program
        chosen = random_pins(program, mesh, judged.name, 0)[:1]
        pins = {pin.pattern: pin.dims_mapping for pin in chosen}
    limit = {"seconds_limit": SEARCH_SECONDS} if check.strategy == "auto" else {}
    return compile_step(model, batch, mesh, optimize, check.strategy, pins, **limit)


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


def _errors_of_outputs(found: list[Any], expected: list[Tensor]) -> Iterator[tuple[str, float]]:
    if len(found) != len(expected):
        yield f"{len(found)} outputs, not {len(expected)}", float("inf")
        return
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        yield f"output {at}", error_of(torch.as_tensor(one), other)


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
