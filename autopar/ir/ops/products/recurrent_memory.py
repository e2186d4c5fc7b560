"""What kernels of recurrent layers take on a CPU, beside the rules that say what they compute.

oneDNN computes LSTMs in single precision: for the gradient it keeps a workspace, whose content only
it can read. Everything else is an op per step and gate, with the tensors of all steps in memory
while there are gradients. What is said here follows torch's kernels, and is compared with them.

Without it the peak of a step of an LSTM is predicted 46% too low (`benchmarks/without.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.memory.strides import Placed, Shape
from autopar.ir.ops.products.recurrent import GRADIENT, RECURRENT
from autopar.ir.program import Arg

PAGE = 4096
"""What the parts of a workspace are rounded up to, in bytes."""

LINE = 64
"""What their rows are rounded up to, in bytes."""

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Tensors [n, h] that a step makes of its input."""

SAVED = {"lstm": 8, "gru": 8, "rnn_tanh": 2, "rnn_relu": 2}
"""Tensors [n, h] that autograd keeps of a step, and of the layer's outputs."""


def workspace_bytes(steps: int, batch: int, features: int, hidden: int, itemsize: int) -> int:
    """Returns the bytes of the workspace of an LSTM's layer in one direction.

    In it lie, each from a page on, the gates and the outputs of all steps, and of each border
    between steps the states, before and behind the layer: as computed and as gradients.
    Source: `set_workspace_sizes` in `src/cpu/rnn/rnn_utils.cpp` of oneDNN.

    Args:
        steps: How many steps there are.
        batch: How many sequences.
        features: Features of the input.
        hidden: Features of the state.
        itemsize: Bytes of an element.
    """
    wide = max(features, hidden)
    borders = 2 * (steps + 1) * batch
    rows = (
        (steps * batch, _row(4 * hidden, itemsize)),
        (steps * batch, _row(hidden, itemsize)),
        *[(borders, _row(wide, itemsize))] * 2,
        (borders, _row(wide, 4)),
        *[(borders, 4 * hidden)] * 2,
    )
    return sum(-(-count * nbytes // PAGE) * PAGE for count, nbytes in rows)


def _row(elements: int, itemsize: int) -> int:
    """Returns the bytes from one row to the next: no multiple of 256 elements, for caches' sake."""
    step = LINE // itemsize
    found = -(-elements // step) * step
    return (found + step if found % 256 == 0 else found) * itemsize


def layer_workspace(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> tuple[int, ...]:
    """Returns the bytes of results of `aten.mkldnn_rnn_layer`, of which the last is a workspace.

    Fake tensors know no size of it. It is 0 where the results' own sizes say it all.
    """
    others = (0,) * (len(results) - 1)
    if not args.get("train"):
        return (*others, 0)
    steps, batch, features = operands[0].shape
    hidden = operands[2].shape[-1]
    return (*others, workspace_bytes(steps, batch, features, hidden, operands[0].itemsize))


@dataclass(frozen=True, slots=True)
class _Layers:
    """What a call is about.

    Attributes:
        mode: What the layers are.
        steps, batch, features, hidden, outputs: Their sizes.
        count: How many layers there are.
        directions: In how many directions each goes.
        itemsize: Bytes of an element.
        copied: The bytes of the input, if it is copied since its steps come second.
    """

    mode: str
    steps: int
    batch: int
    features: int
    hidden: int
    outputs: int
    count: int
    directions: int
    itemsize: int
    copied: int

    @property
    def is_fused(self) -> bool:
        """Whether a layer is one kernel."""
        return self.mode == "lstm" and self.itemsize <= 4 and self.hidden == self.outputs

    @property
    def sequence_bytes(self) -> int:
        """The bytes of a layer's outputs in one direction."""
        return self.steps * self.state_bytes

    @property
    def state_bytes(self) -> int:
        """The bytes of a layer's hidden state in one direction."""
        return self.batch * self.hidden * self.itemsize

    def inputs(self, layer: int) -> int:
        """Returns the features of a layer's input."""
        return self.features if layer == 0 else self.outputs * self.directions

    def workspace(self, layer: int) -> int:
        """Returns the bytes of the workspace of a layer in one direction."""
        sizes = (self.steps, self.batch, self.inputs(layer), self.hidden)
        return workspace_bytes(*sizes, self.itemsize)

    def gradients(self, layer: int, biases: int) -> tuple[int, int]:
        """Returns the bytes of gradients of a layer in one direction: of its input, and of all."""
        inputs = self.inputs(layer)
        source = self.steps * self.batch * inputs * self.itemsize
        params = GATES[self.mode] * self.hidden * (inputs + self.hidden + biases) * self.itemsize
        return source, source + params + 2 * self.state_bytes


def forward_temporaries(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """Returns the bytes that `autopar.recurrent` takes besides its results."""
    layers = _layers(args, operands)
    several, both = layers.count > 1, layers.directions > 1
    if layers.is_fused:
        sequence, states = layers.sequence_bytes, 2 * layers.state_bytes * layers.directions
        joined = (6 if several else 4) if both else 1 + several
        ended = (4 if both else 1) * sequence + 2 * states * layers.count
        most = layers.copied + max(joined * sequence + states * layers.count, ended)
    else:
        count = GATES[layers.mode] + (6 + 2 * several if both else 2 + several)
        most = count * layers.sequence_bytes
    return max(0, most - _made(layers, results))


def backward_temporaries(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """Returns the bytes that `autopar.recurrent_backward` takes besides its results."""
    layers = _layers(args, operands)
    if layers.is_fused:
        most = _fused_peak(layers, 2 if args.get("has_biases") else 0)
    else:
        most = max(_stepwise_bytes(layers), _made(layers, results) + _ending_bytes(layers))
    return max(0, most - _made(layers, results))


def _stepwise_bytes(layers: _Layers) -> int:
    """Returns the bytes of all steps at the end of a forward pass under autograd."""
    count = SAVED[layers.mode] * layers.directions * layers.count
    count += GATES[layers.mode] + (2 if layers.directions > 1 else 0)
    return count * layers.sequence_bytes + layers.directions * layers.copied


def _ending_bytes(layers: _Layers) -> int:
    """Returns the bytes besides all gradients when the first layer's are made of its gates'."""
    gates = layers.directions * (GATES[layers.mode] + 1) * layers.sequence_bytes
    source, _ = layers.gradients(0, 0)
    return gates + (layers.directions - 1) * source


def _layers(args: Mapping[str, Arg], operands: Sequence[Placed]) -> _Layers:
    """Returns what a call is about: its operands begin with the input and the states."""
    source, state = operands[0], operands[1]
    mode, count = args.get("mode"), args.get("num_layers")
    first, second, features = source.shape
    steps, batch = (second, first) if args.get("batch_first") else (first, second)
    cells = operands[2] if mode == "lstm" else state
    return _Layers(
        str(mode),
        steps,
        batch,
        features,
        hidden=cells.shape[-1],
        outputs=state.shape[-1],
        count=count if isinstance(count, int) else 1,
        directions=2 if args.get("bidirectional") else 1,
        itemsize=source.itemsize,
        copied=source.nbytes if args.get("batch_first") else 0,
    )


def _made(layers: _Layers, results: Sequence[Shape]) -> int:
    return sum(map(math.prod, results)) * layers.itemsize


def _fused_peak(layers: _Layers, biases: int) -> int:
    """Returns the most bytes there are, layer after layer and backwards."""
    sequence, states = layers.sequence_bytes, 2 * layers.state_bytes
    count, directions, both = layers.count, layers.directions, layers.directions > 1
    saved = [layers.workspace(at) + states for at in range(count)]
    joined = directions * sequence if both else 0
    live = layers.copied + directions * (sum(saved) + count * (sequence + states)) + count * joined
    most = live
    for at in reversed(range(count)):
        source, gradients = layers.gradients(at, biases)
        for _ in range(directions):
            live += gradients
            most = max(most, live)
            live -= saved[at] + states + (sequence if both else 0)
        live -= source if both else 0
        if at < count - 1:
            # Nobody reads these outputs or their gradient any more.
            live -= 2 * directions * sequence
    return most


Taken = Callable[[Mapping[str, Arg], Sequence[Placed], Sequence[Shape]], int]

TAKEN: Mapping[str, Taken] = {
    RECURRENT: forward_temporaries,
    GRADIENT: backward_temporaries,
}
"""What kernels take and give back, per op."""
