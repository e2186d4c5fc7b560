"""Training steps of small modules as serial programs: forward, backward, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from autopar.ir.program import Function, Program
from tests.judges.captured import Captured, capture

Loss = Callable[[Callable[..., Tensor], Mapping[str, Tensor]], Tensor]
"""(module, batch) -> loss."""


@dataclass(frozen=True)
class Step:
    """What a training step does besides forward and backward.

    Attributes:
        lr: The learning rate.
        states: Initial content of the optimizer's state of each parameter, by name; none: SGD.
        clip: The largest global norm of the gradients.
        microbatches: Into how many the batch is cut.
    """

    lr: float = 0.1
    states: Mapping[str, float] = field(default_factory=dict)
    clip: float | None = None
    microbatches: int = 1


ADAMW = {"exp_avg": 0.01, "exp_avg_sq": 0.02, "step": 3.0}


def training(module: nn.Module, loss: Loss, batch: Mapping[str, Tensor], step: Step) -> Captured:
    """Captures a training step: the loss, and the new content of parameters and states.

    Args:
        module: Its parameters are trained.
        loss: Of the module and a batch, a mean over the first dimension.
        batch: By name.
        step: What to do with the gradients.
    """
    parameters = dict(module.named_parameters())
    states = {
        f"{name}/{of}": torch.full(() if name == "step" else p.shape, value)
        for of, p in parameters.items()
        for name, value in step.states.items()
    }

    def run(weights: dict[str, Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: weights[name].detach().requires_grad_() for name in parameters}
        value, gradients = _gradients(module, loss, leaves, given, step)
        found = {"loss": value, **{f"grad/{name}": g for name, g in gradients.items()}}
        scaled = gradients if step.clip is None else _clipped(gradients, step.clip)
        for name, leaf in leaves.items():
            state = {s: weights[f"{s}/{name}"] for s in step.states}
            new, kept = _updated(leaf.detach(), scaled[name], state, step.lr)
            found[f"{name}.new"] = new
            found.update({f"{s}/{name}.new": t for s, t in kept.items()})
        return found

    captured = capture(run, {**parameters, **states}, batch)
    expected = {n: t for n, t in captured.expected.items() if not n.startswith("grad/")}
    return replace(captured, program=as_training(captured.program), expected=expected)


def _gradients(
    module: nn.Module,
    loss: Loss,
    leaves: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    step: Step,
) -> tuple[Tensor, dict[str, Tensor]]:
    def call(*args: Tensor) -> Tensor:
        result = torch.func.functional_call(module, dict(leaves), args, tie_weights=True)
        assert isinstance(result, Tensor)
        return result

    total, gradients = torch.zeros(()), {name: torch.zeros(()) for name in leaves}
    for at in range(step.microbatches):
        part = {n: t.chunk(step.microbatches)[at] for n, t in batch.items()}
        value = loss(call, part) / step.microbatches
        found = torch.autograd.grad(value, list(leaves.values()))
        for name, gradient in zip(leaves, found, strict=True):
            gradients[name] = gradient if at == 0 else gradients[name] + gradient
        total = value.detach() if at == 0 else total + value.detach()
    return total, gradients


def _clipped(gradients: Mapping[str, Tensor], limit: float) -> dict[str, Tensor]:
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients.values()]
    total = torch.linalg.vector_norm(torch.stack(norms))
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    return {name: gradient * scale for name, gradient in gradients.items()}


def _updated(
    parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], lr: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns what SGD, or AdamW if there is a state, makes of a parameter and its state."""
    if not state:
        return parameter - lr * gradient, {}
    count = state["step"] + 1
    mean = state["exp_avg"].lerp(gradient, 0.1)
    square = (state["exp_avg_sq"] * 0.999).addcmul(gradient, gradient, value=0.001)
    corrected = (square / (1 - 0.999**count)).sqrt() + 1e-8
    decayed = parameter * (1 - lr * 0.01)
    new = decayed.addcdiv(mean / (1 - 0.9**count), corrected, value=-lr)
    return new, {"exp_avg": mean, "exp_avg_sq": square, "step": count}


def as_training(program: Program) -> Program:
    """Returns the program with phases, roles, and aliases; gradients aren't outputs any more."""
    main, signature = program.main, program.signature
    names = {port.label: port.name for port in signature.outputs}
    gradients = {name for label, name in names.items() if label.startswith("grad/")}
    inputs = {
        p.name: replace(p, role="optimizer_state")
        if "/" in p.label and p.role == "parameter"
        else p
        for p in signature.inputs
    }
    values = {
        name: replace(value, role=inputs[name].role)
        if name in inputs
        else replace(value, role="gradient")
        if name in gradients
        else value
        for name, value in main.values.items()
    }
    forward, backward = _ancestors(main, [names["loss"]]), _ancestors(main, gradients)
    phases = {
        op.results: "forward"
        if op.results in forward
        else "backward"
        if op.results in backward
        else "update"
        for op in main.ops
    }
    outputs = tuple(port for port in signature.outputs if not port.label.startswith("grad/"))
    done = replace(
        main,
        values=values,
        outputs=tuple(port.name for port in outputs),
        ops=tuple(replace(op, phase=phases[op.results]) for op in main.ops),
        aliases=tuple((p.name, p.label[:-4]) for p in outputs if p.label.endswith(".new")),
    )
    ports = replace(signature, inputs=tuple(inputs.values()), outputs=outputs)
    return replace(program, signature=ports).with_main(done)


def _ancestors(main: Function, names: Iterable[str]) -> set[tuple[str, ...]]:
    """Returns the ops, by their results, on which values depend."""
    producers = main.producers()
    found: set[tuple[str, ...]] = set()
    queue = list(names)
    while queue:
        op = producers.get(queue.pop())
        if op is not None and op.results not in found:
            found.add(op.results)
            queue.extend(op.operands)
    return found
