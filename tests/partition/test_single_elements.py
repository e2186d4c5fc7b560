"""A split of a single element within a dimension, from a view to the pieces that are read next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.cost import Cluster
from autopar.ir.text import parse_program
from autopar.mapping.deploy import deploy
from autopar.partition import Partition
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights

CLUSTER = Cluster.load("cpu")


@pytest.mark.parametrize("read", ["6@x", "6", "(2@x)(3)", "(3@x)(2)", "(1@x)(6)"])
@pytest.mark.parametrize("held", ["(1@x)(6)", "(6)(1@x)", "(2)(1@x)(3)"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_a_single_element_leaves_is_read(
    held: str, read: str, ranks: int, tmp_path: Path
) -> None:
    program = parse_program(f"""
        mesh x={ranks}
        input %a: f32[{held}]
        %b: f32[{held}] = aten.relu.default(self=%a) {{i0: {held}}}
        %c: f32[{read}] = aten.neg.default(self=%b) {{i0: {read}}}
        %d: f32[{held}] = aten.relu.default(self=%c) {{i0: {held}}}
        return %c, %d
    """)
    write_weights(tmp_path / "weights", {})
    given = torch.arange(6.0) - 2
    with WeightFile(tmp_path / "weights") as file:
        mesh = VirtualMesh(deploy(Partition(CLUSTER)(program), CLUSTER), file)
        found = mesh.run({"a": given})
    assert torch.equal(found["c"], -given.relu())
    assert torch.equal(found["d"], (-given.relu()).relu())
