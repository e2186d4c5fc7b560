"""What a run took beside what was predicted of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopar.analysis.profiling.measured import compare_build
from autopar.base.errors import InvalidInputError
from autopar.runtime.job.processes import Processes
from autopar.runtime.tracing.files import read_trace
from autopar.runtime.tracing.tracer import Trace
from tests.cli.command import autopar
from tests.runtime.tracing.training import train_traced, training_build


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A build with iterations, and the trace of two of its steps."""
    folder = tmp_path_factory.mktemp("measured")
    build = training_build(folder, "1", accumulate=4)
    train_traced(Processes(), build, Trace(folder / "out.json", skip=1), 3)
    return build, folder / "out.json"


def test_rows_add_up_to_what_the_trace_says(traced: tuple[Path, Path]) -> None:
    build, trace = traced
    (found,) = compare_build(build, trace)
    events = [e for e in read_trace(trace)["traceEvents"] if e["ph"] == "X"]
    assert found.steps == 2
    products = [e["dur"] for e in events if e["args"].get("op") == "aten.addmm.default"]
    assert len(products) % 8 == 0
    rows = {row.name: row for row in found.kinds}
    assert rows["aten.addmm.default"].measured_seconds == pytest.approx(sum(products) / 2e6)
    assert found.step.measured_seconds >= found.ops.measured_seconds > 0
    for rows_of in (found.kinds, found.layers):
        predicted = sum(row.predicted_seconds for row in rows_of)
        assert predicted == pytest.approx(found.ops.predicted_seconds)
    assert "measured in 2 calls" in str(found)


def test_the_command_shows_it_and_writes_it(traced: tuple[Path, Path]) -> None:
    build, trace = traced
    shown = autopar("profile", build, "--measured", trace)
    assert shown.exit_code == 0, shown.output
    assert "aten.addmm.default" in shown.output
    written = autopar("profile", build, "--measured", trace, "--json", "-")
    assert json.loads(written.stdout)[0]["steps"] == 2
    assert autopar("profile", trace, "--measured", trace).exit_code == 2
    assert autopar("profile", build, "--measured", trace, "--mesh", "2").exit_code == 2


def test_the_trace_of_another_build_is_refused(traced: tuple[Path, Path], tmp_path: Path) -> None:
    other = {"ph": "X", "cat": "step", "name": "s", "pid": 0, "ts": 0, "dur": 1, "args": {}}
    odd = [{**other, "pid": "Spans"}, {**other, "dur": None}, {"cat": "step"}, 7, None]
    (tmp_path / "other.json").write_text(json.dumps({"traceEvents": [other, *odd]}))
    with pytest.raises(InvalidInputError, match="has no op of"):
        compare_build(traced[0], tmp_path / "other.json")
    with pytest.raises(InvalidInputError, match="can't read"):
        compare_build(traced[0], tmp_path / "absent.json")
