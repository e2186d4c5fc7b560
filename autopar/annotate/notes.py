"""Notes: what torch keeps of a part of a model while it traces it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch.fx.traceback import annotate, has_preserved_node_meta, preserve_node_meta


@contextmanager
def noted(key: str, note: object) -> Iterator[None]:
    """Notes something of all that is computed within."""
    # Tracers other than dynamo drop notes unless they are told to keep them. To tell them again
    # would let the note stay behind the part.
    kept = nullcontext() if has_preserved_node_meta() else preserve_node_meta()
    with kept, annotate({key: note}):
        yield
