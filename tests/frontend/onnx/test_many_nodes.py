"""Graphs of more nodes than Python's stack has calls are imported, whatever their shape."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.frontend.onnx import import_onnx
from tests.frontend.onnx.graphs import save
from tests.frontend.onnx.many_nodes import MAKERS, chain

OPS = {"branches": 600, "constants": 600, "functions": 600}
"""How many ops 1200 nodes, or what their branches and functions unfold to, are at least."""


@pytest.mark.parametrize("name", MAKERS)
def test_many(tmp_path: Path, name: str) -> None:
    imported = import_onnx(save(tmp_path, MAKERS[name](1200)))
    assert len(imported.program.main.ops) >= OPS.get(name, 1200)


@pytest.mark.parametrize("name", MAKERS)
def test_twice_the_nodes_take_twice_the_work(tmp_path: Path, name: str) -> None:
    # What is called once in a process is called before.
    import_onnx(save(tmp_path, MAKERS[name](100)))
    few, more, most = (calls_of_import(tmp_path, name, count) for count in (100, 200, 400))
    assert most - more <= 2.1 * (more - few)


def calls_of_import(folder: Path, name: str, nodes: int) -> int:
    """How many Python functions an import calls: the same whatever else the machine does."""
    path = save(folder, MAKERS[name](nodes))
    count = 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        import_onnx(path)
    finally:
        sys.setprofile(before)
    return count


def test_each_op_is_run_on_fake_tensors_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[object] = []
    dispatch = FakeTensorMode.dispatch

    def counted(mode: FakeTensorMode, func: Any, *rest: Any, **named: Any) -> object:
        run.append(func)
        return dispatch(mode, func, *rest, **named)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counted)
    imported = import_onnx(save(tmp_path, chain(50)))
    assert sum(str(func).startswith("aten.add") for func in run) == 50
    assert len(run) <= len(imported.program.main.ops) + len(imported.program.main.inputs)
