"""Manifest: what a build folder holds, and what its maker should know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.base.errors import UNKNOWN, Loc


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


NARROWED = "narrowed"
"""The category of entries about sizes that can't be all that they could."""

CHECKED = "checked at each call"
"""The category of entries about what must hold of several sizes."""


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
class WeightDigests:
    """What weights are known by, block by block, so that a rank checks what it reads.

    Attributes:
        block_bytes: Length of the blocks of each tensor; the last one may be shorter.
        header: Digest of what stands before the tensors in the file.
        blocks: Digests of the blocks of each tensor, by name.
    """

    block_bytes: int
    header: int
    blocks: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of a build folder.

    Attributes:
        autopar_version: Version of the compiler.
        model: What the user calls the model.
        files: Every file of the build but the manifest, in order of their paths.
        report: What the compiler reports, in order.
        weights: Digests of the weights; None without weights, and of builds from before there
            were any.
        device: The type of the devices that ranks compute on; "" of builds from before it was
            said, which run where they may.
    """

    autopar_version: str
    model: str = ""
    files: tuple[FileEntry, ...] = ()
    report: tuple[ReportEntry, ...] = ()
    weights: WeightDigests | None = None
    device: str = ""
