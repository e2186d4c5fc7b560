"""What other systems got wrong: each a program that must be right here, end to end.

Every test compiles a program that somebody's partitioner computes wrongly, refuses, or makes far
too expensive, runs all ranks, compares with the serial result, and looks at the property at stake.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autopar.base.errors import InvalidInputError
from autopar.ir.layout import Layout
from autopar.pipeline import Compiled
from tests.judges.captured import (
    Captured,
    capture,
    check,
    collectives,
    compiled,
    exported,
    kinds,
    run,
)

Tensors = dict[str, Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def judge(
    function: Callable[..., Tensor],
    inputs: Mapping[str, Tensor],
    mesh: str,
    *pins: str,
    weights: Mapping[str, Tensor] | None = None,
) -> Compiled:
    """Compiles `y = function(**weights, **inputs)`, checks its result, and returns the plan."""
    return judged(
        lambda w, given: {"y": function(**w, **given)}, inputs, mesh, *pins, weights=weights
    )[1]


def judged(
    step: Callable[[Tensors, Tensors], Tensors],
    inputs: Mapping[str, Tensor],
    mesh: str,
    *pins: str,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Captured, Compiled]:
    captured = capture(step, weights or {}, inputs)
    done = compiled(captured, mesh, "none", *pins)
    check(captured, done)
    return captured, done


def layout_of(done: Compiled, label: str) -> Layout:
    """The layout of an input or output, by its name."""
    main, signature = done.partitioned.main, done.partitioned.signature
    for ports, names in ((signature.inputs, main.inputs), (signature.outputs, main.outputs)):
        for port, name in zip(ports, names, strict=True):
            if label in (port.label, port.name):
                layout = main.values[name].dist
                assert layout is not None
                return layout
    raise AssertionError(label)


# Paddle


@pytest.mark.parametrize(
    "op", [lambda x: x.flip(0), lambda x: x.cumprod(0)], ids=["flip", "cumprod"]
)
@pytest.mark.parametrize("rows", [8, 7, 3])
def test_a_split_first_dimension_is_not_taken_for_the_batch(
    op: Callable[[Tensor], Tensor], rows: int
) -> None:
    done = judge(op, {"x": draw(rows, 3)}, "x=4", "x=[x,-1]", "y=[x,-1]")
    assert collectives(done)


@pytest.mark.parametrize("size", [16, 13, 3])
def test_a_change_of_the_axis_that_splits_a_dimension_communicates(size: int) -> None:
    x = draw(1 << 16, size)
    done = judge(torch.neg, {"input": x}, "x=2,y=4", "input=[-1,x]", "y=[-1,y]")
    assert collectives(done)
    assert all(one.bytes < x.nbytes for one in collectives(done))


@pytest.mark.parametrize(("mesh", "size"), [("x=2,y=4", 16), ("x=2,y=2", 7), ("x=2,y=3", 4)])
def test_the_order_of_axes_is_changed_without_a_gather(mesh: str, size: int) -> None:
    done = judge(torch.neg, {"input": draw(size, 3)}, mesh, "input=[(x,y),-1]", "y=[(y,x),-1]")
    (moved,) = collectives(done)
    assert moved.kind in ("permute", "redistribute")


@pytest.mark.parametrize("size", [8, 6, 5])
def test_terms_that_are_split_over_different_axes_are_added(size: int) -> None:
    x, y = draw(size, 4), draw(size, 4, seed=1)
    done = judge(torch.add, {"input": x, "other": y}, "x=2,y=2", "input=[x,-1]", "other=[y,-1]")
    assert layout_of(done, "input").dims != layout_of(done, "other").dims


def classifier(weights: Tensors, given: Tensors) -> Tensors:
    """One training step's loss, gradients and new head, of a layer and a cross-entropy."""
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    hidden = torch.tanh(given["x"] @ leaves["w"])
    loss = F.cross_entropy(hidden @ leaves["head"], given["labels"])
    gradients = torch.autograd.grad(loss, [leaves["w"], leaves["head"]])
    return {
        "loss": loss.detach(),
        "grad_w": gradients[0],
        "grad_head": gradients[1],
        "new_head": leaves["head"].detach() - 0.1 * gradients[1],
    }


CLASSIFIER = {"w": draw(6, 8), "head": draw(8, 12)}
CLASSIFIED = {"x": draw(8, 6), "labels": torch.tensor([0, 11, 3, 5, 7, 2, 9, 4])}


@pytest.mark.parametrize("batch", [8, 5, 2])
@pytest.mark.parametrize("head", [("head=[-1,tp]",), ("head=[tp,-1]", "w=[-1,tp]"), ()], ids=str)
def test_gradients_are_not_scaled_by_the_number_of_ranks(head: tuple[str, ...], batch: int) -> None:
    given = {name: tensor[:batch] for name, tensor in CLASSIFIED.items()}
    judged(classifier, given, "dp=2,tp=2", "x=[dp,-1]", "labels=[dp]", *head, weights=CLASSIFIER)
    judged(classifier, given, "dp=4", "x=[dp,-1]", "labels=[dp]", weights=CLASSIFIER)


