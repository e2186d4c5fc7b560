"""Training steps for GPUs, without a GPU: each op has a kernel, and they train as others do.

A part of the combinations runs with the fast tests, all of them by `make test-training`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

import autopar
from autopar.ir.devices import CUDA
from autopar.ir.ops.on_devices import is_own
from autopar.pipeline import CompileOptions, compile_program
from autopar.runtime.verification.on_fake_device import READS_VALUES, obstacles
from tests.given.models import MODELS, model_inputs, model_path
from tests.zoo.models import ZOO, Example
from tests.zoo.test_training import MESHES, WITHOUT_SEQUENCE, mesh_of
from tests.zoo.training import check, example_optimizer

STRATEGIES = {
    "2": ("fsdp:a", "tensor:a", "context:a"),
    "3": ("ddp:a", "tensor:a,sequence:a"),
    "2x2": ("ddp:a,tensor:b",),
    "2x3": ("fsdp:a,tensor:b", "zero1:a,context:b"),
    "2x2x2": ("zero1:a,tensor:b,ddp:c",),
}

FAST = [
    ("gpt2", "2x3", "fsdp:a,tensor:b", "float32"),
    ("llama", "2", "context:a", "bfloat16"),
    ("t5", "3", "ddp:a", "float32"),
    ("mixtral", "2", "tensor:a", "bfloat16"),
    ("resnet", "2x2", "ddp:a,tensor:b", "bfloat16"),
]
FAST_TRAINED = [("llama", "2x3", "fsdp:a,tensor:b"), ("transformer", "3", "context:a")]

HALTS = {"mixtral": {"autopar.grouped_mm", "autopar.grouped_mm_backward"}}
"""Ops for which the host waits: how many rows each expert has is known to the device alone."""

LENGTH = 1 << 15


def _cases() -> Iterator[object]:
    yield from FAST
    for model in ZOO:
        for mesh in MESHES:
            for strategy in STRATEGIES[mesh]:
                if model == WITHOUT_SEQUENCE and ("context" in strategy or "sequ" in strategy):
                    continue
                for dtype in ("float32", "bfloat16"):
                    if (model, mesh, strategy, dtype) not in FAST:
                        case = (model, mesh, strategy, dtype)
                        yield pytest.param(*case, marks=pytest.mark.slow)


def _trained() -> Iterator[object]:
    yield from FAST_TRAINED
    for model in ZOO:
        for mesh, strategy in (("2x3", "fsdp:a,tensor:b"), ("3", "ddp:a"), ("3", "context:a")):
            if model == WITHOUT_SEQUENCE and "context" in strategy:
                continue
            if (model, mesh, strategy) not in FAST_TRAINED:
                yield pytest.param(model, mesh, strategy, marks=pytest.mark.slow)


def compiled(example: Example, mesh: str, strategy: str, dtype: str) -> autopar.CompiledModel:
    """Returns a model's training step for GPUs, its products in a dtype."""
    return autopar.compile(
        example.model,
        example.batch(0),
        mesh=mesh_of(mesh),
        loss=example.loss,
        optimizer=example_optimizer(example.model),
        clip_grad_norm=1.0,
        autocast=None if dtype == "float32" else getattr(torch, dtype),
        strategy=strategy,
        device=CUDA,
    )


@pytest.mark.parametrize(("model", "mesh", "strategy", "dtype"), list(_cases()))
def test_gpus_have_kernels_for_all_ops(model: str, mesh: str, strategy: str, dtype: str) -> None:
    made = compiled(ZOO[model](), mesh, strategy, dtype)
    found = obstacles(made.deployment)
    assert [str(each) for each in found if each.reason != READS_VALUES] == []
    assert {each.op.kind for each in found} <= HALTS.get(model, set())
    kinds = {op.kind for program in made.deployment.programs for op in program.main.ops}
    assert not any(is_own(kind, CUDA) for kind in kinds)


@pytest.mark.parametrize(("model", "mesh", "strategy"), list(_trained()))
def test_steps_for_gpus_train_as_one_device(model: str, mesh: str, strategy: str) -> None:
    check(ZOO[model](), mesh_of(mesh), strategy, device=CUDA)


OTHERWISE: dict[str, dict[str, Any]] = {
    "a pipeline": {"mesh": "pp=2,dp=2", "pipeline": "pp", "accumulate": 3, "strategy": "ddp:dp"},
    "a loop": {"accumulate": 3, "autocast": torch.bfloat16},
    "chunks": {"chunks": {"lm_head": 4}},
    "transfers": {"offload": "optimizer", "update": "host", "cluster": "h100"},
    "recomputed": {"activations": {"transformer.h.*": "recompute"}},
    "open": {"mesh": "3", "dynamic": {key: {0: "batch"} for key in ("input_ids", "labels")}},
    "scaled": {"autocast": torch.float16, "scaler": torch.amp.GradScaler("cpu")},
    "inference": {"optimizer": None},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_gpus_have_kernels_however_a_step_is_computed(name: str) -> None:
    example = ZOO["gpt2"]()
    usual = {"mesh": "2", "strategy": "none", "optimizer": example_optimizer(example.model)}
    given = {**usual, **OTHERWISE[name]}
    made = autopar.compile(example.model, example.batch(0), device=CUDA, **given)
    assert [*map(str, obstacles(made.deployment))] == []


@pytest.mark.models
@pytest.mark.parametrize("name", sorted(MODELS))
def test_gpus_have_kernels_for_files(name: str) -> None:
    from autopar.frontend.onnx import import_onnx

    given = model_inputs(name)
    imported = import_onnx(model_path(name), dims=given.dims, input_shapes=given.input_shapes)
    options = CompileOptions.from_arguments(mesh="2x3", strategy="data:0,tensor:1", device=CUDA)
    imported = imported.recognized(options.pinned(imported.program))
    made = compile_program(imported.program, options)
    assert [*map(str, obstacles(made.deployment))] == []


class Attending(nn.Module):
    """Causal attention over a long sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(256, 768)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(*heads, is_causal=True)
        return out.transpose(1, 2).flatten(-2)


@pytest.mark.parametrize(
    ("dtype", "mesh", "strategy"),
    [
        (torch.bfloat16, 1, "none"),
        (torch.float32, 1, "none"),
        (torch.bfloat16, 4, "context:0"),
        (torch.bfloat16, 8, "context:0"),
    ],
)
def test_no_gradient_of_attention_holds_scores(
    dtype: torch.dtype, mesh: int, strategy: str
) -> None:
    """Nor a mask, where the sequence is split."""
    with torch.device("meta"):
        model = Attending().to(dtype)
        x = torch.empty(1, LENGTH, 256, dtype=dtype)
    made = autopar.compile(
        model,
        (x, x),
        loss=mse_loss,
        optimizer=torch.optim.SGD(model.parameters()),
        mesh=mesh,
        strategy=strategy,
        cluster="h100",
    )
    assert made.options.device == CUDA
    values = made.partitioned.main.values.values()
    assert max(math.prod(value.known_shape) for value in values) <= 3 * x.numel()
    scores = 4 * LENGTH**2 * dtype.itemsize
    assert made.profile().peak_bytes < scores / 20
    assert obstacles(made.deployment) == ()
