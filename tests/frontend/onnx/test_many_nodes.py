"""Graphs of more nodes than Python's stack has calls are imported, whatever their shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.frontend.onnx import import_onnx
from tests.frontend.onnx.graphs import save
from tests.frontend.onnx.many_nodes import MAKERS


@pytest.mark.parametrize("name", MAKERS)
def test_many(tmp_path: Path, name: str) -> None:
    imported = import_onnx(save(tmp_path, MAKERS[name](1200)))
    assert len(imported.program.main.ops) >= 1200
