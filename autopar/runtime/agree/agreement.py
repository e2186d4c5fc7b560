"""Agreement: ranks make sure that they bring the same, before anything comes of it.

By contract all ranks are given the same batch, learning rates and seed, in the same step. If they
aren't, each goes on with its own, and what they compute together is wrong in silence. So each rank
makes a vector of four numbers:

* 1 if it can't go on, since what it was given doesn't fit;
* a digest of plain values, times a coefficient;
* a digest of tensors, or of samples of large ones, times another coefficient;
* 1 if it asks all ranks to stop.

The coefficients of ranks that must bring the same add up to zero modulo 2^64, and else look random.
So of one small sum over all ranks the first three are zero where they agree, and if they don't they
are with a probability of 2^-60. Only where they aren't zero do ranks tell one another what they
have. The fourth is how a signal that reaches ranks at different moments, or one of them alone,
becomes a decision of all of them about one and the same call.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.runtime.agree.disagreement import Report, Ruling, rule_on_reports, rule_on_sketches
from autopar.runtime.agree.sampling import PERIOD, sampled_batch
from autopar.runtime.agree.sketch import Sketch, sketched
from autopar.runtime.files.digest import digest_bytes, digest_tensors, flat_bytes
from autopar.runtime.ports.staging import moved

MOST_BLOCKS, ALL_BLOCKS = 256, 4096
"""Of one sketch, and of all versions of a tensor together."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

Parts = Mapping[str, Sequence[Tensor]]
"""What of each tensor is looked at, by label."""


class Talk(Protocol):
    """How a rank and the others hear of one another."""

    rank: int
    size: int
    device: torch.device

    def start_sum(self, numbers: Sequence[int | Tensor]) -> Callable[[], list[int]]:
        """Starts to sum numbers over all ranks, each modulo 2^64; returns what waits for the sums.

        Args:
            numbers: At least -2^63 and below 2^63; those that are known to `device` alone as
                tensors there.
        """

    def decide(self, text: str, rule: Callable[[list[str]], str]) -> str:
        """Returns, on all ranks, what a rule makes of the texts of all ranks."""


@dataclass(frozen=True)
class Offer:
    """What a rank brings.

    Attributes:
        refusal: Why it can't go on with what it was given.
        values: What must be the same on all ranks, by name.
        tensors: What must be the same on all peers, by label.
        peers: Ranks in increasing order, this one among them; with none, all.
        call: What it is brought to; by default a call with a batch.
        contents: What tensors hold that must be the same on all ranks, by label, in a few letters;
            as `content_of` says it.
    """

    refusal: InvalidInputError | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    peers: tuple[int, ...] = ()
    call: str = ""
    contents: Mapping[str, str] = field(default_factory=dict)


