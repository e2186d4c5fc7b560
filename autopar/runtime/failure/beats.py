"""Beats: where a rank is, as it tells the others from time to time."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["collective", "op", "meeting", "call", "outside", "closed"]
"""What a thread is in: a collective or another op of a program, a call in which it waits for all
ranks or does something else, the user's code."""


@dataclass(frozen=True)
class Place:
    """Where a thread is.

    Attributes:
        kind: In what.
        text: The op, the name of the call, or the line of the user's code; of a rank that closed
            its session, which error made it do so, or nothing.
        group: Of a collective, the name of the group that it runs in.
        step: How many steps, or runs, have begun: the one that is under way has the number before.
    """

    kind: Kind
    text: str
    group: str = ""
    step: int = 0

    def __str__(self) -> str:
        if self.kind == "closed":
            return f"closed{self.after}{self.text and f', by {self.text}'}"
        if self.kind == "outside":
            return f"outside of autopar{self.after}{self.text and f', at {self.text}'}"
        calls = self.kind in ("call", "meeting")
        return f"in {self.text}{self.after}" if calls else f"in {self.in_step}"

    @property
    def in_step(self) -> str:
        """The op, and the step that it belongs to."""
        return f"step {self.step - 1} at {self.text}"

    @property
    def after(self) -> str:
        """Behind which step it is, in words; "" before the first."""
        return f" after step {self.step - 1}" if self.step else ""


@dataclass(frozen=True)
class Beat:
    """Where a rank is and since when.

    Attributes:
        alarms: The number of alarms that it has seen.
        clock: When it said so, in seconds since 1970.
        seconds: For how long it has been there.
        place: Where.
        timed_out: Whether it waited there in vain until the time-out.
        host, parent, pid: Which process it is: of which system, whose child, with which number.
    """

    alarms: int
    clock: float
    seconds: float
    place: Place
    timed_out: bool = False
    host: str = ""
    parent: int = 0
    pid: int = 0

    @property
    def age(self) -> float:
        """How long ago it was said, in seconds, as far as the hosts' clocks agree."""
        return max(0.0, time.time() - self.clock)

    def to_json(self) -> str:
        """Returns the beat as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Beat:
        """Returns the beat that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "place": Place(**fields["place"])})
