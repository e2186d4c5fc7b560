"""Judges autopar by PyTorch's operator database.

python -m tests.op_database                        all of it
python -m tests.op_database --only 'nn.functional.*' --meshes 2 2x3
python -m tests.op_database --shard 0/8 --jobs 2
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tests.op_database.judge import MESHES, OUTCOMES
from tests.op_database.selection import all_opinfos, name_of
from tests.op_database.suite import Record, records_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the judge; returns 1 if anything is wrong."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    names = [name_of(each) for each in all_opinfos()]
    chosen = [name for name in names if fnmatch.fnmatch(name, options.only)]
    at, count = (int(part) for part in options.shard.split("/"))
    meshes = [tuple(map(int, text.split("x"))) for text in options.meshes]
    records = list(_run(chosen[at::count], meshes, options.jobs))
    if options.records:
        options.records.write_bytes(pickle.dumps(records))
    print(table(records, names))
    for record in records:
        if record.verdict.outcome in ("wrong", "error"):
            print(record)
    return any(record.verdict.outcome in ("wrong", "error") for record in records)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.op_database", description=__doc__)
    parser.add_argument("--only", default="*", help="glob of OpInfos")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th OpInfo, from the i-th on")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--meshes", nargs="*", default=["x".join(map(str, m)) for m in MESHES])
    parser.add_argument("--records", type=Path, help="where to write all records")
    return parser


def _run(names: Sequence[str], meshes: Sequence[tuple[int, ...]], jobs: int) -> Iterator[Record]:
    work = [(name, meshes) for name in names]
    if jobs == 1:
        for item in work:
            yield from _judge(item)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for records in pool.imap(_judge, work, chunksize=4):
            yield from records


def _judge(item: tuple[str, Sequence[tuple[int, ...]]]) -> list[Record]:
    name, meshes = item
    (opinfo,) = (each for each in all_opinfos() if name_of(each) == name)
    return list(records_of(opinfo, meshes))


def table(records: Sequence[Record], names: Sequence[str]) -> str:
    counts = Counter((r.direction, r.mesh, r.verdict.outcome) for r in records)
    rows = sorted({(direction, mesh) for direction, mesh, _ in counts})
    lines = [f"{'':20s}" + "".join(f"{outcome:>10s}" for outcome in OUTCOMES)]
    for direction, mesh in rows:
        cells = [counts[direction, mesh, outcome] for outcome in OUTCOMES]
        label = f"{direction} {'x'.join(map(str, mesh)) or '-'}"
        lines.append(f"{label:20s}" + "".join(f"{cell:10d}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
