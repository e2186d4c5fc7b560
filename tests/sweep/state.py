"""What a sweep has found so far: a file of one record a line, added to as it goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.sweep.child import Record

TYPES = "types"
"""The source that are transformers' model types."""

FAMILIES = "families"
"""The source that are families of timm's and torchvision's models."""


class State:
    """The records of a sweep.

    Files may be joined: of what two say of the same check, the later one is taken.

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
        """Writes down what there is of a source, unless that is known."""
        if source not in self.listed:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write({"source": source, "listed": list(names), "version": version})

    def add(self, record: Record) -> None:
        """Adds a record."""
        self._write(record)

    def _write(self, record: Record) -> None:
        self._take(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

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
