"""Build folders: what `autopar compile` writes and everything else reads.

    build/manifest.pb           table of contents with checksums, and the compilation's report
    build/serial.pb             the completed one-device program with all attributes
    build/completed.pb          the same before ops were replaced by bodies, if any were
    build/options.yaml          what the user decided, and the cluster whose costs decided the rest
    build/programs/0.pb, ...    the executable programs, one per class of ranks
    build/ranks.pb              which rank runs which program, and the process groups
    build/weights.safetensors   if the model has weights
    build/variants/1/...        serial.pb, programs/ and ranks.pb for inputs of other shapes

A folder is written beside its final place and moved there when it is complete and on the disk. So
a build is whole at any time: an interrupted write leaves the old one, or nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

from autopar.base.arguments import PATH, expect
from autopar.base.errors import InvalidInputError, VerificationError
from autopar.base.folder import check_place, replace_folder, sync_file
from autopar.ir.builds.manifest import FileEntry, Manifest, ReportEntry, WeightDigests
from autopar.ir.deployment import Deployment
from autopar.ir.ops import RuleDefect
from autopar.ir.program import Program
from autopar.ir.serde import (
    content_of,
    deployment_from_bytes,
    deployment_to_bytes,
    manifest_from_bytes,
    manifest_to_bytes,
    program_from_bytes,
    program_to_bytes,
)
from autopar.ir.verify import verify_distribution, verify_structure

MANIFEST = "manifest.pb"
SERIAL = "serial.pb"
COMPLETED = "completed.pb"
OPTIONS = "options.yaml"
RANKS = "ranks.pb"
WEIGHTS = "weights.safetensors"

WriteWeights = Callable[[Path], tuple[FileEntry, WeightDigests]]
"""Writes the weights to the safetensors file whose path it is given, and says what it wrote."""

_COMPILE_AGAIN = "compile the model again, or copy the whole folder again"
_CHUNK_BYTES = 1 << 20
_SHOWN_LINES = 10


def write_build(
    path: str | Path,
    *,
    serial: Program,
    deployment: Deployment,
    autopar_version: str,
    report: Sequence[ReportEntry] = (),
    write_weights: WriteWeights | None = None,
    variants: Sequence[tuple[Program, Deployment]] = (),
    completed: Program | None = None,
    options: str = "",
    device: str = "",
) -> Manifest:
    """Writes a build folder.

    Args:
        path: The folder. It, and folders above it, are made if they don't exist; an old build
            there is replaced when the new one is complete.
        serial: The completed program.
        deployment: The executable programs and the rank table.
        autopar_version: Version of the compiler.
        report: What the user should know about the compilation.
        write_weights: Writes the weights; None if there are none.
        variants: Serial programs and deployments for inputs of other shapes, over the same weights.
        completed: The completed program before ops were replaced by bodies, if any were.
        options: What the user decided, as text.
        device: The type of the devices that ranks compute on.

    Returns:
        The manifest that was written.

    Raises:
        InvalidInputError: If the folder can't be written, holds anything but an autopar build, or
            a program is too large for its file.
    """
    contents: dict[str, bytes] = {}
    for number, (one, several) in enumerate([(serial, deployment), *variants]):
        prefix = variant_path(number)
        contents[prefix + SERIAL] = program_to_bytes(one)
        contents[prefix + RANKS] = deployment_to_bytes(several)
        for at, program in enumerate(several.programs):
            contents[prefix + program_path(at)] = program_to_bytes(program)

    if completed is not None:
        contents[COMPLETED] = program_to_bytes(completed)
    if options:
        contents[OPTIONS] = options.encode()

    def fill(folder: Path) -> Manifest:
        entries = [_write_file(folder, name, data) for name, data in contents.items()]
        digests: WeightDigests | None = None
        if write_weights is not None:
            entry, digests = write_weights(folder / WEIGHTS)
            sync_file(folder / WEIGHTS)
            entries.append(entry)
        files = tuple(sorted(entries, key=lambda entry: entry.path))
        manifest = Manifest(autopar_version, serial.name, files, tuple(report), digests, device)
        _write_file(folder, MANIFEST, manifest_to_bytes(manifest))
        return manifest

    return replace_folder(Path(path), fill, _check_replaceable)


def check_output(path: str | Path) -> None:
    """Refuses a place for a build, before the work of making one.

    Raises:
        InvalidInputError: If no folder can be written there, or anything but a build is there.
    """
    check_place(Path(path), _check_replaceable)


def program_path(number: int) -> str:
    """Returns the path of an executable program within a build."""
    return f"programs/{number}.pb"


def variant_path(number: int) -> str:
    """Returns what the paths of a variant's files start with; variant 0 is the build itself."""
    return f"variants/{number}/" if number else ""


