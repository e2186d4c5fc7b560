"""Recurrent layers, unrolled over the sequence.

The input projection of all time steps is one matrix product; a step adds the recurrent part.
Equations and gate orders are those of the ONNX operator definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from autopar.frontend.onnx.ops.linear import times_matrix
from autopar.frontend.onnx.ops.recurrent_open import OpenSequences
from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation

LONGEST = 4096
"""Time steps that are unrolled at most."""

_LENGTHS = 4
"""The position of the sequence lengths among the inputs."""

Activation = Callable[[torch.Tensor], torch.Tensor]
State = tuple[torch.Tensor, ...]
Step = Callable[[torch.Tensor, State], State]
"""Computes a state from the projected input of a time step, and the state before."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What all directions of a layer share."""

    node: Node
    x: torch.Tensor
    hidden: int
    lengths: torch.Tensor | None
    activations: list[Activation]
    directions: list[bool]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    a = alpha if alpha is not None else {"leakyrelu": 0.01, "hardsigmoid": 0.2}.get(name, 1.0)
    b = beta if beta is not None else {"hardsigmoid": 0.5}.get(name, 0.0)
    table: Mapping[str, Activation] = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "relu": torch.relu,
        "elu": lambda x: F.elu(x, a),
        "softsign": F.softsign,
        "softplus": F.softplus,
        "leakyrelu": lambda x: F.leaky_relu(x, a),
        "thresholdedrelu": lambda x: F.threshold(x, a, 0.0),
        "hardsigmoid": lambda x: torch.clamp(x * a + b, 0.0, 1.0),
        "affine": lambda x: x * a + b,
        "scaledtanh": lambda x: torch.tanh(x * b) * a,
    }
    if name not in table:
        raise Refused(f"activation {name!r} isn't supported")
    return table[name]


def _activations(node: Node, default: list[str], directions: int) -> list[Activation]:
    names = node.texts("activations") or default * directions
    if len(names) != len(default) * directions:
        raise Refused(f"{len(names)} activations for {directions} directions")
    alphas, betas = node.numbers("activation_alpha"), node.numbers("activation_beta")
    result = []
    for at, name in enumerate(names):
        alpha = alphas[at] if alphas and at < len(alphas) else None
        beta = betas[at] if betas and at < len(betas) else None
        result.append(_activation(name.lower(), alpha, beta))
    return result


def _layer(
    node: Node, x: torch.Tensor, r: torch.Tensor, lengths: torch.Tensor | None, default: list[str]
) -> _Layer:
    way = node.text("direction", "forward")
    known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    if way not in known:
        raise Refused(f"direction {way!r}")
    directions = known[way]
    if node.integer("layout") == 1:
        x = x.transpose(0, 1)
    steps, batch = x.shape[0], x.shape[1]
    if steps > LONGEST:
        raise Refused(f"{steps} time steps; at most {LONGEST} are unrolled")
    if lengths is not None and lengths.shape != (batch,):
        raise Refused(f"{list(lengths.shape)} sequence lengths for a batch of {batch}")
    content = node.content(_LENGTHS)
    if content is not None and bool((content == steps).all()):
        lengths = None
    hidden = node.integer("hidden_size", r.shape[-1])
    return _Layer(
        node, x, hidden, lengths, _activations(node, default, len(directions)), directions
    )


def _clipped(node: Node, x: torch.Tensor) -> torch.Tensor:
    limit = node.number("clip", 0.0)
    return torch.clamp(x, -limit, limit) if limit else x


def _initial(layer: _Layer, given: torch.Tensor | None, direction: int) -> torch.Tensor:
    if given is None:
        return layer.x.new_zeros(layer.x.shape[1], layer.hidden)
    return given[:, direction] if layer.node.integer("layout") == 1 else given[direction]


def _unroll(
    layer: _Layer,
    backward: bool,
    projected: torch.Tensor,
    state: State,
    step: Step,
) -> tuple[torch.Tensor, State]:
    """Runs all time steps of one direction; returns the outputs in time order, and the end."""
    steps = projected.shape[0]
    outputs: list[torch.Tensor] = []
    lengths = None if layer.lengths is None else layer.lengths.reshape(-1, 1)
    for at in reversed(range(steps)) if backward else range(steps):
        new = step(projected[at], state)
        if lengths is None:
            state = new
            outputs.append(new[0])
            continue
        mask = lengths > at
        outputs.append(torch.where(mask, new[0], 0.0))
        state = tuple(torch.where(mask, n, old) for n, old in zip(new, state, strict=True))
    if backward:
        outputs.reverse()
    if not outputs:
        return projected.new_zeros(0, *state[0].shape), state
    return torch.stack(outputs), state


def _assemble(
    layer: _Layer, sequences: list[torch.Tensor], ends: list[State]
) -> tuple[torch.Tensor, ...]:
    """Joins the directions as ONNX lays them out."""
    y = torch.stack(sequences, 1)
    finals = [torch.stack([end[at] for end in ends]) for at in range(len(ends[0]))]
    if layer.node.integer("layout") == 1:
        return y.permute(2, 0, 1, 3), *(final.transpose(0, 1) for final in finals)
    return y, *finals