def test_the_loss_is_that_of_the_whole_batch() -> None:
    captured, done = judged(
        classifier, CLASSIFIED, "dp=4", "x=[dp,-1]", "labels=[dp]", weights=CLASSIFIER
    )
    assert layout_of(done, "loss").is_replicated
    assert collectives(done)
    torch.testing.assert_close(run(captured, done)["loss"], captured.expected["loss"])


@pytest.mark.parametrize("pin", ["c=[x,-1]", "c=[-1,x]"])
def test_the_last_output_alone_may_be_pinned(pin: str) -> None:
    def step(_: Tensors, given: Tensors) -> Tensors:
        a = given["x"] * 2
        return {"a": a, "b": a.sum(1), "c": torch.relu(a) + 1}

    _, done = judged(step, {"x": draw(6, 4)}, "x=2", pin)
    assert layout_of(done, "c").sharded_axes == ("x",)


def test_a_weight_split_in_two_dimensions_is_cut_anew_for_another_mesh() -> None:
    # Of a [2, 2] split that is read for [4], half of the rows are lost elsewhere.
    weight = draw(8, 6)
    stored = capture(lambda w, _: {"kept": w["w"] + 0.0}, {"w": weight}, {})
    grid = compiled(stored, "x=2,y=2", "none", "w=[x,y]", "kept=[x,y]")
    assert len(layout_of(grid, "kept").sharded_axes) == 2
    again = run(stored, grid)["kept"]
    assert torch.equal(again, weight)
    rows = capture(lambda w, given: {"y": given["x"] @ w["w"]}, {"w": again}, {"x": draw(3, 8)})
    check(rows, compiled(rows, "x=4", "none", "w=[x,-1]"))
    done = judge(torch.neg, {"input": weight}, "x=2,y=2", "input=[x,y]", "y=[(x,y),-1]")
    assert kinds(done) == {"all_to_all": 1}


# Colossal, AutoParallel


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_dimensions_may_be_smaller_than_the_mesh(rows: int) -> None:
    x, w = draw(rows, 3), draw(3, 5)
    done = judge(torch.matmul, {"input": x}, "x=8", "input=[x,-1]", weights={"other": w})
    assert layout_of(done, "input").sharded_axes == ("x",)
    judge(torch.matmul, {"input": x}, "x=8", "other=[-1,x]", weights={"other": w})
    judge(torch.matmul, {"input": x}, "x=8", "other=[x,-1]", weights={"other": w})


def attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """Causal attention with 12 heads of 4."""
    batch, length, size = x.shape
    q, k, v = ((x @ w).view(batch, length, 12, 4).transpose(1, 2) for w in (wq, wk, wv))
    scores = q @ k.transpose(-1, -2) / 2 + torch.full((length, length), -1e9).triu(1)
    mixed = scores.softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(batch, length, size) @ wo


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_twelve_heads_are_split_over_any_number_of_ranks(ranks: int) -> None:
    weights = {name: draw(48, 48, seed=at) / 7 for at, name in enumerate(("wq", "wk", "wv", "wo"))}
    pins = ("wq=[-1,tp]", "wk=[-1,tp]", "wv=[-1,tp]", "wo=[tp,-1]")
    done = judge(attention, {"x": draw(2, 5, 48)}, f"tp={ranks}", *pins, weights=weights)
    assert kinds(done) == {"all_reduce": 1}


def test_an_all_gather_is_priced_on_its_result() -> None:
    done = judge(torch.neg, {"input": draw(8, 6)}, "x=4", "input=[x,-1]", "y=[-1,-1]")
    (gathered,) = collectives(done)
    assert (gathered.kind, gathered.bytes) == ("all_gather", 4 * 8 * 6)


# XLA, GSPMD, JAX


def test_two_all_to_alls_where_others_gather_everything() -> None:
    # openxla/xla#15207: 24,576 bytes, where two all_to_alls need 4,096.
    x = draw(16, 16, 16)
    done = judge(torch.neg, {"input": x}, "x=4,y=2", "input=[y,-1,x]", "y=[-1,(x,y),-1]")
    assert kinds(done) == {"all_to_all": 2}
    assert sum(one.bytes for one in collectives(done)) == 4096


@pytest.mark.parametrize("size", [7, 5, 3])
def test_a_split_that_does_not_divide_is_honoured(size: int) -> None:
    done = judge(torch.tanh, {"input": draw(size, 4)}, "x=4", "input=[x,-1]", "y=[x,-1]")
    assert not collectives(done)
    assert layout_of(done, "input").sharded_axes == layout_of(done, "y").sharded_axes == ("x",)


