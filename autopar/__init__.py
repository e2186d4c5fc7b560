"""autopar compiles a model written for one device into one program per rank, and runs them.

    import autopar

    autopar.compile_onnx("model.onnx", "build/", mesh="dp=2,tp=4", dims={"batch": 8})
    outputs = autopar.runtime.run("build/", {"ids": ids})

Names are imported when they are used, so that importing autopar costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autopar.version import __version__

if TYPE_CHECKING:
    from autopar import annotate, elastic, runtime
    from autopar.analysis.explanation import explain
    from autopar.analysis.plan_file import plan_of, save_plan
    from autopar.analysis.profiling import Profile, profile
    from autopar.analysis.reports.comparison import diff
    from autopar.base.errors import AutoparError
    from autopar.calibration import calibrate
    from autopar.compiled import CompiledModel
    from autopar.cost import Cluster
    from autopar.generation import generate, stream
    from autopar.ir.mesh import ProcessMesh
    from autopar.modules import compile
    from autopar.onnx_models import compile_onnx
    from autopar.parallel import ParallelModule, parallelize
    from autopar.runtime import load
    from autopar.serving import InferenceSession

_HOMES = {
    "AutoparError": "autopar.base.errors",
    "Cluster": "autopar.cost",
    "InferenceSession": "autopar.serving",
    "Profile": "autopar.analysis.profiling",
    "profile": "autopar.analysis.profiling",
    "CompiledModel": "autopar.compiled",
    "ParallelModule": "autopar.parallel",
    "ProcessMesh": "autopar.ir.mesh",
    "calibrate": "autopar.calibration",
    "compile": "autopar.modules",
    "compile_onnx": "autopar.onnx_models",
    "diff": "autopar.analysis.reports.comparison",
    "explain": "autopar.analysis.explanation",
    "generate": "autopar.generation",
    "load": "autopar.runtime",
    "parallelize": "autopar.parallel",
    "plan_of": "autopar.analysis.plan_file",
    "save_plan": "autopar.analysis.plan_file",
    "stream": "autopar.generation",
}

__all__ = [
    "AutoparError",
    "Cluster",
    "CompiledModel",
    "InferenceSession",
    "ParallelModule",
    "ProcessMesh",
    "Profile",
    "__version__",
    "annotate",
    "calibrate",
    "compile",
    "compile_onnx",
    "diff",
    "elastic",
    "explain",
    "generate",
    "load",
    "parallelize",
    "plan_of",
    "profile",
    "runtime",
    "save_plan",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name in ("annotate", "elastic", "runtime"):
        return import_module(f"autopar.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'autopar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