def _run(
    layer: _Layer,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    initial: Sequence[torch.Tensor | None],
    step_of: Callable[[int], Step],
) -> tuple[torch.Tensor, ...]:
    """Runs all directions.

    Args:
        layer: The layer.
        w: The weights of the input: [directions, gates x hidden, features].
        bias: What is added to the projected input: [directions, gates x hidden].
        initial: The initial states.
        step_of: Returns the time step of a direction.
    """
    sequences, ends = [], []
    for at, backward in enumerate(layer.directions):
        projected = times_matrix(layer.x, w[at].t())
        if bias is not None:
            projected = projected + bias[at]
        start = tuple(_initial(layer, given, at) for given in initial)
        y, end = _unroll(layer, backward, projected, start, step_of(at))
        sequences.append(y)
        ends.append(end)
    return _assemble(layer, sequences, ends)


def _both(b: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the sum of the biases of the input and of the state."""
    if b is None:
        return None
    half = b.shape[1] // 2
    return b[:, :half] + b[:, half:]


def _rnn(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    open_ = OpenSequences(node, x, w, r, b, [initial], {"lengths": lengths})
    if open_.is_open:
        return open_.run(["tanh"])
    layer = _layer(node, x, r, lengths, ["Tanh"])

    def step_of(direction: int) -> Step:
        f, recurrent = layer.activations[direction], r[direction].t()
        return lambda part, state: (f(_clipped(node, part + torch.mm(state[0], recurrent))),)

    return _run(layer, w, _both(b), (initial,), step_of)


def _gru(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    open_ = OpenSequences(node, x, w, r, b, [initial], {"lengths": lengths})
    if open_.is_open:
        return open_.run(["sigmoid", "tanh"])
    layer = _layer(node, x, r, lengths, ["Sigmoid", "Tanh"])

    def step_of(direction: int) -> Step:
        return _gru_step(layer, direction, r[direction], None if b is None else b[direction])

    bias = None if b is None else b[:, : 3 * layer.hidden]
    return _run(layer, w, bias, (initial,), step_of)


def _gru_step(layer: _Layer, direction: int, r: torch.Tensor, bias: torch.Tensor | None) -> Step:
    node, hidden = layer.node, layer.hidden
    f, g = layer.activations[2 * direction : 2 * direction + 2]
    gates, candidate = r[: 2 * hidden].t(), r[2 * hidden :].t()
    gate_bias = None if bias is None else bias[3 * hidden : 5 * hidden]
    candidate_bias = None if bias is None else bias[5 * hidden :]
    after = node.flag("linear_before_reset")

    def step(part: torch.Tensor, state: State) -> State:
        (h,) = state
        both = part[:, : 2 * hidden] + torch.mm(h, gates)
        both = f(_clipped(node, both if gate_bias is None else both + gate_bias))
        z, reset = both[:, :hidden], both[:, hidden:]
        inner = torch.mm(h if after else reset * h, candidate)
        inner = inner if candidate_bias is None else inner + candidate_bias
        new = g(_clipped(node, part[:, 2 * hidden :] + (reset * inner if after else inner)))
        return ((1 - z) * new + z * h,)

    return step


def _lstm(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    initial_h: torch.Tensor | None = None,
    initial_c: torch.Tensor | None = None,
    peephole: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    more = {"lengths": lengths, "peepholes": peephole}
    open_ = OpenSequences(node, x, w, r, b, [initial_h, initial_c], more)
    if open_.is_open:
        return open_.run(["sigmoid", "tanh", "tanh"])
    layer = _layer(node, x, r, lengths, ["Sigmoid", "Tanh", "Tanh"])

    def step_of(direction: int) -> Step:
        looks = None if peephole is None else peephole[direction]
        return _lstm_step(layer, direction, r[direction], looks)

    return _run(layer, w, _both(b), (initial_h, initial_c), step_of)


def _lstm_step(
    layer: _Layer, direction: int, r: torch.Tensor, peephole: torch.Tensor | None
) -> Step:
    node, hidden = layer.node, layer.hidden
    f, g, h_function = layer.activations[3 * direction : 3 * direction + 3]
    recurrent = r.t()
    coupled = node.flag("input_forget")
    looks = (None, None, None) if peephole is None else tuple(torch.split(peephole, hidden))

    def gate(part: torch.Tensor, cell: torch.Tensor, look: torch.Tensor | None) -> torch.Tensor:
        return f(_clipped(node, part if look is None else part + look * cell))

    def step(part: torch.Tensor, state: State) -> State:
        h, c = state
        # ONNX orders the gates input, output, forget, cell.
        i, o, forget, cell = torch.split(part + torch.mm(h, recurrent), hidden, 1)
        take = gate(i, c, looks[0])
        keep = 1 - take if coupled else gate(forget, c, looks[2])
        new = keep * c + take * g(_clipped(node, cell))
        return gate(o, new, looks[1]) * h_function(new), new

    return step


TABLE: Mapping[str, Translation] = {
    "GRU": Translation(_gru),
    "LSTM": Translation(_lstm),
    "RNN": Translation(_rnn),
}
