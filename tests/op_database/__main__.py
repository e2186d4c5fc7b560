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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from tests.op_database.judge import MESHES
from tests.op_database.selection import opinfos
from tests.op_database.suite import Record, records_of
from tests.op_database.tally import failed, render


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the judge; returns 1 if anything is wrong."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    chosen = [name for name in opinfos() if fnmatch.fnmatch(name, options.only)]
    at, count = (int(part) for part in options.shard.split("/"))
    meshes = [tuple(map(int, text.split("x"))) for text in options.meshes]
    records = list(_run(chosen[at::count], meshes, options.jobs))
    if options.records:
        options.records.write_bytes(pickle.dumps(records))
    print(render(records, chosen[at::count]))
    return int(bool(failed(records)))


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
    # Forked, so that nobody imports torch and the database again.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, context) as pool:
        for records in pool.map(_judge, work, chunksize=4):
            yield from records


def _judge(item: tuple[str, Sequence[tuple[int, ...]]]) -> list[Record]:
    name, meshes = item
    return list(records_of(opinfos()[name], meshes))


if __name__ == "__main__":
    sys.exit(main())
