"""What `same_builds.py` compiles, and the process that does it with one checkout of autopar.

Started by `same_builds.py` alone, which puts the checkout on the path and writes names of cases to
standard input, all of one model. A line of JSON per case is the answer.

How autopar is called stands in `_compiled`, `_inspected`, `_predicted` and `_phases`: what changes
of that between two checkouts is told apart there.
"""

from __future__ import annotations

import fnmatch
import gc
import gzip
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).parent.parent

MESHES = ("2x4", "3x2", "2x2x2")
PRESETS: Mapping[str, str] = {
    **{
        preset: preset
        for preset in ("data", "fsdp", "zero1", "zero2", "tensor", "context", "expert", "replicate")
    },
    "sequence": "tensor,sequence",
    "fsdp+tensor": "fsdp:0,tensor",
    "data+tensor": "data:0,tensor",
}
"""Strategies by what cases call them. A preset without an axis works along all that are left."""

AUTO = "auto"
ZOO = (
    *("gpt2", "llama", "qwen2", "bert", "vit", "t5", "mixtral", "whisper", "transformer"),
    "resnet",
)
EXPERTS = ("mixtral",)
ONNX = ("minilm", "minilm_int8", "magika", "ocr_det", "ocr_rec", "ocr_cls", "silero_vad")
ONNX_PRESETS = ("data", "tensor", "fsdp")
LIMITS = {"gpt2": "64MiB", "mixtral": "64MiB", "resnet": "16MiB"}
"""What a device may hold, of the models that are searched within memory too."""

MANIFEST = "manifest.pb"
SUMMARY = "summary"
"""What the build's summary is called among the texts of files."""


@dataclass(frozen=True)
class Case:
    """Something to compile.

    Attributes:
        family: `zoo`, training steps of small models, or `onnx`, real ones.
        model: Its name.
        mesh: What it is compiled for.
        strategy: A key of `PRESETS`, or `AUTO`.
        memory: What a device may hold, as text; "" for any number.
    """

    family: str
    model: str
    mesh: str
    strategy: str
    memory: str = ""

    @property
    def name(self) -> str:
        """What it is called: `zoo/gpt2/2x4/fsdp+tensor`, `zoo/gpt2/2x4/auto@64MiB`."""
        limit = f"@{self.memory}" if self.memory else ""
        return f"{self.family}/{self.model}/{self.mesh}/{self.strategy}{limit}"

    @property
    def kind(self) -> str:
        """Among which cases it is counted."""
        return f"{self.family}, {'searched' if self.is_searched else 'presets'}"

    @property
    def is_searched(self) -> bool:
        """Whether a plan is searched for."""
        return self.strategy == AUTO

    @property
    def spelled(self) -> str:
        """The strategy as the compiler takes it."""
        return AUTO if self.is_searched else PRESETS[self.strategy]


def cases(only: str = "") -> list[Case]:
    """Returns the matrix.

    Args:
        only: A pattern of which a part of the name is to fit.
    """
    return [case for case in _matrix() if fnmatch.fnmatchcase(case.name, f"*{only}*")]


def _matrix() -> Iterator[Case]:
    for model in ZOO:
        for mesh in MESHES:
            # What is whole, or refused, is so on every mesh.
            left_out = () if mesh == MESHES[0] else _alike_on_every_mesh(model)
            chosen = [preset for preset in PRESETS if preset not in left_out]
            yield from (Case("zoo", model, mesh, preset) for preset in chosen)
    for model in ZOO:
        yield from (Case("zoo", model, mesh, AUTO) for mesh in MESHES)
        if model in LIMITS:
            yield Case("zoo", model, MESHES[0], AUTO, LIMITS[model])
    for model in ONNX:
        for mesh in MESHES:
            yield from (Case("onnx", model, mesh, each) for each in (*ONNX_PRESETS, AUTO))


def _alike_on_every_mesh(model: str) -> tuple[str, ...]:
    """Returns the presets of which one mesh is enough."""
    return ("replicate",) if model in EXPERTS else ("replicate", "expert")


