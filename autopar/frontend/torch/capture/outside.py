"""Reads the copy's tensors where code holds those of the user's model.

A model is captured on a copy, but a loss that adds `sum(p.square().sum() for p in
model.parameters())` goes by the model itself. So does a function in the model that closes over it.
Left alone, such tensors would be constants: without a gradient, and never updated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from autopar.frontend.torch.capture.fake import FakeModel


class FromOutside(TorchFunctionMode):
    """Calls functions with the copy's tensors in the place of the model's.

    Args:
        fake: The copy.
    """

    def __init__(self, fake: FakeModel) -> None:
        super().__init__()
        self._fake = fake
        self._copies: dict[int, Tensor] = {}

    def begin(self) -> None:
        """Looks up the tensors of the copy: while it is traced, they are others in each run."""
        model = self._fake.module
        owned = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        stored = self._fake.stored.items()
        self._copies = {id(each.source): owned[name] for name, each in stored if name in owned}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = {name: self._copied(value) for name, value in (kwargs or {}).items()}
        return func(*self._all_copied(args), **named)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._copies.get(id(value), value)
        return self._all_copied(value) if type(value) in (list, tuple) else value

    def _all_copied(self, values: Iterable[Any]) -> Any:
        return type(values)(map(self._copied, values))  # type: ignore[call-arg]
