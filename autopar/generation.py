"""Text from a session: tokens one after another, each computed of those before.

    with InferenceSession("llama.onnx", mesh="2x2", state={"past_key_values.*": "present.*"}) as s:
        ids = autopar.generate(s, prompts, max_new_tokens=64, eos_token_id=2)

Keys and values stay on the ranks: a call hands over one token per sequence, and gets its logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autopar.base.arguments import COUNT, FLAG, POSITIVE, WHOLE, Kind, expect
from autopar.base.errors import InvalidInputError
from autopar.runtime.serving.session import BuildSession

Ids = npt.NDArray[np.int64]
Logits = Callable[[Tensor, Tensor], Tensor]
"""(ids so far [batch, length], logits [batch, entries]) -> logits, as transformers' processors."""

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
"""The inputs that exporters of decoders know."""

_SESSION = Kind(lambda value: isinstance(value, BuildSession), "an InferenceSession")
_TOKENS = Kind(
    lambda value: (
        value is None
        or WHOLE.fits(value)
        or (isinstance(value, (list, tuple)) and all(map(WHOLE.fits, value)))
    ),
    "a token's number, or a list of them",
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
    """

    do_sample: bool
    temperature: float
    top_k: int | None
    top_p: float
    seed: int
    processor: Logits | None


def generate(
    session: BuildSession,
    input_ids: Any,
    *,
    max_new_tokens: int,
    attention_mask: Any = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    logits_processor: Logits | None = None,
) -> Ids:
    """Returns prompts with what a model makes of them; see `stream` for the arguments.

    Returns:
        [batch, length + tokens]: up to `max_new_tokens`, and fewer where all sequences end before.

    Raises:
        InvalidInputError: See `stream`.
        RuntimeFailure: If a rank fails.
    """
    ids = _ids(input_ids)
    tokens = stream(
        session,
        ids,
        max_new_tokens=max_new_tokens,
        attention_mask=attention_mask,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        logits_processor=logits_processor,
    )
    return np.concatenate([ids, *(each[:, None] for each in tokens)], 1)


def stream(
    session: BuildSession,
    input_ids: Any,
    *,
    max_new_tokens: int,
    attention_mask: Any = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    logits_processor: Logits | None = None,
) -> Iterator[Ids]:
    """Yields the next token of each sequence, one after another, [batch].

    What the session kept before is forgotten. Names and meanings are those of transformers.

    Args:
        session: Of a decoder that keeps its past, as `state=` says when it is compiled. Of inputs
            it has `input_ids`, and maybe `attention_mask` and `position_ids`; its output `logits`,
            or the first one, is [batch, length, entries].
        input_ids: Prompts, [batch, length]; shorter ones are padded on the left.
        max_new_tokens: Up to how many tokens.
        attention_mask: 1 for what belongs to a prompt, 0 for padding, [batch, length]; by default
            nothing is padding.
        eos_token_id: The token with which a sequence ends, or several; by default none does.
        pad_token_id: What follows that; by default the first of these.
        do_sample: Whether tokens are drawn; by default each is the most likely one.
        temperature: What logits are divided by, when tokens are drawn.
        top_k: Of how many of the most likely tokens one is drawn; by default of all.
        top_p: One of the most likely ones is drawn that together are at least so likely.
        seed: What is drawn follows from it, on any mesh.
        logits_processor: Is given all ids so far, [batch, length], and the logits of the next
            token, [batch, entries]; returns other logits.

    Raises:
        InvalidInputError: If the model isn't such a decoder, or an argument can't be used.
        RuntimeFailure: If a rank fails.
    """
    expect(_SESSION, session=session)
    expect(COUNT, max_new_tokens=max_new_tokens)
    expect(_TOKENS, eos_token_id=eos_token_id)
    expect(WHOLE.or_none, pad_token_id=pad_token_id)
    expect(FLAG, do_sample=do_sample)
    expect(POSITIVE, temperature=temperature, top_p=top_p)
    expect(COUNT.or_none, top_k=top_k)
    expect(WHOLE, seed=seed)
    ids = _ids(input_ids)
    mask = np.ones_like(ids) if attention_mask is None else _ids(attention_mask)
    if mask.shape != ids.shape:
        raise InvalidInputError(
            f"attention_mask is {list(mask.shape)}, and input_ids are {list(ids.shape)}"
        )
    sampling = Sampling(do_sample, temperature, top_k, top_p, seed, logits_processor)
    decoder = _Decoder(session)
    ends = () if eos_token_id is None else tuple(np.atleast_1d(eos_token_id).tolist())
    padding = next(iter(ends), 0) if pad_token_id is None else pad_token_id
    end = _End(ends, padding, len(ids))
    return _tokens(decoder, ids, mask, sampling, end, max_new_tokens)


class _Decoder:
    """A session of a decoder.

    Raises:
        InvalidInputError: If it is none.
    """

    def __init__(self, session: BuildSession) -> None:
        self._session = session
        self._inputs = [each.name for each in session.get_inputs()]
        unknown = [name for name in self._inputs if name not in (IDS, MASK, POSITIONS)]
        if IDS not in self._inputs or unknown:
            listed = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
            raise InvalidInputError(
                f"a decoder is given {IDS}, and maybe {MASK} and {POSITIONS}"
                + (f"; this model also takes {listed}" if unknown else "; this model has no such")
                + "; state= says which inputs are outputs of the call before, when it is compiled"
            )
        outputs = [each.name for each in session.get_outputs()]
        self._logits = "logits" if "logits" in outputs else outputs[0]

    def begin(self, ids: Ids, mask: Ids) -> Ids:
        """Forgets the past; returns a mask that also leaves out what there is of it at first.

        Some models can't be called without any past: theirs begins with zeros for one token.
        """
        self._session.reset()
        if MASK not in self._inputs:
            return mask
        _, length = self._session.shapes({IDS: ids, MASK: mask})[MASK]
        return np.pad(mask, ((0, 0), (length - mask.shape[1], 0)))

    def next(self, ids: Ids, mask: Ids) -> Tensor:
        """Returns the logits of the next token, [batch, entries].

        Args:
            ids: The tokens that are new, [batch, length].
            mask: What of all tokens is no padding, [batch, past + length].
        """
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, -ids.shape[1] :]
        feeds = {IDS: ids, MASK: mask, POSITIONS: positions}
        given = {name: feeds[name] for name in self._inputs}
        (logits,) = self._session.run([self._logits], given)
        return torch.from_numpy(logits[:, -1])


@dataclass
class _End:
    """Which sequences have ended.

    Attributes:
        tokens: With which one does.
        padding: What follows it.
        batch: How many sequences there are.
    """

    tokens: Sequence[int]
    padding: int
    batch: int

    def __post_init__(self) -> None:
        self.ended = np.zeros(self.batch, bool)

    def passed(self, tokens: Ids) -> Ids:
        """Returns the next tokens, padding where a sequence has ended."""
        found = np.where(self.ended, self.padding, tokens)
        self.ended |= np.isin(found, self.tokens)
        return found


def _tokens(
    decoder: _Decoder, ids: Ids, mask: Ids, sampling: Sampling, end: _End, count: int
) -> Iterator[Ids]:
    generator = torch.Generator().manual_seed(sampling.seed)
    mask = decoder.begin(ids, mask)
    new = ids
    for at in range(count):
        logits = decoder.next(new, mask)
        if sampling.processor is not None:
            logits = sampling.processor(torch.from_numpy(ids), logits)
        tokens = end.passed(_chosen(logits, sampling, generator).numpy())
        yield tokens
        if end.ended.all() or at == count - 1:
            return
        new = tokens[:, None]
        ids = np.concatenate([ids, new], 1)
        mask = np.concatenate([mask, np.ones_like(new)], 1)


def _chosen(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Returns a token per row of logits."""
    if not sampling.do_sample:
        return logits.argmax(-1)
    scaled = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        least = scaled.topk(sampling.top_k).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if sampling.top_p < 1:
        scaled = _likely(scaled, sampling.top_p)
    return torch.multinomial(scaled.softmax(-1), 1, generator=generator)[:, 0]


def _likely(logits: Tensor, part: float) -> Tensor:
    """Returns logits without those that aren't needed for a part of what is likely."""
    ordered, places = logits.sort(descending=True)
    likely = ordered.softmax(-1)
    # The one that makes the sum large enough is still among them.
    left_out = likely.cumsum(-1) - likely >= part
    return logits.masked_fill(left_out.scatter(-1, places, left_out), -torch.inf)


def _ids(given: Any) -> Ids:
    found = np.asarray(given)
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.integer) or not found.size:
        raise InvalidInputError(
            f"ids and masks are integers, [batch, length], from 1 on; got {found.dtype}"
            f"{list(found.shape)}"
        )
    return found.astype(np.int64)
