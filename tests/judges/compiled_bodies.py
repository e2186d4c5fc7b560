"""Runs a program of one process through torch.compile, and counts what that is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autopar.compiled import CompiledModel
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.torch_compile import through_torch_compile
from autopar.runtime.execute.updates import InPlace
from tests.judges.tracking import arguments


def bodies_compiled(step: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns how many functions torch.compile is given; results must be those without it."""
    (program,) = step.deployment.programs
    concrete = specialize(program, step.deployment.coords_of(0))
    groups = {name: Group("", 1, 0, (0,), "gloo") for name in step.deployment.groups}
    seen: list[object] = []
    compile_one = torch.compile

    def counted(module: Any, **options: Any) -> Any:
        seen.append(module)
        return compile_one(module, **options)

    monkeypatch.setattr(torch, "compile", counted)
    module = emit(concrete, groups, "cpu", InPlace(None))
    results = []
    for run in (module.forward, through_torch_compile(module, whole=False)):
        with torch.no_grad():
            results.append(run(*arguments(concrete, {})))
    torch.testing.assert_close(*results)
    return len(seen)
