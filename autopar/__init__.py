"""autopar compiles a model written for one device into one program per rank, and runs them.

    import autopar

    autopar.compile_onnx("model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8})
    outputs = autopar.runtime.launch("build/", {"ids": ids})

Names are imported when they are used, so that importing autopar costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar import annotate, elastic, runtime
    from autopar.calibration import calibrate
    from autopar.cost import Cluster
    from autopar.explanation import explain
    from autopar.ir.errors import AutoparError
    from autopar.ir.mesh import ProcessMesh
    from autopar.modules import CompiledModule, compile
    from autopar.parallel import ParallelModule, parallelize
    from autopar.pipeline import Compiled, compile_onnx
    from autopar.planning.plans import plan_of, save_plan
    from autopar.profiling import Profile, profile
    from autopar.reports.comparison import diff
    from autopar.runtime import load

__version__ = "0.1.0"

_HOMES = {
    "AutoparError": "autopar.ir.errors",
    "Cluster": "autopar.cost",
    "Compiled": "autopar.pipeline",
    "Profile": "autopar.profiling",
    "profile": "autopar.profiling",
    "CompiledModule": "autopar.modules",
    "ParallelModule": "autopar.parallel",
    "ProcessMesh": "autopar.ir.mesh",
    "calibrate": "autopar.calibration",
    "compile": "autopar.modules",
    "compile_onnx": "autopar.pipeline",
    "diff": "autopar.reports.comparison",
    "explain": "autopar.explanation",
    "load": "autopar.runtime",
    "parallelize": "autopar.parallel",
    "plan_of": "autopar.planning.plans",
    "save_plan": "autopar.planning.plans",
}

__all__ = [
    "AutoparError",
    "Cluster",
    "Compiled",
    "CompiledModule",
    "ParallelModule",
    "ProcessMesh",
    "Profile",
    "annotate",
    "calibrate",
    "compile",
    "compile_onnx",
    "diff",
    "elastic",
    "explain",
    "load",
    "parallelize",
    "plan_of",
    "profile",
    "runtime",
    "save_plan",
]


def __getattr__(name: str) -> Any:
    if name in ("annotate", "elastic", "runtime"):
        return import_module(f"autopar.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'autopar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
