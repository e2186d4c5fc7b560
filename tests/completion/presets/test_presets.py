"""Presets pin by structure: which inputs carry a batch, which operands are weights."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from autopar.annotate import apply_mesh, apply_pins, parse_mesh, parse_pin
from autopar.base.errors import AnnotationError
from autopar.completion import Complete, apply_strategy
from autopar.completion.presets.strategy import parse_strategy
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.frontend.torch import Recipe, capture, capture_differentiable
from autopar.frontend.torch.step.batch import flatten, input_label
from autopar.ir.ops import rule_of
from autopar.ir.program import Program, Ref
from autopar.ir.rules.distribution import consumed
from autopar.pipeline import CompileOptions, compile_program
from tests.completion.networks import Network, encoder, mlp

CPU = Cluster.load("cpu")
GPUS = Cluster.load("h100")


def preset(program: Program, mesh: str, strategy: str) -> dict[str, str]:
    """Returns the layouts that a strategy pins."""
    done = apply_strategy(apply_mesh(program, parse_mesh(mesh)), strategy, CPU)
    return {name: str(value.dist) for name, value in done.main.values.items() if value.dist}


def collectives(done: Program, cluster: Cluster) -> Counter[str]:
    """Counts the collectives before ops, each value and target once."""
    assert done.mesh is not None
    planner = ReshardPlanner(CommunicationModel(cluster, done.mesh))
    values, found, seen = done.main.values, Counter[str](), set()
    for op in done.main.ops:
        rule = rule_of(op, values)
        assert rule is not None
        assert op.dist is not None
        for at, name in enumerate(op.operands):
            source, target = values[name].dist, consumed(rule, op.dist, at)
            assert source is not None
            if (name, target) not in seen:
                seen.add((name, target))
                moves = planner.plan(source, target, values[name].itemsize).moves
                found.update(move.kind for move in moves if move.bytes)
    return found


def test_a_multilayer_perceptron_is_split_by_columns_then_rows() -> None:
    assert preset(mlp(), "dp=2,tp=4", "data:dp,tensor:tp") == {
        "x": "[64@dp, 1024]",
        "w1": "[1024, 4096@tp]",
        "w2": "[4096@tp, 1024]",
    }


@pytest.mark.parametrize("cluster", [CPU, GPUS], ids=["cpu", "h100"])
@pytest.mark.parametrize("mesh", ["dp=2,tp=4", "dp=3,tp=2", "dp=2,tp=3", "dp=1,tp=12"])
def test_an_encoder_is_split_like_megatron(mesh: str, cluster: Cluster) -> None:
    layers = 2
    done = Complete(cluster, "data:0,tensor:1")(apply_mesh(encoder(layers), parse_mesh(mesh)))
    for layer in range(layers):
        for part, dim in (("q", 1), ("k", 1), ("v", 1), ("out", 0), ("up", 1), ("down", 0)):
            layout = done.main.values[f"layer.{layer}.{part}.weight"].dist
            assert layout is not None
            assert layout.dims_mapping == ((1, -1), (-1, 1))[dim]
    assert collectives(done, cluster) == Counter(all_reduce=2 * layers)


def test_heads_that_do_not_divide_are_still_split_as_heads() -> None:
    """12 heads of 32 over 5 processes: 3 heads, 96 columns, each."""
    pins = preset(encoder(1, batch=1), "tp=5", "tensor")
    assert pins["layer.0.q.weight"] == "[384, (4@tp)(96)]"
    assert pins["layer.0.out.weight"] == "[(4@tp)(96), 384]"


def test_two_axes_split_the_same_heads() -> None:
    pins = preset(encoder(1), "a=2,b=3", "tensor:a,tensor:b")
    assert pins["layer.0.q.weight"] == "[384, 384@(a,b)]"
    assert pins["layer.0.out.weight"] == "[384@(a,b), 384]"
    pins = preset(encoder(1), "a=2,b=4", "tensor:a,tensor:b")
    assert pins["layer.0.q.weight"] == "[384, (6@(a,b))(64)]"


def test_weights_are_found_behind_ops_that_only_move_data() -> None:
    net = Network()
    x = net.input("x", 64, 1024)
    first = net.permute(net.weight("w1", 4096, 1024), 1, 0)
    second = net.view(net.weight("w2", 64, 64, 512), 4096, 512)
    program = net.program(net.mm(net.relu(net.mm(x, first)), second))
    assert preset(program, "tp=4", "tensor:tp") == {
        "w1": "[4096@tp, 1024]",
        "w2": "[64@tp, 64, 512]",
    }


def test_a_bias_needs_no_special_case() -> None:
    net = Network()
    x, b1, b2 = net.input("x", 64, 1024), net.weight("b1", 4096), net.weight("b2", 1024)
    h = net.relu(net.addmm(b1, x, net.weight("w1", 1024, 4096)))
    program = net.program(net.addmm(b2, h, net.weight("w2", 4096, 1024)))
    assert preset(program, "tp=4", "tensor:tp") == {
        "w1": "[1024, 4096@tp]",
        "w2": "[4096@tp, 1024]",
    }


def test_fsdp_splits_parameters_and_the_batch() -> None:
    pins = preset(encoder(1), "8", "fsdp")
    assert pins["ids"] == "[8@d0, 128]"
    assert pins["layer.0.up.weight"] == "[384@d0, 1536]"
    assert pins["layer.0.down.weight"] == "[1536@d0, 384]"
    assert "layer.0.up.bias" not in pins
    assert preset(encoder(1), "7", "fsdp")["layer.0.up.weight"] == "[384, 1536@d0]"


def test_a_batch_that_no_input_has_is_reported() -> None:
    net = Network()
    x = net.input("x", 64, 32)
    program = net.program(net.mm(net.permute(x, 1, 0), x))
    strategy = "fsdp:dp,tensor:tp"
    (remark,) = Complete(CPU, strategy).plan(apply_mesh(program, parse_mesh("dp=2,tp=2"))).remarks
    assert (remark.category, remark.subject) == ("ignored", "batch of fsdp:dp")
    assert "aten.mm.default is where the last one ends" in remark.detail
    assert not Complete(CPU, strategy).plan(apply_mesh(mlp(), parse_mesh("dp=2,tp=2"))).remarks


def test_a_batch_of_one_is_reported_as_such() -> None:
    net = Network()
    program = net.program(net.mm(net.input("x", 1, 32), net.weight("w", 32, 8)))
    (remark,) = Complete(CPU, "data:dp").plan(apply_mesh(program, parse_mesh("dp=2"))).remarks
    assert remark.detail.startswith("x: a first dimension of 1 isn't split; if it is a batch, give")
    net = Network()
    z = net.input("z", 64, 32)
    program = net.program(net.mm(net.input("x", 1, 32), net.mm(net.permute(z, 1, 0), z)))
    (remark,) = Complete(CPU, "data:dp").plan(apply_mesh(program, parse_mesh("dp=2"))).remarks
    assert "is where the last one ends); x: a first dimension of 1 isn't split" in remark.detail


def test_a_batch_that_is_pinned_otherwise_is_reported() -> None:
    pinned = apply_pins(mlp(), "dp=2", [parse_pin("x=[-1,dp]")])
    (remark,) = Complete(CPU, "data:dp").plan(pinned).remarks
    assert (remark.subject, remark.detail) == ("batch of data:dp", "x: pinned otherwise")


def test_statistics_of_a_batch_dont_end_it() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    call, tensors = flatten(((torch.randn(8, 6),), {}), lambda path: input_label(model)(path[1:]))
    program = capture_differentiable(model, call, tensors).program
    assert preset(program, "dp=2", "data:0") == {"input": "[8@dp, 6]"}


def test_fsdp_gathers_parameters_at_use() -> None:
    done = Complete(CPU, "fsdp")(apply_mesh(encoder(2), parse_mesh("4")))
    assert set(collectives(done, CPU)) == {"all_gather"}
    for op in done.main.ops:
        assert op.dist is not None
        if op.kind == "aten.mm.default":
            assert [factor for factor, _ in op.dist.factors] == ["m"]


def test_fsdp_takes_what_tensor_leaves() -> None:
    pins = preset(encoder(1), "dp=2,tp=4", "fsdp:dp,tensor:tp")
    assert pins["layer.0.up.weight"] == "[384@dp, 1536@tp]"
    assert pins["layer.0.down.weight"] == "[1536@tp, 384@dp]"


def test_annotated_values_are_left_alone() -> None:
    mesh = parse_mesh("dp=2,tp=4")
    pinned = apply_pins(mlp(), mesh, [parse_pin("w1=[tp,-1]"), parse_pin("x=[-1,dp]")])
    done = apply_strategy(pinned, "data:0,tensor:1", CPU)
    assert done.main.values["w1"] == pinned.main.values["w1"]
    assert done.main.values["x"] == pinned.main.values["x"]
    assert done.main.values["w2"].dist is not None


def test_replicate_keeps_an_axis_idle() -> None:
    done = Complete(CPU, "data:dp,replicate:tp")(apply_mesh(encoder(1), parse_mesh("dp=2,tp=4")))
    assert str(done.main.values["ids"].dist) == "[8@dp, 128]"
    layouts = [str(value.dist) for value in done.main.values.values()]
    assert not any("tp" in layout for layout in layouts)


def test_the_batch_is_found_by_where_it_goes() -> None:
    net = Network()
    x = net.input("x", 8, 4, 16)
    table, flag = net.input("table", 16, 16), net.input("flag", 1, 4, 1)
    y = net.view(net.mm(net.view(net.add(x, flag), 32, 16), table), 8, 4, 16)
    assert preset(net.program(y), "dp=2", "data") == {"x": "[8@dp, 4, 16]"}


def test_a_batch_that_ends_up_elsewhere_is_none() -> None:
    net = Network()
    program = net.program(net.permute(net.input("x", 8, 16), 1, 0))
    assert preset(program, "dp=2", "data") == {}


MESH = parse_mesh("dp=2,tp=4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data:0,tensor:1", [("data", "dp"), ("tensor", "tp")]),
        ("fsdp:dp", [("fsdp", "dp")]),
        ("tensor:-1", [("tensor", "tp")]),
        ("replicate", [("replicate", "dp"), ("replicate", "tp")]),
        ("tensor:tp, data", [("tensor", "tp"), ("data", "dp")]),
    ],
)
def test_a_strategy_is_presets_with_axes(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(each.preset.name, each.axis) for each in parse_strategy(text, MESH)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",", "is empty"),
        ("tenser:1", "did you mean tensor"),
        ("data:2", "out of range"),
        ("data:pd", "no axis 'pd'"),
        ("data:0,fsdp:dp", "gives axis dp to two presets"),
    ],
)
def test_a_bad_strategy_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        parse_strategy(text, MESH)


def regression(*, reduce: str) -> Program:
    """The summed or averaged squares of x w - y, with a mask that isn't a batch."""
    net = Network("regression")
    x, y, mask = net.input("x", 8, 6), net.input("y", 8, 4), net.input("mask", 4)
    found = net.mm(x, net.weight("w", 6, 4))
    error = net.binary("mul.Tensor", net.binary("sub.Tensor", found, y), mask)
    squares = net.binary("mul.Tensor", error, error)
    total = net.op(f"aten.{reduce}.default", (), self=Ref(squares))
    return net.program(net.op("aten.mul.Scalar", (), self=Ref(total), other=0.5))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_batch_may_end_in_a_loss(reduce: str) -> None:
    pinned = preset(regression(reduce=reduce), "dp=2", "data:0")
    assert pinned == {"x": "[8@dp, 6]", "y": "[8@dp, 4]"}


