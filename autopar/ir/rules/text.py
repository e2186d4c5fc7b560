"""The text of a rule: `m k, k n -> m n`, `(b s) d -> b s d`, `*b m k, *b k n -> *b m n`."""

from __future__ import annotations

import re
from functools import lru_cache

Dims = tuple[tuple[str, ...], ...]
"""The factors, major to minor, of each dimension of a tensor. `()` is a dimension of size 1."""


class RuleError(ValueError):
    """A rule contradicts itself or the shapes it is applied to: a defect of the rule."""


_TOKEN = re.compile(r"\(([^()]*)\)|(\*?[A-Za-z_]\w*)|(1)|(\S)")


@lru_cache(maxsize=4096)
def parse_rule(
    text: str, operand_ranks: tuple[int, ...], result_ranks: tuple[int, ...]
) -> tuple[tuple[Dims, ...], tuple[Dims, ...]]:
    """Returns the factors of each dimension of operands and results; see `make_rule`.

    Raises:
        RuleError: If the text can't be parsed or doesn't fit tensors of these ranks.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise RuleError(f"rule {text!r} has no '->'")
    return _parse_side(left, operand_ranks, text), _parse_side(right, result_ranks, text)


def _parse_side(side: str, ranks: tuple[int, ...], rule: str) -> tuple[Dims, ...]:
    tensors = [part.strip() for part in side.split(",")] if side.strip() or ranks else []
    if len(tensors) != len(ranks):
        raise RuleError(f"rule {rule!r} is for {len(tensors)} tensors, there are {len(ranks)}")
    return tuple(
        _expand(_parse_tensor(tensor, rule), rank, rule)
        for tensor, rank in zip(tensors, ranks, strict=True)
    )


def _parse_tensor(text: str, rule: str) -> Dims:
    dims: list[tuple[str, ...]] = []
    for match in _TOKEN.finditer(text):
        compound, name, _, stray = match.groups()
        if stray:
            raise RuleError(f"rule {rule!r}: unexpected {stray!r} in {text!r}")
        dims.append(tuple(compound.split()) if compound is not None else (name,) if name else ())
    return tuple(dims)


def _expand(dims: Dims, rank: int, rule: str) -> Dims:
    """Replaces `*b` by `b0 b1 ...`, as many as the tensor's rank leaves."""
    stars = [at for at, dim in enumerate(dims) if len(dim) == 1 and dim[0].startswith("*")]
    count = rank - len(dims) + len(stars)
    if len(stars) > 1 or count < 0 or (count > 0 and not stars):
        raise RuleError(f"rule {rule!r}: {dims_str(dims)!r} doesn't fit {rank} dimensions")
    if not stars:
        return dims
    at = stars[0]
    name = dims[at][0][1:]
    return (*dims[:at], *((f"{name}{i}",) for i in range(count)), *dims[at + 1 :])


def dims_str(dims: Dims) -> str:
    """Returns dimensions as a rule spells them."""
    return " ".join(
        dim[0] if len(dim) == 1 else f"({' '.join(dim)})" if dim else "1" for dim in dims
    )
