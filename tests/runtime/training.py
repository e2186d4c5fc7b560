"""A small training step as a build: two matrix products, mean squared error, Adam."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from autopar.ir.program import Port, Program, Value
from autopar.pipeline import CompileOptions, compile_program, write
from tests.captured import capture

BATCH, WIDTH, HIDDEN, CLASSES = 6, 4, 8, 5
LR, BETAS, EPS = 0.05, (0.9, 0.999), 1e-8
STATE = ("step", "exp_avg", "exp_avg_sq")


class Model(nn.Module):
    """Two layers whose names have dots, and a running mean as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, CLASSES)
        self.register_buffer("mean", torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu(self.up(x)))
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y


def reference_model(seed: int = 0) -> Model:
    """Returns the model with the parameters of this seed."""
    torch.manual_seed(seed)
    return Model()


def batches(count: int, seed: int = 1) -> list[dict[str, Tensor]]:
    """Returns global batches."""
    drawn = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(BATCH, WIDTH, generator=drawn),
            "target": torch.randn(BATCH, CLASSES, generator=drawn),
        }
        for _ in range(count)
    ]


@dataclass
class Reference:
    """What one device does: a model and its optimizer under plain PyTorch."""

    model: Model
    optimizer: torch.optim.Optimizer

    @classmethod
    def of_seed(cls, seed: int = 0) -> Reference:
        """Returns the model of this seed, before the first step."""
        model = reference_model(seed)
        return cls(model, torch.optim.Adam(model.parameters(), LR, BETAS, EPS))

    def step(self, batch: Mapping[str, Tensor]) -> float:
        """Trains on a batch and returns its loss."""
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(batch["x"]), batch["target"])
        loss.backward()
        self.optimizer.step()
        return loss.item()


def training_program(fetch: bool = False) -> tuple[Program, dict[str, Tensor]]:
    """Returns the serial training program and the weights it starts with.

    Args:
        fetch: Whether the model's output is an output of the program.
    """
    model = reference_model()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    state = {
        f"{kind}/{name}": torch.zeros(() if kind == "step" else p.shape)
        for kind in STATE
        for name, p in parameters.items()
    }
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def step(stored: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: stored[name].detach().requires_grad_() for name in parameters}
        hidden = torch.relu(given["x"] @ leaves["up.weight"].t())
        y = hidden @ leaves["down.weight"].t() + leaves["down.bias"]
        loss = ((y - given["target"]) ** 2).mean()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        found = {"loss": loss.detach(), **({"y": y.detach()} if fetch else {})}
        found["mean.new"] = 0.9 * stored["mean"] + 0.1 * y.detach().mean(0)
        for name, grad in zip(leaves, grads, strict=True):
            found.update(_adam(name, grad, stored, given["lr"]))
        return found

    stored = {**parameters, **buffers, **state}
    inputs = {**batches(1)[0], "lr": torch.tensor(LR)}
    captured = capture(step, stored, inputs)
    return _with_roles(captured.program, set(buffers)), {**parameters, **buffers}


def _adam(name: str, grad: Tensor, stored: Mapping[str, Tensor], lr: Tensor) -> dict[str, Tensor]:
    step = stored[f"step/{name}"] + 1
    mean = stored[f"exp_avg/{name}"] * BETAS[0] + grad * (1 - BETAS[0])
    square = stored[f"exp_avg_sq/{name}"] * BETAS[1] + grad * grad * (1 - BETAS[1])
    unbiased = mean / (1 - BETAS[0] ** step)
    scale = (square / (1 - BETAS[1] ** step)).sqrt() + EPS
    return {
        f"{name}.new": stored[name] - lr * unbiased / scale,
        f"step/{name}.new": step,
        f"exp_avg/{name}.new": mean,
        f"exp_avg_sq/{name}.new": square,
    }


def _with_roles(program: Program, buffers: set[str]) -> Program:
    """Returns the program with roles, aliases, fills and phases, which `capture` doesn't know."""
    main = program.main
    labels = {port.label: port.name for port in program.signature.inputs}
    aliases = tuple(
        (port.name, labels[port.label.removesuffix(".new")])
        for port in program.signature.outputs
        if port.label.endswith(".new")
    )
    known = {port.name: port.label for port in program.signature.inputs}
    values = {name: _value(v, known.get(name, ""), buffers) for name, v in main.values.items()}
    updates = {new for new, _ in aliases}
    ops = tuple(
        replace(op, phase="update" if updates & set(op.results) else op.phase) for op in main.ops
    )
    signature = replace(
        program.signature,
        inputs=tuple(_port(port, values) for port in program.signature.inputs),
        outputs=tuple(
            replace(port, label=port.label.removesuffix(".new"))
            for port in program.signature.outputs
        ),
    )
    changed = replace(main, values=values, ops=ops, aliases=aliases)
    return replace(program.with_main(changed), signature=signature)


def _value(value: Value, label: str, buffers: set[str]) -> Value:
    if label in buffers:
        return replace(value, role="buffer")
    return replace(value, role="optimizer_state") if "/" in label else value


def _port(port: Port, values: Mapping[str, Value]) -> Port:
    fill = LR if port.label == "lr" else 0.0 if "/" in port.label else None
    return replace(port, role=values[port.name].role, fill=fill)


def training_build(
    folder: Path, mesh: str, strategy: str = "none", *shards: str, fetch: bool = False
) -> Path:
    """Writes a training build for a mesh and returns its folder."""
    program, weights = training_program(fetch)
    options = CompileOptions.from_text(mesh=mesh, strategy=strategy, shards=shards)
    write(compile_program(program, options), weights, folder)
    return folder


def layouts() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields (mesh, strategy, pins) that between them split everything that can be."""
    megatron = ("up.weight=[tp,-1]", "down.weight=[-1,tp]")
    yield "1", "none", ()
    yield "dp=2", "data:dp", ()
    yield "tp=2", "none", megatron
    yield "dp=3", "data:dp", ()
    yield "tp=3", "none", megatron
    yield "dp=2,tp=2", "none", ("x=[dp,-1]", "target=[dp,-1]", *megatron)
    yield "dp=2,tp=3", "none", ("x=[dp,-1]", "target=[dp,-1]", *megatron)
    yield "dp=2,tp=3", "fsdp:dp", megatron