class Joined(nn.Module):
    """Losses that are put together before they are added up."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.masked = masked

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.layer(x)
        losses = mse_loss(found, y), (found * found).sum()
        if self.masked:
            kept = (torch.randint(0, 5, (8,)) > 2).float()
            return (losses[0] * kept + losses[1] * kept).mean()
        return torch.stack(losses).sum()


@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_may_end_in_losses_that_are_joined(masked: bool) -> None:
    batch = {"x": torch.randn(8, 6), "y": torch.randn(8, 4)}
    program = capture(Joined(masked=masked), batch).program
    assert preset(program, "dp=2", "data:0") == {"x": "[8@dp, 6]", "y": "[8@dp, 4]"}


def test_a_batch_may_be_stacked() -> None:
    """Behind what counts the layers; which is no batch itself, and neither is a bias."""

    class Stacked(nn.Module):
        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return torch.stack([x, x.sin(), x.cos() + bias]).square().mean()

    program = capture(Stacked(), {"x": torch.randn(8, 6), "bias": torch.randn(1, 6)}).program
    assert preset(program, "dp=2", "data:0") == {"x": "[8@dp, 6]"}


class Packed(nn.Module):
    """Layers for samples of several lengths behind one another, which only know their own."""

    lengths = (5, 3, 8)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.first(x).split(self.lengths)
        return self.second(torch.cat([part.softmax(0) for part in parts])).square().mean()


class Spectra(Packed):
    """The same, of inputs whose first dimension is that of the features."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.t())


