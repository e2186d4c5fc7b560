"""Rank table and manifest <-> protobuf messages.

The table is short for any number of ranks where these follow a pattern: numbers that count up are
runs, coordinates are those of an array, groups are the slices of that array along axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from autopar.ir import program_pb2 as pb
from autopar.ir.builds.manifest import FileEntry, Manifest, ReportEntry, WeightDigests
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.program import Program
from autopar.ir.serde.read import loc_from_proto
from autopar.ir.serde.tables import (
    Corrupt,
    StringReader,
    StringWriter,
    array_size,
    ints_from_proto,
    write_ints,
)

Lists = tuple[tuple[int, ...], ...]


def write_deployment(deployment: Deployment, message: pb.Deployment) -> None:
    """Fills the message of a rank table, without the programs."""
    ranks = deployment.ranks
    shape = _row_major_shape(deployment)
    message.program_count = len(deployment.programs)
    message.axes.extend(deployment.axes)
    write_ints([rank.program for rank in ranks], message.program)
    write_ints([rank.process_id for rank in ranks], message.process_id)
    if shape is not None:
        message.row_major = True
        message.shape.extend(shape)
    else:
        for column in zip(*(rank.coords for rank in ranks), strict=True):
            write_ints(column, message.coords.add())
    rank_of = {rank.process_id: at for at, rank in enumerate(ranks)}
    for name, lists in sorted(deployment.groups.items()):
        _write_group(lists, shape, rank_of, message.groups.add(name=name))


def _row_major_shape(deployment: Deployment) -> tuple[int, ...] | None:
    """Returns the array shape whose row-major coordinates the ranks have, if there is one."""
    ranks = deployment.ranks
    if not ranks or not deployment.axes:
        return None
    shape = tuple(max(column) + 1 for column in zip(*(rank.coords for rank in ranks), strict=True))
    ids = {rank.process_id for rank in ranks}
    if len(ids) != len(ranks) or math.prod(shape) != len(ranks):
        return None
    coords = dict(enumerate(itertools.product(*map(range, shape))))
    fits = all(rank.coords == coords.get(rank.process_id) for rank in ranks)
    return shape if fits else None


def unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the coordinates of a row-major position in an array of this shape."""
    coords: list[int] = []
    for size in reversed(shape):
        position, coord = divmod(position, size)
        coords.append(coord)
    return (*reversed(coords), *((-1,) if position else ()))


