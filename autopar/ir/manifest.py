"""Manifest: what a build folder holds, and what its maker should know about it."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.errors import UNKNOWN, Loc


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a build.

    Attributes:
        path: Relative to the build folder, with `/`.
        sha256: Hexadecimal digest of its content.
        bytes: Its length.
    """

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """Something about the compilation that the user should know.

    Attributes:
        category: What kind of thing it is: `replicated`, `ignored`, ...
        subject: The op, value or option that it is about.
        detail: What was done, and why.
        loc: The user's line or ONNX node.
        bytes: What it costs per rank, where that is known; else 0.
    """

    category: str
    subject: str
    detail: str = ""
    loc: Loc = UNKNOWN
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of a build folder.

    Attributes:
        autopar_version: Version of the compiler.
        model: What the user calls the model.
        files: Every file of the build but the manifest, in order of their paths.
        report: What the compiler reports, in order.
    """

    autopar_version: str
    model: str = ""
    files: tuple[FileEntry, ...] = ()
    report: tuple[ReportEntry, ...] = ()
