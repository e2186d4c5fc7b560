"""A parallel module in a job of one process: it is the module that it was made of."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.cost import peak_rank_timeline
from autopar.ir.program import Program
from tests.parallel.tiny import Scored, adamw, loss_of, tiny, tokens, train


class Branches(nn.Module):
    """Takes and returns structures; has a batch norm, a frozen weight and one that isn't used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 3)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.idle = nn.Linear(2, 2)

    def forward(
        self, x: Tensor, *, extra: Mapping[str, Tensor] | None = None, scale: float = 1.0
    ) -> dict[str, Any]:
        hidden = torch.relu(self.norm(self.first(x)))
        if extra is not None:
            hidden = hidden + extra["bias"]
        y = self.second(hidden) * scale + self.frozen
        return {"y": y, "rest": (hidden, "name", None), "best": y.argmax(-1), "again": y, "x": x}


def branches() -> tuple[Branches, autopar.ParallelModule]:
    torch.manual_seed(0)
    model = Branches()
    return model, autopar.parallelize(model, torch.randn(6, 4), mesh="1")


def objective(out: Mapping[str, Any]) -> Tensor:
    total: Tensor = out["y"].square().mean() + out["rest"][0].sum() + out["again"].sum()
    return total + 3 * out["x"].sum()


def assert_same_state(found: nn.Module, wanted: nn.Module) -> None:
    torch.testing.assert_close(dict(found.state_dict()), dict(wanted.state_dict()))


