"""YAML files of users, read as trees of plain words: the one way into every such file.

What YAML offers beyond trees is how files go wrong by mistake or on purpose, so it is refused:
aliases, which unfold to any size; tags; several documents; a key twice; any depth. Words are read
as YAML 1.2 does: `yes`, `1:30`, `2020-01-01` and `0x10` are texts, and `010` is ten.

Trees are built from the events of the parser, without recursion: a file can be nested more deeply
than Python's stack, or libyaml's, is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autopar.base.errors import InvalidInputError

LARGEST_FILE = 16 * 2**20
"""Bytes of a file at most. The plan of a model of 100,000 ops has a few million."""
MOST_NODES = 1_000_000
"""Words, lists and mappings of a file at most."""
DEEPEST = 32
"""How deeply lists and mappings may be nested."""
_TOO_DEEP = f"lists and mappings nested more than {DEEPEST} deep"
LONGEST_WORD = 2**16
"""Characters of a word at most."""
_LONGEST_NUMBER = 300
"""Characters of a number at most: no float is larger."""

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(slots=True)
class Node:
    """A part of a file.

    Attributes:
        kind: What it is.
        line: Where it starts, counted from 1.
        text: The text of a word.
        is_plain: Whether a word stands without quotes.
        items: The entries of a list.
        pairs: The keys, which are words, and values of a mapping.
    """

    kind: Literal["word", "list", "mapping"]
    line: int
    text: str = ""
    is_plain: bool = False
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing."""
        return self.kind == "word" and self.is_plain and self.text in _NULL

    def content(self) -> Any:
        """Returns it as nested dicts, lists, texts, numbers, booleans and None."""
        if self.kind == "mapping":
            return {key.text: value.content() for key, value in self.pairs}
        if self.kind == "list":
            return [item.content() for item in self.items]
        return _meaning(self.text) if self.is_plain else self.text


def read_yaml(path: Path, what: str) -> Node | None:
    """Reads a YAML file.

    Args:
        path: The file.
        what: What it holds, for messages: `annotations`.

    Returns:
        Its content; None if it has none.

    Raises:
        InvalidInputError: If it can't be read, is no YAML, or holds what isn't supported. Says
            in which line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidInputError(f"can't read the {what} in {path}: {why}") from error
    if len(data) > LARGEST_FILE:
        raise InvalidInputError(
            f"can't read the {what} in {path}: the file has more than {LARGEST_FILE} bytes;"
            f" is it one of {what}?"
        )
    return parse_yaml(data, str(path), what)


def parse_yaml(data: bytes, source: str, what: str) -> Node | None:
    """Reads the content of a YAML file; see `read_yaml`.

    Args:
        data: The content.
        source: What the file is called in messages.
        what: What it holds.

    Raises:
        InvalidInputError: If it is no YAML, or holds what isn't supported.
    """
    import yaml  # only those who read a file pay for it

    try:
        text = data.decode("utf-8-sig")
        events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _Builder(source, what).build(events)
    except (UnicodeDecodeError, yaml.reader.ReaderError) as error:
        raise InvalidInputError(f"{source} is not a YAML file of {what}: not text") from error
    except yaml.MarkedYAMLError as error:
        raise InvalidInputError(_marked(error, source, what)) from error
    except yaml.YAMLError as error:
        raise InvalidInputError(f"can't read the {what} in {source}: {error}") from error


def _marked(error: Any, source: str, what: str) -> str:
    """Returns the message of an error that knows its line, and often that of what is around."""
    mark, around = error.problem_mark, error.context_mark
    place = f"{source}:{mark.line + 1}" if mark else source
    if error.problem and "nesting depth" in error.problem:  # the parser's own limit, a larger one
        return f"can't read the {what} in {place}: it has {_TOO_DEEP}"
    context = f"{error.context} of line {around.line + 1}, " if around and error.context else ""
    return f"can't read the {what} in {place}: {context}{error.problem}"


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end wasn't read yet.

    Attributes:
        node: What was read of it.
        key: The key whose value comes next.
        lines: The line of each key.
    """

    node: Node
    key: Node | None = None
    lines: dict[str, int] = field(default_factory=dict)


class _Builder:
    """Builds the tree of one file, iteratively."""

    def __init__(self, source: str, what: str) -> None:
        self.source = source
        self.what = what
        self.root: Node | None = None
        self.open: list[_Open] = []
        self.count = 0

    def build(self, events: Iterable[Any]) -> Node | None:
        """Returns the tree of a parser's events."""
        for event in events:
            name, line = type(event).__name__, event.start_mark.line + 1
            if name == "AliasEvent":
                raise self._refused(line, f"an alias, *{event.anchor}; write out what it means")
            if getattr(event, "tag", None) is not None:
                raise self._refused(line, f"a tag, {event.tag!r}; leave it out")
            if name == "DocumentStartEvent" and self.root is not None:
                raise self._refused(line, "a second document; leave one")
            if name == "ScalarEvent":
                self._add(self._word(event.value, line, event.implicit[0]))
            elif name in ("SequenceStartEvent", "MappingStartEvent"):
                self._enter(Node("list" if name[0] == "S" else "mapping", line))
            elif name in ("SequenceEndEvent", "MappingEndEvent"):
                self.open.pop()
        return self.root

    def _word(self, text: str, line: int, is_plain: bool) -> Node:
        if len(text) > LONGEST_WORD:
            raise self._refused(
                line, f"a word of {len(text)} characters, of {LONGEST_WORD} at most"
            )
        return Node("word", line, text, is_plain)

    def _enter(self, node: Node) -> None:
        self._add(node)
        if len(self.open) >= DEEPEST:
            raise self._refused(node.line, _TOO_DEEP)
        self.open.append(_Open(node))

    def _add(self, node: Node) -> None:
        self.count += 1
        if self.count > MOST_NODES:
            raise self._refused(node.line, f"more than {MOST_NODES} words, lists and mappings")
        if not self.open:
            self.root = node
            return
        around = self.open[-1]
        if around.node.kind == "list":
            around.node.items.append(node)
        elif around.key is None:
            self._add_key(around, node)
        else:
            around.node.pairs.append((around.key, node))
            around.key = None

    def _add_key(self, around: _Open, node: Node) -> None:
        if node.kind != "word":
            raise self._refused(node.line, f"a {node.kind} as a key; write a word")
        if node.text in around.lines:
            before = around.lines[node.text]
            what = f"the key {node.text!r} twice, first in line {before}; leave one"
            raise self._refused(node.line, what)
        around.lines[node.text] = node.line
        around.key = node

    def _refused(self, line: int, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"can't read the {self.what} in {self.source}:{line}: it has {what}"
        )


def _meaning(text: str) -> Any:
    """Returns what a word without quotes stands for."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) <= _LONGEST_NUMBER and _INTEGER.fullmatch(text):
        return int(text)
    if special := _SPECIAL.fullmatch(text):
        return float(f"{special[1]}inf" if special[2] else "nan")
    return float(text) if len(text) <= _LONGEST_NUMBER and _FLOAT.fullmatch(text) else text
