"""Samples of recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from tests.ops.sample import Sample, compute, f, s

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Rows of the weights per hidden feature."""

STEPS, BATCH, INPUTS, HIDDEN, PROJECTED = 5, 4, 3, 6, 2


def samples() -> Iterator[Sample]:
    """Yields them all."""
    for mode in GATES:
        for call in (
            layers(mode),
            layers(mode, count=2, bidirectional=True),
            layers(mode, batch_first=True, biases=False),
        ):
            yield Sample("autopar.recurrent", call)
            yield gradients(call, [True, True, True])
        yield gradients(layers(mode, count=2), [False, False, True], unread=(1, 2))
        yield gradients(layers(mode), [True, False, False], unread=(0,))
    yield from fused()
    projected = layers("lstm", count=2, projected=True)
    yield Sample("autopar.recurrent", projected)
    yield gradients(projected, [True, False, True])


def layers(
    mode: str,
    *,
    count: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    biases: bool = True,
    projected: bool = False,
) -> dict[str, Any]:
    """Returns a call of so many layers."""
    directions, rows = 2 if bidirectional else 1, GATES[mode] * HIDDEN
    outputs = PROJECTED if projected else HIDDEN
    params: list[Tensor] = []
    for at in range(count * directions):
        inputs = INPUTS if at < directions else outputs * directions
        params += [f(rows, inputs), f(rows, outputs)]
        params += [f(rows), f(rows) / 2] if biases else []
        params += [f(PROJECTED, HIDDEN)] if projected else []
    state = [f(count * directions, BATCH, outputs)]
    if mode == "lstm":
        state.append(f(count * directions, BATCH, HIDDEN, high=1.0))
    return {
        "mode": mode,
        "input": f(*((BATCH, STEPS) if batch_first else (STEPS, BATCH)), INPUTS),
        "state": state,
        "params": params,
        "has_biases": biases,
        "num_layers": count,
        "bidirectional": bidirectional,
        "batch_first": batch_first,
    }


def gradients(call: Mapping[str, Any], needs: list[bool], unread: tuple[int, ...] = ()) -> Sample:
    """Returns the gradient of a call; nobody reads the results at these positions."""
    forward = Sample("autopar.recurrent", call)
    results = compute(forward.kind, forward.ir_args, forward.tensors)
    given = [None if at in unread else f(*each.shape) for at, each in enumerate(results)]
    rest = dict(call)
    mode = rest.pop("mode")
    before = {name: rest.pop(name) for name in ("input", "state", "params")}
    args = {"mode": mode, **before, "gradients": given, "needs": needs, **rest}
    return Sample("autopar.recurrent_backward", args)


def fused() -> Iterator[Sample]:
    """Yields a call of oneDNN's layer and of its gradient."""
    call = layers("lstm")
    x, *given = (
        each.float() for each in (call["input"], *call["params"], *(t[0] for t in call["state"]))
    )
    options = (False, [], 2, HIDDEN, 1, True, False, False, True)
    forward = s("mkldnn_rnn_layer", x, *given, *options)
    yield forward
    output, hidden, cells, workspace = forward.results
    ends = (output, hidden, cells, output, hidden, cells)
    options = (False, 2, HIDDEN, 1, True, True, False, [], False, workspace)
    yield s("mkldnn_rnn_layer_backward", x, *given, *ends, *options)