@pytest.mark.parametrize(("model", "shape"), [(Packed(), (16, 6)), (Spectra(), (6, 16))])
def test_packed_samples_are_split_though_each_is_whole_once(
    model: nn.Module, shape: tuple[int, int]
) -> None:
    program = capture(model, (torch.randn(shape),)).program
    batch = ["dp" if size == 16 else None for size in shape]
    options = CompileOptions.from_arguments(mesh="dp=2", strategy="data")
    done = compile_program(program, options).serial.main
    inputs = {name: value for name, value in done.values.items() if value.role == "input"}
    (x,) = inputs.values()
    assert x.dist is not None
    assert x.dist.dims_mapping == tuple(0 if axis else -1 for axis in batch)
    products = [op for op in done.ops if op.kind == "aten.mm.default"]
    assert len(products) == 2
    assert all(op.dist is not None and op.dist.factors for op in products)


def test_what_is_assumed_ends_no_batch() -> None:
    class Assuming(nn.Module):
        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            return x * sizes.sum().item()

    program = capture(Assuming(), (torch.randn(8, 6), torch.tensor([4, 4]))).program
    assert list(preset(program, "dp=2", "data:0").values()) == ["[8@dp, 6]"]


def test_what_is_normalized_by_a_statistic_is_no_batch() -> None:
    class Normalized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean()).t().flatten().cumsum(0)[-1]

    program = capture(Normalized(), (torch.randn(8, 6),)).program
    assert preset(program, "dp=2", "data:0") == {}


