"""Traces: every op that a rank runs is there with its name, group and bytes, and when it ran."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import autopar
from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import read_build
from autopar.ir.collectives import is_collective
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.processes import Processes
from autopar.runtime.tracing import tracer as tracing
from autopar.runtime.tracing.files import merge_ranks, path_of_rank, read_trace, write_rank
from autopar.runtime.tracing.recorders import Kernels
from autopar.runtime.tracing.spans import ENDS, label_of
from autopar.runtime.tracing.tracer import Trace, Tracer
from tests.runtime.job.real import run_ranks
from tests.runtime.tracing.training import train_traced, training_build

RANK_PIDS = 1000


def events_of(path: Path, category: str = "") -> list[dict[str, Any]]:
    """Returns the events of a trace that take time, of a category if one is given."""
    found = read_trace(path)["traceEvents"]
    return [e for e in found if e["ph"] == "X" and category in ("", e.get("cat"))]


def test_a_trace_of_four_ranks_has_all_ops_of_each(tmp_path: Path) -> None:
    build = training_build(tmp_path, "dp=2,tp=2", "data:dp,tensor:tp")
    trace = Trace(tmp_path / "out.json", skip=1, steps=2)
    traced = run_ranks(4, train_traced, build, trace, 4)
    plain = run_ranks(4, train_traced, build, None, 4)
    assert traced == plain
    for rank in range(4):
        mine = [e for e in events_of(tmp_path / "out.json") if e["pid"] // RANK_PIDS == rank]
        steps = [e for e in mine if e["cat"] == "step"]
        assert [e["name"] for e in steps] == ["step 1", "step 2"]
        program = autopar.runtime.read_program(build, rank)
        names = Counter(e["name"] for e in mine if not e["name"].endswith(ENDS))
        # What does nothing, as an alias, may be left out; the guard looks at the loss.
        known = {label_of(op) for op in program.main.ops}
        assert set(names) - {"step 1", "step 2", "guard %loss"} <= known
        assert all(count == 2 for name, count in names.items() if name in known)
        for op in program.main.ops:
            if is_collective(op.kind):
                (first, *_) = [e for e in mine if e["name"] == label_of(op)]
                assert first["cat"] == "collective"
                assert first["args"]["bytes"] > 0
                assert rank in first["args"]["ranks"]
                assert first["args"]["group"]
        products = [e["args"] for e in mine if ".addmm." in e["name"] or ".mm." in e["name"]]
        assert {"up", "down"} <= {args["module"].partition(".")[0] for args in products}
        assert all(Path(args["source"].split(":")[0]).name == "training.py" for args in products)
        for event in mine:
            assert any(
                s["ts"] <= event["ts"] and event["ts"] + event["dur"] <= s["ts"] + s["dur"] + 1
                for s in steps
            )


def test_iterations_and_functions_are_recorded(tmp_path: Path) -> None:
    build = training_build(tmp_path, "1", accumulate=4)
    train_traced(Processes(), build, Trace(tmp_path / "out.json"), 1)
    names = Counter(e["name"] for e in events_of(tmp_path / "out.json", "autopar"))
    assert 4 in {count for name, count in names.items() if "addmm" in name or ".mm." in name}


def test_torchs_profiler_names_the_same_ops(tmp_path: Path) -> None:
    build = training_build(tmp_path, "2")
    found = []
    for kernels in (False, True):
        trace = Trace(tmp_path / f"{kernels}.json", skip=1, steps=1, kernels=kernels)
        run_ranks(2, train_traced, build, trace, 3)
        events = [e for kind in ("autopar", "collective") for e in events_of(trace.path, kind)]
        found.append(Counter((e["pid"] // RANK_PIDS, e["name"]) for e in events))
    assert found[0] == found[1]
    assert any(e["name"].startswith("aten::") for e in events_of(tmp_path / "True.json"))


def test_a_session_is_traced_with_what_it_tunes(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    compiled = autopar.compile(model, (torch.ones(1, 3, 8, 8),), mesh="1")
    compiled.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", trace=tmp_path / "out.json") as session:
        expected = model(torch.ones(1, 3, 8, 8))
        assert torch.allclose(session(torch.ones(1, 3, 8, 8)), expected, atol=1e-6)
    names = [e["name"] for e in events_of(tmp_path / "out.json", "autopar")]
    assert any("convolution" in name for name in names)


def test_times_of_ranks_have_a_common_base(tmp_path: Path) -> None:
    trace = tmp_path / "out.json"
    for rank, base in enumerate((5_000_000, 2_000_000)):
        event = {"ph": "X", "name": "op", "pid": 0, "tid": 0, "ts": 1.0, "dur": 1.0, "id": 7}
        write_rank(trace, rank, 2, f"rank {rank}", base, [event])
    merge_ranks(trace, [0, 1])
    ops = sorted(events_of(trace), key=lambda event: event["ts"])
    assert [(e["pid"], e["ts"], e["id"]) for e in ops] == [
        (RANK_PIDS, 1.0, "1.7"),
        (0, 3001.0, "0.7"),
    ]
    info = read_trace(path_of_rank(trace, 1))["distributedInfo"]
    assert info == {"rank": 1, "world_size": 2}


def test_clocks_that_are_ahead_are_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = training_build(tmp_path, "1")
    deployment = read_build(build).deployment
    found = Tracer(Trace(tmp_path / "out.json"), 0, deployment, torch.device("cpu"))
    monkeypatch.setattr(tracing.time, "time_ns", iter(range(1000, 2000)).__next__)

    class Ahead(Messages):
        def of_all(self, text: str) -> list[str]:
            return [json.dumps([each - 250 for each in json.loads(text)]), text]

    found.compare_clocks(lambda: None, Ahead(None))  # type: ignore[arg-type]
    assert found._behind == 250


def test_what_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    build = training_build(tmp_path, "1")
    with pytest.raises(InvalidInputError, match="leave out trace= or virtual="):
        autopar.load(build, virtual=True, trace=tmp_path / "out.json")
    with pytest.raises(InvalidInputError, match="there is no folder"):
        autopar.load(build, trace=tmp_path / "absent" / "out.json")
    (tmp_path / "file.json.ranks").write_text("")
    with pytest.raises(InvalidInputError, match="can't write"):
        autopar.load(build, processes=Processes(), trace=tmp_path / "file.json")
    first = Kernels()
    first.start()
    with pytest.raises(InvalidInputError, match="it records already"):
        Kernels().start()
    first.stop()
    first.stop()
    with pytest.raises(InvalidInputError, match="skip=-1"):
        Trace(tmp_path / "out.json", skip=-1)
    (tmp_path / "text.json").write_text("[]")
    with pytest.raises(InvalidInputError, match="no list traceEvents; give a trace"):
        read_trace(tmp_path / "text.json")


def test_a_rank_without_a_trace_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PATIENCE", 0.0)
    build = training_build(tmp_path, "2")
    deployment = read_build(build).deployment
    with (
        pytest.warns(UserWarning, match="out.json lacks ranks 1, which have written no"),
        Tracer(Trace(tmp_path / "out.json"), 0, deployment, torch.device("cpu")),
    ):
        pass
    assert read_trace(tmp_path / "out.json")["traceEvents"] == []