@dataclass(frozen=True)
class TrainingStep:
    """A model of a zoo, to be trained with AdamW.

    Attributes:
        model: The model.
        batch: What it is trained on.
        loss: What its output is compared with the target by; None if the model does it.
    """

    model: Any
    batch: Any
    loss: Any

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What a step does besides forward and backward."""
        import torch

        return {"loss": self.loss, "optimizer": torch.optim.AdamW(self.model.parameters())}


@dataclass(frozen=True)
class OnnxFile:
    """A real model.

    Attributes:
        path: The file.
        dims, input_shapes: The sizes that it leaves open.
    """

    path: Path
    dims: Mapping[str, int]
    input_shapes: Mapping[str, Sequence[int]]


Source = TrainingStep | OnnxFile


def source_of(case: Case) -> Source:
    """Returns the model of a case.

    Presets split sizes that don't divide, of the models that tests train. Searches get larger ones,
    where splitting pays, without contents.
    """
    import torch

    if case.family == "onnx":
        models = _loaded("tests/given/models.py")
        inputs = models.model_inputs(case.model)
        return OnnxFile(models.model_path(case.model), inputs.dims, inputs.input_shapes)
    if case.is_searched:
        example = _loaded("benchmarks/zoo_models.py").examples()[case.model]
        with torch.device("meta"):
            return TrainingStep(example.model, example.batch, example.loss)
    example = _loaded("tests/zoo/models.py").ZOO[case.model]()
    return TrainingStep(example.model, example.batch(0), example.loss)


def _loaded(path: str) -> ModuleType:
    """Returns a module under its path in this checkout.

    Programs name the lines that they come from: so they name the same, wherever this checkout lies.
    """
    module = ModuleType(f"same_builds_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(compile((ROOT / path).read_text(), path, "exec"), module.__dict__)
    return module


def _compiled(case: Case, source: Source, build: Path) -> dict[str, float]:
    """Writes a build; returns the CPU seconds of that."""
    import autopar

    options: dict[str, Any] = {"mesh": case.mesh, "strategy": case.spelled}
    if case.memory:
        options["memory"] = case.memory
    start = time.process_time()
    if isinstance(source, OnnxFile):
        options |= {"dims": source.dims, "input_shapes": source.input_shapes}
        autopar.compile_onnx(source.path, build, **options)
        return {"compile": time.process_time() - start}
    compiled = autopar.compile(source.model, source.batch, **source.recipe, **options)
    compiled_at = time.process_time()
    compiled.save(build)
    return {"compile": compiled_at - start, "save": time.process_time() - compiled_at}


def _inspected(path: Path, *words: str) -> str:
    """Returns what `autopar inspect` prints."""
    from autopar.cli import main

    shown = StringIO()
    with redirect_stdout(shown):
        main(["inspect", str(path), *words], prog_name="autopar", standalone_mode=False)
    return shown.getvalue()


def _predicted(build: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a step takes by prediction, what no plan can take less than, and the words.

    The bound is None where the report names none.
    """
    import autopar

    seconds = autopar.profile(build).serialized_seconds
    said = [entry["detail"] for entry in summary["report"] if entry["category"] == "search"]
    slowdown = _slowdown("; ".join(said))
    return {"seconds": seconds, "bound": slowdown and seconds / slowdown, "said": said}


def _slowdown(said: str) -> float | None:
    """Returns how many times what the fastest plan takes a plan takes at most, as reported."""
    if re.search(r"no plan (that fits )?is faster", said):
        return 1.0
    if found := re.search(r"at most ([\d.e+-]+)% slower than the fastest", said):
        return 1 + float(found[1]) / 100
    found = re.search(r"at most ([\d.e+-]+) times as slow as the fastest", said)
    return float(found[1]) if found else None


def _phases(case: Case, source: Source) -> dict[str, float]:
    """Returns the CPU seconds of capture, of completion and of the other passes."""
    from autopar.frontend.onnx import import_onnx
    from autopar.frontend.torch import Recipe, capture
    from autopar.pipeline import CompileOptions, compile_program

    at = {"": time.process_time()}

    def passed(name: str, _: object = None) -> None:
        at[name] = time.process_time()

    if isinstance(source, OnnxFile):
        program = import_onnx(
            source.path, dims=source.dims, input_shapes=source.input_shapes
        ).program
    else:
        program = capture(source.model, source.batch, Recipe(**source.recipe)).program
    passed("capture")
    options = CompileOptions.from_text(mesh=case.mesh, strategy=case.spelled, verify=False)
    compile_program(program, options, passed)
    passed("end")
    return {
        "capture": at["capture"] - at[""],
        "search": at["complete"] - at["annotate"],
        "rest": at["end"] - at["complete"] + at["annotate"] - at["capture"],
    }


