"""Mutations of protobuf messages by their descriptors: of ONNX models and of autopar's files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from google.protobuf.message import DecodeError, EncodeError, Message

from tests.mutations import odd

BOUNDS = {
    "CPPTYPE_INT32": (-(2**31), 2**31 - 1),
    "CPPTYPE_INT64": (-(2**63), 2**63 - 1),
    "CPPTYPE_UINT32": (0, 2**32 - 1),
    "CPPTYPE_UINT64": (0, 2**64 - 1),
}
REPEATED = (2, 2, 2, 50, 1000)
DEEP = (2, 5, 20, 60, 200)


def mutate(message: Message, chance: Random) -> str:
    """Changes a message in a few places and returns what was done."""
    done = []
    try:
        done.append(_change(message, chance))
        while chance.random() < 0.4:
            done.append(_change(message, chance))
        message.SerializeToString()
    except (DecodeError, EncodeError, ValueError):  # Nested deeper than the library writes.
        message.Clear()
        done.append("cleared")
    return ", ".join(done)


def walk(message: Message) -> Iterator[Message]:
    """Yields a message and all messages within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                yield from walk(one)


def strings_of(message: Message) -> list[str]:
    """Returns the strings within a message."""
    return [
        one
        for inner in walk(message)
        for field, value in inner.ListFields()
        if field.type == field.TYPE_STRING
        for one in (value if field.is_repeated else [value])
    ]


def _change(root: Message, chance: Random) -> str:
    message = _pick(root, chance)
    known = [field for field, _ in message.ListFields()]
    every = message.DESCRIPTOR.fields
    if not every:
        return "nothing"
    field = chance.choice(known if known and chance.random() < 0.8 else every)
    change = chance.choice(_REPEATED if field.is_repeated else _SINGLE)
    return f"{message.DESCRIPTOR.name}.{field.name}: {change(root, message, field, chance)}"


def _pick(root: Message, chance: Random) -> Message:
    """Returns a message within, of every type as likely."""
    by_type: defaultdict[str, list[Message]] = defaultdict(list)
    for one in walk(root):
        by_type[one.DESCRIPTOR.full_name].append(one)
    return chance.choice(by_type[chance.choice(list(by_type))])


def _scalar(root: Message, field: Any, chance: Random) -> Any:
    kind = next(name for name in _KINDS if getattr(field, name) == field.cpp_type)
    if kind == "CPPTYPE_BOOL":
        return chance.random() < 0.5
    if kind == "CPPTYPE_ENUM":
        known = [value.number for value in field.enum_type.values]
        return chance.choice((*known, *known, max(known) + 1, 999, 2**31 - 1))
    if kind in BOUNDS:
        return _elsewhere(root, field, chance) or odd.integer(chance, *BOUNDS[kind])
    if kind in ("CPPTYPE_FLOAT", "CPPTYPE_DOUBLE"):
        return odd.number(chance)
    if field.type == field.TYPE_BYTES:
        return _bytes(root, field, chance)
    return odd.text(chance, strings_of(root))


_KINDS = (
    *("CPPTYPE_BOOL", "CPPTYPE_ENUM", *BOUNDS),
    *("CPPTYPE_FLOAT", "CPPTYPE_DOUBLE", "CPPTYPE_STRING"),
)


def _elsewhere(root: Message, field: Any, chance: Random) -> int:
    """Returns, half of the times, what the field is elsewhere: likely as valid, and wrong here."""
    found = [
        value
        for one in walk(root)
        if one.DESCRIPTOR is field.containing_type
        for known, value in one.ListFields()
        if known.name == field.name
    ]
    if not found or chance.random() < 0.5:
        return 0
    one = chance.choice(found)
    return int(chance.choice(one)) if field.is_repeated else int(one)


def _bytes(root: Message, field: Any, chance: Random) -> bytes:
    text = odd.text(chance).encode("utf-8", "surrogatepass")
    of_the_field = [
        value
        for one in walk(root)
        if one.DESCRIPTOR is field.containing_type
        for known, value in one.ListFields()
        if known.name == field.name
    ]
    if not of_the_field:
        return text
    one = chance.choice(of_the_field)
    one = chance.choice(one) if field.is_repeated else one
    cut = one[: chance.randrange(len(one) + 1)]
    return chance.choice((text, one, cut, one + b"\0", b"\xff\xfe"))