class Agreement:
    """Compares what ranks bring, call by call. All ranks call alike.

    Args:
        talk: How they hear of one another; None where there is one process.
        check_inputs: Whether tensors are compared, and what is loaded. That others can go on, and
            plain values, always are.

    Attributes:
        asks_to_stop: Whether this rank asks all of them to stop, from the next call on.
        stopping: Whether a rank has asked, as all ranks know since the same call.
    """

    def __init__(self, talk: Talk | None = None, check_inputs: bool = True) -> None:
        self.talk = talk
        self.check_inputs = check_inputs
        self.asks_to_stop = False
        self.stopping = False
        self._turn = 0
        self._rounded = False

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.talk is None

    @property
    def compares_contents(self) -> bool:
        """Whether there is somebody to compare the contents of tensors with."""
        return not self.alone and self.check_inputs

    def start(self, offer: Offer) -> Pending:
        """Starts to compare what this rank brings, beside what is computed meanwhile."""
        turn, self._turn = self._turn, self._turn + 1
        parts = sampled_batch(offer.tensors, self._turns(offer, turn))
        return Pending(self, offer, parts)

    def _turns(self, offer: Offer, turn: int) -> dict[str, int]:
        """Returns the tensors that are compared in a turn, and which sample of each."""
        if self.talk is None or not self.check_inputs or offer.refusal is not None:
            return {}
        if not self._rounded:
            return dict.fromkeys(offer.tensors, turn)
        # Each time floats have their turn, it is that of the next sample of them.
        turns = {True: turn // PERIOD, False: turn}
        return {
            label: turns[tensor.is_floating_point()]
            for label, tensor in offer.tensors.items()
            if turn % PERIOD == 0 or not tensor.is_floating_point()
        }

    def warn(self, text: str) -> None:
        """Warns of a difference by rounding, once and on rank 0."""
        if not self._rounded and self.talk is not None and self.talk.rank == 0:
            warnings.warn(text, stacklevel=5)
        self._rounded = True


class Pending:
    """A comparison that is under way.

    Args:
        agreement: Whose it is.
        offer: What this rank brings.
        parts: What of its tensors is compared in this call.
    """

    def __init__(self, agreement: Agreement, offer: Offer, parts: Parts) -> None:
        self.agreement = agreement
        self.offer = offer
        self._values = {**offer.values, "check_inputs": str(agreement.check_inputs)}
        self._asks = agreement.asks_to_stop
        self._parts = parts
        talk = agreement.talk
        self._read = None if talk is None else talk.start_sum(self._numbers(talk))

    def settle(self) -> InvalidInputError | None:
        """Returns why the ranks can't go on with what they were given; None if they can."""
        *differences, stops = [int(self._asks)] if self._read is None else self._read()
        self.agreement.stopping |= stops > 0
        if any(differences):
            ruling = self._ruling()
            if self.offer.refusal is None and ruling.refusal:
                return InvalidInputError(ruling.refusal)
            if ruling.warning:
                self.agreement.warn(ruling.warning)
        return self.offer.refusal

    def _numbers(self, talk: Talk) -> tuple[int | Tensor, ...]:
        offer, everybody = self.offer, range(talk.size)
        plain = repr((*self._values.items(), None, *offer.contents.items()))
        values = digest_bytes(plain.encode()) * coefficient(talk.rank, everybody)
        content: int | Tensor = 0
        if self._parts:
            share = coefficient(talk.rank, offer.peers or everybody)
            content = _times(_digest(self._parts), share, talk.device)
        return int(offer.refusal is not None), _signed(values), content, int(self._asks)

    def _ruling(self) -> Ruling:
        talk = self.agreement.talk
        assert talk is not None
        reports: list[Report] = []

        def rule(texts: list[str]) -> str:
            reports[:] = map(Report.from_text, texts)
            return rule_on_reports(reports).to_text()

        def rule_again(texts: list[str]) -> str:
            sketches = {rank: _sketches(text) for rank, text in enumerate(texts) if text}
            return rule_on_sketches(reports, sketches).to_text()

        ruling = Ruling.from_text(talk.decide(self._report().to_text(), rule))
        if not ruling.versions:
            return ruling
        return Ruling.from_text(talk.decide(self._sketch(ruling, talk.rank), rule_again))

    def _report(self) -> Report:
        offer = self.offer
        return Report(
            "" if offer.refusal is None else str(offer.refusal),
            self._values,
            min(offer.peers, default=0),
            {label: digest_tensors(parts) for label, parts in self._parts.items()},
            {
                label: str(tensor.dtype).removeprefix("torch.")
                for label, tensor in offer.tensors.items()
                if label in self._parts
            },
            offer.call,
            offer.contents,
        )

    def _sketch(self, ruling: Ruling, rank: int) -> str:
        """Returns the sketches that a rank is asked for, as text."""
        asked = {
            label: max(4, min(MOST_BLOCKS, ALL_BLOCKS // len(ranks)))
            for label, ranks in ruling.versions.items()
            if rank in ranks
        }
        found = {
            label: asdict(sketched(self._parts[label], blocks)) for label, blocks in asked.items()
        }
        return json.dumps(found) if found else ""


@lru_cache(maxsize=64)
def coefficient(rank: int, peers: Sequence[int]) -> int:
    """Returns the number by which a rank multiplies its digest.

    Modulo 2^64 the numbers of all peers add up to zero.

    Args:
        rank: One of the peers.
        peers: Ranks in increasing order. A single one has nobody to agree with: zero.
    """
    if rank != peers[-1]:
        return _odd(rank)
    return -sum(map(_odd, peers[:-1])) & _MASK


def _odd(rank: int) -> int:
    """Returns an odd number below 2^64 that looks random."""
    mixed = ((rank + 1) * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return (mixed ^ (mixed >> 27)) | 1


def _signed(number: int) -> int:
    """Returns a number modulo 2^64 as torch holds it."""
    low = number & _MASK
    return low - (1 << 64) if low >> 63 else low


def _times(digest: int | Tensor, share: int, device: torch.device) -> int | Tensor:
    if isinstance(digest, Tensor) and device.type != "cpu":
        return digest.to(device) * _signed(share)
    return _signed(int(digest) * share)


def _digest(parts: Parts) -> int | Tensor:
    """Returns the digest of tensors; one on their device, of those that aren't in main memory."""
    there = [part for each in parts.values() for part in each if not part.is_cpu]
    here = digest_tensors(part for each in parts.values() for part in each if part.is_cpu)
    if not there:
        return here
    total = moved(torch.tensor(_signed(here)), there[0].device)
    for at, part in enumerate(there):
        total = total * _signed(_odd(at)) + device_digest(part)
    return total


def device_digest(tensor: Tensor) -> Tensor:
    """Returns a digest of a tensor as a number on its device, for which nobody waits."""
    flat = flat_bytes(tensor)
    words = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(torch.int64)
    mixed = words ^ (torch.arange(1, words.numel() + 1, device=flat.device) * _signed(_GOLDEN))
    for shift, multiplier in ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * _signed(multiplier)
    return (mixed ^ ((mixed >> 32) & 0xFFFFFFFF)).sum()


def _sketches(text: str) -> dict[str, Sketch]:
    return {label: Sketch(**found) for label, found in json.loads(text).items()}
