"""Sessions for ordinary scripts: a model that answers calls, on as many processes as a mesh has.

    with autopar.InferenceSession("model.onnx", mesh="2x4") as session:
        (logits,) = session.run(None, {"ids": ids})

It starts its ranks, keeps them until it is closed, and has the interface of ONNX Runtime's.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from autopar.base.arguments import Kind, expect
from autopar.base.errors import InvalidInputError, near_misses
from autopar.compiled import CompiledModel
from autopar.onnx_models import compile_onnx
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, DEFAULT_TIMEOUT
from autopar.runtime.serving.session import BuildSession

_MODEL = Kind(
    lambda value: isinstance(value, (str, Path, CompiledModel)),
    "an ONNX file, a build folder, or what autopar.compile returns",
)


class InferenceSession(BuildSession):
    """Runs a model as often as it is called, from any thread. A context manager.

    Its ranks are processes of its own on this host; that of a build for one process, and a virtual
    mesh, are within this process.

    Args:
        model: An ONNX file, which is compiled first; or a build folder, or a compiled model.
        mesh: The processes for which an ONNX file is compiled, as by `compile_onnx`; by default
            one. Leave it out for what is compiled already.
        virtual: Whether all ranks run in this process.
        backend: `gloo` (on the CPU), `nccl` (on GPUs), or `auto`: what the build is for.
        torch_compile: Whether to run the programs through `torch.compile`.
        timeout: Seconds that a call may take, and each collective wait for other ranks.
        start_timeout: Seconds that the start may take.
        threads: Threads that each process computes with.
        modules: Modules that each process imports first: they register ops of other libraries.
        max_batch: Up to how many rows of calls that are waiting are run together, where they differ
            in nothing but their number of rows; by default each call runs by itself. It is refused
            where a row of the outputs depends on other rows of the inputs than its own.
        max_delay: Seconds that a call waits for others to be run with; needs `max_batch`.
        compiling: What else `compile_onnx` takes, for an ONNX file.

    Raises:
        AutoparError: If the model can't be compiled, or the build can't be opened.
        RuntimeFailure: If a rank can't be started.
        TypeError: If there is no such argument.
    """

    def __init__(
        self,
        model: str | Path | CompiledModel,
        *,
        mesh: Any = None,
        virtual: bool = False,
        backend: str = "auto",
        torch_compile: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        start_timeout: float = DEFAULT_START_TIMEOUT,
        threads: int = 1,
        modules: Sequence[str] = (),
        max_batch: int | None = None,
        max_delay: float = 0.0,
        **compiling: Any,
    ) -> None:
        expect(_MODEL, model=model)
        _check_names(compiling)
        if mesh is not None:
            compiling["mesh"] = mesh
        self._held = ExitStack()
        with ExitStack() as unless_opened:
            unless_opened.callback(self._held.close)
            super().__init__(
                self._built(model, compiling),
                virtual=virtual,
                backend=backend,
                torch_compile=torch_compile,
                timeout=timeout,
                start_timeout=start_timeout,
                threads=threads,
                modules=modules,
                max_batch=max_batch,
                max_delay=max_delay,
            )
            unless_opened.pop_all()

    def close(self) -> None:
        """Ends the session and its ranks, when what they are doing is done.

        Calls that are waiting raise a RuntimeFailure. In a process that was forked off, it does
        nothing.
        """
        super().close()
        if not self.is_elsewhere():
            self._held.close()

    def _built(self, model: str | Path | CompiledModel, compiling: dict[str, Any]) -> Path:
        """Returns the folder of a build, which is made if there is none."""
        if not isinstance(model, CompiledModel) and Path(model).suffix == ".onnx":
            build = self._folder()
            if not compiling.keys() & {"mesh", "devices"}:
                compiling["mesh"] = 1
            compile_onnx(model, build, **compiling)
            return build
        if compiling:
            given = ", ".join(f"{name}=" for name in compiling)
            raise InvalidInputError(f"{given}: only an ONNX file is compiled by the session")
        if isinstance(model, CompiledModel):
            build = self._folder()
            model.save(build)
            return build
        return Path(model)

    def _folder(self) -> Path:
        # A TemporaryDirectory would be removed by processes that are forked off, too.
        folder = tempfile.mkdtemp(prefix="autopar-session-")
        self._held.callback(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / "build"


def _check_names(compiling: Iterable[str]) -> None:
    """Refuses names of arguments that neither the session nor `compile_onnx` has."""
    own = inspect.signature(InferenceSession).parameters.values()
    named = [each.name for each in own if each.kind is not each.VAR_KEYWORD]
    others = inspect.signature(compile_onnx).parameters.keys() - {"model", "build"}
    for name in compiling:
        if name not in others:
            hint = near_misses(name, [*named, *sorted(others.difference(named))])
            raise TypeError(f"InferenceSession() got an unexpected keyword argument {name!r}{hint}")
