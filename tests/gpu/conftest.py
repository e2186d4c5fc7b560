"""One table of what was found on the device, at the end of the run."""

from __future__ import annotations

import os

import pytest
import torch

from tests.gpu.places import Note

# Before CUDA begins: matrix products add up alike in every run only with workspaces of this size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

ROWS = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Takes a figure and what it is measured by, for the table."""
    rows = request.config.stash.setdefault(ROWS, [])
    return lambda found, allowed: rows.append((request.node.name, found, allowed))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the table, if anything is in it. Workers of xdist keep theirs to themselves."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    there = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if there else "a CPU: no GPU is found here"
    terminalreporter.section(f"on {device}, torch {torch.__version__}")
    width = max(len(name) for name, *_ in rows)
    for name, found, allowed in rows:
        terminalreporter.write_line(f"{name:{width}}  {found:>22}  {allowed}")
    skipped = {report.nodeid for report in terminalreporter.stats.get("skipped", [])}
    terminalreporter.write_line(f"{len(skipped)} not run, for lack of a GPU" if skipped else "")
