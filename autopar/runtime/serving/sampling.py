"""Which token is next, given the logits of all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from autopar.base.arguments import CALLABLE, COUNT, FLAG, POSITIVE, WHOLE, Kind, expect
from autopar.base.errors import InvalidInputError

Logits = Callable[[Tensor, Tensor], Tensor]
"""(ids so far [batch, length], logits [batch, entries]) -> logits, as transformers' processors."""

_PART = Kind(
    lambda value: POSITIVE.fits(value) and value <= 1,  # type: ignore[operator]
    "a number above 0, and up to 1",
)
_SEED = Kind(
    lambda value: WHOLE.fits(value) and -(2**63) <= value < 2**64,  # type: ignore[operator]
    "a whole number of 64 bits",
)


@dataclass(frozen=True)
class Sampling:
    """How the next token follows from logits.

    Attributes:
        do_sample: Whether to draw it; otherwise it is the most likely one.
        temperature: What logits are divided by.
        top_k: How many of the most likely ones may be drawn; None for all.
        top_p: How likely those that may be drawn must be together at least, the most likely first.
        seed: What is drawn follows from it.
        processor: Changes the logits first.

    Raises:
        InvalidInputError: If one of them can't be used.
    """

    do_sample: bool
    temperature: float
    top_k: int | None
    top_p: float
    seed: int
    processor: Logits | None

    def __post_init__(self) -> None:
        expect(FLAG, do_sample=self.do_sample)
        expect(POSITIVE, temperature=self.temperature)
        expect(_PART, top_p=self.top_p)
        expect(COUNT.or_none, top_k=self.top_k)
        expect(_SEED, seed=self.seed)
        expect(CALLABLE.or_none, logits_processor=self.processor)
        given = [] if self.do_sample else self._drawing()
        if given:
            warnings.warn(
                f"{', '.join(given)}: only what is drawn depends on that; give do_sample=True",
                stacklevel=5,
            )

    def processed(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Returns logits as the user's processor changes them.

        Raises:
            InvalidInputError: If it returns something else.
        """
        if self.processor is None:
            return logits
        found = self.processor(ids, logits)
        if not isinstance(found, Tensor) or found.shape != logits.shape:
            what = list(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise InvalidInputError(
                f"logits_processor returned {what}; return logits, {list(logits.shape)}"
            )
        return found

    def _drawing(self) -> list[str]:
        """Returns what is said of tokens that are drawn."""
        usual = {"temperature": 1.0, "top_k": None, "top_p": 1.0}
        return [
            f"{name}={getattr(self, name)}"
            for name, value in usual.items()
            if getattr(self, name) != value
        ]


def chosen(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Returns a token per row of logits, [batch].

    Raises:
        InvalidInputError: If tokens are drawn, and logits of a row are no numbers.
    """
    if not sampling.do_sample:
        return logits.argmax(-1)
    scaled = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        least = scaled.topk(sampling.top_k).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if sampling.top_p < 1:
        scaled = _likely(scaled, sampling.top_p)
    chances = scaled.softmax(-1)
    _check_chances(chances)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


def _check_chances(chances: Tensor) -> None:
    odd = chances.isnan().any(-1).nonzero()
    if len(odd):
        raise InvalidInputError(
            f"no token can be drawn for row {odd[0].item()}: its logits are not numbers, or there"
            " is none above -inf; look at the model, the temperature, and what logits_processor"
            " leaves"
        )


def _likely(logits: Tensor, part: float) -> Tensor:
    """Returns logits without those that aren't needed for a part of what is likely."""
    ordered, places = logits.sort(descending=True)
    likely = ordered.softmax(-1)
    # The one that makes the sum large enough is still among them.
    left_out = likely.cumsum(-1) - likely >= part
    return logits.masked_fill(left_out.scatter(-1, places, left_out), -torch.inf)
