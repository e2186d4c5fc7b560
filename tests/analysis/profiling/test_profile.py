"""Profiles of modules, graphs and programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.functional import mse_loss

import autopar
from autopar.analysis.profiling import profile_build, profile_compiled
from autopar.analysis.profiling.show import write_json
from autopar.base.errors import InvalidInputError
from autopar.ir.layers import grouped, layer_of
from autopar.ir.program import Op

WIDTH, HIDDEN, BATCH = 8, 32, 4


class Net(nn.Module):
    """Two products with an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(torch.relu(self.up(x)))
        return found


PRODUCT = 2 * BATCH * WIDTH * HIDDEN


def test_forward_and_backward_work_per_node() -> None:
    x = torch.randn(BATCH, WIDTH)
    found = autopar.profile(Net(), (x, x), loss=mse_loss, cluster="h100")
    by_name = {node.name: node for node in found.nodes}
    up, down = by_name["up.addmm"], by_name["down.addmm"]
    assert up.flops == down.flops == PRODUCT
    assert up.backward_flops == PRODUCT  # of the weight alone: x needs no gradient
    assert down.backward_flops == 2 * PRODUCT
    assert down.backward_seconds > down.seconds > 0
    assert by_name["relu"].saved_bytes == BATCH * HIDDEN * 4
    assert down.saved_bytes == BATCH * WIDTH * 4
    assert found.flops == 5 * PRODUCT
    assert found.saved_bytes == BATCH * (HIDDEN + WIDTH) * 4


def test_layers_add_up() -> None:
    x = torch.randn(BATCH, WIDTH)
    found = autopar.profile(Net(), (x, x), loss=mse_loss, cluster="h100")
    layers = {layer.name: layer for layer in found.layers()}
    assert set(layers) == {"up", "down", ""}
    assert layers["down"].flops == 3 * PRODUCT
    total = sum(layer.seconds for layer in layers.values())
    assert total == pytest.approx(found.serialized_seconds)
    assert max(layer.peak_bytes for layer in layers.values()) == found.peak_bytes


def test_nodes_of_a_graph_are_its_layers() -> None:
    graph = fx.symbolic_trace(Net())
    found = autopar.profile(graph, torch.randn(BATCH, WIDTH), cluster="h100")
    work = {layer.name: layer.flops for layer in found.layers(depth=9)}
    assert work["up"] == 2 * PRODUCT
    assert work["down"] == 3 * PRODUCT
    assert work["relu"] == 0


def test_nothing_of_a_model_on_the_meta_device_is_computed() -> None:
    with torch.device("meta"):
        model, x = Net(), torch.randn(BATCH, WIDTH)
    assert autopar.profile(model, x, backward=False).flops == 2 * PRODUCT


def test_ranks_of_a_compiled_step(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    step = autopar.compile(
        model, (x, x), mesh="tp=2", loss=mse_loss, optimizer=optimizer, strategy="tensor:tp"
    )
    (found,) = profile_compiled(step.serial, step.deployment, autopar.Cluster.load("h100"))
    # The backward pass of the first product has no gradient of the input.
    assert found.flops == 5 * PRODUCT // 2
    sums = [node for node in found.nodes if node.kind == "comm.all_reduce"]
    assert sums
    assert all(node.communication_seconds > 0 and not node.compute_seconds for node in sums)
    # Two sums of the same numbers, in another order.
    assert found.overlapped_seconds <= found.serialized_seconds * (1 + 1e-12)
    step.save(tmp_path / "b")
    (again,) = profile_build(tmp_path / "b", autopar.Cluster.load("h100"))
    assert again.nodes == found.nodes
    write_json((found,), tmp_path / "p.json")
    (read,) = json.loads((tmp_path / "p.json").read_text())
    assert read["peak_bytes"] == found.peak_bytes == sum(read["peak_breakdown_bytes"].values())
    assert len(read["nodes"]) == len(found.nodes)


def test_the_text_names_the_peak_and_its_line() -> None:
    x = torch.randn(BATCH, WIDTH)
    text = str(autopar.profile(Net(), (x, x), loss=mse_loss, cluster="h100"))
    assert "Net under autograd, on h100" in text
    assert "test_profile.py:" in text
    assert "saved    640 B for the backward pass" in text


def test_a_program_takes_no_inputs() -> None:
    model, x = Net(), torch.randn(BATCH, WIDTH)
    program = autopar.compile(model, x, mesh="1").source
    assert autopar.profile(program).flops == 2 * PRODUCT
    with pytest.raises(InvalidInputError, match="a program knows its inputs"):
        autopar.profile(program, x)


@pytest.mark.parametrize(
    ("result", "layer"),
    [
        ("layers.3.attn.mm_4", "layers.3.attn"),
        ("layers.3.attn.mm_4.1", "layers.3.attn"),
        ("encoder/layer.3/attn/MatMul_output_0", "encoder.layer.3.attn"),
        ("grad/layers.3.attn.weight", "layers.3.attn"),
        ("mm", ""),
    ],
)
def test_the_layer_of_a_value(result: str, layer: str) -> None:
    assert layer_of(Op("aten.mm.default", (), (result,))) == layer


def test_layers_are_cut_where_their_numbers_tell_them_apart() -> None:
    names = ["model.0.encoder.layer.0.attn", "model.0.encoder.layer.1.attn", "model.1.pool", "head"]
    cut = ["model.0.encoder.layer.0", "model.0.encoder.layer.1", "model.1", "head"]
    assert grouped([*names, *names[:2]], None) == [*cut, *cut[:2]]
    assert grouped(["a.b.c", "a.b.d"], 2) == ["a.b", "a.b"]


class Wavering(nn.Module):
    """Does something else where values are large."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() if x.max() < 1 else x


def test_what_depends_on_values_has_no_profile() -> None:
    message = r"test_profile\.py:\d+: what this line does depends on the values of a tensor"
    with pytest.raises(InvalidInputError, match=message):
        autopar.profile(Wavering(), torch.randn(BATCH, WIDTH))


class Misfitting(nn.Module):
    """Adds what doesn't fit."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.new_zeros(WIDTH + 1)


def test_what_does_not_run_is_said_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    message = r"test_profile\.py:\d+: Misfitting doesn't run on fake tensors, .*: RuntimeError: "
    with pytest.raises(InvalidInputError, match=message):
        autopar.profile(Misfitting(), torch.randn(BATCH, WIDTH))
    assert not caplog.records


def test_what_is_compiled_is_profiled(tmp_path: Path) -> None:
    """The result of `compile` and its build are taken where `explain` and `diff` take them."""
    x = torch.randn(BATCH, WIDTH)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    step = autopar.compile(model, (x, x), mesh="2", loss=mse_loss, optimizer=optimizer)
    step.save(tmp_path / "build")
    found = autopar.profile(step)
    (known,) = profile_build(tmp_path / "build")
    assert str(found) == str(autopar.profile(tmp_path / "build")) == str(known)
    assert str(autopar.profile(str(tmp_path / "build"))) == str(autopar.profile(step))
    assert autopar.profile(step, cluster="h100").serialized_seconds < found.serialized_seconds


def test_what_a_profile_lacks_is_said() -> None:
    with pytest.raises(InvalidInputError, match="Net is a module: give inputs="):
        autopar.profile(Net())
    program = autopar.compile(Net().eval(), torch.randn(BATCH, WIDTH), mesh="2")
    with pytest.raises(InvalidInputError, match="knows its inputs"):
        autopar.profile(program, torch.randn(BATCH, WIDTH))
