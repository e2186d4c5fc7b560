"""Mutations of trees of dicts, lists and scalars, as YAML and JSON hold them; and of their text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import yaml

from tests.mutations import odd

Site = tuple[Any, Any]
"""(a dict or list, a key or index of it)."""


def mutate(tree: Any, chance: Random) -> tuple[Any, str]:
    """Returns a copy with a few places changed, and what was done."""
    holder = {"": copy.deepcopy(tree)}
    done = [_change(holder, chance)]
    while chance.random() < 0.4:
        done.append(_change(holder, chance))
    return holder[""], ", ".join(done)


def mutate_yaml(text: str, chance: Random) -> tuple[str, str]:
    """Returns the text of a YAML file with a few places changed, and what was done."""
    kind = chance.random()
    if kind < 0.2:
        return _mutate_text(text, chance)
    tree, done = mutate(yaml.safe_load(text), chance)
    try:
        dumped: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=kind < 0.6)
    except (ValueError, RecursionError, yaml.YAMLError):  # As numbers of thousands of digits.
        return _mutate_text(text, chance)
    return dumped, done


def sites(tree: Any) -> Iterator[Site]:
    """Yields every place of a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(pairs):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from sites(value)


def scalar(chance: Random, known: Sequence[str] = ()) -> Any:
    """Returns an odd scalar of any type."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind == 1:
        return odd.number(chance)
    return odd.integer(chance) if kind < 4 else odd.text(chance, known)


def _change(holder: dict[str, Any], chance: Random) -> str:
    found = list(sites(holder))
    if len(found) < 2:
        holder[""] = scalar(chance)
        return f"{holder['']!r:.60} alone"
    place, key = chance.choice(found[1:])
    words = [str(k) for p, k in found if isinstance(p, dict)]
    words += [v for p, k in found if isinstance(v := p[k], str)]
    kind = chance.randrange(10)
    if kind < 3:
        place[key] = scalar(chance, words)
        return f"{key!r}: {place[key]!r:.60}"
    if kind == 3:
        other, there = chance.choice(found)
        place[key] = copy.deepcopy(other[there])
        return f"{key!r}: what is at {there!r}"
    if kind == 4:
        place[key] = chance.choice(([], {}, [place[key]], {"a": place[key]}, [[]], {None: 1}))
        return f"{key!r}: {place[key]!r:.60}"
    if kind == 5:
        for _ in range(chance.choice((10, 100, 300))):
            place[key] = [place[key]] if chance.random() < 0.5 else {"a": place[key]}
        return f"{key!r} nested deep"
    if kind == 6:
        del place[key]
        return f"without {key!r}"
    if kind == 7:
        return _rename(place, key, chance, words)
    return _of_its_type(place, key, chance, words)


def _rename(place: Any, key: Any, chance: Random, words: Sequence[str]) -> str:
    if isinstance(place, list):
        place.extend(place[key : key + 1] * chance.choice((1, 100)))
        return f"entry {key} repeated"
    new = scalar(chance, words)
    place[new] = place.pop(key)
    return f"{key!r} renamed {new!r:.60}"


def _of_its_type(place: Any, key: Any, chance: Random, words: Sequence[str]) -> str:
    value = place[key]
    if isinstance(value, bool) or value is None:
        place[key] = not value
    elif isinstance(value, (int, float)):
        place[key] = odd.integer(chance) if isinstance(value, int) else odd.number(chance)
    elif isinstance(value, str):
        place[key] = odd.text(chance, words)
    elif isinstance(value, tuple):
        place[key] = (*value, scalar(chance, words))
    elif isinstance(value, list):
        value.append(scalar(chance, words))
    else:
        value[odd.text(chance, words)] = scalar(chance, words)
    return f"{key!r}: {place[key]!r:.60}"


def _mutate_text(text: str, chance: Random) -> tuple[str, str]:
    """Returns text with what a tree can't say: anchors, tags, brackets without end."""
    lines = text.splitlines()
    at = chance.randrange(len(lines) + 1)
    change = chance.choice(_TEXTS)
    new = change(chance)
    if chance.random() < 0.3:
        return new, f"{new!r:.60} alone"
    if chance.random() < 0.5 and at < len(lines) and ":" in lines[at]:
        lines[at] = lines[at].split(":")[0] + ": " + new
    else:
        lines.insert(at, new)
    return "\n".join(lines), f"{new!r:.60} in line {at + 1}"


def _brackets(chance: Random) -> str:
    return chance.choice(("[", "{", "- ", "[{", "? ", "!!map {a: ")) * chance.choice(
        (1, 30, 1000, 5000)
    )


def _laughs(chance: Random) -> str:
    depth = chance.choice((2, 9, 30))
    rows = ["&a0 [x, x]"] + [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, depth)]
    return "[" + ", ".join(rows) + "]"


def _reference(chance: Random) -> str:
    return chance.choice(("*none", "&a [*a]", "&a {b: *a}", "<<: *x", "&a", "<<: 3"))


def _tag(chance: Random) -> str:
    tags = ("python/object/apply:os.system [id]", "python/name:os.system", "binary x", "set {a}")
    more = ("timestamp 2001-99-99", "int zz", "float ''", "omap [1]", "null x", "bool 7")
    return "!!" + chance.choice(tags + more)


def _odd_text(chance: Random) -> str:
    odd_ones = (
        "\t",
        "%YAML 9.9",
        "---",
        "...",
        "a: a: a",
        "'",
        '"\\x',
        "@",
        "`",
        "|",
        ">",
        "0x",
        "1:2:3",
    )
    return chance.choice((*odd_ones, "2001-01-01", "1_000", "0o9", "9" * 5000, "=", "~", "?"))


_TEXTS: Sequence[Callable[[Random], str]] = (_brackets, _laughs, _reference, _tag, _odd_text)
