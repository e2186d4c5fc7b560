"""Cycles in directed graphs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def find_cycle(edges: Mapping[N, Sequence[N]]) -> list[N]:
    """Returns the nodes of one cycle, its first node repeated at the end; empty if there is none.

    Iterative: a chain of a million nodes is no reason to overflow the stack.
    """
    done: set[N] = set()
    for start in edges:
        if start in done:
            continue
        path, on_path = [start], {start}
        pending = [iter(edges.get(start, ()))]
        while pending:
            following = next(pending[-1], None)
            if following is None:
                pending.pop()
                left = path.pop()
                on_path.discard(left)
                done.add(left)
            elif following in on_path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                on_path.add(following)
                pending.append(iter(edges.get(following, ())))
    return []
