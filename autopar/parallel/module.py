"""What `parallelize` returns: a module of the class of the original that runs compiled plans."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autopar.base.arguments import FLAG, PATH, expect
from autopar.base.errors import InvalidInputError
from autopar.parallel.autograd import Call, VariantCall
from autopar.parallel.calls import Modes
from autopar.parallel.runner import Runner
from autopar.parallel.shards import Shard, clip_grad_norm, local, whole_from
from autopar.runtime.ports.boxes import box_shape, whole_box
from autopar.runtime.ports.outputs import Gathering
from autopar.runtime.training.stepping import seed_of_step
from autopar.runtime.weights.taking import (
    Part,
    Wanted,
    expect_weights,
    sampled_contents,
    take_weights,
)


class ParallelModule(nn.Module):
    """A module whose parameters are the rank's pieces, and whose `forward` is compiled.

    It is made by `parallelize`, and is of the class of the original module too. Its parts can't
    be called by themselves.
    """

    _parallel: State

    @property
    def random_calls(self) -> int:
        """Number of calls so far that drew random numbers, on which the next ones depend.

        Who goes on from a checkpoint sets it to what it was.
        """
        return self._parallel.calls

    @random_calls.setter
    def random_calls(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidInputError(f"random_calls={count!r}: it is a number of calls")
        self._parallel.calls = count

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled program of this mode and of batches of this shape.

        The arguments are those of the original module: global tensors, the same on every rank.
        With `local=True` they are this rank's parts: where the program splits a dimension of an
        input of the example, the rank's block of it, as `torch.chunk` cuts them. Outputs and
        gradients are those of the global batch. A model whose `forward` itself has a parameter
        `local` gets that as it is; there, a rank that has only its part gives a DTensor.
        Arguments that the original module writes to are written to.

        Raises:
            InvalidInputError: If the arguments don't fit the module, here or on another rank, or
                the ranks make different calls. The module can be called again.
            AutoparError: If there is no program for them.
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

        Raises:
            InvalidInputError: On all ranks, if one of them gives no such numbers, or others.
        """
        job = self._parallel.runner.job
        limit, kind = job.jointly(
            "clip_grad_norm_",
            lambda: (_positive("max_norm", max_norm, 0.0), _positive("norm_type", norm_type)),
            max_norm=max_norm,
            norm_type=norm_type,
        )
        pairs = [(p, self._parallel.shards[name]) for name, p in self.named_parameters()]
        with job.talking():
            return clip_grad_norm(pairs, limit, kind)

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

        Raises:
            InvalidInputError: On all ranks, if they don't all ask for the same.
        """
        job = self._parallel.runner.job
        job.jointly(
            "full_state_dict", lambda: expect(FLAG, everywhere=everywhere), everywhere=everywhere
        )
        return self._parallel.gathered(self, everywhere)

    def load_weights(self, path: str | Path) -> None:
        """Reads parameters and buffers from files, on each rank its own pieces.

        Args:
            path: A safetensors file, or a folder or index of Hugging Face's with several, with the
                names of the original module.

        Raises:
            InvalidInputError: On all ranks, if one of them can't read the file, or it lacks a
                tensor or has it otherwise, or their files aren't the same. Nothing is changed then.
        """
        job = self._parallel.runner.job
        expected = partial(self._parallel.expected, self, path)
        take_weights(*job.jointly("load_weights", expected, lambda each: sampled_contents(*each)))


def _positive(name: str, value: float, least: float = math.ulp(0.0)) -> float:
    """Returns a number of the user's.

    Raises:
        InvalidInputError: If it is none, or below `least`.
    """
    single = isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
    if not single or not float(value) >= least:
        raise InvalidInputError(f"{name}={value!r}: it must be a number of at least {least:g}")
    return float(value)


class State:
    """What a parallel module knows beside its parameters.

    Args:
        module: The module.
        runner: Its variants.
        shards: How the rank holds each parameter, by all of its names.
        seed: What the random numbers of all calls depend on.
        local: Whether calls take the rank's part of a batch unless they say otherwise.
    """

    def __init__(
        self,
        module: nn.Module,
        runner: Runner,
        shards: Mapping[str, Shard],
        seed: int,
        local: bool = False,
    ) -> None:
        self.local = local
        self.runner = runner
        self.shards = shards
        self.seed = seed
        self.calls = 0
        self._homes: dict[str, dict[str, Any]] = {}
        self._aliases: tuple[list[str], ...] = ()
        self._modules = tuple(module.modules())
        self._find(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
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
        parts, rest = self._told(kwargs)
        drawn = {"seed": str(self.seed), "random_calls": str(self.calls)}
        variant, tensors = self.runner.variant(self._modes(), args, rest, drawn=drawn, local=parts)
        wiring = variant.wiring
        if parts:
            variant.variant.check_parts()
        parameters = [self.stored(name) for name in wiring.parameters]
        buffers = {name: self.stored(name) for name in wiring.buffers}
        draws, number = wiring.seed is not None, self.calls
        seed = seed_of_step(self.seed, number) if draws else 0
        if wiring.tangents:
            forget = partial(self._forget, number, draws)
            call = VariantCall(variant, buffers, seed, parts, local, self._wrapped, forget)
            outputs = Call.apply(call, *parameters, *tensors)  # type: ignore[no-untyped-call]
        else:
            stored = dict(zip(wiring.parameters, map(local, parameters), strict=True))
            with torch.no_grad():
                outputs, _ = variant.forward({**buffers, **stored}, tensors, seed, parts=parts)
        # A call that was refused has drawn nothing.
        self.calls = number + draws
        captured = variant.variant.captured
        returned = len(captured.returned)
        variant.write_back(tensors, outputs[returned:], parts=parts)
        return captured.structure.rebuild(outputs[:returned])

    def _forget(self, number: int, drew: bool) -> None:
        """Takes back that the call of this number drew, if none has since."""
        if self.calls == number + drew:
            self.calls = number

    def _told(self, kwargs: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
        """Returns whether a call brings parts, and what the model is given by name."""
        rest = dict(kwargs)
        if self.runner.takes_local:
            return self.local, rest
        return rest.pop("local", self.local), rest

    def gathered(self, module: nn.Module, everywhere: bool) -> dict[str, Tensor]:
        """See `ParallelModule.full_state_dict`."""
        whole: dict[int, Tensor | None] = {}
        found: dict[str, Tensor] = {}
        gather = self.gather(everywhere)
        for name, tensor in module.state_dict(keep_vars=True).items():
            if id(tensor) not in whole:
                whole[id(tensor)] = gather(name, tensor)
            value = whole[id(tensor)]
            if value is not None:
                found[name] = value
        return found

    def gather(self, everywhere: bool) -> Callable[[str, Tensor], Tensor | None]:
        """Returns what puts a parameter or buffer together, in main memory; all ranks call alike.

        It takes a tensor and its first name, and returns None on ranks that aren't to have it.

        Args:
            everywhere: Whether all ranks get it, or only rank 0.
        """
        variant = self.runner.compiler.first
        assert variant is not None
        rank = self.runner.job.rank
        gathering = Gathering(variant.deployment, rank)
        ports = variant.deployment.programs[0].signature.inputs
        places = {port.name: at for at, port in enumerate(ports)}

        def gathered(name: str, tensor: Tensor) -> Tensor | None:
            piece = local(tensor.detach())
            at = places.get(name)
            if at is None:
                return piece.cpu() if everywhere or rank == 0 else None
            gather = gathering.to_all if everywhere else gathering.to_first
            return gather("inputs", at, piece)

        return gathered

    def wanted(self, module: nn.Module) -> list[Wanted]:
        """Returns parameters and buffers, as they may be taken from a file.

        Raises:
            InvalidInputError: If they have no memory yet.
        """
        named: dict[int, list[str]] = {}
        for name in module.state_dict():
            named.setdefault(id(self.stored(name)), []).append(name)
        return [self._wanted(tuple(names)) for names in named.values()]

    def expected(self, module: nn.Module, path: str | Path) -> tuple[str | Path, list[Wanted]]:
        """Returns a path, and what is read from there, which is there and fits.

        Raises:
            InvalidInputError: If it isn't or doesn't.
        """
        expect(PATH, path=path)
        wanted = self.wanted(module)
        expect_weights(path, wanted)
        return path, wanted

    def _wanted(self, names: tuple[str, ...]) -> Wanted:
        tensor = self.stored(names[0])
        if tensor.is_meta:
            raise InvalidInputError(
                f"{names[0]!r} is on the meta device; call to_empty(device=...) before the weights"
                " are read"
            )
        shard = self.shards.get(names[0])
        shape = tuple(tensor.shape) if shard is None else shard.shape
        box = whole_box(shape) if shard is None else shard.box
        piece = local(tensor.detach()).view(box_shape(box))
        return Wanted(names, tensor.dtype, shape, [Part(piece, box)])

    def load(self, module: nn.Module, state: dict[str, Any], *_: object) -> None:
        """Lets `load_state_dict` take whole tensors: a hook that it calls first."""
        state.update(whole_from(state, self.shards))

    def _wrapped(self, name: str, piece: Tensor) -> Tensor:
        return self.shards[name].wrapped(piece)
