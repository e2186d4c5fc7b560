"""Checkpoints of torch in a model: what is computed within is noted to be computed again.

`torch.utils.checkpoint` drops activations in eager mode and computes them again by hooks, which a
traced graph has no use for: the program decides itself what to keep. So the function is traced as
if it were called plainly, and its ops are noted as a region, as `annotate.activations` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.traceback import annotate
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from autopar.ir.activations import NOTE, RECOMPUTE


@contextmanager
def noted_checkpoints() -> Iterator[None]:
    """Notes the ops of checkpoints while a model is traced, each a region of its own."""
    numbers = count()

    def region(*args: Any, **kwargs: Any) -> Iterator[None]:
        """In the place of what runs before and behind a function that isn't called reentrantly."""
        del args, kwargs
        with annotate({NOTE: f"{RECOMPUTE} checkpoint{next(numbers)}"}):
            yield

    class Reentrant:
        """In the place of the function of autograd that a reentrant checkpoint applies."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            """Calls a function; no gradient flows into it if none flows to its tensors."""
            tensors = [each for each in pytree.tree_leaves(args) if isinstance(each, Tensor)]
            flows = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
            with torch.set_grad_enabled(flows), contextmanager(region)(preserve):
                return function(*args)

    ours = {
        "CheckpointFunction": Reentrant,
        "_checkpoint_without_reentrant_generator": region,
        "_checkpoint_without_reentrant_generator_impl": region,  # since torch 2.15
    }
    with ExitStack() as stack:
        for name, replacement in ours.items():
            # Where torch has another way, checkpoints do what they do in eager mode.
            if hasattr(checkpoint, name):
                stack.enter_context(patch.object(checkpoint, name, replacement))
        yield
