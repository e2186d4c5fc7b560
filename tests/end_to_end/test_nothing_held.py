"""Reductions along a size that is 0, or so small that some ranks hold nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.text import parse_program
from autopar.pipeline import CompileOptions, compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.open_inputs import deployment_at
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights

CALLS = {
    "softmax": ("3, $n", "aten._softmax.default(self=%x, dim=1, half_to_float=false)"),
    "log_softmax": ("3, $n", "aten._log_softmax.default(self=%x, dim=1, half_to_float=false)"),
    "safe_softmax": ("3, $n", "aten._safe_softmax.default(self=%x, dim=1)"),
    "logsumexp": ("3", "aten.logsumexp.default(self=%x, dim=[1])"),
    "sum": ("3", "aten.sum.dim_IntList(self=%x, dim=[1])"),
    "mean": ("3", "aten.mean.dim(self=%x, dim=[1])"),
    "norm": ("3", "aten.linalg_vector_norm.default(self=%x, ord=2, dim=[1])"),
    "attention": (
        "2, 4, 5, 3",
        "aten.scaled_dot_product_attention.default(query=%q, key=%k, value=%k)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_ranks_that_hold_nothing_add_nothing(name: str, tmp_path: Path) -> None:
    shape, call = CALLS[name]
    program = parse_program(f"""
        size $n = 0..1048576 planned 1048576
        input %x: f32[3, $n]
        input %q: f32[2, 4, 5, 3]
        input %k: f32[2, 4, $n, 3]
        %y: f32[{shape}] = {call}
        return %y
        """)
    shards = ["x=[-1,tp]", "k=[-1,-1,tp,-1]"]
    options = CompileOptions.from_text(mesh="tp=4", strategy="none", shards=shards)
    deployment = compile_program(program, options).deployment
    kinds = {op.kind for op in deployment.programs[0].main.ops}
    assert "comm.all_gather" not in kinds, "all are reduced in parts"
    write_weights(tmp_path / "weights", {})
    for n in range(10):
        serial = at_sizes(program, {"n": n})
        inputs = {port.name: torch.randn(port.shape) for port in serial.signature.inputs}
        with WeightFile(tmp_path / "weights") as file:
            found = VirtualMesh(deployment_at(deployment, {"n": n}), file).run(inputs)
        torch.testing.assert_close(found, run_serial(serial, {}, inputs), equal_nan=True)
