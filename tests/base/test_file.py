"""Single files stay whole until a new one is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autopar.base.errors import InvalidInputError
from autopar.base.file import check_file, write_file


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    def parts() -> Iterator[str]:
        yield "new"
        raise KeyboardInterrupt

    path = tmp_path / "plan.yaml"
    write_file(path, ["old", "\n"])
    with pytest.raises(KeyboardInterrupt):
        write_file(path, parts())
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    check_file(tmp_path / "link")
    write_file(tmp_path / "link", ["text"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_devices_are_written_to() -> None:
    check_file("/dev/null")
    write_file("/dev/null", ["text"])


@pytest.mark.parametrize("place", ["no/file", "."])
def test_places_that_take_no_file(place: str, tmp_path: Path) -> None:
    for attempt in (check_file, lambda path: write_file(path, ["text"])):
        with pytest.raises(InvalidInputError, match=r"can't write .*; choose another file"):
            attempt(tmp_path / place)
    assert not os.listdir(tmp_path)
