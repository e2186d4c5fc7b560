"""What a sweep has found so far: a file of one record a line, added to as it goes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.sweep.child import Record

TYPES = "types"
"""The source that are transformers' model types."""

FAMILIES = "families"
"""The source that are families of timm's and torchvision's models."""


class State:
    """The records of a sweep.

    Attributes:
        path: The file.
        listed: What there is of each source, in the order in which it is judged.
        versions: Those of each source's libraries.
        records: What is known of it: that it was built or not, and the outcomes of checks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listed: dict[str, list[str]] = {}
        self.versions: dict[str, str] = {}
        self.records: list[Record] = []
        if path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))

    def _take(self, record: Record) -> None:
        if "listed" not in record:
            self.records.append(record)
            return
        source = record.get("source", TYPES)
        if source not in self.listed:
            self.listed[source], self.versions[source] = list(record["listed"]), record["version"]

    def list_names(self, source: str, names: Sequence[str], version: str) -> None:
        """Writes down what there is of a source, unless that is known.

        Raises:
            SystemExit: What is known was found with other versions of the source's libraries.
        """
        if (known := self.versions.get(source, version)) != version:
            raise SystemExit(
                f"{self.path} is of {known}, and {version} is installed: install that, or begin "
                "another file with --state"
            )
        if source not in self.listed:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write({"source": source, "listed": list(names), "version": version})

    def add(self, record: Record) -> None:
        """Adds a record."""
        self._write(record)

    def _write(self, record: Record) -> None:
        record = _without_folders(record)
        self._take(record)
        with self.path.open("a") as file:
            file.write(_line(record))

    def join(self, paths: Iterable[Path]) -> None:
        """Takes over what other files say, later ones before earlier ones and before this one.

        The newest record of each check is kept, in the order in which things are listed.
        """
        for other in map(State, paths):
            for source, names in other.listed.items():
                self.list_names(source, names, other.versions[source])
            self.records += map(_without_folders, other.records)
        lines = [
            _line({"source": source, "listed": names, "version": self.versions[source]})
            for source, names in self.listed.items()
        ]
        for names in self.listed.values():
            lines += [_line(each) for name in names for each in self.of(name).values()]
        written = self.path.with_name(self.path.name + ".new")
        written.write_text("".join(lines))
        os.replace(written, self.path)

    def of(self, name: str) -> dict[str, Record]:
        """Returns the newest record of each check of something, and that of building it as ``."""
        return {each.get("check", ""): each for each in self.records if each["type"] == name}

    def missing(self, name: str, checks: Sequence[str]) -> list[str]:
        """Returns its checks that weren't made."""
        known = self.of(name)
        built = known.get("")
        if built is not None and built.get("outcome") == "unbuilt":
            return []
        skipped = "drawn" if built is not None and not built.get("draws") else ""
        return [each for each in checks if each not in known and each != skipped]


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _without_folders(record: Record) -> Record:
    """Returns a record that doesn't tell where libraries lie on the machine that it is from."""
    if "reason" not in record:
        return record
    return {**record, "reason": re.sub(r"\S*/(site-packages|tests)/", "", record["reason"])}
