"""The state of a training as checkpoints have it, of which each rank reads and writes its part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autopar.base.errors import InvalidInputError, near_misses
from autopar.base.folder import recover_folder
from autopar.runtime.checkpoint.index import DamagedCheckpoint, Index
from autopar.runtime.job.messages import Messages
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.ports import check_present
from autopar.runtime.state.owners import pieces_written
from autopar.runtime.state.state import UNSAVED_ROLES, Content, Held, Key, State, flat_key
from autopar.runtime.training.rates import SCHEDULED
from autopar.runtime.training.training_state import TrainingState, kind_and_parameter

Result = TypeVar("Result")

PROGRESS = ("steps", "seed")
"""Plain values that say where a training is."""

EXTRA = "extra"
"""The plain value that the user has a checkpoint keep."""


class CheckpointedState:
    """What a checkpoint holds of a training, over all ranks. All processes call alike.

    Args:
        state: The state of the training.
    """

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self.ranks = state.ranks
        # What a model keeps without saving it is in checkpoints, which go on where they were made.
        self.unsaved = State(state.ranks, UNSAVED_ROLES)
        self._written: set[tuple[int, int]] | None = None

    def content(self, values: Mapping[str, Any]) -> Content:
        """Returns what a checkpoint holds, and of its pieces those that this process writes.

        Args:
            values: The values of `PROGRESS`, and what else the trainer keeps.
        """
        check_present(self.ranks.absent)
        writes = self._writes()
        tensors = [
            held._replace(
                pieces=[
                    piece
                    for rank, pieces in state.pieces(label).items()
                    for at, piece in zip(state.entries[label].at, pieces, strict=True)
                    if (rank, at) in writes
                ]
            )
            for state, label, held in self._tensors()
        ]
        kept: dict[Key, Any] = {("trainer", name): value for name, value in values.items()}
        kept.update(self._group_values(self.state.rates.groups()))
        return Content(tensors, kept)

    def read(self, path: Path, messages: Messages, careful: bool) -> dict[str, Any]:
        """Takes over a checkpoint and returns what it has of `PROGRESS` and `EXTRA`.

        Args:
            path: The folder.
            messages: What ranks tell one another.
            careful: Whether all of it is compared with its digests, and so read once more, before
                anything is overwritten.

        Raises:
            DamagedCheckpoint: On all ranks, if it isn't what was saved. If that was noticed only
                while it was read, parameters and buffers have no values after that.
            InvalidInputError: On all ranks, if there is none for one of them, it doesn't fit, or
                they find different ones. Names all problems. The state is what it was then.
        """
        # Here, since it takes torch.distributed.checkpoint a second to load.
        from autopar.runtime.checkpoint.checkpoint import compare_checkpoint, index_digest

        def recovered() -> bytes:
            recover_folder(path)
            return b""

        messages.made_by_first(recovered)
        digest, (index, content, labels) = _on_all(
            messages, lambda: (index_digest(path), self._fitting(path))
        )
        _check_same(path, digest, messages)
        if careful:
            _on_all(messages, lambda: compare_checkpoint(path, index, content))
        # Behind an error all of them are half read, and each has to be given anew.
        self.ranks.absent.update(labels)
        found = _on_all(messages, lambda: _read(path, index, content))
        groups = [dict(group) for group in self.state.rates.groups()]
        for key, value in found.items():
            if key[0] == "optimizer":
                groups[int(key[2])][str(key[3])] = value
        self.state.rates.put_groups(groups)
        self.state.note_values(self.state.model, self.state.optimizer, self.unsaved)
        return {str(key[1]): value for key, value in found.items() if key[0] == "trainer"}

    def _fitting(self, path: Path) -> tuple[Index, Content, list[str]]:
        """Opens a checkpoint; returns what to read of it, and the labels of the tensors.

        Raises:
            InvalidInputError: If there is none or it doesn't fit.
        """
        from autopar.runtime.checkpoint.checkpoint import open_checkpoint

        index = open_checkpoint(path)
        every = [
            (state, label, held)
            for state, label, held in self._tensors()
            # A checkpoint of torch's own lacks what no state dict has.
            if state is not self.unsaved or flat_key(held.keys[0]) in index.tensors
        ]
        shapes = {name: tensor.shape for name, tensor in index.tensors.items()}
        self._check_entries(path, {**dict.fromkeys(index.values), **shapes}, every)
        wanted = [{**dict.fromkeys(SCHEDULED), **group} for group in self.state.rates.groups()]
        values: dict[Key, Any] = {("trainer", name): None for name in (*PROGRESS, EXTRA)}
        values.update(self._group_values(wanted))
        present = {key: value for key, value in values.items() if flat_key(key) in index.values}
        tensors = [held._replace(pieces=state.all_pieces(label)) for state, label, held in every]
        return index, Content(tensors, present), [label for _, label, _ in every]

    def _tensors(self) -> Iterator[tuple[State, str, Held]]:
        """Yields each tensor of a checkpoint, without pieces, and which entry of a state it is."""
        for label, entry in self.state.model.entries.items():
            keys: tuple[Key, ...] = tuple(("model", name) for name in entry.names)
            yield self.state.model, label, Held(keys, TORCH_DTYPES[entry.dtype], entry.shape, ())
        for label, entry in self.unsaved.entries.items():
            own: Key = ("model", label)
            yield self.unsaved, label, Held((own,), TORCH_DTYPES[entry.dtype], entry.shape, ())
        for label, entry in self.state.optimizer.entries.items():
            kind, parameter = kind_and_parameter(label)
            key: Key = ("optimizer", "state", parameter, kind)
            held = Held((key,), TORCH_DTYPES[entry.dtype], entry.shape, ())
            yield self.state.optimizer, label, held

    def _writes(self) -> set[tuple[int, int]]:
        """Returns which pieces the ranks of this process write, as (rank, input)."""
        if self._written is None:
            states = (self.state.model, self.unsaved, self.state.optimizer)
            inputs = [at for state in states for entry in state.entries.values() for at in entry.at]
            self._written = pieces_written(self.ranks.deployment, inputs, self.ranks.programs)
        return self._written

    def _group_values(self, groups: Sequence[Mapping[str, Any]]) -> dict[Key, Any]:
        return {
            ("optimizer", "param_groups", at, name): value
            for at, group in enumerate(groups)
            for name, value in group.items()
        }

    def _check_entries(
        self,
        path: Path,
        entries: Mapping[str, tuple[int, ...] | None],
        tensors: Iterable[tuple[State, str, Held]],
    ) -> None:
        names = [[flat_key(key) for key in held.keys] for _, _, held in tensors]
        wanted = {flat_key(key): held.shape for _, _, held in tensors for key in held.keys}
        absent = (each for each in names if not any(name in entries for name in each))
        problems = [f"{each[0]!r} is missing" for each in absent]
        for name, shape in entries.items():
            if name in wanted and shape != wanted[name]:
                found = "a plain value" if shape is None else list(shape)
                problems.append(f"{name!r} is {found}, it must be {list(wanted[name])}")
            elif name not in wanted and shape is not None:
                problems.append(f"{name!r} is surplus{near_misses(name, wanted)}")
        if problems:
            lines = "\n".join(f"  - {problem}" for problem in problems)
            raise InvalidInputError(f"the checkpoint {path} doesn't fit the program:\n{lines}")


def _check_same(path: Path, digest: str, messages: Messages) -> None:
    """Refuses, on all ranks, a checkpoint that isn't the same on all of them."""
    found = messages.of_all(digest)
    if other := next((rank for rank, each in enumerate(found) if each != found[0]), 0):
        raise InvalidInputError(
            f"the checkpoint {path} isn't the same on all ranks: rank {other} finds another one"
            " than rank 0; give all of them one folder, or copies of it"
        )


def _read(path: Path, index: Index, content: Content) -> dict[Key, Any]:
    # Here, since it takes torch.distributed.checkpoint a second to load.
    from autopar.runtime.checkpoint.checkpoint import read_checkpoint

    return read_checkpoint(path, index, content)


def _on_all(messages: Messages, act: Callable[[], Result]) -> Result:
    """Returns what an act of each rank returns.

    Raises:
        InvalidInputError: On all ranks, if one of them raises it: that of the first one.
    """
    problem: InvalidInputError | None = None
    try:
        result = act()
    except InvalidInputError as error:
        problem = error
    if told := messages.agreed(_told(problem)):
        damaged, text = json.loads(told)
        raise (DamagedCheckpoint if damaged else InvalidInputError)(text) from problem
    return result


def _told(problem: InvalidInputError | None) -> str:
    """Returns what other ranks are told of a problem."""
    if problem is None:
        return ""
    return json.dumps([isinstance(problem, DamagedCheckpoint), str(problem)])
