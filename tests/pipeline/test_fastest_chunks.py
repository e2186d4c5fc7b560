"""What is said of chunks that a limit of memory has chosen."""

from __future__ import annotations

from typing import cast

import pytest

from autopar.annotate import ChunkPin, parse_mesh
from autopar.cost import Cluster
from autopar.pipeline import CompileOptions
from autopar.pipeline.fastest_chunks import FastestChunks
from autopar.pipeline.planned import Planning


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (4.7e-4, "in 470 us more"),
        (-2e-3, "in 2 ms less"),
        (0.0, "in as much time"),
        (-1e-18, "in as much time"),
    ],
)
def test_the_summary_says_what_chunks_cost_or_gain(seconds: float, said: str) -> None:
    chunks = (ChunkPin("head", 4),)
    options = CompileOptions(parse_mesh("1"), Cluster.load("cpu"), chunks=chunks)
    found = FastestChunks(options, cast(Planning, None), seconds, 2**31, 2**30)
    (entry,) = found.remark()
    assert entry.detail == f"a device holds 2.0 GiB -> 1.0 GiB, {said}"