def test_it_is_of_the_class_and_has_the_names_of_the_original() -> None:
    model = tiny()
    parallel = autopar.parallelize(model, tokens(0), mesh="1")
    assert isinstance(parallel, type(model))
    assert list(parallel.state_dict()) == list(model.state_dict())
    assert [n for n, _ in parallel.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert parallel.head.weight is parallel.table.weight
    assert parallel.head.weight is not model.head.weight
    assert_same_state(parallel, model)


def test_a_loop_of_the_user_trains_it_like_the_original() -> None:
    model = tiny()
    parallel = autopar.parallelize(model, tokens(0), mesh="1")
    found = train(parallel, adamw(parallel))
    wanted = train(model, adamw(model))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    assert_same_state(parallel, model)


def test_structures_gradients_and_buffers_are_those_of_the_original() -> None:
    model, parallel = branches()
    given = torch.randn(6, 4, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    for module in (model, parallel):
        x, extra = given.detach().requires_grad_(), {"bias": bias.detach().requires_grad_()}
        out = module(x, extra=extra, scale=2.0)
        assert out["rest"][1:] == ("name", None)
        assert not out["best"].requires_grad
        objective(out).backward()
        if module is model:
            wanted = [x.grad, extra["bias"].grad]
    torch.testing.assert_close([x.grad, extra["bias"].grad], wanted)
    for (name, mine), (_, theirs) in zip(
        parallel.named_parameters(), model.named_parameters(), strict=True
    ):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert_same_state(parallel, model)


def test_modes_shapes_and_frozen_weights_are_compiled_as_they_are_needed() -> None:
    model, parallel = branches()
    for batch, training, frozen in ((6, True, False), (3, True, False), (5, False, True)):
        x = torch.randn(batch, 4)
        for module in (model, parallel):
            module.train(training)
            module.zero_grad()
            module.second.requires_grad_(not frozen)
            objective(module(x)).backward()
        grads = [[p.grad for p in m.parameters() if p.grad is not None] for m in (model, parallel)]
        torch.testing.assert_close(*grads)
    with torch.no_grad():
        found = parallel(x)["y"]
    torch.testing.assert_close(found, model(x)["y"].detach())
    assert not found.requires_grad
    assert_same_state(parallel, model)
    compiled = len(parallel._parallel.runner.variants)
    with torch.no_grad():
        parallel(x)
    assert len(parallel._parallel.runner.variants) == compiled


def test_calls_before_backward_and_repeated_backwards_add_up() -> None:
    model = tiny()
    parallel = autopar.parallelize(model, tokens(0), mesh="1")
    for module in (model, parallel):
        first, second = loss_of(module, tokens(0)), loss_of(module, tokens(1))
        second.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        first.backward()  # type: ignore[no-untyped-call]
        second.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(
        [p.grad for p in parallel.parameters()], [p.grad for p in model.parameters()]
    )
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        second.backward()  # type: ignore[no-untyped-call]


def test_a_copy_trains_by_itself() -> None:
    parallel = autopar.parallelize(tiny(), tokens(0), mesh="1")
    copied = copy.deepcopy(parallel)
    before = parallel.full_state_dict()["up.weight"].clone()
    train(copied, adamw(copied))
    assert copied.head.weight is copied.table.weight
    assert torch.equal(parallel.full_state_dict()["up.weight"], before)
    wanted = tiny()
    train(wanted, adamw(wanted))
    assert_same_state(copied, wanted)


def test_second_derivatives_are_refused() -> None:
    parallel = autopar.parallelize(tiny(), tokens(0), mesh="1")
    loss = loss_of(parallel, tokens(0))
    (gradient,) = torch.autograd.grad(loss, parallel.positions, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()  # type: ignore[no-untyped-call]


def test_dropout_draws_anew_in_every_call_and_alike_for_a_seed() -> None:
    model = tiny(dropout=0.5)
    first, second, other = (
        autopar.parallelize(model, tokens(0), mesh="1", seed=seed) for seed in (3, 3, 4)
    )
    calls = [first(tokens(0)) for _ in range(2)]
    assert not torch.equal(*calls)
    assert all(torch.equal(each, second(tokens(0))) for each in calls)
    assert not torch.equal(calls[0], other(tokens(0)))
    assert second.random_calls == 2
    second.random_calls = 0
    assert torch.equal(calls[0], second(tokens(0)))
    first.eval()
    assert torch.equal(first(tokens(0)), first(tokens(0)))


def test_autocast_around_the_call_is_seen() -> None:
    model = tiny()
    parallel = autopar.parallelize(model, tokens(0), mesh="1")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = parallel(tokens(0)), model(tokens(0))
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted)


def test_a_model_without_values_gets_them_later() -> None:
    model = tiny()
    with torch.device("meta"):
        absent = type(model)()
    parallel = autopar.parallelize(absent, tokens(0), mesh="1")
    parallel.to_empty(device="cpu")
    parallel.load_state_dict(model.state_dict())
    torch.testing.assert_close(parallel(tokens(0)), model(tokens(0)))


def test_wrong_calls_are_refused() -> None:
    model, parallel = branches()
    with pytest.raises(autopar.AutoparError, match=r"Branches can't be called like this: .*scale"):
        parallel(torch.randn(6, 4), wrong=1)
    with pytest.raises(autopar.AutoparError, match="hold no tensor"):
        parallel(3)
    with pytest.raises(autopar.AutoparError, match=r"test_module.py:\d+"):
        parallel(torch.randn(6, 5))
    with pytest.raises(autopar.AutoparError, match="norm is part of a compiled program"):
        parallel.norm(torch.randn(6, 8))
    with pytest.raises(autopar.AutoparError, match="convert or move the model before"):
        parallel.double()
    with pytest.raises(autopar.AutoparError, match=r"parameters='sharded'; give 'dtensor' or"):
        autopar.parallelize(model, torch.randn(6, 4), mesh="1", parameters="sharded")
    with pytest.raises(autopar.AutoparError, match=r"zero1 .* use 'fsdp:dp', which"):
        autopar.parallelize(model, torch.randn(6, 4), mesh="dp=1", strategy="zero1:dp")
    with pytest.raises(autopar.AutoparError, match=r"job has 1 processes but .* torchrun .* 2,"):
        autopar.parallelize(model, torch.randn(6, 4), mesh="2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": None}, "was given a NoneType as the model; it takes a torch.nn.Module"),
        ({"seed": "3"}, "seed='3': give a whole number"),
        ({"outputs": None}, "outputs=None: give 'global', 'dtensor', or a list of names"),
        ({"outputs": [3]}, r"outputs=\[3\]: give"),
        ({"parameters": [1]}, r"parameters=\[1\]; give 'dtensor' or 'local'"),
        ({"torch_compile": "yes"}, "torch_compile='yes': give True or False"),
        ({"local": None}, "local=None: give True or False"),
        ({"placement": 3}, "placement=3: give 'identity', 'auto', or the process id"),
        ({"shard": {"head.weight": 3}}, r"shard\['head.weight'\]: give a list with an entry"),
        ({"shard": {3: [None]}}, r"shard\[3\]: give a list with an entry"),
    ],
)
def test_options_of_a_wrong_type_are_refused(options: dict[str, Any], said: str) -> None:
    given = {"model": nn.Linear(4, 2), "example_inputs": torch.ones(2, 4), "mesh": "1", **options}
    with pytest.raises(autopar.AutoparError, match=said):
        autopar.parallelize(**given)


def test_tensors_and_numbers_of_a_wrong_type_are_refused() -> None:
    parallel = autopar.parallelize(nn.Linear(4, 2), torch.ones(2, 4), mesh="1")
    refused: list[tuple[Any, str]] = [
        (torch.ones(2, 4, dtype=torch.float64), r"a product of f32 and f64, which must be of one"),
        (torch.ones(2, 4, dtype=torch.int64), "a product of f32 and i64"),
        (
            torch.ones(2, 4).to_sparse(),
            "'input' is a tensor of the layout sparse_coo; give to_dense",
        ),
        (torch.ones(2, 4, device="meta"), "'input' is on the meta device"),
        ([torch.ones(2, 4), torch.ones(2, 4).numpy()], "brings a ndarray; hand over tensors"),
    ]
    for given, said in refused:
        with pytest.raises(autopar.AutoparError, match=said):
            parallel(given)
    for limit in (None, "1", [1.0], -1.0, float("nan")):
        with pytest.raises(autopar.AutoparError, match=r"max_norm=.*: it must be a number"):
            parallel.clip_grad_norm_(limit)
    with pytest.raises(autopar.AutoparError, match="norm_type=0: it must be a number"):
        parallel.clip_grad_norm_(1.0, 0)
    with pytest.raises(autopar.AutoparError, match=r"path=3: give a path"):
        parallel.load_weights(3)
    with pytest.raises(autopar.AutoparError, match="everywhere=1: give True or False"):
        parallel.full_state_dict(everywhere=1)
    with pytest.raises(autopar.AutoparError, match="random_calls=-1: it is a number of calls"):
        parallel.random_calls = -1
    for given in (torch.ones(0, 4), torch.ones(4, 2).t(), torch.ones(2, 4, requires_grad=True)):
        assert torch.isfinite(parallel(given)).all()


