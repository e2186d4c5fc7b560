"""How ranks write and read their parts of a checkpoint, as `torch.distributed.checkpoint` wants it.

A rank writes its pieces as rectangles of the whole tensors, so any mesh can read what another one
wrote: torch finds out which parts of which rectangles a reader needs.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from autopar.runtime.regions import Region
from autopar.runtime.state import Content, Key, Piece, flat_key


class PieceSaver(DefaultSavePlanner):
    """Plans what each rank writes: all that it holds. Torch drops what another rank writes too.

    Args:
        content: What the ranks of this process hold.
    """

    def __init__(self, content: Content) -> None:
        super().__init__()
        self.content = content
        self.tensors: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        """Returns what this process adds to the plan."""
        items = [
            item for key, pieces in self.content.pieces.items() for item in self._items(key, pieces)
        ]
        if self.is_coordinator:
            items.extend(
                WriteItem(MetadataIndex(flat_key(key)), WriteItemType.BYTE_IO)
                for key in self.content.values
            )
        names = {flat_key(key): key for key in (*self.content.pieces, *self.content.values)}
        self.plan = SavePlan(items, planner_data=names)
        return self.plan

    def _items(self, key: Key, pieces: Iterable[Piece]) -> Iterable[WriteItem]:
        name = flat_key(key)
        for piece in pieces:
            for region in piece.regions():
                if (name, region.offsets) not in self.tensors:
                    self.tensors[name, region.offsets] = region.of(piece.tensor)
                    yield _write_item(name, region, piece)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Returns what an entry of the plan stands for."""
        if index.offset is None:
            return {flat_key(key): value for key, value in self.content.values.items()}[index.fqn]
        # A copy: writers take the whole memory of a view.
        return self.tensors[index.fqn, tuple(index.offset)].detach().clone()


def _write_item(name: str, region: Region, piece: Piece) -> WriteItem:
    offsets, shape = torch.Size(region.offsets), torch.Size(piece.shape)
    chunk = ChunkStorageMetadata(offsets, torch.Size(region.sizes))
    data = TensorWriteData(chunk, TensorProperties.create_from_tensor(piece.tensor), shape)
    return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)


@dataclass
class _Target:
    """A rectangle to be read, and the pieces that it goes to."""

    region: Region
    tensors: list[Tensor] = field(default_factory=list)


class PieceLoader(DefaultLoadPlanner):
    """Plans what each rank reads: the rectangles of its pieces.

    Args:
        content: The pieces, which are overwritten, and the plain values, of which the keys count.

    Attributes:
        values: The plain values that were read.
    """

    def __init__(self, content: Content) -> None:
        super().__init__()
        self.content = content
        self.values: dict[Key, Any] = {}
        self.names = {flat_key(key): key for key in content.values}
        self.targets = {flat_key(key): _targets(each) for key, each in content.pieces.items()}

    def create_local_plan(self) -> LoadPlan:
        """Returns what this process adds to the plan."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, targets in self.targets.items():
            entry = self.metadata.state_dict_metadata[name]
            assert isinstance(entry, TensorStorageMetadata)
            chunks = [
                ChunkStorageMetadata(torch.Size(t.region.offsets), torch.Size(t.region.sizes))
                for t in targets
            ]
            items.extend(create_read_items_for_chunk_list(name, entry, chunks))
        items.extend(_read_bytes(name) for name in self.names)
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Takes a plain value."""
        key = self.names[read_item.dest_index.fqn]
        self.values[key] = torch.load(value, weights_only=True)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Returns the memory that a rectangle is read into."""
        assert index.index is not None
        return self.targets[index.fqn][index.index].tensors[0]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Copies what was read to the other ranks of this process that hold it."""
        index = read_item.dest_index
        assert index.index is not None
        for other in self.targets[index.fqn][index.index].tensors[1:]:
            self.transform_tensor(read_item, other).copy_(tensor)


def _targets(pieces: Iterable[Piece]) -> list[_Target]:
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], _Target] = {}
    for piece in pieces:
        for region in piece.regions():
            target = found.setdefault((region.offsets, region.sizes), _Target(region))
            target.tensors.append(region.of(piece.tensor.detach()))
    return list(found.values())


def _read_bytes(name: str) -> ReadItem:
    nothing = torch.Size((0,))
    index = MetadataIndex(name)
    return ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing)
