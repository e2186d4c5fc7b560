"""Transformer layers as they are written: a plan needs no communication but its own."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from autopar.ir.expr.expression import evaluate
from autopar.pipeline import Compiled
from tests.given.transformer_layers import FUSED, Layer
from tests.judges import captured
from tests.judges.captured import Captured

MEGATRON = Counter({"all_reduce": 2})
SIZE = 96
VARIANTS = ("separate", *FUSED)


def slow(*values: object) -> list[object]:
    """Returns parameters of a test that are left to the slow tests."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def pins(layer: Layer, *, kv: bool = True) -> list[str]:
    """Returns the pins of Megatron: columns, then rows; flat, whatever a weight holds.

    Args:
        layer: The layer.
        kv: Whether the projections of key and value are pinned, where they are separate.
    """
    columns = ["qkv"] if layer.variant != "separate" else ["q", "k", "v"] if kv else ["q"]
    columns += ["up", "gate"] if layer.gate is not None else ["up"]
    found = [f"{name}.weight=[tp,-1]" for name in columns]
    if layer.out.bias is not None:
        found += [f"{name}.bias=[tp]" for name in columns]
    return [*found, "out.weight=[-1,tp]", "down.weight=[-1,tp]"]


def parallel(captured_layer: Captured, tp: int, strategy: str, *shards: str) -> Compiled:
    """Compiles a layer for `tp` ranks and checks its results."""
    done = captured.compiled(captured_layer, f"tp={tp}", strategy, *shards)
    captured.check(captured_layer, done)
    return done


