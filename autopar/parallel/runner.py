"""The variants of a module, each compiled when it is first needed, over the same parameters.

The first variant decides how parameters are laid out; later ones, for other modes and shapes of
batches, take that as given.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.base.arguments import FLAG, expect
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Dynamic
from autopar.frontend.torch.step.batch import Path, Structure, flatten, input_label
from autopar.ir.layout import Layout
from autopar.parallel.calls import (
    Modes,
    Wanted,
    check_plain,
    check_tensors,
    check_whole,
    whole_like,
)
from autopar.parallel.compiling import Compiler
from autopar.parallel.opening import OpenCalls, check_sizes
from autopar.parallel.parts import peers_of, whole_layout
from autopar.parallel.sized import SizedVariant, sized
from autopar.parallel.telling import MANY, Told, apart_text, key_of, many_text
from autopar.parallel.variant import Variant
from autopar.runtime.agree.agreement import Offer
from autopar.runtime.execute.sized import KEPT_SIZES


class Runner:
    """Finds the variant for a call, compiling those that aren't there yet.

    Args:
        compiler: Compiles them.

    Attributes:
        job: The ranks.
        takes_local: Whether the model itself has an argument `local`.
        variants: By what they were compiled for.
    """

    def __init__(self, compiler: Compiler, dynamic: Dynamic | None = None) -> None:
        self.compiler = compiler
        self.job = compiler.job
        self.takes_local = "local" in inspect.signature(compiler.skeleton.forward).parameters
        self._open = OpenCalls(dynamic)
        self._variants: dict[Any, list[Variant]] = {}
        self._at = lru_cache(KEPT_SIZES)(sized)
        self._label = input_label(compiler.skeleton)
        self._told = Told()

    @property
    def variants(self) -> list[Variant]:
        """Those that are compiled."""
        return [each for alike in self._variants.values() for each in alike]

    def variant(
        self,
        modes: Modes,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        drawn: Mapping[str, str] = MappingProxyType({}),
        local: bool = False,
    ) -> tuple[SizedVariant, list[Tensor]]:
        """Returns the variant for a call, at its sizes, and the tensors of the call.

        Args:
            modes: Those that the module is in.
            args, kwargs: The arguments of the call.
            drawn: What random numbers depend on, by name.
            local: Whether the tensors are this rank's parts of those of the call.

        Raises:
            AutoparError: If the model doesn't take them, or has no static program for them, or
                another rank makes another call.
        """
        try:
            expect(FLAG, local=local)
            if local:
                check_whole(self.compiler.options.microbatches)
            call, tensors = flatten((args, dict(kwargs)), self._named)
            check_plain(call)
            check_tensors(call, tensors, absent=self.compiler.first is None)
            layouts = self._layouts_of(call, tensors) if local else []
            found = None if local else self._ready(self._wanted(modes, call, tensors))
        except InvalidInputError as error:
            self.job.agree(Offer(error))
            raise
        draws = any(map(_draws, self.variants if local else [found] if found else []))
        self._compare(modes, call, tensors, drawn if draws else {}, layouts)
        if found is None:
            wholes: Sequence[Tensor] = tensors
            if local:
                layouts = self._whole_layouts(call, tensors, layouts)
                wholes = list(map(whole_like, tensors, layouts))
            wanted = self._wanted(modes, call, wholes, layouts)
            check_sizes(call, wanted.opened, wholes)
            # An example may have no values, and isn't computed with.
            known = () if local or self.compiler.first is None else tensors
            found = self._found(wanted) or self._made(wanted, args, kwargs, drawn, known)
        return found, tensors

    def _wanted(
        self,
        modes: Modes,
        call: Structure,
        tensors: Sequence[Tensor],
        layouts: Sequence[Layout] = (),
    ) -> Wanted:
        """Returns what is wanted for global tensors of a call."""
        opened = self._open.opened(call, tensors)
        key = key_of(modes, call, tensors, opened.shapes, self.compiler.autocast())
        return Wanted(key, modes, call, tensors, opened, layouts)

    def _ready(self, wanted: Wanted) -> SizedVariant | None:
        """Returns the variant that is there for a call that brings the global tensors, checked.

        Raises:
            InvalidInputError: If it can't be called with them.
        """
        found = self._found(wanted)
        if found is not None:
            found.check(wanted.tensors)
        elif self.compiler.first is not None:
            check_sizes(wanted.call, wanted.opened, wanted.tensors)
        return found

    def _found(self, wanted: Wanted) -> SizedVariant | None:
        """Returns the variant that is there for a call; None if it must be compiled."""
        for each in self._variants.get(wanted.key, ()):
            with suppress(InvalidInputError):
                found = self._at(each, wanted.shapes)
                if found.takes(wanted.layouts):
                    return found
        return None

    def _made(
        self,
        wanted: Wanted,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        drawn: Mapping[str, str],
        known: Sequence[Tensor],
    ) -> SizedVariant:
        """Returns a new variant for a call; all ranks make the same.

        Raises:
            AutoparError: On all ranks, if there is none, or one of them can't make the call.
        """
        self._check_call(args, kwargs)
        if len(self.variants) == MANY:
            warnings.warn(many_text(type(self.compiler.skeleton).__name__), stacklevel=5)
        variant = self._compiled(wanted)
        found = self._at(variant, wanted.shapes)
        self._variants.setdefault(wanted.key, []).append(variant)
        for remark in self.compiler.remarks:
            warnings.warn(remark, stacklevel=4)
        self._agree_on_first(found, drawn, known)
        return found

    def _compiled(self, wanted: Wanted) -> Variant:
        """Compiles a variant, also where those that are there aren't for the sizes of a call.

        Raises:
            AutoparError: On all ranks, if there is none. Where others are there, it says for which
                sizes.
        """
        others = [self._refusal(each, wanted) for each in self._variants.get(wanted.key, ())]
        refusals = [each for each in others if each is not None]
        try:
            variant = self.compiler.compile(wanted)
        except InvalidInputError as error:
            raise refusals[-1] if refusals else error from error
        if refusals:
            warnings.warn(apart_text(refusals[-1], variant), stacklevel=6)
        return variant

    def _refusal(self, variant: Variant, wanted: Wanted) -> InvalidInputError | None:
        """Returns why a variant isn't for the sizes of a call; None if it is."""
        try:
            self._at(variant, wanted.shapes)
        except InvalidInputError as error:
            return error
        return None

    def _agree_on_first(
        self, variant: SizedVariant, drawn: Mapping[str, str], tensors: Sequence[Tensor]
    ) -> None:
        """Makes sure, of a variant's first call, of what it takes the variant to know.

        Args:
            variant: The variant.
            drawn: What random numbers depend on, by name.
            tensors: The global tensors of the call; with none, they aren't looked at.

        Raises:
            InvalidInputError: On all ranks, if one of them can't make the call.
        """
        values = {} if variant.wiring.seed is None else drawn
        try:
            variant.check(tensors)
        except InvalidInputError as error:
            self.job.agree(Offer(error, values))
            raise
        self.job.agree(Offer(values=values))

    def _named(self, path: Path) -> str:
        return self._label(path[1:])

    def _compare(
        self,
        modes: Modes,
        call: Structure,
        tensors: Sequence[Tensor],
        drawn: Mapping[str, str],
        layouts: Sequence[Layout],
    ) -> None:
        """Makes sure that the other ranks make this call too."""
        local = bool(layouts)
        told = self._told.of(modes, call, tensors, self.compiler.autocast(), local=local)
        values = {**told, **drawn}
        plain = {
            label: each
            for label, each in zip(call.labels, tensors, strict=True)
            if not isinstance(each, DTensor)
        }
        peers = self._peers(layouts) if local else ()
        self.job.agree(Offer(values=values, tensors=plain, peers=peers))

    def _peers(self, layouts: Sequence[Layout]) -> tuple[int, ...]:
        assert self.compiler.first is not None
        return peers_of(layouts, self.compiler.first.deployment, self.job.rank)

    def _layouts_of(self, call: Structure, tensors: Sequence[Tensor]) -> list[Layout]:
        """Returns how the ranks share tensors like those of a call, from the first variant.

        Raises:
            InvalidInputError: If that isn't known of one.
        """
        assert self.compiler.first is not None
        known = dict(zip(self.compiler.labels, self.compiler.first.layouts, strict=True))
        for label, each in zip(call.labels, tensors, strict=True):
            if isinstance(each, DTensor):
                raise InvalidInputError(
                    f"{label!r} is a DTensor, which says itself what part of a tensor it is; leave"
                    " local= out, or hand over to_local() of all of them"
                )
            if label not in known or len(known[label].dims) != each.ndim:
                raise InvalidInputError(
                    f"how ranks share {label!r} isn't known: the example inputs have none of"
                    f" {each.ndim} dimensions; hand over the global tensor"
                )
        return [known[label] for label in call.labels]

    def _whole_layouts(
        self, call: Structure, tensors: Sequence[Tensor], layouts: Sequence[Layout]
    ) -> list[Layout]:
        """Returns how the ranks hold the tensors of which they bring parts."""
        assert self.compiler.first is not None
        deployment = self.compiler.first.deployment
        shapes = self.job.shapes_of_all([tuple(each.shape) for each in tensors])
        return [
            whole_layout(label, layout, found, deployment)
            for label, layout, found in zip(call.labels, layouts, shapes, strict=True)
        ]

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        signature = inspect.signature(self.compiler.skeleton.forward)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            name = type(self.compiler.skeleton).__name__
            raise InvalidInputError(
                f"{name} can't be called like this: {error}; it takes {signature}"
            ) from error


def _draws(variant: SizedVariant | Variant) -> bool:
    return variant.wiring.seed is not None