def test_what_is_summed_beside_others_is_no_batch() -> None:
    """The positions of a bias are added up too, but each together with all of the batch."""
    net = Network()
    x, bias = net.input("x", 8, 6), net.input("bias", 6)
    net_sum = net.op("aten.sum.default", (), self=Ref(net.add(x, bias)))
    assert preset(net.program(net_sum), "dp=2", "data:0") == {"x": "[8@dp, 6]"}


def test_fsdp_leaves_the_gradient_of_a_pinned_parameter_where_that_lies() -> None:
    """Where gradients are the new contents of parameters, which differentiable modules return."""
    model = nn.Linear(8, 8, bias=False)
    call, tensors = flatten(((torch.randn(4, 8),), {}), lambda path: input_label(model)(path[1:]))
    captured = capture_differentiable(model, call, tensors)
    options = CompileOptions.from_arguments(
        mesh="2x2", strategy="fsdp:d1", shard={"weight": ["d0", None]}
    )
    values = compile_program(captured.program, options).serial.main.values
    assert str(values["weight"].dist) == str(values["grad/weight"].dist) == "[8@d0, 8]"


@pytest.mark.parametrize(
    ("strategy", "parameter"),
    [
        ("zero1:dp,zero1:tp", "[512, 256]"),
        ("zero1", "[512, 256]"),
        ("zero2:dp,zero2:tp", "[512, 256]"),
        ("zero1:dp,fsdp:tp", "[512@tp, 256]"),
        ("fsdp:dp,zero1:tp", "[512@dp, 256]"),
        ("fsdp", "[512@dp, 256@tp]"),
    ],
)
def test_what_is_kept_is_split_over_all_axes_of_such_presets(strategy: str, parameter: str) -> None:
    model = nn.Linear(256, 512, bias=False)
    recipe = Recipe(loss=mse_loss, optimizer=torch.optim.AdamW(model.parameters()))
    batch = torch.zeros(8, 256), torch.zeros(8, 512)
    step = apply_mesh(capture(model, batch, recipe).program, parse_mesh("dp=2,tp=2"))
    values = Complete(CPU, strategy)(step).main.values
    assert str(values["weight"].dist) == parameter
    states = [v.dist for v in values.values() if v.role == "optimizer_state" and v.global_shape]
    assert len(states) == 2
    assert all(state is not None and state.sharded_axes == ("dp", "tp") for state in states)


def test_weights_are_split_over_all_axes_of_fsdp_for_inference() -> None:
    pins = preset(encoder(1), "2x2", "fsdp")
    assert pins["layer.0.up.weight"] == "[384@d0, 1536@d1]"