def read_build(path: str | Path) -> Build:
    """Returns a build, of which only the manifest has been read.

    Raises:
        InvalidInputError: If there is no build, it is incomplete, or it needs a newer autopar.
    """
    expect(PATH, build=path)
    folder = Path(path)
    if not os.path.isdir(folder):  # False too for what can't be a path.
        what = "is a file" if os.path.exists(folder) else "doesn't exist"
        raise InvalidInputError(f"{folder} {what}; expected a folder that `autopar compile` wrote")
    if not (folder / MANIFEST).is_file():
        raise InvalidInputError(
            f"{folder} has no {MANIFEST}, so it isn't an autopar build; make one with"
            " `autopar compile MODEL -o FOLDER`"
        )
    data = _read(folder / MANIFEST)
    manifest = manifest_from_bytes(data, str(folder / MANIFEST))
    for file in manifest.files:
        _check_size(folder, file)
    return Build(folder, manifest, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Build:
    """A build folder. What it holds is read, and its checksum compared, at the first use.

    Attributes:
        path: The folder.
        manifest: Its table of contents and the compilation's report.
        digest: Digest of the manifest, and so of the checksums of all files: equal for equal
            builds.
        prefix: What the paths of its programs start with, if it is a variant.
    """

    path: Path
    manifest: Manifest
    digest: str
    prefix: str = ""

    @property
    def variants(self) -> tuple[Build, ...]:
        """The builds over the same weights for inputs of other shapes."""
        found: list[Build] = []
        while self._find(prefix := variant_path(len(found) + 1), SERIAL):
            found.append(replace(self, prefix=prefix))
        return tuple(found)

    @cached_property
    def serial(self) -> Program:
        """The completed one-device program.

        Raises:
            InvalidInputError: If the file is damaged.
        """
        return self._program(SERIAL)

    @cached_property
    def completed(self) -> Program:
        """The completed program before ops were replaced by bodies.

        Raises:
            InvalidInputError: If the file is damaged.
        """
        if self._find(self.prefix, COMPLETED) is None:
            return self.serial
        return self._program(COMPLETED)

    def check_distribution(self) -> None:
        """Checks that the serial programs can be computed as their layouts and choices say.

        Raises:
            InvalidInputError: If they can't, or a file is damaged.
        """
        with _refused(self._place(SERIAL)):
            verify_distribution(self.serial)
        if self.completed is not self.serial:
            with _refused(self._place(COMPLETED)):
                verify_distribution(self.completed)

    @cached_property
    def options(self) -> str:
        """What the user decided, as text; empty if it isn't known.

        Raises:
            InvalidInputError: If the file is damaged.
        """
        if self._find(self.prefix, OPTIONS) is None:
            return ""
        try:
            return self._checked(OPTIONS).decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{self._place(OPTIONS)} is no text: {error}; {_COMPILE_AGAIN}"
            ) from error

    @cached_property
    def rank_table(self) -> Deployment:
        """Which rank runs which program, without the programs themselves.

        Raises:
            InvalidInputError: If the file is damaged.
        """
        return deployment_from_bytes(self._checked(RANKS), source=self._place(RANKS))

    def program(self, number: int) -> Program:
        """Returns an executable program by its number, which `RankEntry.program` is.

        Raises:
            InvalidInputError: If there is no such program or its file is damaged.
        """
        return self._program(program_path(number))

    @cached_property
    def deployment(self) -> Deployment:
        """The rank table with all programs.

        Raises:
            InvalidInputError: If a file is damaged.
        """
        names = {file.path for file in self.manifest.files}
        count = 0
        while self.prefix + program_path(count) in names:
            count += 1
        programs = [self.program(number) for number in range(count)]
        return deployment_from_bytes(self._checked(RANKS), programs, self._place(RANKS))

    @property
    def weights_path(self) -> Path | None:
        """The safetensors file with the weights, whose keys are names of values; None without."""
        return self.path / WEIGHTS if self._find("", WEIGHTS) else None

    def check_file(self, file: FileEntry) -> None:
        """Reads a file of the build and compares its checksum.

        Args:
            file: Its entry in the manifest.

        Raises:
            InvalidInputError: If it is damaged.
        """
        if _entry_of_file(self.path, file.path) != file:
            raise _damaged(self.path / file.path)

    def _find(self, prefix: str, name: str) -> FileEntry | None:
        path = prefix + name
        return next((file for file in self.manifest.files if file.path == path), None)

    def _program(self, name: str) -> Program:
        """Returns a program that can be relied upon: all that reads it takes its rules for granted.

        A checksum can be made for any file, and says nothing of what is in it.
        """
        place = self._place(name)
        program = program_from_bytes(self._checked(name), place)
        with _refused(place):
            verify_structure(program)
        return program

    def _place(self, name: str) -> str:
        return str(self.path / (self.prefix + name))

    def _checked(self, name: str) -> bytes:
        file = self._find(self.prefix, name)
        if file is None:
            missing = self.prefix + name
            raise InvalidInputError(f"{self.path}: the build has no {missing}; {_COMPILE_AGAIN}")
        data = _read(self.path / file.path)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise _damaged(self.path / file.path)
        return data


