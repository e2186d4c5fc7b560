"""How torch's launcher is called to start the ranks of a build, and what it says of their end."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from autopar.base.arguments import Kind

BACKEND = Kind(
    lambda value: isinstance(value, str) and value in ("auto", "gloo", "nccl"),
    "'auto', 'gloo' or 'nccl'",
)

SHUTDOWN_SECONDS = 35.0
"""For how long an interrupted launcher may take to end its ranks; it gives them 30 s itself."""


def torchrun_command(ranks: int, folder: Path) -> list[str]:
    """Returns the command of torch's launcher, up to what each rank runs.

    Args:
        ranks: How many it starts on this host.
        folder: A folder of its own, in which their output is kept.
    """
    # The ranks' own output goes to files: with a failure every rank would print the launcher's
    # summary's worth of it. The launcher meets itself over a file, which unlike its store listens
    # nowhere, and the ranks meet on loopback, with keys that nobody can guess.
    meeting = folder / "rendezvous"
    return [
        *(sys.executable, "-m", "autopar.runtime.job.parent", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=0", "--local-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={meeting}"),
        f"--rdzv-id={secrets.token_hex(16)}",
        *("--redirects=3", f"--log-dir={folder / 'logs'}"),
    ]


def environment_of_ranks(threads: int) -> Mapping[str, str]:
    """Returns the environment of the launcher, for ranks that compute with so many threads."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        # The launcher's store is a file; rank 0 serves that of the ranks.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def what_happened(folder: Path, launcher_log: str) -> str:
    """Returns the message of the failure: the ranks' own, or what the launcher saw of them.

    Args:
        folder: That of the launcher, in which ranks write what they fail of to `rank0`.
        launcher_log: What it printed.
    """
    messages = {path.name: path.read_text() for path in sorted(folder.glob("rank*"))}
    for rank, message in messages.items():
        if message.startswith(f"{rank.replace('rank', 'rank ')} failed: "):
            return message
    if messages:
        message = next(iter(messages.values()))
        return message + _how_it_ended(message, folder, launcher_log)
    killed = re.search(r"exitcode: (-?\d+)\) local_rank: (\d+)", launcher_log)
    printed = [line for log in sorted(folder.glob("logs/**/stderr.log")) for line in _last(log)]
    if killed and killed[1].startswith("-"):
        return f"rank {killed[2]} was killed by signal {killed[1][1:]}"
    lines = printed or launcher_log.strip().splitlines()
    if not lines:
        return "the ranks ended without a message, as if their launcher had been killed"
    return f"the ranks ended without a message; the last line was: {lines[-1]}"


def _how_it_ended(message: str, folder: Path, launcher_log: str) -> str:
    """Returns what is known of a rank that others say ended without a word; "" if nothing is."""
    silent = re.match(r"rank (\d+) failed: it ended without a word", message)
    if silent is None:
        return ""
    rank = silent[1]
    code = re.search(rf"rank +: {rank} \(local_rank: \d+\)\n +exitcode +: (-?\d+)", launcher_log)
    ended = f"; its exit code was {code[1]}" if code else ""
    printed = [line for log in folder.glob(f"logs/**/{rank}/stderr.log") for line in _last(log)]
    return ended + "".join(f"; the last line it printed was: {line}" for line in printed)


def _last(log: Path) -> list[str]:
    return log.read_text(errors="replace").strip().splitlines()[-1:]