def sample(batch: int = 2, length: int = 6) -> torch.Tensor:
    return torch.randn(batch, length, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tp", [3, *slow(2, 4, 5)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_flat_pins_of_weights_are_placed_between_the_heads(variant: str, tp: int) -> None:
    layer = Layer(variant, SIZE)
    done = parallel(captured.forward(layer, x=sample()), tp, "none", *pins(layer))
    assert captured.kinds(done) == MEGATRON


@pytest.mark.parametrize("tp", [4, *slow(2, 3, 5)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_preset_finds_the_heads(variant: str, tp: int) -> None:
    done = parallel(captured.forward(Layer(variant, SIZE), x=sample()), tp, "tensor:0")
    assert captured.kinds(done) == MEGATRON


@pytest.mark.parametrize("variant", ["split", "unbind", "interleaved"])
def test_explicit_attention_of_an_exported_layer(variant: str) -> None:
    layer = Layer(variant, SIZE, explicit=True, causal=True)
    done = parallel(captured.exported(layer, x=sample()), 4, "none", *pins(layer))
    assert captured.kinds(done) == MEGATRON


def test_a_placed_pin_keeps_its_dims_mapping_and_says_where_it_is() -> None:
    layer = Layer("split", SIZE)
    done = parallel(captured.forward(layer, x=sample()), 4, "none", *pins(layer))
    weight, bias = (done.serial.main.values[f"qkv.{name}"] for name in ("weight", "bias"))
    assert weight.dist is not None
    assert bias.dist is not None
    assert weight.dist.dims_mapping == (0, -1)
    assert str(weight.dist) == "[(3)(96@tp), 96]"
    assert str(bias.dist) == "[(3)(96@tp)]"
    assert weight.origin is not None
    assert weight.origin.kind == "annotated"
    assert "qkv.weight=[tp,-1]" in weight.origin.detail
    assert "split between the parts" in weight.origin.detail


@pytest.mark.parametrize("gqa", ["interleave", "expand", "enable"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_heads_of_key_and_value_fewer_than_ranks(kv_heads: int, gqa: str) -> None:
    """They are computed by every rank that needs them; the query's are split."""
    layer = Layer(
        "separate", SIZE, 12, kv_heads, gqa=gqa, norm="rms", gated=True, bias=False, causal=True
    )
    program = captured.exported(layer, x=sample())
    for tp in (2, 3, 4):
        assert captured.kinds(parallel(program, tp, "tensor:0")) == MEGATRON
        shards = pins(layer, kv=kv_heads % tp == 0)
        assert captured.kinds(parallel(program, tp, "none", *shards)) == MEGATRON


GROUPED = ("split", "slice", "heads", "nested")


@pytest.mark.parametrize("kv_heads", [4, *slow(2, 3, 1)])
@pytest.mark.parametrize("variant", GROUPED)
def test_fused_projections_with_fewer_heads_of_key_and_value(variant: str, kv_heads: int) -> None:
    """Each part of the weight is split for itself, as if it were stored for itself."""
    layer = Layer(
        variant, SIZE, 12, kv_heads, norm="rms", gated="fused", bias=kv_heads == 2, causal=True
    )
    program = captured.exported(layer, x=sample())
    for tp in (2, 3, 4):
        for done in (
            parallel(program, tp, "none", *pins(layer)),
            parallel(program, tp, "tensor:0"),
        ):
            assert captured.kinds(done) == MEGATRON
            assert shape_of_part(done, 0)[0] <= SIZE // 2


def shape_of_part(done: Compiled, start: int) -> tuple[int, ...]:
    """Returns the local shape, on the first rank, of the part of the weight that starts here."""
    mesh = done.partitioned.mesh
    assert mesh is not None
    first = dict.fromkeys(mesh.dim_names, 0)
    (port,) = (
        port
        for port in done.partitioned.signature.inputs
        if port.label == "qkv.weight" and port.part is not None and port.part.start[0] == start
    )
    return tuple(math.prod(evaluate(sub.length, first) for sub in dim) for dim in port.box)


def test_a_flat_pin_of_a_fused_weight_is_one_of_each_part() -> None:
    layer = Layer("split", SIZE, 12, 4, norm="rms", bias=False)
    program = captured.exported(layer, x=sample())
    done = parallel(program, 2, "none", *pins(layer))
    assert [shape_of_part(done, start)[0] for start in (0, 96, 128)] == [48, 16, 16]
    # Two heads of key for three ranks: each computes those that it needs.
    layer = Layer("split", SIZE, 12, 2, norm="rms", bias=False)
    done = parallel(captured.exported(layer, x=sample()), 3, "none", *pins(layer))
    assert [shape_of_part(done, start)[0] for start in (0, 96, 112)] == [32, 16, 16]
    key = done.serial.main.values["qkv.weight[96:112]"].origin
    assert key is not None
    assert "qkv.weight=[tp,-1]" in key.detail
    assert "a small part" in key.detail


@pytest.mark.parametrize(
    ("mesh", "strategy"), [("1", ""), ("dp=2", "data:0"), ("fs=3", "fsdp:0"), ("dp=2", "none")]
)
def test_fused_projections_stay_one_product_where_no_axis_splits_them(
    mesh: str, strategy: str
) -> None:
    layer = Layer("split", SIZE, 12, 4, norm="rms", bias=False)
    program = captured.exported(layer, x=sample())
    done = captured.compiled(
        program, mesh, strategy, *(["x=[dp,-1,-1]"] if strategy == "none" else [])
    )
    captured.check(program, done)
    assert not any(port.part for port in done.serial.signature.inputs)


def layouts(case: str, layer: Layer) -> tuple[str, list[str], dict[str, int]]:
    """Returns a mesh, pins, and the collectives that they need."""
    tensor, attention = {"all_reduce": 2}, {"all_gather": 2}
    weights = pins(layer)
    return {
        "batch": ("dp=2", ["x=[dp,-1,-1]"], {}),
        "sequence": ("sp=3", ["x=[-1,sp,-1]"], attention),
        "batch and heads": ("dp=2,tp=3", ["x=[dp,-1,-1]", *weights], tensor),
        "sequence and heads": ("sp=2,tp=3", ["x=[-1,sp,-1]", *weights], tensor | attention),
        "sequence parallel": (
            "tp=4",
            ["x=[-1,tp,-1]", *weights],
            {"reduce_scatter": 2, **attention},
        ),
        "batch and sequence parallel": (
            "dp=2,tp=3",
            ["x=[dp,tp,-1]", *weights],
            {"reduce_scatter": 2, **attention},
        ),
    }[case]


@pytest.mark.parametrize("explicit", [False, *slow(True)])
@pytest.mark.parametrize("variant", ["split", *slow("interleaved", "separate")])
@pytest.mark.parametrize(
    "case",
    [
        "batch",
        "sequence",
        "batch and heads",
        "sequence and heads",
        "sequence parallel",
        "batch and sequence parallel",
    ],
)
def test_views_that_merge_batch_and_sequence_cost_nothing(
    case: str, variant: str, explicit: bool
) -> None:
    """Below autograd, linear layers are products of matrices whose rows are (batch, sequence).

    A split sequence gathers keys and values, which each query needs, and nothing else; at once
    where they are one tensor and latency counts.
    """
    layer = Layer(variant, SIZE, explicit=explicit, causal=True)
    mesh, shards, expected = layouts(case, layer)
    program = captured.forward(layer, x=sample())
    done = captured.compiled(program, mesh, "none", *shards)
    captured.check(program, done)
    found = captured.kinds(done)
    assert found <= Counter(expected)
    assert found.keys() == expected.keys()


def training(layer: Layer) -> captured.Step:
    """Returns what computes the layer's output and the gradients of its parameters and input."""

    def step(
        parameters: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        leaves = {name: t.clone().requires_grad_() for name, t in (parameters | inputs).items()}
        x = leaves["x"]
        weights = {name: leaves[name] for name in parameters}
        y = torch.func.functional_call(layer, weights, (x,))
        gradients = torch.autograd.grad(y.square().sum(), list(leaves.values()))
        return {"y": y, **{f"{n}.grad": g for n, g in zip(leaves, gradients, strict=True)}}

    return step


@pytest.mark.parametrize("explicit", [False, *slow(True)])
@pytest.mark.parametrize("variant", ["split", *slow("separate", "unbind", "interleaved")])
def test_training_reduces_twice_forward_and_twice_backward(variant: str, explicit: bool) -> None:
    layer = Layer(variant, SIZE, explicit=explicit, causal=True)
    source = captured.capture(training(layer), layer.state_dict(), {"x": sample()})
    for tp, strategy, shards in ((3, "none", pins(layer)), (4, "tensor:0", [])):
        done = captured.compiled(source, f"tp={tp}", strategy, *shards)
        captured.check(source, done, 1e-4)
        assert captured.kinds(done) == Counter({"all_reduce": 4})


@pytest.mark.parametrize("tp", [2, *slow(3, 4)])
@pytest.mark.parametrize("kv_heads", [4, *slow(2, 1)])
def test_training_with_fewer_heads_of_key_and_value(kv_heads: int, tp: int) -> None:
    """The gradient of the fused weight is returned part by part."""
    layer = Layer("split", SIZE, 12, kv_heads, norm="rms", gqa="expand", gated=True, causal=True)
    source = captured.capture(training(layer), layer.state_dict(), {"x": sample()})
    done = captured.compiled(source, f"tp={tp}", "none", *pins(layer))
    captured.check(source, done, 1e-4)
    assert captured.kinds(done) == Counter({"all_reduce": 4})


@pytest.mark.parametrize("variant", ["separate", "split", "interleaved"])
def test_pins_of_activations_alone(variant: str) -> None:
    """Heads and columns that are pinned reach back into the weights."""
    layer = Layer(variant, SIZE, causal=True)
    source = captured.forward(layer, x=sample())
    results = {op.kind.split(".")[1]: op.results[0] for op in source.program.main.ops}
    attention = results["_scaled_dot_product_flash_attention_for_cpu"]
    shards = [f"{attention}=[-1,tp,-1,-1]", f"{results['gelu']}=[-1,-1,tp]"]
    done = parallel(source, 3, "none", *shards)
    assert sum(captured.kinds(done).values()) == 2
    assert sum(one.bytes for one in captured.collectives(done)) == 2 * 4 * 2 * 6 * SIZE
