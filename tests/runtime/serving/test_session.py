"""Sessions answer calls of any size from any thread, survive bad ones, and end with their ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import autopar
from autopar import InferenceSession
from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.runtime.serving.arguments import NodeArg
from tests.frontend.onnx import graphs
from tests.runtime.serving.scorer import CLASSES, ids_of, scores_of, write_scorer

SIZES = ((3, 4), (1, 1), (0, 4), (2, 0), (64, 9), (3, 4))
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scorer(tmp_path_factory.mktemp("scorer"))


@pytest.fixture(scope="module", params=[{}, {"mesh": "3x2", "virtual": True}, {"mesh": 2}], ids=str)
def session(scorer: Path, request: pytest.FixtureRequest) -> Iterator[InferenceSession]:
    with InferenceSession(scorer, **request.param) as opened:
        yield opened


def test_calls_of_any_size(session: InferenceSession) -> None:
    for sizes in SIZES:
        (scores,) = session.run(None, {"ids": ids_of(*sizes)})
        assert scores.shape == (*sizes, CLASSES)
        np.testing.assert_allclose(scores, scores_of(ids_of(*sizes)), rtol=1e-5, atol=1e-6)


def test_results_are_memory_of_their_own(session: InferenceSession) -> None:
    (first,) = session.run(["scores"], {"ids": torch.from_numpy(ids_of(2, 3))})
    expected = first.copy()
    session.run(["scores"], {"ids": ids_of(2, 3)[::-1]})
    assert np.array_equal(first, expected)


def test_calls_from_several_threads(session: InferenceSession) -> None:
    def call(at: int) -> bool:
        ids = ids_of(1 + at % 4, 1 + at % 3)
        (scores,) = session.run(["scores"], {"ids": ids})
        return bool(np.allclose(scores, scores_of(ids), rtol=1e-5, atol=1e-6))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(64)))


@pytest.mark.parametrize(
    ("names", "feeds", "message"),
    [
        (None, {}, "input 'ids' is missing"),
        (None, {"ids": ids_of(1, 2), "idz": 1}, "there is no input 'idz'"),
        (None, {"ids": np.zeros((1, 2, 3), np.int64)}, "input 'ids' is i64"),
        (None, {"ids": np.full((1, 2), 99)}, "99 is out of range in 'ids'"),
        (
            None,
            {"ids": None},
            "input 'ids' is no tensor: it is None, it must be i64",
        ),
        (None, {"ids": "one two"}, "input 'ids' is no tensor: it is 'one two', it must be"),
        (None, [ids_of(1, 2)], "the inputs are a list; give them by name"),
        (
            None,
            {"ids": [[1, 2], [3]]},
            r"input 'ids' is a list in which rows differ in length, \[\[1",
        ),
        ("scores", {"ids": ids_of(1, 2)}, "output_names='scores': give a list of names"),
        (["score"], {"ids": ids_of(1, 2)}, "there is no output 'score'; did you mean scores"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_next_call_runs(
    session: InferenceSession, names: list[str] | None, feeds: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        session.run(names, feeds)
    (scores,) = session.run(None, {"ids": ids_of(1, 2)})
    np.testing.assert_allclose(scores, scores_of(ids_of(1, 2)), rtol=1e-5, atol=1e-6)


def test_inputs_and_outputs_are_described(session: InferenceSession) -> None:
    assert session.get_inputs() == [NodeArg("ids", ["batch", "length"], "tensor(int64)")]
    described = NodeArg("scores", ["batch", "length", CLASSES], "tensor(float)")
    assert session.get_outputs() == [described]


def test_onnx_runtime_describes_them_alike(session: InferenceSession, scorer: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    other = onnxruntime.InferenceSession(scorer)
    for mine, theirs in zip(session.get_inputs(), other.get_inputs(), strict=True):
        assert (mine.name, mine.shape, mine.type) == (theirs.name, theirs.shape, theirs.type)


@pytest.mark.parametrize("mesh", [1, 2])
def test_waiting_calls_run_together(scorer: Path, mesh: int) -> None:
    def call(at: int) -> bool:
        ids = ids_of(at % 3, 5 if at % 2 else 6)
        (scores,) = session.run(None, {"ids": ids})
        return bool(np.allclose(scores, scores_of(ids), rtol=1e-5, atol=1e-6))

    with (
        InferenceSession(scorer, mesh=mesh, max_batch=16, max_delay=0.01) as session,
        ThreadPoolExecutor(8) as pool,
    ):
        assert all(pool.map(call, range(80)))
        bad = pool.submit(session.run, None, {"ids": np.full((1, 5), 99)})
        assert call(1)
        assert isinstance(bad.exception(), InvalidInputError)


def test_numbers_are_inputs_too(tmp_path: Path) -> None:
    kinds = {"x": [None, 3], "factor": [], "y": [None, 3]}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in kinds.items()
    }
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    graph = helper.make_graph([node], "scaled", [values["x"], values["factor"]], [values["y"]])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "scaled.onnx")
    x = np.ones((2, 3), np.float32)
    with InferenceSession(tmp_path / "scaled.onnx", mesh=2) as session:
        (found,) = session.run(None, {"x": x, "factor": np.float32(2)})
    np.testing.assert_array_equal(found, 2 * x)


def test_inputs_may_require_gradients(tmp_path: Path) -> None:
    same = [graphs.node("Identity", "x", "y")]
    body = graphs.graph(same, {"x": (TensorProto.FLOAT, [3])}, ["y"])
    onnx.save(graphs.model(body), tmp_path / "same.onnx")
    x = torch.ones(3, requires_grad=True)
    for options in ({}, {"mesh": 2, "virtual": True}):
        with InferenceSession(tmp_path / "same.onnx", **options) as session:
            (found,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(found, np.ones(3))


def test_builds_and_compiled_models_are_run(scorer: Path, tmp_path: Path) -> None:
    compiled = autopar.compile_onnx(scorer, tmp_path / "build", mesh="2", dims={"batch": 2})
    for model in (compiled, tmp_path / "build"):
        with InferenceSession(model, virtual=True) as session:
            (scores,) = session.run(None, {"ids": ids_of(2, 3)})
        np.testing.assert_allclose(scores, scores_of(ids_of(2, 3)), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInputError, match="mesh=: only an ONNX file is compiled"):
        InferenceSession(compiled, mesh=2)
    with pytest.raises(InvalidInputError, match=r"but there are ids \[2, 'length'\], scores"):
        InferenceSession(compiled, max_batch=8)


def test_a_closed_session_says_so(scorer: Path) -> None:
    session = InferenceSession(scorer)
    session.close()
    session.close()
    with pytest.raises(RuntimeFailure, match="the session was closed"):
        session.run(None, {"ids": ids_of(1, 2)})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")
def test_a_forked_process_is_told_that_the_session_is_not_its_own(
    session: InferenceSession,
) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            session.close()
            session.run(None, {"ids": ids_of(1, 2)})
        except RuntimeFailure as failure:
            os.write(writing, str(failure).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert f"is that of process {os.getpid()}, from which this one, {child}" in told.read()
    assert session.run([], {"ids": ids_of(1, 2)})[0].shape == (1, 2, CLASSES)


def test_sizes_that_follow_from_others_are_described(tmp_path: Path) -> None:
    x, y, both = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 3])
        for name, size in (("x", "past"), ("y", "new"), ("both", "all"))
    )
    node = helper.make_node("Concat", ["x", "y"], ["both"], axis=0)
    graph = helper.make_graph([node], "joined", [x, y], [both])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "joined.onnx")
    with InferenceSession(tmp_path / "joined.onnx") as session:
        assert [each.shape for each in session.get_inputs()] == [["past", 3], ["new", 3]]
        assert session.get_outputs()[0].shape in (["past + new", 3], ["new + past", 3])


def ranks_of(parent: int) -> list[int]:
    """Returns the processes below one."""
    shown = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    children = [int(each) for each in shown.stdout.split() if _is_there(int(each))]
    return [*children, *(below for child in children for below in ranks_of(child))]


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def gone(processes: list[int], seconds: float = 30.0) -> bool:
    """Waits until processes have ended."""
    deadline = time.monotonic() + seconds
    while any(map(_is_there, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(_is_there, processes))


def test_a_rank_that_is_killed_ends_the_session(scorer: Path) -> None:
    others = set(ranks_of(os.getpid()))
    with InferenceSession(scorer, mesh=2) as session:
        session.run(None, {"ids": ids_of(1, 2)})
        processes = [each for each in ranks_of(os.getpid()) if each not in others]
        rank = next(each for each in reversed(processes) if "serving.rank" in _command(each))
        os.kill(rank, signal.SIGSTOP)
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(session.run, None, {"ids": ids_of(1, 2)}) for _ in range(4)]
            time.sleep(0.2)
            os.kill(rank, signal.SIGKILL)
            killed = time.monotonic()
            errors = [call.exception() for call in calls]
        assert time.monotonic() - killed < 5
        assert all(isinstance(error, RuntimeFailure) for error in errors), errors
        with pytest.raises(RuntimeFailure, match=r"rank \d"):
            session.run(None, {"ids": ids_of(1, 2)})
    assert gone(processes)


@pytest.mark.parametrize("seconds", [0.0001, 2.0])
def test_ranks_that_are_late_end_the_session_at_once(scorer: Path, seconds: float) -> None:
    others = set(ranks_of(os.getpid()))
    with InferenceSession(scorer, mesh=2, timeout=seconds) as session:
        processes = [each for each in ranks_of(os.getpid()) if each not in others]
        rank = next(each for each in reversed(processes) if "serving.rank" in _command(each))
        os.kill(rank, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(RuntimeFailure, match=rf"no answer within {seconds:g} s from rank"):
            session.run(None, {"ids": ids_of(1, 2)})
    assert time.monotonic() - began < seconds + 5
    assert gone(processes)


def test_a_delay_needs_batches(scorer: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"max_delay=0\.1: calls wait .+ where max_batch= says"
    ):
        InferenceSession(scorer, max_delay=0.1)


@pytest.mark.parametrize(
    ("name", "hint"), [("msh", "; did you mean mesh"), ("build", ""), ("max_dlay", ".+ max_delay")]
)
def test_arguments_that_are_not_there_are_those_of_the_session(
    scorer: Path, name: str, hint: str
) -> None:
    message = rf"^InferenceSession\(\) got an unexpected keyword argument '{name}'{hint}"
    with pytest.raises(TypeError, match=message):
        InferenceSession(scorer, **{name: 2})


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


OWNER = """
import sys, time
from autopar import InferenceSession

if __name__ == "__main__":
    session = InferenceSession(sys.argv[1], mesh=2)
    print("open", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's end")
def test_ranks_end_with_a_process_that_is_killed(scorer: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(scorer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        processes = ranks_of(owner.pid)
        owner.kill()
    assert len(processes) >= 3
    assert gone(processes)
