"""Runs OpInfos through the judge and records how each call went."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autopar.ir.mesh import ProcessMesh
from tests.op_database.capture import CAPTURES, Direction, NoTensors
from tests.op_database.exclusions import UNDEFINED, excluded
from tests.op_database.judge import MESHES, Verdict, judge, judge_serial
from tests.op_database.selection import Call, calls_of, name_of


@dataclass(frozen=True)
class Record:
    """How a call of an OpInfo went on a mesh.

    Attributes:
        name: The OpInfo.
        sample: Number of the sample.
        direction: The call itself, its in-place variant, or its gradient.
        mesh: The mesh's shape; () for what was found before any mesh.
        verdict: The outcome.
    """

    name: str
    sample: int
    direction: Direction
    mesh: tuple[int, ...]
    verdict: Verdict

    def __str__(self) -> str:
        where = f" on {list(self.mesh)}" if self.mesh else ""
        what = f"{self.name}[{self.sample}] {self.direction}{where}"
        return f"{what}: {self.verdict.outcome}: {self.verdict.detail}"


def records_of(opinfo: Any, meshes: Sequence[tuple[int, ...]] = MESHES) -> Iterator[Record]:
    """Yields the records of an OpInfo that isn't excluded."""
    name = name_of(opinfo)
    if excluded(name):
        return
    for call in calls_of(opinfo):
        yield from _records(call, "in-place" if call.writes else "forward", meshes)
        if call.differentiable and not call.writes:
            yield from _records(call, "backward", meshes)


def _records(
    call: Call, direction: Direction, meshes: Sequence[tuple[int, ...]]
) -> Iterator[Record]:
    defined = call.name not in UNDEFINED

    def record(mesh: tuple[int, ...], verdict: Verdict) -> Record:
        return Record(call.name, call.number, direction, mesh, verdict)

    stage = "capture"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            captured = CAPTURES[direction](call)
            stage = "serial"
            wrong = judge_serial(captured, defined)
    except NoTensors as reason:
        if direction != "backward":
            yield record((), Verdict("error", f"capture: {reason}"))
        return
    except Exception as error:
        yield record((), _failure(stage, error))
        return
    if wrong:
        yield record((), Verdict("wrong", f"serial program: {wrong}"))
        return
    for shape in meshes:
        seed = f"{call.name} {call.number} {direction} {shape}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield record(shape, judge(captured, ProcessMesh.of_shape(shape), seed, defined))
        except Exception as error:
            yield record(shape, _failure("mesh", error))


def _failure(stage: str, error: Exception) -> Verdict:
    text = " | ".join(str(error).strip().splitlines()[:3])
    return Verdict("error", f"{stage}: {type(error).__name__}: {text}"[:600])