def _clear(root: Message, message: Message, field: Any, chance: Random) -> str:
    del root, chance
    message.ClearField(field.name)
    return "cleared"


def _set(root: Message, message: Message, field: Any, chance: Random) -> str:
    if field.message_type is None:
        value = _scalar(root, field, chance)
        setattr(message, field.name, value)
        return f"{value!r:.50}"
    inner = getattr(message, field.name)
    inner.SetInParent()
    return _replace(root, inner, chance)


def _nest(root: Message, message: Message, field: Any, chance: Random) -> str:
    """Puts a message into itself, as deep as its type admits it."""
    del field
    path = _way_down(message)
    if not path:
        return _change(root, chance)
    original = type(message).FromString(message.SerializeToString())
    depth = chance.choice(DEEP)
    inner = original
    for _ in range(depth):
        outer = type(message).FromString(original.SerializeToString())
        _follow(outer, path).CopyFrom(inner)
        inner = outer
    message.CopyFrom(inner)
    return f"nested {depth} deep"


def _way_down(message: Message) -> list[Any]:
    """Returns the fields that lead from a message to one of its own type; [] if none do."""
    start = message.DESCRIPTOR
    queue: list[tuple[Any, list[Any]]] = [(start, [])]
    seen = set()
    while queue:
        here, path = queue.pop(0)
        for field in here.fields:
            below = field.message_type
            if below is start:
                return [*path, field]
            if below is not None and below.full_name not in seen:
                seen.add(below.full_name)
                queue.append((below, [*path, field]))
    return []


def _follow(message: Message, path: list[Any]) -> Message:
    for field in path:
        inner = getattr(message, field.name)
        if field.is_repeated:
            inner = inner[0] if len(inner) else inner.add()
        inner.SetInParent()
        message = inner
    return message


def _replace(root: Message, inner: Message, chance: Random) -> str:
    """Makes a message one that stands elsewhere, or changes it."""
    others = [one for one in walk(root) if one.DESCRIPTOR is inner.DESCRIPTOR]
    if chance.random() < 0.5 and others:
        copied = type(inner).FromString(chance.choice(others).SerializeToString())
        inner.CopyFrom(copied)
        return "one from elsewhere"
    return _change(inner, chance)


def _drop(root: Message, message: Message, field: Any, chance: Random) -> str:
    del root
    listed = getattr(message, field.name)
    if not len(listed):
        return "empty"
    at = chance.randrange(len(listed))
    del listed[at]
    return f"without {at}"


def _duplicate(root: Message, message: Message, field: Any, chance: Random) -> str:
    del root
    listed = getattr(message, field.name)
    if not len(listed):
        return "empty"
    at, times = chance.randrange(len(listed)), chance.choice(REPEATED)
    listed.extend([listed[at]] * (times - 1))
    return f"{at} {times} times"


def _shuffle(root: Message, message: Message, field: Any, chance: Random) -> str:
    del root
    listed = getattr(message, field.name)
    order = list(listed)
    if chance.random() < 0.5 and len(order) > 1:
        one, other = chance.sample(range(len(order)), 2)
        order[one], order[other] = order[other], order[one]
    else:
        chance.shuffle(order)
    if field.message_type is not None:
        order = [type(one).FromString(one.SerializeToString()) for one in order]
    del listed[:]
    listed.extend(order)
    return "in another order"


def _edit(root: Message, message: Message, field: Any, chance: Random) -> str:
    listed = getattr(message, field.name)
    if not len(listed):
        return _add(root, message, field, chance)
    at = chance.randrange(len(listed))
    if field.message_type is not None:
        return f"{at}: {_replace(root, listed[at], chance)}"
    listed[at] = value = _scalar(root, field, chance)
    return f"{at}: {value!r:.50}"


def _add(root: Message, message: Message, field: Any, chance: Random) -> str:
    listed = getattr(message, field.name)
    if field.message_type is not None:
        return f"one more, {_replace(root, listed.add(), chance)}"
    value = _scalar(root, field, chance)
    listed.append(value)
    return f"{value!r:.50} more"


_Change = Callable[[Message, Message, Any, Random], str]
_SINGLE: tuple[_Change, ...] = (_clear, _set, _set, _set, _set, _nest)
_REPEATED: tuple[_Change, ...] = (
    *(_clear, _drop, _duplicate, _shuffle, _edit, _edit, _edit, _add, _nest),
)
