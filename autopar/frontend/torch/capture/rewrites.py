"""Functions of torch that are traced as other ones, by a table that modules contribute to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.conditions import formatted
from autopar.frontend.torch.ops import alignments, recurrent
from autopar.frontend.torch.origin import place_of, user_frame
from autopar.frontend.torch.rows import joined, masked
from autopar.frontend.torch.stored import overwritten

Rewrite = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""(function, arguments, those by name) -> result; `NotImplemented` where it is called as it is."""


def _refuse_backward(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    raise InvalidInputError(
        f"{place_of(user_frame(sys._getframe(1)))}: a step that is compiled calls no backward();"
        " return the loss: its gradients, and the optimizer's update, become part of the program"
    )


REWRITES: Mapping[Any, Rewrite] = {
    Tensor.backward: _refuse_backward,
    **recurrent.REWRITES,
    **alignments.REWRITES,
    **joined.REWRITES,
    **formatted.REWRITES,
    **overwritten.REWRITES,
    **masked.REWRITES,
}


class Rewritten(TorchFunctionMode):
    """Rewrites calls: one mode for all of them, since every call of torch goes through each."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        rewrite = REWRITES.get(func)
        found = NotImplemented if rewrite is None else rewrite(func, args, kwargs)
        return func(*args, **kwargs) if found is NotImplemented else found
