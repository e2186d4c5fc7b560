"""Where checkpoints go: to a place of their own, or into a series of which the newest are kept.

    FOLDER/step-00000100
    FOLDER/step-00000200

The newest is the one that was written last, as its number says, whatever its step: a training that
went back has newer ones with fewer steps. One without a number is never removed.
"""

from __future__ import annotations

import json
import re
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autopar.base.errors import InvalidInputError, os_reason
from autopar.base.folder import recover_folder, remove_folder
from autopar.runtime.checkpoint.foreign import METADATA, read_metadata
from autopar.runtime.checkpoint.index import INDEX, DamagedCheckpoint, number_of
from autopar.runtime.job.messages import Messages

_MEMBER = re.compile(r"step-\d{8,}")
_OTHERS = (".py", ".pb", ".safetensors", ".onnx", ".pt", ".pth")
"""What files of builds, programs and models end in."""

_OURS = re.compile(r"\.(step-\d{8,})\.(new-.*|old)")


@dataclass(frozen=True)
class Place:
    """Where a checkpoint goes.

    Attributes:
        path: Its folder.
        series: The folder of the series that it belongs to; None if it is by itself.
        keep: How many of the series are kept.
    """

    path: Path
    series: Path | None = None
    keep: int = 0

    @classmethod
    def of(cls, folder: Path, keep: int | None, steps: int) -> Place:
        """Returns where a checkpoint goes that is saved to a folder after some steps.

        Raises:
            InvalidInputError: If not even one is to be kept.
        """
        if keep is None:
            return cls(folder)
        if type(keep) is not int or keep < 1:
            raise InvalidInputError(f"keep={keep!r}: keep 1 checkpoint, or more")
        return cls(folder / f"step-{steps:08}", folder, keep)

    @property
    def shared(self) -> Path:
        """The folder that no two jobs may save to: the series, or the checkpoint."""
        return self.series or self.path

    def prepare(self) -> None:
        """Removes what interrupted calls left in the series.

        Raises:
            InvalidInputError: If there is a single checkpoint in place of the series.
        """
        if self.series is None:
            return
        if holds_checkpoint(self.series):
            raise InvalidInputError(
                f"{self.series} is a checkpoint; with keep= it is a folder of several: choose"
                " another one, or leave keep= out"
            )
        recover_series(self.series)

    def next_number(self) -> int:
        """Returns the number of the next checkpoint."""
        if self.series is None:
            return 0
        return 1 + max((number for number, _ in numbered(self.series)[0]), default=0)

    def remove_older(self) -> None:
        """Removes all but the newest of the series. Warns of what can't be removed."""
        if self.series is None:
            return
        known, _ = numbered(self.series)
        for _, path in known[self.keep :]:
            try:
                remove_folder(path)
            except FileNotFoundError:
                # Another training that saves here has done it.
                continue
            except OSError as error:
                warnings.warn(f"can't remove {path}: {os_reason(error)}", stacklevel=2)


def is_series(folder: Path) -> bool:
    """Returns whether a folder holds checkpoints of a series."""
    return bool(members(folder))


def recover_series(folder: Path) -> None:
    """Completes or removes what interrupted calls left in a series, where that can be written."""
    if folder.is_dir():
        names = {found[1] for path in folder.iterdir() if (found := _OURS.fullmatch(path.name))}
        for name in sorted(names):
            recover_folder(folder / name)


def agreed_candidates(folder: Path, messages: Messages) -> tuple[list[Path], list[str]]:
    """Returns on all processes the `candidates` that the first one finds.

    Raises:
        InvalidInputError: On all of them, if there can't be any or they can't be looked for.
    """
    told = _told(folder) if messages.first else ""
    paths, problems, refused = json.loads(messages.from_first(told))
    if refused:
        raise InvalidInputError(refused)
    return [Path(path) for path in paths], problems


def _told(folder: Path) -> str:
    try:
        paths, problems = candidates(folder)
    except InvalidInputError as error:
        return json.dumps([[], [], str(error)])
    return json.dumps([[str(path) for path in paths], problems, ""])


