"""What somebody fills is left alone, also while it is only about to be held."""

from __future__ import annotations

import fcntl
import itertools
from pathlib import Path

import pytest

from autopar.base import claim
from autopar.base.claim import claimed, owned_name, remove_abandoned


def test_what_was_removed_before_it_was_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, numbers = fcntl.flock, itertools.count()

    def make() -> Path:
        path = tmp_path / str(next(numbers))
        path.mkdir()
        return path

    def slowly(descriptor: int, how: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(claim.fcntl, "flock", lock)
            if (tmp_path / "0").exists():
                remove_abandoned(tmp_path / "0", owned_name(1))
        lock(descriptor, how)

    monkeypatch.setattr(claim.fcntl, "flock", slowly)
    with claimed(make) as path:
        assert path == tmp_path / "1"
        assert path.is_dir()


def test_another_one_of_the_same_name_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was held is moved to its place, and somebody else takes the name."""
    path, lock = tmp_path / "new", fcntl.flock
    path.mkdir()

    def replaced(descriptor: int, how: int) -> None:
        path.rename(tmp_path / "done")
        path.mkdir()
        lock(descriptor, how)

    monkeypatch.setattr(claim.fcntl, "flock", replaced)
    remove_abandoned(path, owned_name(1))
    assert path.is_dir()
    assert (tmp_path / "done").is_dir()
