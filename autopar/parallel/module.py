"""`parallelize`: a new module, of the same class and names, that runs a compiled plan.

pmodel = autopar.parallelize(model, (ids,), mesh="dp=2,tp=2")
optimizer = torch.optim.AdamW(pmodel.parameters(), lr=3e-4)
for ids, labels in loader:                      # the global batch, on every rank
    loss = criterion(pmodel(ids), labels)       # the global outputs, on every rank
    loss.backward()
    torch.nn.utils.clip_grad_norm_(pmodel.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.annotate import MeshLike
from autopar.annotate.mapping_text import Entry
from autopar.completion.strategy import parse_strategy
from autopar.cost import Cluster
from autopar.frontend.torch.batch import call_arguments
from autopar.ir.errors import InvalidInputError
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.units import counted
from autopar.mapping import Placement
from autopar.parallel.job import choose_device, connect
from autopar.parallel.runner import Layouts, Modes, Runner
from autopar.parallel.shards import (
    Shard,
    clip_grad_norm,
    local,
    of_first_rank,
    shard_of,
    whole_from,
)
from autopar.parallel.variant import Call, VariantCall
from autopar.pipeline import NO_PRESETS, CompileOptions
from autopar.runtime.outputs import Gathering
from autopar.runtime.trainer import seed_of_step

Parameters = Literal["dtensor", "local"]
"""What the parameters of a parallel module are."""

Outputs = Literal["global", "dtensor"]
"""What a parallel module returns, unless it is asked for single outputs."""


class ParallelModule(nn.Module):
    """A module whose parameters are the rank's pieces, and whose `forward` is compiled.

    It is made by `parallelize`, and is of the class of the original module too. Its parts can't
    be called by themselves.
    """

    _parallel: _State

    @property
    def random_calls(self) -> int:
        """Number of calls so far that drew random numbers, on which the next ones depend.

        Who goes on from a checkpoint sets it to what it was.
        """
        return self._parallel.calls

    @random_calls.setter
    def random_calls(self, count: int) -> None:
        self._parallel.calls = count

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled program of this mode and of batches of this shape.

        The arguments are those of the original module: global tensors, the same on every rank. A
        rank that has only its part of one gives a DTensor.

        Raises:
            AutoparError: If the arguments don't fit the module.
        """
        return self._parallel.call(args, kwargs)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scales gradients so that their norm, over all ranks, is at most `max_norm`.

        What `torch.nn.utils.clip_grad_norm_` does on DTensors, for both kinds of parameters.

        Args:
            max_norm: The largest norm of all gradients together.
            norm_type: 2 for the Euclidean norm, `math.inf` for the largest element.

        Returns:
            The norm before, the same on all ranks.
        """
        pairs = [(p, self._parallel.shards[name]) for name, p in self.named_parameters()]
        return clip_grad_norm(pairs, max_norm, norm_type)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ParallelModule:
        """Refuses what the compiled programs don't know of: other dtypes and devices."""
        for tensor in (*self.parameters(), *self.buffers()):
            probe = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            moved = fn(probe)
            if not tensor.is_meta and (moved.dtype, moved.device) != (probe.dtype, probe.device):
                raise InvalidInputError(
                    f"the module is compiled for parameters as they are, {probe.dtype} on"
                    f" {probe.device}; convert or move the model before parallelize()"
                )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._parallel.tie()
        return self

    def full_state_dict(self, *, everywhere: bool = True) -> dict[str, Tensor]:
        """Returns all parameters and buffers whole, in main memory, as the original module's.

        Every rank has to call it.

        Args:
            everywhere: Whether every rank gets them; otherwise only rank 0, the others nothing.
        """
        return self._parallel.gathered(self, everywhere)


