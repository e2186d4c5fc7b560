"""Judges what autopar makes of a model: training on meshes against eager PyTorch, and inference."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import autopar
from autopar.analysis.reports.summary import summarize_programs
from autopar.base.errors import AutoparError
from autopar.compiled import CompiledModel
from autopar.completion.undivided import UNDIVIDED
from autopar.ir.mesh import ProcessMesh
from autopar.runtime import run
from tests.given.random_pins import random_pins
from tests.sweep.case import Case, cloned
from tests.sweep.training import (
    ROUNDING,
    Subject,
    Trained,
    error_of,
    errors,
    gradients,
    steady,
    train_on_mesh,
)

TOLERANCE = 1e-9
"""Of losses, parameters and outputs, relative to the largest element, or to 1."""

DIVIDED = 0.5
"""The part of the flops that `fsdp` may leave whole along an axis."""

RIGHT = ("right", "steadied")
"""Outcomes of what is right."""

_PART = re.compile(r"compute (\d+)% of the flops")

SHARE = 0.1
"""Of an error, which PyTorch must make as well for rounding to explain it: in gradients, the same
one's."""

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


NO_MEMORY = "can't allocate memory"
"""What PyTorch says, on whichever rank, where the process has used up what it may."""

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


class Judge:
    """Judges a case by checks, which share what is the same for them.

    Args:
        case: The model and its batches.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._subject = Subject(case)
        self._stage = "eager"

    def record(self, name: str) -> dict[str, Any]:
        """Returns the record of a check: its outcome, seconds, ops, and flops not divided."""
        record: dict[str, Any] = {"check": name}
        start = time.process_time()
        self._stage = "eager"
        try:
            self._check(name, CHECKS[name], record)
        except MemoryError:  # of the process, which is told as its end
            raise
        except Exception as error:
            if NO_MEMORY in str(error):
                raise MemoryError(str(error)) from error
            record |= self._failed(error)
        return record | {"seconds": round(time.process_time() - start, 1)}

    def _failed(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, AutoparError):
            return {"outcome": "refused", "reason": _first_line(error), "stage": self._stage}
        told = f"{type(error).__name__}: {_first_line(error)}"  # from autopar, that is a crash
        outcome = "unbuilt" if self._stage == "eager" else "crash"
        return {"outcome": outcome, "reason": told, "stage": self._stage, "at": _place(error)}

    def _check(self, name: str, check: Check, record: dict[str, Any]) -> None:
        if check.trains:
            subject = Subject(self._case, dropout=True) if check.dropout else self._subject
            self._train(subject, check, record)
            drawn, model, batch = subject.draws, subject.model.model, subject.batches[0]
        else:
            model = self._case.model(check.dropout).eval()
            batch = self._case.batch(model, 0)
            drawn = self._infer(self._case.inference(model), batch, check, record)
        suspect = record["outcome"] == "wrong" and not drawn
        if suspect and exports_otherwise(self._case.inference(model), batch):
            record |= {"outcome": "inconsistent", "reason": EXPORTED}
        if name == "fsdp" and record["outcome"] in RIGHT and record["undivided"] >= DIVIDED:
            record |= {"outcome": "undivided", "reason": "; ".join(record["left"])}

    def _train(self, subject: Subject, check: Check, record: dict[str, Any]) -> None:
        if not subject.draws:
            _ = subject.trained  # what PyTorch can't do isn't autopar's
        found, expected = self._trained(subject, check, record)
        record |= _verdict(errors(found, expected))
        if record["outcome"] == "wrong":
            record |= self._unsteady(subject, check, record["error"])

    def _trained(
        self, subject: Subject, check: Check, record: dict[str, Any] | None = None
    ) -> tuple[Trained, Trained]:
        """Trains on a mesh, and as it should be; notes what was compiled in a record."""
        self._stage = "compile"
        mesh = ProcessMesh.of_shape(check.mesh, ("a", "b"))
        pins = (
            random_pins(subject.captured.program, mesh, self._case.name, 0) if check.pinned else ()
        )
        limits = {"time_limit": SEARCH_SECONDS} if check.strategy == "auto" else {}
        compiled = subject.compiled(mesh, check.strategy, pins[:1], **limits)
        if record is not None:
            record |= _measured(compiled)
        self._stage = "run"
        found = train_on_mesh(compiled, subject.batches)
        return found, subject.alone if subject.draws else subject.trained

    def _unsteady(self, subject: Subject, check: Check, error: float) -> dict[str, Any]:
        """Returns another verdict if PyTorch blows rounding up as much, and gradients are right.

        Where a gradient is of the size of its rounding, AdamW makes full steps of that, unless its
        `eps` is larger: where as many such steps are right, so is the model.
        """
        alone = max(each for _, each in errors(subject.perturbed(), subject.trained))
        if alone < SHARE * error:
            return {}
        first = Subject(self._case, subject.dropout, gradients, steps=1)
        found, expected = self._trained(first, check)
        rounded = dict(errors(first.perturbed(), first.trained))
        allowed = {at: TOLERANCE + each / SHARE for at, each in rounded.items()}
        if any(each > allowed.get(at, 0.0) for at, each in errors(found, expected)):
            return {}
        told = f"so is PyTorch by {alone:.0e} if weights are by {ROUNDING:.0e}; gradients are right"
        reason = f"off by {error:.0e}, and {told}"
        others = Subject(self._case, subject.dropout, steady)
        verdict = _verdict(errors(*self._trained(others, check)))
        if verdict["outcome"] == "right":
            return verdict | {"outcome": "steadied", "reason": reason}
        return {"outcome": "unsteady", "reason": reason}

    def _infer(
        self, model: nn.Module, batch: dict[str, Tensor], check: Check, record: dict[str, Any]
    ) -> bool:
        """Runs inference, and returns whether it draws random numbers."""
        first, again = (_outputs(model, batch, seed) for seed in (0, 1))
        drawn = any(not torch.equal(*pair) for pair in zip(first, again, strict=True))
        self._stage = "compile"
        mesh = ProcessMesh.of_shape(check.mesh, ("a", "b"))
        compiled = autopar.compile(
            model, batch, mesh=mesh, strategy=check.strategy, time_limit=SEARCH_SECONDS
        )
        record |= _measured(compiled)
        self._stage = "run"
        expected = first
        if drawn:  # as many ranks do, one does, and PyTorch draws other numbers
            one = autopar.compile(model, batch, mesh=ProcessMesh.of_shape((1,), ("a",)))
            expected = _run(one, batch)
        record |= _verdict(_errors_of_outputs(_run(compiled, batch), expected))
        return drawn


def _outputs(model: nn.Module, batch: dict[str, Tensor], seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    with torch.no_grad():
        return [each.clone() for each in model(**cloned(batch))]


def _run(compiled: CompiledModel, batch: dict[str, Tensor]) -> list[Tensor]:
    with TemporaryDirectory() as folder:
        compiled.save(folder)
        found = run(Path(folder), list(cloned(batch).values()), virtual=True)
    return [torch.as_tensor(each) for each in found.values()]


EXPORTED = "the library itself computes something else where torch.export traces it"


def exports_otherwise(model: nn.Module, batch: dict[str, Tensor]) -> bool:
    """Whether PyTorch's own export of a model that returns tensors computes something else."""
    try:
        exported = torch.export.export(model, (), cloned(batch)).module()
        with torch.no_grad():
            pairs = zip(exported(**cloned(batch)), model(**cloned(batch)), strict=True)
            return any(error_of(one, other) > TOLERANCE for one, other in pairs)
    except Exception:  # what can't be exported tells nothing
        return False


