"""YAML files of users: what is read, and how every surprise of YAML is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopar.annotate.annotation_file import load_annotations
from autopar.base.errors import AutoparError, InvalidInputError
from autopar.base.yaml_tree import LARGEST_FILE, LONGEST_WORD, MOST_NODES, parse_yaml
from autopar.cost.cluster import Cluster


def content(text: str) -> Any:
    root = parse_yaml(text.encode(), "a.yaml", "numbers")
    return None if root is None else root.content()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a: [1, -2, 1.5, 80e9, .5, 010]", {"a": [1, -2, 1.5, 80e9, 0.5, 10]}),
        ("a: [yes, no, on, 1:30, 2020-01-01, 0x10, 1_000]", None),
        ("a: [~, null, '', 'null', '1', \"true\", true]", None),
        ("a: {b: {}, c: []}", {"a": {"b": {}, "c": []}}),
        ("\ufeffa: 1", {"a": 1}),
        (f"a: {'9' * 5000}", {"a": "9" * 5000}),
        ("&x a: &y [1]", {"a": [1]}),
    ],
)
def test_content(text: str, expected: Any) -> None:
    found = content(text)
    if "yes" in text:
        expected = {"a": ["yes", "no", "on", "1:30", "2020-01-01", "0x10", "1_000"]}
    if "~" in text:
        expected = {"a": [None, None, "", "null", "1", "true", True]}
    assert found == expected


def test_special_numbers() -> None:
    found = content("[.inf, -.INF, .nan]")
    assert [str(number) for number in found] == ["inf", "-inf", "nan"]


def test_lines() -> None:
    root = parse_yaml(b"a:\n- 1\n- {b: 2,\n   c: 3}\n", "a.yaml", "numbers")
    assert root is not None
    (_, listed), *_ = root.pairs
    assert [item.line for item in listed.items] == [2, 3]
    assert [key.line for key, _ in listed.items[1].pairs] == [3, 4]


def laughs(depth: int = 9) -> str:
    lines = ["a0: &a0 [lol, lol]"]
    for at in range(depth):
        lines.append(f"a{at + 1}: &a{at + 1} [{', '.join([f'*a{at}'] * 10)}]")
    return "\n".join(lines)


REFUSED = {
    "brackets": ("[" * 5000, ":1: it has lists and mappings nested more than 32 deep"),
    "braces": ("{a: " * 5000, ":1: it has lists and mappings nested more than 32 deep"),
    "dashes": ("- " * 5000, ":1: it has lists and mappings nested more than 32 deep"),
    "laughs": (laughs(), ":2: it has an alias, *a0; write out what it means"),
    "merge": ("a: &a {b: 1}\nc: {<<: *a}", ":2: it has an alias"),
    "itself": ("&a [*a]", ":1: it has an alias"),
    "twice": ("mesh: 2x4\nshard: {}\nmesh: 4", ":3: it has the key 'mesh' twice, first in line 1"),
    "tag": ("mesh: !!python/object:os.system [ls]", "it has a tag, 'tag:yaml.org,2002:python"),
    "documents": ("mesh: 4\n---\nmesh: 4", ":2: it has a second document"),
    "keys": ("? [a]\n: 1", ":1: it has a list as a key"),
    "tabs": (
        "shard:\n\tx: [0]",
        ":2: while scanning for the next token of line 2, found character",
    ),
    "unclosed": ("shard: {x: [0", ": while parsing a flow sequence of line 1, "),
    "indent": ("a:\n    b: 1\n  c: 2", ":3: while parsing a block mapping of line 1, "),
    "long": ("a: " + "x" * (LONGEST_WORD + 1), ":1: it has a word of 65537 characters"),
    "many": ("[" + "1," * MOST_NODES + "]", ":1: it has more than 1000000 words"),
    "large": ("#" * (LARGEST_FILE + 1), ": the file has more than 16777216 bytes"),
}


@pytest.mark.parametrize("which", REFUSED)
@pytest.mark.parametrize("load", [load_annotations, Cluster.load], ids=["annotations", "cluster"])
def test_refused(tmp_path: Path, load: Callable[[Path], object], which: str) -> None:
    text, message = REFUSED[which]
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"a: \x00", b"a: \xe9", b"\x89PNG\r\n", b"\x1b["]
)
@pytest.mark.parametrize("load", [load_annotations, Cluster.load], ids=["annotations", "cluster"])
def test_not_text(tmp_path: Path, load: Callable[[Path], object], data: bytes) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match=r"a\.yaml is not a YAML file of .*: not text"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "shard: {x: [99999999999999999999999]}",
        f"shard: {{x: [{'9' * 5000}]}}",
        f"shard: {{x: ({'9' * 5000})(2)}}",
        f"mesh: {'9' * 5000}",
        f"memory: {'9' * 400}GiB",
        f"{'k' * 60000}: 1",
        f"shard: {{x: {'[' * 20}{']' * 20}}}",
        f"ops: [{{of: [a], split: {{m: dp}}, pending: {{tp: [sum, {'9' * 5000}]}}}}]",
        "ops: [{of: [a], split: {m: dp}, pending: {tp: [sum, \u00b2]}}]",
        "shard: 2020-01-01",
        "- a",
        "5",
    ],
)
def test_annotations_of_odd_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(AutoparError, match=r"a\.yaml"):
        load_annotations(path)


@pytest.mark.parametrize("value", ["yes", ".inf", ".nan", "0", "-1", "1e999", "2020-01-01", "1:30"])
def test_clusters_of_odd_numbers(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"name: x\nmemory_bytes: {value}\n")
    with pytest.raises(InvalidInputError, match="memory_bytes must be a number above 0, not"):
        Cluster.load(path)
