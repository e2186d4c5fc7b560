"""Which program a training step runs: the one for the shapes of its batch, or one for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import Build
from autopar.ir.program import Program
from autopar.runtime.execute.ranks import Ranks
from autopar.runtime.execute.sized import KEPT_SIZES
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.open_inputs import is_left_open, planned_sizes, sizes_of_inputs
from autopar.runtime.training.step_plan import StepPlan


class StepPlans:
    """What a step runs for each batch that there may be.

    Args:
        ranks: Who runs it in this process.
        build: What was compiled.

    Attributes:
        first: What runs for batches of the sizes that are planned for.
        several: Whether ranks with different batches may run different things.
    """

    def __init__(self, ranks: Ranks, build: Build) -> None:
        self._ranks = ranks
        self._serial = build.serial
        self._bounds = IndexBounds(build.serial)
        self._is_open = is_left_open(build.serial)
        self._at = lru_cache(KEPT_SIZES)(self._plan_at)
        self.first = self._at(tuple(planned_sizes(build.serial).items()))
        others = [
            StepPlan(ranks.variant(each.deployment), IndexBounds(each.serial))
            for each in build.variants
        ]
        self._fixed = [self.first, *others]
        self.several = self._is_open or len(self._fixed) > 1

    def check_stored_alike(self, program: Program) -> None:
        """Refuses plans that store something elsewhere than a program does; see `StepPlan`."""
        for plan in self._fixed:
            plan.check_stored_alike(program)

    def for_batch(self, batch: Any) -> StepPlan:
        """Returns the plan whose shapes a global batch has; the first one, if none has.

        Raises:
            InvalidInputError: If sizes are open, and those of the batch can't be what they are.
        """
        if self._is_open:
            sizes = sizes_of_inputs(self._serial, self.first.label(batch))
            return self._at(tuple(sizes.items()))
        return next((plan for plan in self._fixed if plan.fits(batch)), self.first)

    def for_parts(self, batches: Sequence[Any]) -> StepPlan:
        """Returns the plan that fits what ranks are handed of a batch; the first one, if none does.

        Raises:
            InvalidInputError: If there isn't a batch for each rank, or sizes are open.
        """
        count = len(self._ranks.programs)
        if len(batches) != count:
            raise InvalidInputError(f"{len(batches)} local batches are given for {count} ranks")
        if self._is_open:
            raise InvalidInputError(
                "local=True: sizes of the batch are open, and a rank's part doesn't tell how large"
                " it is; give each rank the global batch, or compile without dynamic="
            )
        return next((plan for plan in self._fixed if plan.fits_locally(batches)), self.first)

    def _plan_at(self, items: tuple[tuple[str, int], ...]) -> StepPlan:
        sizes = dict(items)
        ranks = self._ranks.at(sizes) if sizes else self._ranks
        return StepPlan(ranks, self._bounds, sizes)
