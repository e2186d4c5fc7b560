"""Steps of which it is known how they end, and what the judges say of them.

python -m tests.mutations.judged prints that, by name: in a process of its own, as it forks.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from random import Random

from autopar.base.errors import InvalidInputError
from tests.mutations import isolated
from tests.mutations.isolated import carry_out_all
from tests.mutations.target import Case, Step, Target, shown


def crash() -> None:
    """Ends as native code does that goes astray."""
    os.kill(os.getpid(), signal.SIGSEGV)


def spin() -> None:
    """Never ends, and is busy."""
    while True:
        pass


def wait() -> None:
    """Never ends, and does nothing."""
    signal.pause()


def fail() -> None:
    """Raises what nobody foresaw."""
    raise KeyError("x")


def refuse() -> None:
    """Refuses as it should be."""
    raise InvalidInputError("no such thing")


def refuse_in_silence() -> None:
    """Refuses, and doesn't say so."""
    raise SystemExit(1)


def ask_for_memory() -> None:
    """Asks for more than there is."""
    bytearray(isolated.MEMORY + (64 << 20))


def leave_a_file() -> None:
    """Refuses, and leaves something half-written."""
    Path("half").write_text("")
    raise InvalidInputError("no room")


def leave_a_temporary_file() -> None:
    """Succeeds, and leaves a file that nobody looks for."""
    Path(os.environ["TMPDIR"], "autopar-1").write_text("")


STEPS: tuple[Step, ...] = (
    *(crash, spin, wait, fail, refuse, refuse_in_silence),
    *(ask_for_memory, leave_a_file, leave_a_temporary_file),
    *(["compile", "--mesh"], ["--version"]),
)


def _mutate(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    del prepared, folder, chance
    return f"nothing, {'with' if structure else 'without'} knowledge of the structure"


def _case(step: Step) -> Case:
    return Case(Target("known", 1, lambda _: None, _mutate, lambda _: (step,)), 0)


def _failures(step: Step, folder: Path) -> list[str]:
    isolated.PATIENCE = 3 if step is wait else 30
    (outcome,) = carry_out_all([_case(step)], folder)
    return list(outcome.failures)


def main() -> None:
    """Prints what is wrong with each step."""
    isolated.SECONDS = 1
    with tempfile.TemporaryDirectory() as folder:
        failures = {shown(step): _failures(step, Path(folder)) for step in STEPS}
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