def _measured(compiled: CompiledModel) -> dict[str, Any]:
    """Returns the number of ops, and how much of the flops isn't divided.

    `repeated` is of all flops the part that ranks compute more than once: 0 where they are divided
    by all ranks, and 1 where every rank computes everything. `undivided` is the part that the
    presets leave whole along one axis of the mesh, of that axis along which it is more.
    """
    found = summarize_programs(compiled.serial, compiled.deployment, compiled.report)
    whole, ranks = found.flops_serial, found.world_size
    share = found.flops_max / whole if whole else 1 / ranks
    repeated = max(share - 1 / ranks, 0.0) / (1 - 1 / ranks)
    left = [each.detail for each in compiled.report if each.category == UNDIVIDED]
    parts = [int(part) / 100 for detail in left for part in _PART.findall(detail)]
    return {
        "ops": found.serial_ops,
        "repeated": round(repeated, 3),
        "undivided": max(parts, default=0.0),
        "left": left,
        "assumes": len(found.assumes),
    }


def _errors_of_outputs(found: list[Tensor], expected: list[Tensor]) -> Iterator[tuple[str, float]]:
    if len(found) != len(expected):
        yield f"{len(found)} outputs, not {len(expected)}", float("inf")
        return
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        yield f"output {at}", error_of(one, other)


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
