"""What a preset is: all that is known of it, by its name.

A preset is one word of a strategy, and pins along one mesh axis. It goes by structure, not by
names: which inputs carry a batch and which operands are weights follows from the factor rules. What
a user annotated is left alone; what an earlier preset pinned is split further, along the new axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autopar.completion.problem.graph import Graph

Product = Literal["", "nothing", "batch", "sequence", "weight"]
"""What an axis splits of a product of an activation with a weight."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One word of a strategy.

    Attributes:
        name: The word.
        splits: What it splits, as the documentation says it.
        pin: Pins values of a graph along an axis. Raises `AnnotationError` where it finds nothing
            to pin.
        aliases: Other words for it.
        beside: The preset whose axis it shares; "" if it has its axis to itself.
        turn: Presets of later turns pin after those of earlier ones; of the same turn, in the order
            in which the user names them. Some need to know what others pin.
        splits_batch: Whether it splits the batch of the inputs. What the batch reaches then is
            computed for a part of it.
        keeps: Roles of what it keeps split although every process computes with the whole, the
            first one first, as the stages of ZeRO do. Such presets split the batch before others
            pin.
        product: What it splits of the products of a model, where a searched plan that does the same
            is called after it; "" if no plan is.
        incumbent: When search tries it on an axis, as a plan to beat: the usual ones first. None if
            it never does.
    """

    name: str
    splits: str
    pin: Callable[[Graph, AxisPreset], None]
    aliases: tuple[str, ...] = ()
    beside: str = ""
    turn: int = 0
    splits_batch: bool = False
    keeps: tuple[str, ...] = ()
    product: Product = ""
    incumbent: int | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def divides_work(self) -> bool:
        """Whether processes along its axis are to compute different parts."""
        return self.product != "nothing"

    @property
    def keeps_state_only(self) -> bool:
        """Whether it keeps the optimizer's state split, and parameters whole."""
        return bool(self.keeps) and "parameter" not in self.keeps

    def alone_on(self, axis: str) -> str:
        """Returns the strategy that is this preset along an axis, with the one it stands beside."""
        return ",".join(f"{name}:{axis}" for name in (self.beside, self.name) if name)


@dataclass(frozen=True, slots=True)
class AxisPreset:
    """A preset and the mesh axis that it works along.

    Attributes:
        preset: The preset.
        axis: Name of a mesh axis.
    """

    preset: Preset
    axis: str

    def __str__(self) -> str:
        return f"{self.preset}:{self.axis}"