@contextmanager
def _refused(place: str) -> Iterator[None]:
    try:
        yield
    except VerificationError as error:
        title, *problems = str(error).splitlines()
        more = ["  ..."] if len(problems) > _SHOWN_LINES else []
        text = "\n".join([title, *problems[:_SHOWN_LINES], *more])
        raise InvalidInputError(f"{place}: {text}\n{_COMPILE_AGAIN}") from error
    except RuleDefect as error:
        raise InvalidInputError(f"{place}: {error}; {_COMPILE_AGAIN}") from error


def _damaged(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is damaged: its checksum isn't the one in {MANIFEST}; {_COMPILE_AGAIN}"
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"can't read {path}: {error.strerror}") from error


def _check_size(folder: Path, file: FileEntry) -> None:
    parts = PurePosixPath(file.path)
    if parts.is_absolute() or ".." in parts.parts:
        raise InvalidInputError(f"{folder / MANIFEST} lists {file.path!r}, outside the build")
    path = folder / file.path
    if not path.is_file():
        raise InvalidInputError(f"{path} is missing, so the build is incomplete; {_COMPILE_AGAIN}")
    if path.stat().st_size != file.bytes:
        raise InvalidInputError(
            f"{path} has {path.stat().st_size} bytes instead of {file.bytes}; {_COMPILE_AGAIN}"
        )


def _write_file(folder: Path, name: str, data: bytes) -> FileEntry:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    sync_file(path)
    return FileEntry(name, hashlib.sha256(data).hexdigest(), len(data))


def _entry_of_file(folder: Path, name: str) -> FileEntry:
    digest = hashlib.sha256()
    try:
        with (folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            return FileEntry(name, digest.hexdigest(), file.tell())
    except OSError as error:
        raise InvalidInputError(f"can't read {folder / name}: {error.strerror}") from error


def _check_replaceable(folder: Path) -> None:
    """Refuses to replace a folder with anything in it that isn't part of a build."""
    advice = "choose another folder with -o, or delete it"
    try:
        data = (folder / MANIFEST).read_bytes()
        is_build = content_of(data, MANIFEST) == "manifest"
        known = {file.path for file in manifest_from_bytes(data).files}
    except (OSError, InvalidInputError):
        is_build, known = False, set()
    # One is enough to know: the folder may be a whole disk.
    present = sorted(_files(folder) if is_build else islice(_files(folder), 1))
    if present and not is_build:
        raise InvalidInputError(f"{folder} is not empty and not an autopar build; {advice}")
    if strangers := [name for name in present if name not in known and name != MANIFEST]:
        more = f" and {len(strangers) - 3} more" if len(strangers) > 3 else ""
        raise InvalidInputError(
            f"{folder} is an autopar build, but holds other files too: {', '.join(strangers[:3])}"
            f"{more}; move them, or {advice}"
        )


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


__all__ = [
    "Build",
    "Manifest",
    "ReportEntry",
    "check_output",
    "program_path",
    "read_build",
    "write_build",
]
