"""What is known of model types beyond what their defaults and their arguments' names say."""

from __future__ import annotations

import fnmatch
from collections import ChainMap

from tests.sweep.known import audio, multimodal, series, text, vision
from tests.sweep.known.entry import Known

TABLES = ChainMap(
    *(dict(each.KNOWN) for each in (text, vision, audio, multimodal, series)),
)
"""By model types, or patterns of them."""


def known_of(model_type: str) -> Known:
    """Returns what is known of a model type: by its name, else by the first pattern that fits."""
    if model_type in TABLES:
        return TABLES[model_type]
    found = (each for name, each in TABLES.items() if fnmatch.fnmatch(model_type, name))
    return next(found, Known())
