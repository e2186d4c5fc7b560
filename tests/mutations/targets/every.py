"""All targets, by name."""

from __future__ import annotations

from tests.mutations.target import Case, Target
from tests.mutations.targets import builds, data, models, yaml_files

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        models.OWN,
        models.SUITE,
        models.REAL,
        builds.BUILDS,
        builds.TRAINING,
        yaml_files.ANNOTATED,
        yaml_files.PLAN,
        yaml_files.CLUSTER,
        yaml_files.COMMAND,
        data.INPUTS,
        data.WEIGHTS,
        data.CHECKPOINT,
    )
}


def case_of(name: str) -> Case:
    """Returns the case of a name, `TARGET:SEED`."""
    target, _, seed = name.partition(":")
    return Case(TARGETS[target], int(seed))
