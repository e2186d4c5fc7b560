"""A script that runs a build three times, with pauses: `faulty.py BUILD FOLDER [--gate]`.

With `--gate` it begins when it is told to on its standard input, and says when it waits for that.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from autopar.base.errors import AutoparError
from autopar.runtime.execute.session import Session
from tests.runtime.failure.sabotage import FAULT

TIMEOUT = 5.0


def main(build: Path, folder: Path) -> int:
    """Returns the exit code; a failure is written to a file of the rank's own."""
    rank = -1
    if "--gate" in sys.argv:
        print("ready", flush=True)
        sys.stdin.readline()
    try:
        with Session(build, timeout=TIMEOUT, start_timeout=TIMEOUT) as session:
            rank = session.rank
            for _ in range(3):
                session.run({"x": torch.ones(2)})
                FAULT.at("between")
                time.sleep(0.2)
    except AutoparError as error:
        (folder / f"said{rank}").write_text(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