def test_a_pin_on_one_layer_stays_there() -> None:
    weights = {f"w{at}": draw(8, 8, seed=at) / 3 for at in range(4)}

    def layers(x: Tensor, **w: Tensor) -> Tensor:
        for at in range(4):
            x = torch.relu(x @ w[f"w{at}"])
        return x

    free = judge(layers, {"x": draw(8, 8)}, "dp=2,tp=2", "x=[dp,-1]", weights=weights)
    pins = ("x=[dp,-1]", "w1=[-1,tp]", "w2=[tp,-1]")
    done = judge(layers, {"x": draw(8, 8)}, "dp=2,tp=2", *pins, weights=weights)
    assert not collectives(free)
    assert kinds(done) == {"all_reduce": 1}
    for name in ("w0", "w3"):
        assert layout_of(done, name).is_replicated


def test_pins_that_conflict_are_reported() -> None:
    pins = ("input=[x,-1]", "other=[-1,x]")
    given = {"input": draw(8, 8), "other": draw(8, 8, seed=1)}
    done = judge(torch.add, given, "x=2", *pins)
    assert any(entry.category == "reshard" for entry in done.report)
    assert layout_of(done, "input").dims_mapping == (0, -1)
    assert layout_of(done, "other").dims_mapping == (-1, 0)


# DTensor

LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "cosine_embedding": lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(x.shape[0])),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [8, 7, 3])
def test_means_over_shards_of_different_sizes(loss: str, rows: int) -> None:
    given = {"x": draw(rows, 3), "target": draw(rows, 3, seed=1)}
    pins = ("x=[x,-1]", "target=[x,-1]")
    done = judge(lambda x, target: LOSSES[loss](x, target), given, "x=4", *pins)
    assert layout_of(done, "y").is_replicated
    assert collectives(done)


CONVOLUTIONS = {
    (transposed, dims): getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")
    for transposed, dims in itertools.product((False, True), (1, 2, 3))
}


@pytest.mark.parametrize(("transposed", "dims"), CONVOLUTIONS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_convolution_whose_last_dimension_is_split(
    transposed: bool, dims: int, ranks: int
) -> None:
    function = CONVOLUTIONS[transposed, dims]
    x, weight = draw(2, 3, *[4] * (dims - 1), 7), draw(3, 3, *[3] * dims)
    pin = f"input=[-1,-1,{'-1,' * (dims - 1)}x]"
    judge(
        lambda input, weight: function(input, weight, padding=1),
        {"input": x},
        f"x={ranks}",
        pin,
        weights={"weight": weight},
    )


@pytest.mark.parametrize("left", [(5,), (4, 5), (2, 4, 5)], ids=str)
@pytest.mark.parametrize("right", [(5,), (5, 3), (2, 5, 3)], ids=str)
def test_products_of_every_rank(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    given = {"input": draw(*left), "other": draw(*right, seed=1)}
    for at in range(len(left)):
        pin = ["-1"] * len(left)
        pin[at] = "x"
        judge(torch.matmul, given, "x=2", f"input=[{','.join(pin)}]")


@pytest.mark.parametrize("size", [12, 15, 9])
def test_an_uneven_dimension_is_taken_apart(size: int) -> None:
    given = {"x": draw(size, 4)}
    judge(lambda x: x.unflatten(0, (3, size // 3)).sin(), given, "x=2", "x=[x,-1]")
    judge(lambda x: x.view(size * 4).cos(), given, "x=2", "x=[x,-1]", "y=[x]")
    judge(lambda x: x.view(size // 3, 12), given, "x=2,y=2", "x=[(x,y),-1]", "y=[y,x]")


FALLBACKS: Mapping[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "unfold": ((2, 3, 6, 6), lambda x: F.unfold(x, 3)),
    "cdist": ((6, 4), lambda x: torch.cdist(x, x + 1)),
    "reflection_pad2d": ((2, 3, 6, 6), lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect")),
    "attention": ((2, 4, 6, 8), lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
}


@pytest.mark.parametrize("name", FALLBACKS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_no_op_lacks_a_strategy(name: str, dim: int) -> None:
    shape, function = FALLBACKS[name]
    pin = ["-1"] * len(shape)
    pin[dim] = "x"
    judge(function, {"x": draw(*shape)}, "x=2", f"x=[{','.join(pin)}]")


def test_shapes_that_depend_on_data_are_refused_clearly() -> None:
    class Picks(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.nonzero()

    with pytest.raises(InvalidInputError, match=r"nonzero: shape \(u0, 1\) isn't static"):
        exported(Picks(), x=torch.tensor([0.0, 1.0, 2.0]))
