"""All targets, by name."""

from __future__ import annotations

from tests.mutations.target import Case, Target
from tests.mutations.targets import builds, data, models, wishes

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        models.OWN,
        models.SUITE,
        models.REAL,
        builds.BUILDS,
        builds.TRAINING,
        wishes.ANNOTATED,
        wishes.PLAN,
        wishes.CLUSTER,
        wishes.COMMAND,
        data.INPUTS,
        data.WEIGHTS,
        data.CHECKPOINT,
    )
}


def case_of(name: str) -> Case:
    """Returns the case of a name, `TARGET:SEED`."""
    target, _, seed = name.partition(":")
    return Case(TARGETS[target], int(seed))