def recorded(case: Case, source: Source, texts: Path) -> dict[str, Any]:
    """Returns what becomes of a case.

    Args:
        case: The case.
        source: Its model.
        texts: The folder that gets the text forms, by their digests.
    """
    from autopar import AutoparError

    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        try:
            seconds = _compiled(case, source, build)
        except AutoparError as error:
            return {"refused": f"{type(error).__name__}: {error}"}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        files = {str(path.relative_to(build)): path for path in _files(build)}
        shown = {name: _text(path) for name, path in files.items() if name != MANIFEST}
        summary = _inspected(build, "--format", "json")
        shown[SUMMARY] = summary
        found: dict[str, Any] = {
            "files": {name: _digest(path.read_bytes()) for name, path in files.items()},
            "manifest": _digest(_unversioned(files[MANIFEST]).encode()),
            "texts": {name: _kept(text, texts) for name, text in shown.items() if text},
            "cpu_seconds": {name: round(taken, 3) for name, taken in seconds.items()},
        }
        if case.is_searched:
            found["predicted"] = _predicted(build, json.loads(summary))
        return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _text(path: Path) -> str:
    """Returns the text form of a file of a build; "" if it has none."""
    if path.suffix == ".pb":
        return _inspected(path)
    return path.read_text() if path.suffix == ".yaml" else ""


def _unversioned(manifest: Path) -> str:
    """Returns what a manifest says, but for the version of its maker."""
    content = json.loads(_inspected(manifest, "--format", "json"))
    return json.dumps({key: value for key, value in content.items() if "version" not in key})


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _kept(text: str, folder: Path) -> str:
    """Writes a text under its digest, unless it is there, and returns that."""
    digest = _digest(text.encode())
    path = folder / f"{digest}.gz"
    if not path.exists():
        # Other processes may write the same one.
        unfinished = folder / f"{digest}.{os.getpid()}"
        unfinished.write_bytes(gzip.compress(text.encode(), mtime=0))
        unfinished.replace(path)
    return digest


def warm_up(case: Case, source: Source) -> None:
    """Compiles a model for another mesh, so that what is done once per process is done."""
    from autopar import AutoparError

    with suppress(AutoparError):
        _phases(Case(case.family, case.model, "2", "data"), source)
    gc.collect()
    gc.freeze()


def timed(case: Case, source: Source) -> dict[str, Any]:
    """Returns the CPU seconds of a case, measured in a process of its own, forked from this one."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, case, source))
    process.start()
    sender.close()
    found: dict[str, Any] = receiver.recv()
    process.join()
    return found


def _send(sender: Connection, case: Case, source: Source) -> None:
    from autopar import AutoparError

    try:
        sender.send(_phases(case, source))
    except AutoparError as error:
        sender.send({"refused": str(error)})


def answers(doing: str, named: Iterable[str], texts: Path) -> Iterator[dict[str, Any]]:
    """Yields the answer to each case that is named, all of one model, when it is."""
    known = {case.name: case for case in cases()}
    source: Source | None = None
    for case in (known[name.strip()] for name in named):
        if source is None:
            source = source_of(case)
            if doing == "time":
                warm_up(case, source)
        found = timed(case, source) if doing == "time" else recorded(case, source, texts)
        yield {"name": case.name, **found}


def serve(output: IO[str]) -> None:
    """Answers what was asked."""
    import autopar

    doing, checkout, texts = sys.argv[1:]
    assert autopar.__file__ is not None
    if not Path(autopar.__file__).is_relative_to(checkout):
        raise SystemExit(f"{autopar.__file__} isn't of {checkout}: there is no autopar there")
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for answer in answers(doing, sys.stdin, Path(texts)):
        print(json.dumps(answer), file=output, flush=True)


if __name__ == "__main__":
    # What libraries print isn't an answer.
    answered, sys.stdout = sys.stdout, sys.stderr
    serve(answered)
