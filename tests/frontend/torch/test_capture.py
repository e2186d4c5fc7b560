"""Captured training steps compute what PyTorch computes, and bad input is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

import autopar
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Recipe, capture
from autopar.runtime.execute.serial import run_serial
from tests.judges.steps import Steps, stored_values


class Net(nn.Module):
    """Two layers around a batch norm, the second one tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 10, bias=False)
        self.table = nn.Embedding(10, 8)
        self.table.weight = self.second.weight

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        out: Tensor = self.second(F.gelu(self.norm(self.first(x))) + self.table(ids))
        return out


def batch(seed: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 4, generator=generator)
    ids = torch.randint(0, 10, (6,), generator=generator)
    return (x, ids), torch.randn(6, 10, generator=generator)


OPTIMIZERS = {
    "sgd": lambda p: SGD(p, 0.1),
    "nesterov": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: AdamW(p, 0.01, weight_decay=0.1),
    "adagrad": lambda p: Adagrad(p, 0.01, lr_decay=0.1),
    "fused adamw": lambda p: AdamW(p, 0.01, weight_decay=0.1, fused=True),
    "fused sgd": lambda p: SGD(p, 0.1, momentum=0.9, fused=True),
    "unfused adam": lambda p: Adam(p, 0.01, fused=False),
    "rmsprop": lambda p: RMSprop(p, 0.01, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, 0.5)])
def test_a_captured_step_is_pytorchs(name: str, accumulate: int, clip: float | None) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer: Optimizer = OPTIMIZERS[name](model.parameters())
    recipe = Recipe(F.mse_loss, None, optimizer, clip, accumulate)
    captured = capture(model, batch(0), recipe)
    assert "table.weight" not in captured.program.main.values
    steps = Steps(captured)
    for number in range(3):
        loss = eager_step(model, optimizer, batch(number), accumulate, clip)
        found = steps.take(batch(number), lr=optimizer.param_groups[0]["lr"])
        torch.testing.assert_close(found, loss, rtol=1e-6, atol=0)
        optimizer.param_groups[0]["lr"] *= 0.5
    stored = steps.stored
    for key, tensor in model.state_dict(keep_vars=True).items():
        if key != "table.weight":
            torch.testing.assert_close(stored[key], tensor.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("fused", "count"), [(None, 4), (True, 4), (False, 0)])
def test_one_kernel_updates_a_parameter_unless_the_user_says_no(
    fused: bool | None, count: int
) -> None:
    model = Net()
    optimizer = AdamW(model.parameters(), fused=fused)
    program = capture(model, batch(0), Recipe(F.mse_loss, None, optimizer)).program
    kinds = [op.kind for op in program.main.ops]
    assert kinds.count("aten._fused_adamw.tensor_lr") == count
    assert "aten.copy.default" not in kinds


def eager_step(
    model: nn.Module,
    optimizer: Optimizer,
    batch: tuple[tuple[Tensor, Tensor], Tensor],
    accumulate: int,
    clip: float | None,
) -> Tensor:
    (x, ids), target = batch
    optimizer.zero_grad()
    total = torch.tensor(0.0)
    for part in zip(*(t.chunk(accumulate) for t in (x, ids, target)), strict=True):
        loss = F.mse_loss(model(*part[:2]), part[2]) / accumulate
        loss.backward()
        total += loss.detach()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return total


def test_outputs_and_gradients_are_fetched_whole() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    (x, ids), target = batch(0)
    fetch = ("output", "table.weight", "grad_norm")
    optimizer = SGD(model.parameters(), 0.1)
    recipe = Recipe(F.mse_loss, None, optimizer, clip_grad_norm=1.0, accumulate=2, fetch=fetch)
    steps = Steps(capture(model, batch(0), recipe))
    steps.take(batch(0))
    torch.testing.assert_close(steps.outputs["output"], model(x, ids).detach())
    F.mse_loss(model(x, ids), target).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(steps.outputs["grad/second.weight"], model.second.weight.grad)
    with pytest.raises(InvalidInputError, match=r"fetch='outpt': .* did you mean output"):
        capture(model, batch(0), Recipe(F.mse_loss, None, optimizer, fetch=("outpt",)))


