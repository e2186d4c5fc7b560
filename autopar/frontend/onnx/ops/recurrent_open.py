"""Recurrent layers over sequences of open length: the one op that takes all steps.

Torch has the layers of ONNX with its default activations; their gates are in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from autopar.frontend.lower.recurrent import recurrent_layers
from autopar.frontend.onnx.trace.node import Node, Undecided

_GATES: Mapping[str, tuple[int, ...]] = {
    "lstm": (0, 2, 3, 1),
    "gru": (1, 0, 2),
    "rnn_tanh": (0,),
    "rnn_relu": (0,),
}
"""Which of ONNX's gates is each one of torch's, by torch's name of the layer."""

_MODES: Mapping[tuple[str, tuple[str, ...]], str] = {
    ("LSTM", ("sigmoid", "tanh", "tanh")): "lstm",
    ("GRU", ("sigmoid", "tanh")): "gru",
    ("RNN", ("tanh",)): "rnn_tanh",
    ("RNN", ("relu",)): "rnn_relu",
}
"""What torch calls a layer, by ONNX's operator and the activations of each direction."""


@dataclass(frozen=True, slots=True)
class OpenSequences:
    """A recurrent layer of one operator.

    Attributes:
        node: The node.
        x: The sequences, [t, n, i]; [n, t, i] in layout 1.
        w, r, b: What inputs and states are multiplied by, and what is added to both.
        initial: The initial states; None are zeros.
        more: What else it is given that torch's layers don't take, by what it is called.
    """

    node: Node
    x: torch.Tensor
    w: torch.Tensor
    r: torch.Tensor
    b: torch.Tensor | None
    initial: Sequence[torch.Tensor | None]
    more: Mapping[str, torch.Tensor | None]

    @property
    def is_open(self) -> bool:
        """Whether the number of time steps is open."""
        return not isinstance(self.steps, int)

    @property
    def batch_first(self) -> bool:
        """Whether the batch comes before the time steps."""
        return self.node.integer("layout") == 1

    @property
    def steps(self) -> int:
        """How many time steps there are."""
        return self.x.shape[1 if self.batch_first else 0]

    def run(self, activations: Sequence[str]) -> tuple[torch.Tensor, ...]:
        """Returns all outputs, and the last states.

        Args:
            activations: Those of each direction by default.

        Raises:
            Undecided: If torch has no such layer.
        """
        mode = self._mode(activations)
        torch._check(self.steps >= 1)  # type: ignore[no-untyped-call]
        backward = self.node.text("direction", "forward") == "reverse"
        time = 1 if self.batch_first else 0
        x = self.x.flip(time) if backward else self.x
        params = [each for at in range(self.w.shape[0]) for each in self._params(mode, at)]
        y, *ends = recurrent_layers(
            mode,
            x,
            self._states(),
            params,
            num_layers=1,
            has_biases=self.b is not None,
            bidirectional=self.w.shape[0] == 2,
            batch_first=self.batch_first,
        )
        y = y.reshape([*y.shape[:2], self.w.shape[0], self.r.shape[-1]])
        y = y.flip(time) if backward else y
        if self.batch_first:
            return y, *(end.transpose(0, 1) for end in ends)
        return y.transpose(1, 2), *ends

    def _mode(self, activations: Sequence[str]) -> str:
        node = self.node
        named = [name.lower() for name in node.texts("activations") or activations]
        first = tuple(named[: len(activations)])
        mode = _MODES.get((node.op_type, first))
        other = [name for name, given in self.more.items() if given is not None]
        other += ["clip"] if node.number("clip") else []
        other += ["input_forget"] if node.flag("input_forget") else []
        if mode is None or set(zip(*[iter(named)] * len(first), strict=True)) != {first}:
            other.append(f"activations {named}")
        if node.op_type == "GRU" and not node.flag("linear_before_reset"):
            other.append("a reset before the product")
        if mode is None or other:
            what = (
                f"with {', '.join(other)} its time steps are unrolled, and there are {self.steps}"
            )
            raise Undecided(f"{what}, which is open", self.steps, by_range=False)
        return mode

    def _params(self, mode: str, direction: int) -> list[torch.Tensor]:
        """Returns what torch's layer of a direction takes."""
        each = [self.w[direction], self.r[direction]]
        each += [] if self.b is None else self.b[direction].chunk(2)
        return [_reordered(tensor, _GATES[mode]) for tensor in each]

    def _states(self) -> list[torch.Tensor]:
        n, hidden = self.x.shape[0 if self.batch_first else 1], self.r.shape[-1]
        return [
            self.x.new_zeros(self.w.shape[0], n, hidden)
            if given is None
            else (given.transpose(0, 1) if self.batch_first else given)
            for given in self.initial
        ]


def _reordered(tensor: torch.Tensor, gates: Sequence[int]) -> torch.Tensor:
    parts = tensor.chunk(len(gates))
    return tensor if len(gates) == 1 else torch.cat([parts[gate] for gate in gates])
