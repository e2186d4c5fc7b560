"""A copy of a module without its weights: the same code, structure and ties over fake tensors.

Models are captured on such copies, so that nothing is computed and no weight is copied, whatever
its size and wherever it is. All fake tensors are on the CPU, those of a model on the meta device
too: on meta, autograd drops gradients without a word.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autopar.frontend.torch.conditions.conditions import Answering, Asked
from autopar.frontend.torch.conditions.narrowing import ExampleSizes
from autopar.ir.expr.expression import IntExpr


@dataclass(frozen=True)
class Stored:
    """A tensor that the model owns.

    Attributes:
        name: Its first qualified name.
        role: `parameter` or `buffer`.
        source: The tensor of the user's model.
        fake: Its counterpart.
        aliases: All its qualified names, the first one included: several if it is tied.
        persistent: Whether it is in the model's state dict.
    """

    name: str
    role: str
    source: Tensor
    fake: Tensor
    aliases: tuple[str, ...]
    persistent: bool


@dataclass(frozen=True)
class FakeModel:
    """A module over fake tensors.

    Attributes:
        module: The copy.
        answering: What its tensors stand for.
        stored: Its parameters and buffers, each tied one once, by name.
    """

    module: nn.Module
    answering: Answering
    stored: Mapping[str, Stored]

    @property
    def mode(self) -> FakeTensorMode:
        """The mode that its tensors belong to."""
        return self.answering.mode


def fake_model(
    model: nn.Module,
    values: Mapping[str, Tensor] | None = None,
    known: Sequence[Asked] = (),
    sizes: ExampleSizes | None = None,
) -> FakeModel:
    """Returns a copy of a module over fake tensors on the CPU.

    Args:
        model: The module.
        values: What its tensors stand for, by name, where they have no values themselves.
        known: What the same code was answered before.
        sizes: The open sizes of the batch; None if it has none.
    """
    values = values or {}
    answering = Answering(known, sizes)
    names: dict[int, list[str]] = {}
    tensors: dict[int, tuple[str, Tensor]] = {}
    for role, name, tensor in _owned(model):
        names.setdefault(id(tensor), []).append(name)
        tensors.setdefault(id(tensor), (role, tensor))
    persistent = set(map(id, model.state_dict(keep_vars=True).values()))
    stored: dict[str, Stored] = {}
    memo: dict[int, Tensor] = {}
    for key, (role, tensor) in tensors.items():
        memo[key] = fake = fake_like(tensor, answering.mode)
        first = names[key][0]
        answering.know(fake, values.get(first, tensor))
        aliases = tuple(names[key])
        stored[first] = Stored(first, role, tensor, fake, aliases, key in persistent)
    # What deepcopy finds in the memo it takes for copied: no weight is touched.
    module = copy.deepcopy(model, dict(memo))
    return FakeModel(module, answering, stored)


def fake_like(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Returns a dense fake tensor on the CPU of the same shape and dtype; a parameter for one."""
    with mode:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


def fake_batch(
    tensor: Tensor, answering: Answering, shape: Sequence[IntExpr] | None = None
) -> Tensor:
    """Returns a fake tensor like one of the example batch, whose values it stands for.

    Args:
        tensor: The tensor.
        answering: What fake tensors stand for.
        shape: Its shape, of which sizes may be open; by default none is.
    """
    if shape is None or all(isinstance(size, int) for size in shape):
        fake = fake_like(tensor.detach(), answering.mode)
    else:
        with answering.mode:
            fake = answering.sizes.fake(shape, tensor.dtype)
        answering.sizes.take_example(shape, tensor.shape)
    answering.know(fake, tensor)
    return fake


def is_absent(tensor: Tensor) -> bool:
    """Whether a tensor has no values: it is fake or on the meta device."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _owned(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield "parameter", name, parameter
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield "buffer", name, buffer