def test_outputs_that_nobody_asks_for_are_left_out() -> None:
    model = Scored()
    parallel = autopar.parallelize(model, tokens(0), mesh="1", outputs=["loss"])
    found, wanted = parallel(tokens(0)), model(tokens(0))
    assert found["logits"] is None
    assert found["rest"] == (None, None)
    torch.testing.assert_close(found["loss"], wanted["loss"])
    torch.testing.assert_close(parallel(tokens(0), scored=False), model(tokens(0), scored=False))
    within = autopar.parallelize(model, tokens(0), mesh="1", outputs=["loss", "rest"])
    assert torch.equal(within(tokens(0))["rest"][0], wanted["rest"][0])
    with pytest.raises(autopar.AutoparError, match=r"no tensor 'los', .*did you mean loss"):
        autopar.parallelize(model, tokens(0), mesh="1", outputs=["los"])
    with pytest.raises(autopar.AutoparError, match=r"outputs='loss'; .* as \['loss'\]"):
        autopar.parallelize(model, tokens(0), mesh="1", outputs="loss")


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return copy.copy(_Box(x))


class _Box:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_outputs_that_hide_tensors_are_refused() -> None:
    with pytest.raises(autopar.AutoparError, match="returns a _Box"):
        autopar.parallelize(Opaque(), torch.randn(2), mesh="1")


def ranks_program(parallel: autopar.ParallelModule) -> Program:
    """Returns what a rank runs, of the first variant."""
    first = parallel._parallel.runner.compiler.first
    assert first is not None
    return first.deployment.programs[0]


def test_a_limit_of_memory_is_held_and_changes_no_number() -> None:
    free = autopar.parallelize(tiny(), tokens(0), mesh="1")
    limit = peak_rank_timeline(ranks_program(free)).peak_bytes * 9 // 10
    model, parallel = tiny(), autopar.parallelize(tiny(), tokens(0), mesh="1", memory=limit)
    program = ranks_program(parallel)
    assert peak_rank_timeline(program).peak_bytes <= limit
    assert len(program.main.ops) > len(ranks_program(free).main.ops)
    torch.testing.assert_close(train(parallel, adamw(parallel)), train(model, adamw(model)))
    with torch.no_grad():
        torch.testing.assert_close(parallel.eval()(tokens(1)), model.eval()(tokens(1)))
    with pytest.raises(autopar.AutoparError, match=r"than the limit of 4\.0 KiB"):
        autopar.parallelize(tiny(), tokens(0), mesh="1", memory="4KiB")


@pytest.mark.parametrize("choice", ["recompute", "offload"])
def test_activations_are_as_wished(choice: str) -> None:
    wishes = {"*": choice}
    model, parallel = tiny(), autopar.parallelize(tiny(), tokens(0), mesh="1", activations=wishes)
    kinds = [op.kind for op in ranks_program(parallel).main.ops]
    assert (kinds.count("aten.gelu.default") == 2) == (choice == "recompute")
    assert ("autopar.offload" in kinds) == (choice == "offload")
    torch.testing.assert_close(train(parallel, adamw(parallel)), train(model, adamw(model)))
    with torch.no_grad():  # Nothing is kept for a backward pass then.
        torch.testing.assert_close(parallel(tokens(1)), model(tokens(1)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("apart: true", "plan.yaml lays fused weights out by their parts, but a parallel module"),
        ("strategy: zero1:d0", "zero1 splits the optimizer's state, which is the user's here"),
        ("mesh: 4", "plan.yaml is for d0=4, but mesh= says d0=1"),
    ],
)
def test_plans_that_a_parallel_module_has_no_use_for(
    content: str, message: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"{content}\n")
    with pytest.raises(autopar.AutoparError, match=message):
        autopar.parallelize(tiny(), tokens(0), mesh="1", plan=plan)


def test_the_shape_of_the_mesh_is_searched_for_the_processes_that_there_are() -> None:
    parallel = autopar.parallelize(tiny(), tokens(0), devices=1)
    assert parallel._parallel.runner.compiler.options.mesh.size == 1
    with pytest.raises(autopar.AutoparError, match="the job has 1 processes but mesh d0=2 has 2"):
        autopar.parallelize(tiny(), tokens(0), devices=2)


def test_parameters_of_a_parallel_module_stay_on_the_device() -> None:
    class Marked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, autopar.annotate.offload(self.weight, "cpu"), self.bias)

    with pytest.raises(autopar.AutoparError, match=r"test_module\.py:\d+: offload of %weight to"):
        autopar.parallelize(Marked(4, 4), torch.ones(8, 4), mesh="1")
