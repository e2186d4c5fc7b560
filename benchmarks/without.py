"""Takes away what looks double in search and in predictions of memory, and prints what that costs.

    python benchmarks/without.py search gpt2 mlp gpt2-4    rows of `search.py`
    PYTHONPATH=. python benchmarks/without.py reshards     150 reshards on 8x8x4, planned
    PYTHONPATH=. python benchmarks/without.py memory       a step of small models, on the CPU

Of searches: CPU seconds, predicted seconds of the plan, and how far the bound leaves it open. Of
memory: the measured peak, and what of it each prediction is off; nothing is printed where it isn't.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

from autopar.completion.search.bounds.proving import Proving
from autopar.completion.search.network.transfer import Transfers
from autopar.cost.memory import kernel_results, lifetimes
from autopar.cost.reshard import moves
from autopar.cost.reshard.bound import Bound
from autopar.cost.reshard.planner import ReshardPlanner

Without = Callable[[], AbstractContextManager[Any]]
"""Takes something away for a while."""


def _one_by_one(planner: ReshardPlanner, sources: Any, targets: Any, itemsize: int) -> Any:
    least = planner.least_seconds
    return np.array([[least(one, other, itemsize) for other in targets] for one in sources])


def _bounds_instead(tables: Transfers, source: Any, target: Any, of: Any) -> Any:
    rows, columns = ([form.layout for form in ends.forms] for ends in (source, target))
    return np.array(tables.space.planner.least_seconds_between(rows, columns, of.itemsize))


IN_SEARCH: Mapping[str, Without] = {
    "nothing": nullcontext,
    "the proof": lambda: patch.object(Proving, "_prove", lambda *_, **__: None),
    "relaxed": lambda: patch.object(moves, "MOST_AXES", -1),
    "bound": lambda: patch.object(Bound, "of_shared", lambda *_: 0.0),
    "least": lambda: patch.object(ReshardPlanner, "least_seconds_between", _one_by_one),
    "bulk": lambda: patch.object(Transfers, "_table", _bounds_instead),
}
"""What a search does without. Without `bulk`, models are made of bounds."""


IN_MEMORY: Mapping[str, Without] = {
    "nothing": nullcontext,
    "drawing": lambda: patch.object(lifetimes, "DRAWINGS", {}),
    "recurrent_memory": lambda: patch.object(kernel_results, "TAKEN", {}),
    "copies for dense kernels": lambda: patch.object(kernel_results, "_copied_bytes", lambda *_: 0),
    "results like operands": lambda: patch.object(kernel_results, "LIKE_OPERANDS", frozenset()),
    "results in an order": lambda: patch.object(kernel_results, "LAID_OUT", {}),
    "losses in terms": lambda: patch.object(kernel_results, "IN_TERMS", frozenset()),
}
"""What a prediction does without."""


DROPOUT = "dropout"
"""Attention with dropout, whose masks are most of what there is."""


def searched(name: str) -> Iterator[str]:
    """Yields what a search takes and finds, without each part."""
    from search import captured

    program = captured(name)
    for part in IN_SEARCH:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            yield f"{name} without {part}: {pool.apply(_search, (name, program, part))}"


def _search(name: str, program: Any, part: str) -> str:
    from search_rows import ROWS

    from autopar.annotate import apply_mesh, parse_mesh
    from autopar.completion import Complete
    from autopar.completion.search.watch import Watch
    from autopar.cost import Cluster

    row, start = ROWS[name], time.process_time()
    with IN_SEARCH[part]():
        complete = Complete(Cluster.load(row.cluster), "auto", watch=Watch(effort=1.0))
        forecast = complete.plan(apply_mesh(program, parse_mesh(row.mesh))).forecast
    taken = time.process_time() - start
    assert forecast is not None
    gap = 1 - (forecast.bound_seconds or 0.0) / forecast.seconds
    return f"{taken:.1f} CPU s, {forecast.seconds:.6e} s, open {gap:.2%}"


def planned() -> Iterator[str]:
    """Yields what it takes to plan reshards, without each bound."""
    from autopar.cost import Cluster, CommunicationModel
    from autopar.ir.mesh import ProcessMesh

    mesh = ProcessMesh.of_shape((8, 8, 4))
    model = CommunicationModel(Cluster.load("h100"), mesh)
    simulate: Any = importlib.import_module("tests.partition.simulate")
    chance, known = random.Random(1), simulate.layouts(mesh, (1024, 4096), ("sum",))
    pairs = [(chance.choice(known), chance.choice(known)) for _ in range(150)]
    for part in ("nothing", "relaxed", "bound"):
        with IN_SEARCH[part]():
            planner, start = ReshardPlanner(model), time.process_time()
            seconds = sum(planner.plan(one, other, 4).seconds for one, other in pairs)
            yield f"without {part}: {time.process_time() - start:.1f} CPU s, {seconds:.6e} s"


def predicted(names: Sequence[str]) -> Iterator[str]:
    """Yields by how much predicted peaks are off, without each part."""
    from autopar.cost import memory_timeline

    measured: Any = importlib.import_module("tests.cost.memory.test_measured_memory")
    for name in names or (*measured.MODELS, DROPOUT):
        step = measured.trained(
            _dropping(measured) if name == DROPOUT else measured.example_of(name)
        )
        peak = measured.executed(step.program, step.weights).peak_bytes
        found = {}
        for part, without in IN_MEMORY.items():
            kernel_results.effect.cache_clear()
            with without():
                found[part] = memory_timeline(step.program).peak_bytes / peak - 1
        kernel_results.effect.cache_clear()
        off = [f"without {part} {error:+.2%}" for part, error in found.items() if error]
        yield f"{name}: {peak:,} B{''.join(f', {each}' for each in off)}"


def _dropping(measured: Any) -> Any:
    import torch

    x = torch.zeros(300, 8, 12)
    dropping = measured.Dropping(torch.float32)
    return measured.Example(dropping, lambda _: (x, x), torch.nn.functional.mse_loss)


def main() -> int:
    """Prints a line per measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["search", "reshards", "memory"])
    parser.add_argument("names", nargs="*", help="of rows of search.py, or of models")
    options = parser.parse_args()
    lines: Iterator[str]
    match options.what:
        case "search":
            lines = (line for name in options.names for line in searched(name))
        case "reshards":
            lines = planned()
        case _:
            lines = predicted(options.names)
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