def candidates(folder: Path) -> tuple[list[Path], list[str]]:
    """Returns the checkpoints of a folder, the newest first, and what is wrong with others.

    A checkpoint by itself is the only one. Plain PyTorch numbers none: such a one counts as the
    newest if its step is the largest, with a warning, else as older than all others.

    Raises:
        InvalidInputError: If it is no folder, holds a build, a program, a model or
            folders of checkpoints in place of them, or can't be read.
    """
    recover_folder(folder)
    try:
        _check_folder(folder)
        before = _names(folder)
        recover_series(folder)
        if holds_checkpoint(folder):
            return [folder], []
        known, problems = numbered(folder)
        others, damages = _unnumbered(folder)
        if not members(folder):
            _check_empty(folder, before)
    except OSError as error:
        raise InvalidInputError(
            f"can't look for checkpoints in {folder}: {os_reason(error)}"
        ) from error
    ordered = [path for _, path in known]
    if ordered and others and _step(others[0]) > max(map(_step, ordered)):
        newest = others.pop(0)
        warnings.warn(
            f"{newest} has no {INDEX}, which says when it was written; its step is the largest, so"
            " it counts as the newest checkpoint",
            stacklevel=2,
        )
        ordered.insert(0, newest)
    return ordered + others, damages + problems


def _check_folder(folder: Path) -> None:
    """Refuses what no folder can be, so that no training starts anew for that."""
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        raise InvalidInputError(
            f"{folder} is no folder, so that there can't be checkpoints in it; name the folder of"
            " one, or of several"
        )


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _is_other(path: Path) -> bool:
    """Returns whether this lies in folders that checkpoints aren't saved to, or above them."""
    return path.suffix in _OTHERS or is_series(path) or holds_checkpoint(path)


def _check_empty(folder: Path, before: Sequence[str]) -> None:
    """Refuses a folder without checkpoints that is for something else; a log doesn't make it so.

    Args:
        folder: The folder.
        before: What was in it before that was completed or removed which interrupted saves left.
    """
    if others := [name for name in _names(folder) if _is_other(folder / name)]:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        raise InvalidInputError(
            f"there is no checkpoint in {folder}, but {', '.join(others[:4])}{more}; name the"
            " folder that checkpoints were saved to; to start anew, name an empty one or none"
        )
    if left := [name for name in before if _OURS.fullmatch(name)]:
        warnings.warn(
            f"there is no checkpoint in {folder}, only {left[0]}, which is what an interrupted save"
            " left; the training starts anew",
            stacklevel=2,
        )


def numbered(folder: Path) -> tuple[list[tuple[int, Path]], list[str]]:
    """Returns the checkpoints of a series by number, the newest first, and what others lack.

    Those of plain PyTorch aren't among them.
    """
    found, problems = [], []
    for path in members(folder):
        if not holds_checkpoint(path):
            problems.append(f"{path} is incomplete: it has no {INDEX}")
        elif (path / INDEX).is_file():
            try:
                found.append((number_of(path), path))
            except DamagedCheckpoint as error:
                problems.append(str(error))
    return sorted(found, reverse=True), problems


def _unnumbered(folder: Path) -> tuple[list[Path], list[str]]:
    """Returns the checkpoints of plain PyTorch in a series, and which lost their number.

    The one with the most steps comes first.
    """
    found, problems = [], []
    for path in members(folder):
        if (path / METADATA).is_file() and not (path / INDEX).is_file():
            try:
                read_metadata(path)
                found.append(path)
            except DamagedCheckpoint as error:
                problems.append(str(error))
    return sorted(found, key=_step, reverse=True), problems


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def members(folder: Path) -> list[Path]:
    """Returns what looks like checkpoints of a series, by step."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _MEMBER.fullmatch(path.name))


def holds_checkpoint(folder: Path) -> bool:
    """Returns whether a folder is a checkpoint, whole or not."""
    return (folder / INDEX).is_file() or (folder / METADATA).is_file()
