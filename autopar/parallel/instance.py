"""Makes the module of a rank: a copy of the model with the rank's pieces, and one `forward`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autopar.base.errors import InvalidInputError
from autopar.ir.layout import Layout
from autopar.parallel.module import ParallelModule, State
from autopar.parallel.runner import Runner
from autopar.parallel.saving import Saving
from autopar.parallel.shards import Shard, of_first_rank, shard_of


def instance(model: nn.Module, runner: Runner, seed: int, local: bool = False) -> ParallelModule:
    """Returns the module of this process's rank: a copy, of the model's class too.

    Args:
        model: The model; it isn't changed.
        runner: Its variants, of which the first is compiled.
        seed: What the random numbers of all calls depend on.
        local: Whether calls take the rank's part of a batch unless they say otherwise.
    """
    job, compiler = runner.job, runner.compiler
    assert compiler.first is not None
    coords = compiler.first.deployment.coords_of(job.rank)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    memo: dict[int, Tensor] = {}
    shards: dict[str, Shard] = {}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        layout = compiler.layouts.stored.get(name, Layout.replicated(compiler.options.mesh, shape))
        held = shard_of(layout, coords, compiler.mesh_of(layout))
        shards.update(dict.fromkeys(names[id(parameter)], held))
        memo[id(parameter)] = held.parameter(parameter, job.device)
    for buffer in model.buffers():
        absent = buffer.is_meta
        memo[id(buffer)] = buffer if absent else of_first_rank(buffer, job.device).clone()
    # What deepcopy finds in the memo it takes for copied.
    module = copy.deepcopy(model, dict(memo))
    kind = type(model)
    base = Saving if callable(getattr(kind, "save_pretrained", None)) else ParallelModule
    module.__class__ = type(f"Parallel{kind.__name__}", (base, kind), {})
    assert isinstance(module, ParallelModule)
    _disarm(module)
    module._parallel = State(module, runner, shards, seed, local)
    module.register_load_state_dict_pre_hook(module._parallel.load)  # type: ignore[no-untyped-call]
    return module


def skeleton(model: nn.Module) -> nn.Module:
    """Returns a copy of a module on the meta device, which takes no memory."""
    memo: dict[int, Tensor] = {}
    for parameter in model.parameters():
        absent = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(absent, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, dict(memo))


def _disarm(module: nn.Module) -> None:
    """Lets nothing but the root be called, and that without the hooks, which were captured."""
    for hooks in _HOOKS:
        getattr(module, hooks).clear()
    for name, part in module.named_modules():
        if name:
            part.forward = _refusing(name)


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Where a module keeps what is called around its `forward`."""


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise InvalidInputError(
            f"{name} is part of a compiled program and can't be called by itself; call the whole"
            " module, or parallelize this part"
        )

    return refuse
