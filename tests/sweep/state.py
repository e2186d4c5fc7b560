"""What a sweep has found so far: a file of one record a line, added to as it goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.sweep.child import Record


class State:
    """The records of a sweep.

    Attributes:
        path: The file.
        types: All model types, in the order in which they are judged.
        records: What is known of them: that they were built or not, and the outcomes of checks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.types: list[str] = []
        self.version = ""
        self.records: list[Record] = []
        if path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))

    def _take(self, record: Record) -> None:
        if "listed" in record:
            self.types, self.version = list(record["listed"]), record["version"]
        else:
            self.records.append(record)

    def list_types(self, types: Sequence[str], version: str) -> None:
        """Writes down which types there are, unless that is known."""
        if not self.types:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write({"listed": list(types), "version": version})

    def add(self, record: Record) -> None:
        """Adds a record."""
        self._write(record)

    def _write(self, record: Record) -> None:
        self._take(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, model_type: str) -> dict[str, Record]:
        """Returns the newest record of each check of a type, and that of building it as ``."""
        return {each.get("check", ""): each for each in self.records if each["type"] == model_type}

    def missing(self, model_type: str, checks: Sequence[str]) -> list[str]:
        """Returns the checks of a type that weren't made."""
        known = self.of(model_type)
        built = known.get("")
        if built is not None and built.get("outcome") == "unbuilt":
            return []
        skipped = "drawn" if built is not None and not built.get("draws") else ""
        return [each for each in checks if each not in known and each != skipped]
