"""The box of a mesh that differs least from a mask, to name it where the mask is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from autopar.ir.mesh import ProcessMesh

_MOST_WAYS = 1 << 12
"""Of how many sets of indices of all axes but the longest at most each is looked at."""

Bits = npt.NDArray[np.int64]


def nearest_box(mesh: ProcessMesh, mask: Collection[int]) -> ProcessMesh:
    """Returns a part of a mesh, of each axis a set of indices, that differs least from a mask.

    Every box is a set of indices of each axis. With those of all axes but the longest given, each
    index of this one is in the best box or not by itself. On meshes so large that there are too
    many sets, only those of all indices or of one are looked at, with any of one axis; so a nearer
    box may exist.

    Args:
        mesh: The mesh.
        mask: Ids of the processes that hold a tensor.
    """
    held = set(mask)
    bits = np.array([process in held for process in mesh.ids], np.int64).reshape(mesh.shape)
    longest = int(np.argmax(mesh.shape))
    is_small = sum(mesh.shape) - mesh.shape[longest] < _MOST_WAYS.bit_length()
    subsets = _subsets if is_small else _slices
    ways = []
    for open_ in [longest] if is_small else range(mesh.ndim):
        gains = 2 * np.moveaxis(bits, open_, -1) - 1
        for sets in product(*map(subsets, gains.shape[:-1])):
            gain, chosen = _along(gains, [list(each) for each in sets])
            chosen.insert(open_, chosen.pop())
            ways.append((gain, chosen))
    _, chosen = max(ways, key=lambda way: way[0])
    return mesh.at((axis, tuple(at)) for axis, at in zip(mesh.dim_names, chosen, strict=True))


def _subsets(size: int) -> list[Sequence[int]]:
    return [each for count in range(1, size + 1) for each in combinations(range(size), count)]


def _slices(size: int) -> list[Sequence[int]]:
    return [range(size), *([index] for index in range(size))]


def _along(gains: Bits, sets: list[list[int]]) -> tuple[int, list[list[int]]]:
    """Returns the best box with these sets of all axes but the last, and how good it is.

    The whole mesh is none: a mask of it would say nothing.
    """
    of_index = gains
    for at in sets:
        # The axis ahead is gone with each.
        of_index = of_index[at].sum(axis=0)
    best = [index for index, gain in enumerate(of_index.tolist()) if gain > 0]
    if not best:
        best = [int(np.argmax(of_index))]
    is_whole = all(len(at) == size for at, size in zip((*sets, best), gains.shape, strict=True))
    if is_whole and len(best) > 1:
        best.remove(int(np.argmin(of_index)))
    return int(of_index[best].sum()), [*sets, best]
