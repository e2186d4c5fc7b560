"""Mutations of pickles: of the metadata of a checkpoint, by its objects and by its opcodes."""

from __future__ import annotations

import dataclasses
import io
import pickle
import pickletools
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.mutations import odd

_HOSTILE = (
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x04cbuiltins\neval\n(S'1'\ntR.",
    b"\x80\x04N.",
    b"\x80\x04].",
    b"\x80\x04}.",
    b"\x80\x04" + b"(" * 5000 + b"t.",
    b"\x80\x04" + b"]" * 5000 + b"a" * 4999 + b".",
    b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
    b"\x80\x04\x8b\xff\xff\xff\x7f.",
    b"\x80\x09N.",
    b"",
)


def mutate_pickle(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Returns a pickle of changed objects, of other opcodes, or of its own making."""
    kind = chance.random()
    if kind < 0.1:
        number = chance.randrange(len(_HOSTILE))
        return _HOSTILE[number], f"hostile pickle {number}"
    if kind < 0.4:
        return _mutate_opcodes(content, chance)
    try:
        root = pickle.loads(content)  # Of the test's own making.
    except Exception:
        return _mutate_opcodes(content, chance)
    done = [_mutate_object(root, chance)]
    while chance.random() < 0.3:
        done.append(_mutate_object(root, chance))
    try:
        return pickle.dumps(root), ", ".join(done)
    except Exception:  # What is no such object any more.
        return _mutate_opcodes(content, chance)


def _mutate_object(root: Any, chance: Random) -> str:
    found = list(_sites(root, set()))
    if not found:
        return "nothing"
    holder, key = chance.choice(found)
    value = _other(_get(holder, key), chance)
    if value is _ABSENT:
        _delete(holder, key)
        return f"{type(holder).__name__} without {key!r}"
    _put(holder, key, value)
    return f"{type(holder).__name__}.{key!s:.60}: {value!r:.50}"


_ABSENT = object()


def _other(value: Any, chance: Random) -> Any:
    kind = chance.random()
    if kind < 0.15:
        return _ABSENT
    if kind < 0.35:
        return chance.choice((None, [], {}, (), True, "x", b"x", 1.5, -1, [value], {"x": value}))
    if isinstance(value, tuple) and value:
        at = chance.randrange(len(value))
        changed = [*value[:at], odd.integer(chance), *value[at + 1 :]]
        return chance.choice((tuple(changed), value[::-1], value[1:], (*value, 1)))
    if isinstance(value, str):
        return odd.text(chance, [value])
    return odd.integer(chance)


def _sites(value: Any, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Yields the places within an object that can be set."""
    if id(value) in seen or isinstance(value, (str, bytes, int, float)) or value is None:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        keys: Any = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    elif dataclasses.is_dataclass(value):
        keys = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    else:
        return
    for key in keys:
        yield value, key
        yield from _sites(_get(value, key), seen)


def _get(holder: Any, key: Any) -> Any:
    return holder[key] if isinstance(holder, (dict, list)) else getattr(holder, key)


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, (dict, list)):
        holder[key] = value
    else:
        object.__setattr__(holder, key, value)


def _delete(holder: Any, key: Any) -> None:
    if isinstance(holder, (dict, list)):
        del holder[key]
    elif key in vars(holder):
        object.__delattr__(holder, key)


def _mutate_opcodes(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Drops, repeats or swaps single opcodes."""
    try:
        starts = [at for _, _, at in pickletools.genops(io.BytesIO(content))]
    except ValueError:
        starts = []
    if len(starts) < 3:
        return b"\x80\x04N.", "None"
    ends = [*starts[1:], len(content)]
    codes = [content[a:b] for a, b in zip(starts, ends, strict=True)]
    at = chance.randrange(1, len(codes))
    kind = chance.randrange(3)
    if kind == 0:
        del codes[at]
    elif kind == 1:
        codes[at:at] = [codes[at]] * chance.choice((1, 3, 1000))
    else:
        codes[at] = chance.choice(codes)
    return b"".join(codes), f"opcode {at} {('dropped', 'repeated', 'replaced')[kind]}"
