"""All samples, by op."""

from __future__ import annotations

from functools import cache

from tests.ops import samples_image, samples_layout, samples_pointwise, samples_reduction
from tests.ops.sample import Sample

NOT_RUN = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
}
"""Ops whose content is anything."""


@cache
def samples_by_kind() -> dict[str, list[Sample]]:
    """Returns the samples of each op."""
    found: dict[str, list[Sample]] = {}
    for module in (samples_pointwise, samples_reduction, samples_layout, samples_image):
        for sample in module.samples():
            found.setdefault(sample.kind, []).append(sample)
    return found
