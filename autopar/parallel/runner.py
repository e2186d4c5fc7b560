"""The variants of a module, each compiled when it is first needed, over the same parameters.

The first variant decides how parameters are laid out; later ones, for other modes and shapes of
batches, take that as given.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.base.arguments import FLAG, expect
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.step.batch import Path, Structure, flatten, input_label
from autopar.ir.layout import Layout
from autopar.parallel.calls import Modes, check_plain, check_tensors, described, whole_like
from autopar.parallel.compiling import Compiler, ignored_text
from autopar.parallel.parts import peers_of, whole_layout
from autopar.parallel.variant import Variant
from autopar.runtime.agree.agreement import Offer
from autopar.runtime.agree.disagreement import CALL, LOCAL, MODULE
from autopar.runtime.files.digest import digest_bytes

MANY = 16
"""Programs of one module from which on a warning says so."""


class Runner:
    """Finds the variant for a call, compiling those that aren't there yet.

    Args:
        compiler: Compiles them.

    Attributes:
        job: The ranks.
        takes_local: Whether the model itself has an argument `local`.
        variants: By what they were compiled for.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.job = compiler.job
        self.variants: dict[Any, Variant] = {}
        self.takes_local = "local" in inspect.signature(compiler.skeleton.forward).parameters
        self._label = input_label(compiler.skeleton)
        self._calls: dict[Any, dict[str, str]] = {}

    def variant(
        self,
        modes: Modes,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        drawn: Mapping[str, str] = MappingProxyType({}),
        local: bool = False,
    ) -> tuple[Variant, list[Tensor]]:
        """Returns the variant for a call, and the tensors of the call.

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
            call, tensors = flatten((args, dict(kwargs)), self._named)
            check_plain(call)
            check_tensors(call, tensors, absent=self.compiler.first is None)
            layouts = self._layouts_of(call, tensors) if local else []
            key = self._key(modes, call, tensors)
            if not local and key in self.variants:
                self.variants[key].check(tensors)
        except InvalidInputError as error:
            self.job.agree(Offer(error))
            raise
        self._compare(key, modes, call, tensors, drawn, layouts)
        wholes: Sequence[Tensor] = tensors
        if local:
            layouts = self._whole_layouts(call, tensors, layouts)
            wholes = list(map(whole_like, tensors, layouts))
            key = self._local_key(self._key(modes, call, wholes), layouts)
        if key not in self.variants:
            self._check_call(args, kwargs)
            if len(self.variants) == MANY:
                name = type(self.compiler.skeleton).__name__
                warnings.warn(
                    f"{MANY} programs are compiled for {name}: each shape"
                    " of a batch and each plain argument needs its own; pad batches to few shapes",
                    stacklevel=4,
                )
            # An example may have no values, and isn't computed with.
            known = () if local or self.compiler.first is None else tensors
            self.variants[key] = self.compiler.compile(modes, call, wholes, layouts)
            for entry in self.compiler.ignored:
                warnings.warn(ignored_text(entry), stacklevel=3)
            self._agree_on_first(self.variants[key], drawn, known)
        return self.variants[key], tensors

    def _agree_on_first(
        self, variant: Variant, drawn: Mapping[str, str], tensors: Sequence[Tensor]
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

    def _key(self, modes: Modes, call: Structure, tensors: Sequence[Tensor]) -> Any:
        differentiate = torch.is_grad_enabled()
        return (
            call.spec,
            call.plain,
            tuple((t.shape, t.dtype, differentiate and t.requires_grad) for t in tensors),
            modes.training,
            differentiate and modes.trained,
            self.compiler.autocast(),
        )

    def _compare(
        self,
        key: Any,
        modes: Modes,
        call: Structure,
        tensors: Sequence[Tensor],
        drawn: Mapping[str, str],
        layouts: Sequence[Layout],
    ) -> None:
        """Makes sure that the other ranks make this call too."""
        local = bool(layouts)
        if (key, local) not in self._calls:
            trained = [each[2] for each in key[2]]
            self._calls[key, local] = {
                LOCAL: str(local),
                CALL: described(modes, call, tensors, local),
                MODULE: f"{digest_bytes(str((trained, key[3:])).encode()):x}",
            }
        known = self.variants.get(key)
        draws = known is not None and known.wiring.seed is not None
        values = {**self._calls[key, local], **(drawn if draws else {})}
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

    def _local_key(self, key: Any, layouts: Sequence[Layout]) -> Any:
        """Returns the key of a variant that reads these parts: that of the global call if it does.

        Args:
            key: Of the call with global tensors.
            layouts: How the ranks hold them.
        """
        known = self.variants.get(key)
        parts = [each.normalized() for each in layouts]
        if known is not None and [each.normalized() for each in known.layouts] == parts:
            return key
        return key, tuple(parts)

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        signature = inspect.signature(self.compiler.skeleton.forward)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            name = type(self.compiler.skeleton).__name__
            raise InvalidInputError(
                f"{name} can't be called like this: {error}; it takes {signature}"
            ) from error
