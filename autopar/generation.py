"""Text from a session: tokens one after another, each computed of those before.

    with InferenceSession("llama.onnx", mesh="2x2", state={"past_key_values.*": "present.*"}) as s:
        ids = autopar.generate(s, prompts, max_new_tokens=64, eos_token_id=2)

Keys and values stay on the ranks: a call hands over one token per sequence, and gets its logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autopar.base.arguments import COUNT, WHOLE, Kind, expect
from autopar.base.errors import InvalidInputError
from autopar.runtime.serving.sampling import Logits, Sampling, chosen
from autopar.runtime.serving.session import BuildSession

Ids = npt.NDArray[np.int64]
IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
"""The inputs that exporters of decoders know."""

_SESSION = Kind(lambda value: isinstance(value, BuildSession), "an InferenceSession")
_TOKEN = Kind(lambda value: WHOLE.fits(value) and value >= 0, "a token's number")  # type: ignore[operator]
_TOKENS = Kind(
    lambda value: (
        value is None
        or WHOLE.fits(value)
        or (isinstance(value, (list, tuple)) and all(map(WHOLE.fits, value)))
    ),
    "a token's number, or a list of them",
)


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
    ids = _ids(IDS, input_ids)
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
    expect(_TOKEN.or_none, pad_token_id=pad_token_id)
    ids = _ids(IDS, input_ids)
    mask = np.ones_like(ids) if attention_mask is None else _mask(attention_mask, ids)
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
        feeds = {IDS: ids, MASK: mask}
        if POSITIONS in self._inputs:
            feeds[POSITIONS] = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, -ids.shape[1] :]
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
        if not self.tokens:
            return tokens
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
        logits = sampling.processed(torch.from_numpy(ids), decoder.next(new, mask))
        tokens = end.passed(chosen(logits, sampling, generator).numpy())
        yield tokens
        if end.ended.all() or at == count - 1:
            return
        new = tokens[:, None]
        ids = np.concatenate([ids, new], 1)
        mask = np.concatenate([mask, np.ones_like(new)], 1)


def _ids(name: str, given: Any) -> Ids:
    """Returns ids or a mask.

    Raises:
        InvalidInputError: If it is neither.
    """
    try:
        found = np.asarray(given)
    except ValueError:
        raise InvalidInputError(
            f"{name}: rows differ in length; pad shorter prompts on the left, and give {MASK}="
        ) from None
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.integer) or not found.size:
        raise InvalidInputError(
            f"{name}: give integers, [batch, length], from 1 on; got {found.dtype}"
            f"{list(found.shape)}"
        )
    return found.astype(np.int64)


def _mask(given: Any, ids: Ids) -> Ids:
    """Returns a mask of prompts.

    Raises:
        InvalidInputError: If it isn't one, or padding is behind a prompt: tokens would go on from
            that.
    """
    mask = _ids(MASK, given)
    if mask.shape != ids.shape:
        raise InvalidInputError(f"{MASK} is {list(mask.shape)}, and {IDS} are {list(ids.shape)}")
    if not np.isin(mask, (0, 1)).all():
        raise InvalidInputError(f"{MASK}: give 1 for what belongs to a prompt, 0 for padding")
    if not mask[:, -1].all():
        row = int(np.flatnonzero(mask[:, -1] == 0)[0])
        raise InvalidInputError(
            f"{MASK} ends with padding in row {row}, but tokens go on from the last column;"
            " pad shorter prompts on the left, as padding_side='left' of a tokenizer does"
        )
    return mask
