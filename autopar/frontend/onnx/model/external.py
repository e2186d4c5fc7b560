"""External data: tensors whose bytes lie in files beside the model.

The file names come from the model, so they are untrusted. A file is read only if it really lies in
the model's folder, or in a folder that the user admits: no `..`, no absolute path, no link that
leads elsewhere. A hard link can't be told from its original, so files with several names are
refused too.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import TensorProto

from autopar.frontend.onnx.model.problems import Problems


@dataclass(frozen=True, slots=True)
class Mapped:
    """Bytes of a tensor: `length` bytes of `buffer` from `offset` on."""

    buffer: bytes | mmap.mmap
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Place:
    location: str
    offset: int
    length: int | None


@dataclass
class ExternalData:
    """The files that hold a model's external data.

    Attributes:
        folder: The model's folder.
        admitted: Further folders that the user trusts.
    """

    folder: Path
    admitted: Sequence[Path] = ()
    _open: dict[Path, mmap.mmap | bytes] = field(default_factory=dict)
    _unreadable: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def check(self, where: str, tensor: TensorProto, need: int, problems: Problems) -> None:
        """Notes what keeps the tensor's `need` bytes from being read.

        What is wrong with a file as a whole, `conclude` says.
        """
        place = _place(where, tensor, problems)
        if place is None:
            return
        path, reason, advice = self._resolve(place.location)
        if reason:
            self._refuse(where, f"external data {place.location!r} {reason}", advice)
            return
        if place.length is not None and place.length != need:
            problems.add(where, f"external data say {place.length} bytes, its dims need {need}")
            return
        try:
            size = len(self._map(path))
        except OSError as error:
            reason = f"can't be read: {error.strerror}"
            self._refuse(where, f"external data {place.location!r} {reason}", "")
            return
        if place.offset + need > size:
            what = f"needs bytes {place.offset} to {place.offset + need}"
            problems.add(
                where,
                f"{what} of external data {place.location!r}, which has {size}",
                "the file is cut short, or belongs to another model",
            )

    def conclude(self, problems: Problems) -> None:
        """Notes each file that can't be read once: it may hold hundreds of tensors."""
        for (what, advice), places in self._unreadable.items():
            others = f" and {len(places) - 1} more" if len(places) > 1 else ""
            problems.add(f"{places[0]}{others}", what, advice)

    def _refuse(self, where: str, what: str, advice: str) -> None:
        self._unreadable.setdefault((what, advice), []).append(where)

    def map(self, tensor: TensorProto, need: int) -> Mapped:
        """Returns the bytes of a tensor that `check` found sound."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path, _, _ = self._resolve(entries["location"])
        return Mapped(self._map(path), int(entries.get("offset", "0")), need)

    def _resolve(self, location: str) -> tuple[Path, str, str]:
        """Returns the real file, or the reason why it isn't read, and what to do."""
        raw = self.folder / location
        if not location or "\0" in location:
            return raw, "is no file name", ""
        try:
            path = raw.resolve()
        except (OSError, RuntimeError) as error:
            return raw, f"can't be resolved: {error}", ""
        if _within(path, self.admitted):
            return path, *_regular(path, hard_links=True)
        advice = f"if you trust it, admit its folder: --allow-external {path.parent}"
        if os.path.isabs(location):
            return path, "is an absolute path, outside the model's folder", advice
        if ".." in Path(location).parts:
            return path, "leaves the model's folder", advice
        if not _within(path, (self.folder,)):
            return path, f"is a link that leads to {path}, outside the model's folder", advice
        return path, *_regular(path, hard_links=False)

    def _map(self, path: Path) -> mmap.mmap | bytes:
        """Maps a file, once. What is opened is what is checked: no link may take its place."""
        if path in self._open:
            return self._open[path]
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            # An empty file can't be mapped.
            data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if size else b""
        finally:
            os.close(descriptor)
        self._open[path] = data
        return data


def _place(where: str, tensor: TensorProto, problems: Problems) -> _Place | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers: dict[str, int | None] = {"offset": 0, "length": None}
    for key in numbers:
        text = entries.get(key)
        if text is None:
            continue
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            problems.add(where, f"external data have the {key} {text[:40]!r}: not a byte count")
            return None
        numbers[key] = int(text)
    if tensor.HasField("raw_data"):
        problems.add(where, "has external data and raw_data: which one counts?")
        return None
    return _Place(entries.get("location", ""), numbers["offset"] or 0, numbers["length"])


def _within(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder.resolve()) for folder in folders)


def _regular(path: Path, hard_links: bool) -> tuple[str, str]:
    try:
        status = path.lstat()
    except OSError as error:
        return f"can't be read: {error.strerror}", "it belongs beside the model"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file", ""
    if status.st_nlink > 1 and not hard_links:
        advice = f"copy it, or if you trust it: --allow-external {path.parent}"
        return "is a hard link, so it may really lie elsewhere", advice
    return "", ""