class _State:
    """What a parallel module knows beside its parameters.

    Args:
        module: The module.
        runner: Its variants.
        shards: How the rank holds each parameter, by all of its names.
        seed: What the random numbers of all calls depend on.
    """

    def __init__(
        self, module: nn.Module, runner: Runner, shards: Mapping[str, Shard], seed: int
    ) -> None:
        self.runner = runner
        self.shards = shards
        self.seed = seed
        self.calls = 0
        self._homes: dict[str, dict[str, Any]] = {}
        self._aliases: tuple[list[str], ...] = ()
        self._modules = tuple(module.modules())
        self._find(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> _State:
        """Returns what a copy of the module knows: the programs are the same."""
        copied = copy.copy(self)
        memo[id(self)] = copied
        copied._homes = copy.deepcopy(self._homes, memo)
        copied._modules = copy.deepcopy(self._modules, memo)
        return copied

    def _find(self, module: nn.Module) -> None:
        """Finds where parameters and buffers are, and which of them are tied."""
        for path, part in module.named_modules(remove_duplicate=False):
            prefix = f"{path}." if path else ""
            for home in (part._parameters, part._buffers):
                self._homes.update((prefix + leaf, home) for leaf in home)
        names: dict[int, list[str]] = {}
        for name, tensor in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
        self._aliases = tuple(names.values())

    def stored(self, name: str) -> Tensor:
        """Returns a parameter or buffer as it is now."""
        found: Tensor = self._homes[name][name.rpartition(".")[2]]
        return found

    def _modes(self) -> Modes:
        trained = tuple(self.stored(names[0]).requires_grad for names in self._aliases)
        return Modes(tuple(module.training for module in self._modules), trained)

    def tie(self) -> None:
        """Makes tied parameters one again, which torch takes apart when it makes new ones."""
        for names in self._aliases:
            for name in names[1:]:
                self._homes[name][name.rpartition(".")[2]] = self.stored(names[0])

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        variant, tensors = self.runner.variant(self._modes(), args, kwargs)
        wiring = variant.wiring
        parameters = [self.stored(name) for name in wiring.parameters]
        buffers = {name: self.stored(name) for name in wiring.buffers}
        seed = 0
        if wiring.seed is not None:
            seed = seed_of_step(self.seed, self.calls)
            self.calls += 1
        if wiring.tangents:
            call = VariantCall(variant, buffers, seed, local, self._wrapped)
            outputs = Call.apply(call, *parameters, *tensors)  # type: ignore[no-untyped-call]
        else:
            stored = dict(zip(wiring.parameters, map(local, parameters), strict=True))
            with torch.no_grad():
                outputs, _ = variant.forward({**buffers, **stored}, tensors, seed)
        return variant.captured.structure.rebuild(outputs)

    def gathered(self, module: nn.Module, everywhere: bool) -> dict[str, Tensor]:
        """See `ParallelModule.full_state_dict`."""
        variant = self.runner.first
        assert variant is not None
        rank = self.runner.job.rank
        gathering = Gathering(variant.deployment, rank)
        gather = gathering.to_all if everywhere else gathering.to_first
        ports = variant.deployment.programs[0].signature.inputs
        places = {port.name: at for at, port in enumerate(ports)}
        whole: dict[int, Tensor | None] = {}
        found: dict[str, Tensor] = {}
        for name, tensor in module.state_dict(keep_vars=True).items():
            if id(tensor) not in whole:
                piece = local(tensor.detach())
                at = places.get(name)
                whole[id(tensor)] = piece.cpu() if at is None else gather("inputs", at, piece)
            value = whole[id(tensor)]
            if value is not None and (everywhere or rank == 0):
                found[name] = value
        return found

    def load(self, module: nn.Module, state: dict[str, Any], *_: object) -> None:
        """Lets `load_state_dict` take whole tensors: a hook that it calls first."""
        state.update(whole_from(state, self.shards))

    def _wrapped(self, name: str, piece: Tensor) -> Tensor:
        return self.shards[name].wrapped(piece)


def parallelize(
    model: nn.Module,
    example_inputs: Any,
    *,
    mesh: MeshLike,
    strategy: str | None = "",
    shard: Mapping[str, Sequence[Entry]] | None = None,
    parameters: Parameters = "dtensor",
    outputs: Outputs | Sequence[str] = "global",
    seed: int = 0,
    torch_compile: bool = False,
    cluster: str | Cluster = "cpu",
    placement: Placement = "identity",
) -> ParallelModule:
    """Returns a new module whose parameters are this rank's, and that computes on all ranks.

    Every rank of a job that torchrun started calls it, and then the module, alike: with the global
    batch, for the global outputs. The user keeps loss, `backward()`, optimizer and loop. Gradients
    are complete after `backward()`; nothing has to be averaged or waited for.

    The forward and backward passes of each mode (`train()`, `eval()`, `torch.no_grad()`) and of
    batches of each shape are one program, compiled when it is first needed. The example's decides
    how parameters are laid out.

    Args:
        model: The model; it isn't changed. Its values on rank 0 count. On the meta device, so are
            the parameters that are returned: call `to_empty` and load a state dict.
        example_inputs: A global batch: the model's only input, a tuple of them, or a dict by name.
        mesh: The processes: a mesh, a torch DeviceMesh, or text as `2x4` or `dp=2,tp=4`.
        strategy: Presets as `ddp:0,tensor:1`; "" for the mesh's default, `none` or None for no
            presets. The optimizer's state lies as the parameters do: `fsdp` splits it too.
        shard: Pins: a dims_mapping by name pattern.
        parameters: `dtensor`: DTensors, so that optimizers, `torch.nn.utils.clip_grad_norm_` and
            torch.distributed.checkpoint work on them. A parameter that is best split within a
            dimension, which DTensors can't be, is kept split as a whole one and moved in each
            step; a warning names it. `local`: plain tensors that hold the rank's piece, split
            however is best; clip with the module's own `clip_grad_norm_`.
            In a job of one process, parameters are plain and whole.
        outputs: `global`: whole tensors, on every rank. `dtensor`: outputs that are split come as
            DTensors, so that nothing is gathered; others as whole tensors. A list of names, as
            `["loss"]`: these are whole, and the others None; they are neither gathered nor kept,
            nor computed where the rest doesn't need them. An output is called by its key or
            field, else `output`, or `output.0` in a tuple. A call that returns none of them, as
            one without labels, returns all.
        seed: What dropout depends on: each call draws anew, the same on any mesh.
        torch_compile: Whether the programs run through `torch.compile`.
        cluster: The hardware: a profile's name, a YAML file, or a Cluster.
        placement: Which logical process each rank carries out.

    Raises:
        AutoparError: If the model, an option or a pin can't be used as given, or the job has
            another number of processes than the mesh.
    """
    _check_options(mesh, parameters, outputs, placement)
    options = CompileOptions.of(
        mesh=mesh, strategy=strategy, shard=shard, cluster=cluster, placement=placement
    )
    _check_strategy(strategy, options.mesh)
    device = choose_device(mesh, [*model.parameters(), *model.buffers()])
    job = connect(mesh, device)
    options = replace(options, phases_apart=True)
    runner = Runner(
        _skeleton(model),
        options,
        job,
        placed=parameters == "dtensor" and job.size > 1,
        whole=outputs != "dtensor",
        outputs=() if isinstance(outputs, str) else outputs,
        torch_compile=torch_compile,
    )
    modules, own = model.modules(), model.parameters()
    modes = Modes(tuple(m.training for m in modules), tuple(p.requires_grad for p in own))
    runner.variant(modes, *call_arguments(example_inputs))
    if job.rank == 0 and runner.layouts.moved:
        warnings.warn(_moved_text(runner.layouts), stacklevel=2)
    if job.rank == 0 and runner.gathered and runner.has_loss:
        warnings.warn(_gathered_text(runner.gathered), stacklevel=2)
    return _instance(model, runner, seed)


def _check_options(
    mesh: MeshLike, parameters: Parameters, outputs: Outputs | Sequence[str], placement: Placement
) -> None:
    if parameters not in get_args(Parameters):
        raise InvalidInputError(f"parameters={parameters!r}; give 'dtensor' or 'local'")
    if isinstance(outputs, str) and outputs not in get_args(Outputs):
        raise InvalidInputError(
            f"outputs={outputs!r}; give 'global', 'dtensor', or a list of outputs, as [{outputs!r}]"
        )
    if isinstance(mesh, DeviceMesh) and placement != "identity":
        raise InvalidInputError("a DeviceMesh says which rank is where; leave placement= out")


def _check_strategy(strategy: str | None, mesh: ProcessMesh) -> None:
    if not strategy or strategy == NO_PRESETS:
        return
    for each in parse_strategy(strategy, mesh):
        if each.preset in ("zero1", "zero2"):
            raise InvalidInputError(
                f"strategy {strategy!r}: {each.preset} splits the optimizer's state, which is the"
                f" user's here and lies as parameters do; use {_with_fsdp(strategy, mesh)!r}, which"
                " splits parameters, gradients and state, or autopar.compile() with the optimizer"
            )


def _with_fsdp(strategy: str, mesh: ProcessMesh) -> str:
    zero = ("zero1", "zero2")
    return ",".join(
        str(replace(each, preset="fsdp") if each.preset in zero else each)
        for each in parse_strategy(strategy, mesh)
    )


def _instance(model: nn.Module, runner: Runner, seed: int) -> ParallelModule:
    """Returns the module of a rank."""
    job, options = runner.job, runner.options
    mesh = runner.mesh if runner.placed else None
    assert runner.first is not None
    coords = runner.first.deployment.coords_of(job.rank)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    memo: dict[int, Tensor] = {}
    shards: dict[str, Shard] = {}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        layout = runner.layouts.stored.get(name, Layout.replicated(options.mesh, shape))
        held = shard_of(layout, coords, mesh)
        shards.update(dict.fromkeys(names[id(parameter)], held))
        memo[id(parameter)] = held.parameter(parameter, job.device)
    for buffer in model.buffers():
        absent = buffer.is_meta
        memo[id(buffer)] = buffer if absent else of_first_rank(buffer, job.device).clone()
    # What deepcopy finds in the memo it takes for copied.
    module = copy.deepcopy(model, dict(memo))
    kind = type(model)
    module.__class__ = type(f"Parallel{kind.__name__}", (ParallelModule, kind), {})
    assert isinstance(module, ParallelModule)
    _disarm(module)
    module._parallel = _State(module, runner, shards, seed)
    module.register_load_state_dict_pre_hook(module._parallel.load)  # type: ignore[no-untyped-call]
    return module


def _skeleton(model: nn.Module) -> nn.Module:
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


def _gathered_text(names: Sequence[str]) -> str:
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return (
        f"the model returns a loss and {listed}, which is gathered on every rank in each call; if"
        " the loss is all that you need of it, name it in outputs=, as outputs=['loss'], and with"
        " outputs='dtensor' the others are left split"
    )


def _moved_text(layouts: Layouts) -> str:
    listed = "; ".join(
        f"{name} as {layouts.stored[name]} and not {layouts.wanted[name]}"
        for name in layouts.moved[:4]
    )
    more = f"; and {len(layouts.moved) - 4} more" if len(layouts.moved) > 4 else ""
    return (
        f"DTensors can't be split within a dimension, so {counted(len(layouts.moved), 'parameter')}"
        f" kept in other pieces than computed in must be moved in each step: {listed}{more};"
        " parameters='local' saves that"
    )
