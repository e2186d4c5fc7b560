"""Recurrent layers that are one op: all steps of all layers, LSTM, GRU and plain.

No sequence depends on another, so the batch may be split. Steps follow one another, and each needs
all features of the one before: these are whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.expr.expression import planned, shape_str
from autopar.ir.ops.shape.sizes import label
from autopar.ir.ops.table import RuleFunction, Table, dense
from autopar.ir.rules.rule import Dims, OpCall, Rule, RuleError, TensorType, build_rule

RECURRENT, GRADIENT = "autopar.recurrent", "autopar.recurrent_backward"

STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""How many tensors [layers, n, h] the state of each `mode` is."""

FUSED = ("f32", "bf16")
"""The dtypes in which oneDNN computes LSTMs without projections."""

BATCH = "n"


def layers(call: OpCall) -> Rule:
    """autopar.recurrent: the last layer's outputs, [t, n, o] or [n, t, o], and the last state."""
    operands = _operands(call)
    results = [_sequences(call, call.results[0]), *map(_state, call.results[1:])]
    return _rule(call, operands, results, _products(call))


def gradients(call: OpCall) -> Rule:
    """autopar.recurrent_backward: gradients of what `needs` says: input, state, parameters.

    Fused kernels keep what only they can read, so the forward pass is part of it.
    """
    states = call.positions["state"]
    of_input, of_state, _ = _needs(call)
    found = [_sequences(call, each) for each in call.results[:of_input]]
    found += map(_state, call.results[len(found) :][: len(states) if of_state else 0])
    first = len(found)
    found += map(_whole, call.results[first:])
    work = _products(call) + _gradient_products(call)
    return _rule(call, _operands(call), found, work, summed=range(first, len(found)))


def _rule(
    call: OpCall,
    operands: Sequence[Dims],
    results: Sequence[Dims],
    work: int,
    summed: Sequence[int] = (),
) -> Rule:
    if len(_input(call).shape) != 3:
        raise RuleError(f"{call.kind}: no batch in {shape_str(_input(call).shape)}")
    names = {name for dims in (*operands, *results) for (name,) in dims}
    others = sorted(names - {BATCH})
    return build_rule(
        call,
        operands,
        results,
        reduce={(BATCH, at): "sum" for at in summed},
        whole=others,
        work=work / max(1, planned(_input(call).shape[_batch_dim(call)])),
        aside=others,
    )


def _operands(call: OpCall) -> list[Dims]:
    found: list[Dims] = []
    for name, positions in call.positions.items():
        for position in positions:
            tensor = call.operands[position]
            if name == "params":
                found.append(_whole(tensor))
            elif name == "state" or (name == "gradients" and not _is_output(call, position)):
                found.append(_state(tensor))
            else:
                found.append(_sequences(call, tensor))
    return found


def _is_output(call: OpCall, position: int) -> bool:
    """Whether a gradient is that of the outputs, which comes before those of the last state."""
    given = call.args["gradients"]
    first = call.positions["gradients"][0]
    return isinstance(given, tuple) and given[0] is not None and position == first


def _whole(tensor: TensorType) -> Dims:
    """Returns factors that are whole; equal sizes share one, which keeps the rule small."""
    return tuple((f"w{at}_{label(size)}",) for at, size in enumerate(tensor.shape))


def _sequences(call: OpCall, tensor: TensorType) -> Dims:
    return _batched(tensor, _batch_dim(call))


def _state(tensor: TensorType) -> Dims:
    return _batched(tensor, 1)


def _batched(tensor: TensorType, at: int) -> Dims:
    dims = _whole(tensor)
    return (*dims[:at], (BATCH,), *dims[at + 1 :])


def _batch_dim(call: OpCall) -> int:
    return 0 if call.flag("batch_first") else 1


def _input(call: OpCall) -> TensorType:
    return call.operands[call.positions["input"][0]]


def _needs(call: OpCall) -> tuple[bool, bool, bool]:
    given = call.args["needs"]
    if not isinstance(given, tuple) or len(given) != 3:
        raise RuleError(f"{call.kind}: argument needs is {given!r}")
    return bool(given[0]), bool(given[1]), bool(given[2])


def _planned(tensor: TensorType) -> tuple[int, ...]:
    return tuple(map(planned, tensor.shape))


def _matrices(call: OpCall) -> list[tuple[int, ...]]:
    shapes = (_planned(call.operands[at]) for at in call.positions["params"])
    return [shape for shape in shapes if len(shape) == 2]


def _products(call: OpCall) -> int:
    """Returns the flops of the forward pass: two per step, sequence and weight."""
    first, second, _ = _planned(_input(call))
    return 2 * first * second * sum(map(math.prod, _matrices(call)))


def _gradient_products(call: OpCall) -> int:
    """Returns the flops of the gradients: as many for inputs of products as for their weights.

    Of a layer that is taken apart, the first layer's inputs and the first step's states have
    gradients only where they are needed; oneDNN computes all.
    """
    of_input, of_state, of_params = _needs(call)
    if call.args["mode"] == "lstm" and not _is_projected(call) and _input(call).dtype in FUSED:
        return 2 * _products(call)
    first, second, _ = _planned(_input(call))
    batch = (first, second)[_batch_dim(call)]
    matrices = _matrices(call)
    per_layer = 3 if _is_projected(call) else 2
    unread = 0
    if not of_input:
        directions = 2 if call.flag("bidirectional") else 1
        given = matrices[: per_layer * directions : per_layer]
        unread += 2 * first * second * sum(map(math.prod, given))
    if not of_state:
        unread += 2 * batch * sum(math.prod(each) for each in matrices[1::per_layer])
    return _products(call) * (1 + of_params) - unread


def _is_projected(call: OpCall) -> bool:
    """Whether the hidden state is a product of the cell's output with a third weight."""
    states = [call.operands[at].shape[-1] for at in call.positions["state"]]
    return len(states) == 2 and states[0] != states[1]


def fused(passes: int) -> RuleFunction:
    """Returns the rule function of oneDNN's LSTM layer, or of its gradient.

    Its workspace is the batch's, in a form of its own: nothing can be split. Programs have the ops
    above instead; these are what torch runs without them.

    Args:
        passes: How often a step multiplies by each weight: for the gradient, twice.
    """

    def rule(call: OpCall) -> Rule:
        tensors = [_whole(each) for each in (*call.operands, *call.results)]
        source, *matrices = call.operands[:3]
        names = sorted({name for dims in tensors for (name,) in dims})
        weights = sum(math.prod(_planned(each)) for each in matrices)
        work = 2 * passes * math.prod(_planned(source)[:2]) * weights
        count = len(call.operands)
        return build_rule(
            call, tensors[:count], tensors[count:], whole=names, work=work, aside=names
        )

    return rule


RULES: Table = {
    RECURRENT: layers,
    GRADIENT: gradients,
    "aten.mkldnn_rnn_layer.default": dense(fused(1)),
    "aten.mkldnn_rnn_layer_backward.default": dense(fused(2)),
}