def test_autocast_rounds_products_only() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = SGD(model.parameters(), 0.1)
    recipe = Recipe(F.mse_loss, None, optimizer, autocast=torch.bfloat16)
    steps = Steps(capture(model, batch(0), recipe))
    found = steps.take(batch(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = eager_step(model, optimizer, batch(0), 1, None)
    torch.testing.assert_close(found, loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(steps.stored["first.weight"], model.first.weight.detach())


def test_masters_keep_what_halves_would_lose() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = AdamW(model.parameters(), 1e-4)
    recipe = Recipe(F.mse_loss, None, optimizer, master_dtype=torch.float32, fetch=("0.bias",))
    steps = Steps(capture(model, halves(0), recipe))
    theirs = AdamW(masters, 1e-4)
    for number in range(3):
        x, target = halves(number)
        found = steps.take((x, target))
        model.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        theirs.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        torch.testing.assert_close(found, loss.detach(), rtol=0, atol=0)
    assert steps.outputs["grad/0.bias"].dtype == torch.float32
    for (name, _), master in zip(model.named_parameters(), masters, strict=True):
        torch.testing.assert_close(steps.stored[name], master.detach(), rtol=1e-6, atol=1e-7)


def halves(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(5, 4, generator=generator).bfloat16()
    return x, torch.randn(5, 3, generator=generator).bfloat16()


def test_a_scaled_step_that_overflows_changes_the_scale_only() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = AdamW(model.parameters(), 0.01)
    options = {"init_scale": 2.0**15, "growth_interval": 2}
    recipe = Recipe(
        F.mse_loss,
        None,
        optimizer,
        clip_grad_norm=1.0,
        scaler=torch.amp.GradScaler("cpu", **options),  # type: ignore[arg-type]
        fetch=("bias",),
    )
    steps = Steps(capture(model, (torch.zeros(5, 4), torch.zeros(5, 3)), recipe))
    scaler = torch.amp.GradScaler("cpu", **options)  # type: ignore[arg-type]
    for number in range(5):
        generator = torch.Generator().manual_seed(number)
        x, target = torch.randn(5, 4, generator=generator), torch.zeros(5, 3)
        if number == 1:
            x[0, 0] = torch.inf
        steps.take((x, target))
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), target)).backward()
        scaler.unscale_(optimizer)
        assert model.bias.grad is not None
        gradient = model.bias.grad.clone()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(steps.outputs["grad/bias"], gradient, equal_nan=True)
        assert steps.stored["scale/loss_scale"].item() == scaler.get_scale()
        torch.testing.assert_close(steps.stored["weight"], model.weight.detach())
    assert steps.stored["step/weight"].item() == 4


def test_ops_know_their_line_module_and_phase() -> None:
    model = Net()
    recipe = Recipe(F.mse_loss, None, SGD(model.parameters(), 0.1))
    main = capture(model, batch(0), recipe).program.main
    products = [op for op in main.ops if op.kind == "aten.mm.default"]
    assert {op.phase for op in products} == {"forward", "backward"}
    assert all(op.loc.file == __file__ for op in products)
    # The loss is torch's: no line calls it but, through the compiler, the one that has it captured.
    losses = [op for op in main.ops if op.kind.startswith("aten.mse_loss")]
    assert losses
    assert all(op.loc.file == __file__ for op in losses)
    assert main.values["grad/second.weight"].role == "gradient"
    assert any(name.startswith("norm.") for name in main.values)


def test_a_model_without_weights_is_captured() -> None:
    with torch.device("meta"):
        model = Net()
    captured = capture(model, batch(0), Recipe(F.mse_loss, None, AdamW(model.parameters())))
    assert not captured.weights
    assert captured.program.main.values["exp_avg/first.weight"].shape == (8, 4)


def test_a_forward_pass_returns_what_the_model_does() -> None:
    model = Net().eval()
    (x, ids), _ = batch(0)
    captured = capture(model, {"ids": ids, "x": x})
    outputs = run_serial(captured.program, stored_values(captured), {"x": x, "ids": ids})
    torch.testing.assert_close(next(iter(outputs.values())), model(x, ids))


class Branching(nn.Module):
    """Does what the values of its input say."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.layer(x)
        return x


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({}, r"test_capture.py:\d+: what this line does depends on the values of a tensor"),
        ({"loss": F.mse_loss}, "loss= is given without optimizer="),
        ({"accumulate": 0}, "accumulate=0"),
    ],
)
def test_what_has_no_static_program_is_refused(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message), torch.device("meta"):
        capture(Branching(), torch.zeros(2, 4), Recipe(**recipe))  # type: ignore[arg-type]


def test_an_optimizer_must_be_a_function_of_gradients_and_state() -> None:
    model = Net()
    for optimizer, message in [
        (torch.optim.LBFGS(model.parameters()), "LBFGS can't be compiled"),
        (
            torch.optim.Adafactor(model.parameters()),
            r"Adafactor can't be compiled: what its step does at .*_adafactor.py:\d+ depends on the"
            r" values of a tensor, so it has no static program; use one that .* as AdamW",
        ),
        (SGD(model.parameters(), 0.1, momentum=0.9, dampening=0.5), "dampening=0.5"),
        (SGD(Net().parameters(), 0.1), "parameters that aren't the model's"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            capture(model, batch(0), Recipe(F.mse_loss, None, optimizer))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.zeros(2, 4), "this one is a Tensor, no pair; for batches of another form give"),
        ((torch.zeros(2, 4),), "this one is a tuple, 1 entries"),
    ],
)
def test_a_loss_function_takes_inputs_and_target(example: object, message: str) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(InvalidInputError, match=message):
        capture(model, example, Recipe(F.mse_loss, None, SGD(model.parameters(), 0.1)))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": torch.ones(2, 4)}, r"Linear.forward .*by name as they are a dict: .*'input'"),
        ((torch.ones(2, 4), torch.ones(2, 4)), r"one by one as they are a tuple: .*training_step="),
    ],
)
def test_inputs_that_forward_does_not_take_are_refused(inputs: object, message: str) -> None:
    model = nn.Linear(4, 4)
    recipe = Recipe(F.mse_loss, None, SGD(model.parameters(), 0.1))
    with pytest.raises(InvalidInputError, match=message):
        capture(model, (inputs, torch.ones(2, 4)), recipe)


class Counting(nn.Module):
    """Follows an attribute of its own."""

    def __init__(self, change: Callable[[Counting, Tensor], None]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.count = 0
        self.begun = False
        self.limit = float("nan")
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self, x)
        out: Tensor = self.first(x) * self.count
        return out


def count_calls(module: Counting, x: Tensor) -> None:
    module.count += 1


def begin(module: Counting, x: Tensor) -> None:
    module.begun = True


def note_length(module: Counting, x: Tensor) -> None:
    module.count = x.shape[0]
    module.train(False)


@pytest.mark.parametrize(("change", "name"), [(count_calls, "'count'"), (begin, "'begun'")])
def test_models_that_follow_their_own_attributes_are_refused(
    change: Callable[[Counting, Tensor], None], name: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^0 \(Counting\) .*{name} in forward.*buffer"):
        capture(nn.Sequential(Counting(change)), torch.ones(2, 4))


def test_what_forward_only_notes_is_no_state() -> None:
    found = capture(Counting(note_length), torch.ones(3, 4))
    assert "aten.mul.Tensor" in {op.kind for op in found.program.main.ops}


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(9, 4, sparse=True)
    recipe = Recipe(loss=lambda out, target: out.sum(), optimizer=SGD(model.parameters()))
    with pytest.raises(InvalidInputError, match=r"weight' is sparse.*sparse=False"):
        capture(model, (torch.zeros(2, dtype=torch.long), torch.zeros(2)), recipe)


def test_shapes_that_depend_on_values_are_refused() -> None:
    class Unique(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x.unique()
            return out

    with pytest.raises(
        InvalidInputError, match=r"test_capture.py:\d+: what this line does depends"
    ):
        capture(Unique(), torch.ones(3))


class Attending(nn.Module):
    """Attention of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_saves_what_its_kernel_returns(dtype: torch.dtype, tmp_path: Path) -> None:
    """Fake tensors of some versions of torch say something else in float64."""
    model, x = Attending().to(dtype), torch.randn(4, 6, 8, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compiled = autopar.compile(model, (x,), mesh="dp=2", strategy="data", optimizer=optimizer)
    compiled.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        torch.testing.assert_close(trainer.step((x,)), model(x).detach())