def slices(shape: Sequence[int], axes: Sequence[int], rank_of: Mapping[int, int]) -> Lists:
    """Returns the ranks of every slice of an array along axes, the first of which is major."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    others = [axis for axis in range(len(shape)) if axis not in axes]

    def offsets(along: Sequence[int]) -> list[int]:
        steps = [range(0, shape[axis] * strides[axis], strides[axis]) for axis in along]
        return [sum(step) for step in itertools.product(*steps)]

    members = offsets(axes)
    return tuple(tuple(rank_of[at + step] for step in members) for at in offsets(others))


def _write_group(
    lists: Lists,
    shape: tuple[int, ...] | None,
    rank_of: Mapping[int, int],
    message: pb.Deployment.Group,
) -> None:
    axes = _axes_of(lists, shape, rank_of) if shape else None
    if axes is not None:
        message.axes.extend(axes)
        return
    write_ints([rank for members in lists for rank in members], message.ranks)
    write_ints([len(members) for members in lists], message.lengths)


def _axes_of(
    lists: Lists, shape: tuple[int, ...], rank_of: Mapping[int, int]
) -> tuple[int, ...] | None:
    """Returns the axes along which these lists are the slices, if there are such axes."""
    if len(shape) > 4 or not lists:
        return None
    used = [axis for axis, size in enumerate(shape) if size > 1]
    for count in range(1, len(used) + 1):
        for axes in itertools.permutations(used, count):
            length = math.prod(shape[axis] for axis in axes)
            if len(lists[0]) == length and slices(shape, axes, rank_of) == lists:
                return axes
    return None


def deployment_from_proto(message: pb.Deployment, programs: Sequence[Program]) -> Deployment:
    """Returns the rank table that a message describes.

    Args:
        message: The message.
        programs: The programs to which it refers; none leaves them out.

    Raises:
        Corrupt: If the message contradicts itself or the programs.
    """
    program = ints_from_proto(message.program, "programs of ranks")
    process_ids = ints_from_proto(message.process_id, "process ids of ranks")
    if len(program) != len(process_ids):
        raise Corrupt(f"{len(program)} ranks have a program, {len(process_ids)} a process id")
    if programs and len(programs) != message.program_count:
        raise Corrupt(f"the table is for {message.program_count} programs, not {len(programs)}")
    # A table that was read without its programs, and written again, doesn't know how many.
    known = message.program_count
    if program and known and not 0 <= min(program) <= max(program) < known:
        raise Corrupt(f"a rank runs program {max(program)} of {message.program_count}")
    coords = _coords_from_proto(message, process_ids)
    return Deployment(
        programs=tuple(programs),
        axes=tuple(message.axes),
        ranks=tuple(map(RankEntry, program, coords, process_ids)),
        groups=_groups_from_proto(message, process_ids),
    )


def _coords_from_proto(
    message: pb.Deployment, process_ids: Sequence[int]
) -> Sequence[tuple[int, ...]]:
    if message.row_major:
        shape = tuple(message.shape)
        if len(shape) != len(message.axes) or array_size(shape, "ranks") != len(process_ids):
            raise Corrupt(f"{len(process_ids)} ranks don't fill an array of shape {list(shape)}")
        if sorted(process_ids) != list(range(len(process_ids))):
            raise Corrupt("the process ids don't number the array of ranks")
        return [unravel(process_id, shape) for process_id in process_ids]
    columns = [ints_from_proto(column, "coordinates") for column in message.coords]
    if not message.axes:
        return [()] * len(process_ids)
    if len(columns) != len(message.axes) and process_ids:
        raise Corrupt(f"{len(columns)} columns of coordinates for {len(message.axes)} axes")
    if any(len(column) != len(process_ids) for column in columns):
        raise Corrupt("the columns of coordinates differ in length")
    return list(zip(*columns, strict=True))


def _groups_from_proto(message: pb.Deployment, process_ids: Sequence[int]) -> dict[str, Lists]:
    rank_of = {process_id: rank for rank, process_id in enumerate(process_ids)}
    groups: dict[str, Lists] = {}
    for group in message.groups:
        if group.name in groups:
            raise Corrupt(f"two groups are called {group.name!r}")
        if group.axes:
            groups[group.name] = _slices_from_proto(message, group, rank_of)
        else:
            groups[group.name] = _lists_from_proto(group, len(process_ids))
    return groups


def _slices_from_proto(
    message: pb.Deployment, group: pb.Deployment.Group, rank_of: Mapping[int, int]
) -> Lists:
    axes = tuple(group.axes)
    if not message.row_major or len(set(axes)) != len(axes) or max(axes) >= len(message.shape):
        raise Corrupt(f"group {group.name!r}: no axes {list(axes)} in shape {list(message.shape)}")
    return slices(tuple(message.shape), axes, rank_of)


def _lists_from_proto(group: pb.Deployment.Group, rank_count: int) -> Lists:
    ranks = ints_from_proto(group.ranks, f"group {group.name!r}")
    lengths = ints_from_proto(group.lengths, f"group {group.name!r}")
    if sum(lengths) != len(ranks) or any(length < 0 for length in lengths):
        raise Corrupt(f"group {group.name!r}: {len(ranks)} ranks in lists of {sum(lengths)}")
    if ranks and not 0 <= min(ranks) <= max(ranks) < rank_count:
        raise Corrupt(f"group {group.name!r} names rank {max(ranks)} of {rank_count}")
    ends = itertools.accumulate(lengths)
    return tuple(ranks[end - length : end] for end, length in zip(ends, lengths, strict=True))


def write_manifest(manifest: Manifest, message: pb.Manifest) -> None:
    """Fills the message of a manifest."""
    strings = StringWriter()
    number = strings.number
    message.autopar_version = number(manifest.autopar_version)
    message.model = number(manifest.model)
    message.device = number(manifest.device)
    for file in manifest.files:
        digest = bytes.fromhex(file.sha256)
        message.files.add(path=number(file.path), sha256=digest, size_bytes=file.bytes)
    for item in manifest.report:
        entry = message.report.add(
            category=number(item.category),
            subject=number(item.subject),
            detail=number(item.detail),
            size_bytes=item.bytes,
        )
        entry.loc.file = number(item.loc.file)
        entry.loc.line = item.loc.line
        entry.loc.name = number(item.loc.name)
    if manifest.weights is not None:
        message.weight_digests.block_bytes = manifest.weights.block_bytes
        message.weight_digests.header = manifest.weights.header
        for name, blocks in manifest.weights.blocks.items():
            message.weight_digests.tensors.add(name=number(name), blocks=blocks)
    message.strings.extend(strings.table())


def manifest_from_proto(message: pb.Manifest) -> Manifest:
    """Returns the manifest that a message describes.

    Raises:
        Corrupt: If the message refers to something that it doesn't hold.
    """
    strings = StringReader(message.strings)
    return Manifest(
        autopar_version=strings.text(message.autopar_version),
        model=strings.text(message.model),
        files=tuple(
            FileEntry(strings.text(file.path), file.sha256.hex(), file.size_bytes)
            for file in message.files
        ),
        report=tuple(
            ReportEntry(
                strings.text(item.category),
                strings.text(item.subject),
                strings.text(item.detail),
                loc_from_proto(item.loc, strings),
                item.size_bytes,
            )
            for item in message.report
        ),
        weights=_weights_from_proto(message, strings),
        device=strings.text(message.device),
    )


def _weights_from_proto(message: pb.Manifest, strings: StringReader) -> WeightDigests | None:
    if not message.HasField("weight_digests"):
        return None
    found = message.weight_digests
    if not found.block_bytes:
        raise Corrupt("blocks of weights have no bytes")
    blocks = {strings.text(each.name): tuple(each.blocks) for each in found.tensors}
    return WeightDigests(found.block_bytes, found.header, blocks)
