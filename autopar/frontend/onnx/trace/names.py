"""Names of weights, as users write them in patterns: `encoder.layer.0.attention.query.weight`.

A weight keeps the name of its initializer unless an exporter made that up (`onnx::MatMul_123`).
Then the name comes from the node that reads the weight first, whose name tells the module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from autopar.frontend.onnx.trace.values import StoredTensor

_MADE_UP = re.compile(
    r"(onnx::\w+|\d+|val_\d+|.*_output_\d+|(Constant|const|tensor)_?\d*)?", re.IGNORECASE
)

_PARTS: Mapping[str, Sequence[str]] = {
    "Add": ("bias", "bias"),
    "BatchNormalization": ("input", "weight", "bias", "running_mean", "running_var"),
    "Conv": ("input", "weight", "bias"),
    "ConvInteger": ("input", "weight", "input_zero_point", "weight_zero_point"),
    "ConvTranspose": ("input", "weight", "bias"),
    "DequantizeLinear": ("weight", "scale", "zero_point"),
    "GRU": ("input", "weight_ih", "weight_hh", "bias", "lengths", "initial_h"),
    "Gather": ("weight", "indices"),
    "Gemm": ("weight", "weight", "bias"),
    "GroupNormalization": ("input", "weight", "bias"),
    "InstanceNormalization": ("input", "weight", "bias"),
    "LSTM": (
        *("input", "weight_ih", "weight_hh", "bias", "lengths"),
        *("initial_h", "initial_c", "peephole"),
    ),
    "LayerNormalization": ("input", "weight", "bias"),
    "QuantizeLinear": ("input", "scale", "zero_point"),
    "RMSNormalization": ("input", "weight"),
    "RNN": ("input", "weight_ih", "weight_hh", "bias", "lengths", "initial_h"),
    "Sub": ("bias", "bias"),
}
"""What the inputs of operators are called in module trees; "weight" where nothing else is."""


def is_made_up(name: str) -> bool:
    """Tells whether an exporter made the name of a tensor up."""
    return _MADE_UP.fullmatch(name) is not None


def weight_names(stored: Sequence[StoredTensor], taken: Iterable[str] = ()) -> list[str]:
    """Returns a unique name for each stored tensor, in order, and none of those in `taken`."""
    used = set(taken)
    modules = _modules(stored)
    names = []
    for tensor in stored:
        wanted = tensor.value.source
        if is_made_up(wanted):
            wanted = _from_consumer(tensor, modules)
        name, count = wanted, 1
        while name in used:
            name, count = f"{wanted}.{count}", count + 1
        used.add(name)
        names.append(name)
    return names


def _modules(stored: Sequence[StoredTensor]) -> frozenset[str]:
    """Returns the modules that the names of initializers tell of: a, a.b for `a.b.weight`."""
    modules: set[str] = set()
    for tensor in stored:
        steps = tensor.value.source.split(".")
        if not is_made_up(tensor.value.source):
            modules.update(".".join(steps[:count]) for count in range(1, len(steps)))
    return frozenset(modules)


def _from_consumer(tensor: StoredTensor, modules: frozenset[str]) -> str:
    node = tensor.node
    if node is None:
        return "constant"
    parts = _PARTS.get(node.op_type, ())
    part = parts[tensor.position] if tensor.position < len(parts) else "weight"
    steps = [step for step in node.name.strip("/").split("/") if step]
    if steps and re.fullmatch(rf"{re.escape(node.op_type)}([_#.]?\d+)?", steps[-1]):
        # The last step is the operator; the ones before are the module tree.
        number = steps[-1][len(node.op_type) :].strip("_#.")
        if len(steps) > 1:
            steps = steps[:-1]
        else:
            steps = [f"{node.op_type.lower()}_{number}" if number else node.op_type.lower()]
    return ".".join([*_rooted(steps, modules), part])


def _rooted(steps: Sequence[str], modules: frozenset[str]) -> Sequence[str]:
    """Drops leading steps that the names of initializers don't have, as a wrapper module's."""

    def shared(skip: int) -> int:
        known = (".".join(steps[skip:end]) in modules for end in range(skip + 1, len(steps) + 1))
        return sum(known)

    return steps[max(range(len(steps)), key=lambda skip: (shared(skip), -skip)) :] if steps else []
