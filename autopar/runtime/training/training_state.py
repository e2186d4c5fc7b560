"""What a training can be left with and taken up from: the model, the optimizer, where it is.

Whole, by the names that PyTorch uses; as a checkpoint, of which each rank reads and writes its
part; as a file of weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from autopar.base.arguments import MAPPING, Kind, expect
from autopar.base.errors import InvalidInputError, near_misses
from autopar.base.folder import recover_folder
from autopar.ir.layout import Layout
from autopar.runtime.checkpoint.index import DamagedCheckpoint, Index
from autopar.runtime.execute.ranks import Ranks, jointly
from autopar.runtime.job.messages import Messages
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.ports import check_present
from autopar.runtime.state.owners import pieces_written
from autopar.runtime.state.state import (
    MODEL_ROLES,
    OPTIMIZER_ROLES,
    UNSAVED_ROLES,
    Content,
    Held,
    Key,
    State,
    flat_key,
)
from autopar.runtime.state.state_file import read_state, write_state
from autopar.runtime.training.rates import SCHEDULED, LearningRates

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Result = TypeVar("Result")

PROGRESS = ("steps", "seed")
"""Plain values that say where a training is."""

_GROUPS = Kind(
    lambda value: isinstance(value, (list, tuple)) and all(map(MAPPING.fits, value)),
    "a list with a dict per group",
)

EXTRA = "extra"
"""The plain value that the user has a checkpoint keep."""


class TrainingState:
    """The state of a training, over all ranks. All processes call alike.

    Args:
        ranks: Who holds it.
        rates: The groups of parameters.
    """

    def __init__(self, ranks: Ranks, rates: LearningRates) -> None:
        self.ranks = ranks
        self.rates = rates
        self.model = State(ranks, MODEL_ROLES)
        self.optimizer = State(ranks, OPTIMIZER_ROLES)
        # What a model keeps without saving it is in checkpoints, which go on where they were made.
        self.unsaved = State(ranks, UNSAVED_ROLES)
        self._written: set[tuple[int, int]] | None = None

    def model_state(self, everywhere: bool) -> dict[str, Tensor]:
        """Returns parameters and buffers by name; nothing on ranks that aren't to have them.

        What has several names is there under each of them, as one tensor.
        """
        check_present(self.ranks.absent)
        return self.model.by_name(everywhere)

    def dtensors(
        self, layouts: Mapping[str, Layout], mesh: DeviceMesh | None
    ) -> dict[str, DTensor]:
        """Returns parameters and buffers as DTensors by name; see `Trainer.dtensors`.

        Args:
            layouts: How the ranks hold stored inputs, by value name.
            mesh: The ranks; None to make one.

        Raises:
            InvalidInputError: On all ranks, if there is no process group, or on one of them the
                mesh is another one.
        """
        # Here, since it takes torch.distributed.tensor a second to load.
        from autopar.runtime.state.dtensors import Wrapping, check_mesh

        def prepare() -> None:
            check_present(self.ranks.absent)
            check_mesh(self.ranks, layouts, mesh)

        jointly(self.ranks, "dtensors", prepare, mesh=mesh)
        with self.ranks.reported():
            wrapping = Wrapping(self.ranks, layouts, mesh)
            return {
                name: tensor
                for label, entry in self.model.entries.items()
                for tensor in [wrapping.of(self.model, label)]
                for name in entry.names
            }

    def put_model(self, given: Mapping[str, Any]) -> None:
        """Takes over parameters and buffers.

        Raises:
            InvalidInputError: On all ranks, if they don't fit on one, or aren't the same on all.
                Names all problems.
        """

        def prepare() -> Mapping[str, Any]:
            expect(MAPPING, state_dict=given)
            self.model.check(given, "state dict")
            return given

        jointly(self.ranks, "load_state_dict", prepare, self.model.contents)
        with self.ranks.reported():
            self.model.put_all(given)
        self._given(self.model)

    def optimizer_state(self, everywhere: bool) -> dict[str, Any]:
        """Returns the optimizer's state, by names, as `get_optimizer_state_dict` of torch does."""
        state: dict[str, dict[str, Tensor]] = {}
        for label, tensor in self.optimizer.by_name(everywhere).items():
            kind, parameter = _split(label)
            state.setdefault(parameter, {})[kind] = tensor
        return {"state": state, "param_groups": self.rates.groups()}

    def put_optimizer(self, given: Mapping[str, Any]) -> None:
        """Takes over an optimizer's state, by names.

        Raises:
            InvalidInputError: On all ranks, if it doesn't fit on one, or isn't the same on all.
                Names all problems.
        """

        def contents(found: tuple[dict[str, Any], Sequence[Mapping[str, Any]]]) -> dict[str, str]:
            tensors, options = found
            return {**self.optimizer.contents(tensors), **_listed(options)}

        call = "load_optimizer_state_dict"
        state, groups = jointly(self.ranks, call, lambda: self._optimizer_given(given), contents)
        with self.ranks.reported():
            self.optimizer.put_all(state)
            self.rates.put_groups(groups)
        self._given(self.optimizer)

    def _optimizer_given(
        self, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]]]:
        """Returns the tensors of an optimizer's state dict by label, and its groups."""
        expect(MAPPING, state_dict=given)
        groups, states = given.get("param_groups", []), given.get("state", {})
        expect(MAPPING, state=states)
        expect(_GROUPS, param_groups=groups)
        for parameter, tensors in states.items():
            expect(MAPPING, **{f"state[{parameter!r}]": tensors})
        state = {
            f"{kind}/{parameter}": tensor
            for parameter, tensors in states.items()
            for kind, tensor in tensors.items()
        }
        self.optimizer.check(state, "optimizer's state dict")
        self.rates.check_groups(groups)
        return state, groups

    def copy_to(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Puts the state into a model and its optimizer on one device.

        Raises:
            InvalidInputError: If the model hasn't got these parameters and buffers. Nobody waits
                for this rank then.
        """
        with self.ranks.reported():
            content = self.model_state(everywhere=True)
            found = None if optimizer is None else self.optimizer_state(everywhere=True)
        try:
            model.load_state_dict(content)
        except RuntimeError as error:
            raise InvalidInputError(f"the model isn't the one that was compiled: {error}") from None
        if optimizer is None or found is None:
            return
        state, groups = found.values()
        named = dict(model.named_parameters())
        for name, tensors in state.items():
            # A tensor of one number stays on the CPU, where torch's optimizers have it.
            placed = {k: t.to(named[name].device) if t.ndim else t for k, t in tensors.items()}
            optimizer.state[named[name]] = placed
        for group, given in zip(optimizer.param_groups, groups, strict=True):
            group.update(
                {name: given[name] for name in given if name in group and name != "params"}
            )

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
        kept.update(self._group_values(self.rates.groups()))
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
        groups = [dict(group) for group in self.rates.groups()]
        for key, value in found.items():
            if key[0] == "optimizer":
                groups[int(key[2])][str(key[3])] = value
        self.rates.put_groups(groups)
        self._given(self.model, self.optimizer, self.unsaved)
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
        wanted = [{**dict.fromkeys(SCHEDULED), **group} for group in self.rates.groups()]
        values: dict[Key, Any] = {("trainer", name): None for name in (*PROGRESS, EXTRA)}
        values.update(self._group_values(wanted))
        present = {key: value for key, value in values.items() if flat_key(key) in index.values}
        tensors = [held._replace(pieces=state.all_pieces(label)) for state, label, held in every]
        return index, Content(tensors, present), [label for _, label, _ in every]

    def write_weights(
        self, path: Path, messages: Messages, max_shard_bytes: int | None = None
    ) -> None:
        """Writes parameters and buffers, gathered one at a time. See `Trainer.save_weights`.

        Raises:
            InvalidInputError: On all ranks, if the file or folder can't be written.
        """
        check_present(self.ranks.absent)
        write_state(self.model, path, messages, max_shard_bytes)

    def read_weights(self, path: str | Path) -> None:
        """Takes over parameters and buffers from files, each rank its own pieces.

        Raises:
            InvalidInputError: On all ranks, if one can't read the file, or it lacks a tensor or has
                it otherwise. The state is what it was then.
        """
        read_state(self.model, path, "load_weights")
        self._given(self.model)

    def _given(self, *states: State) -> None:
        """Notes that all of these tensors have values."""
        for state in states:
            self.ranks.absent.difference_update(state.entries)

    def _tensors(self) -> Iterator[tuple[State, str, Held]]:
        """Yields each tensor of a checkpoint, without pieces, and which entry of a state it is."""
        for label, entry in self.model.entries.items():
            keys: tuple[Key, ...] = tuple(("model", name) for name in entry.names)
            yield self.model, label, Held(keys, TORCH_DTYPES[entry.dtype], entry.shape, ())
        for label, entry in self.unsaved.entries.items():
            own: Key = ("model", label)
            yield self.unsaved, label, Held((own,), TORCH_DTYPES[entry.dtype], entry.shape, ())
        for label, entry in self.optimizer.entries.items():
            kind, parameter = _split(label)
            key: Key = ("optimizer", "state", parameter, kind)
            yield self.optimizer, label, Held((key,), TORCH_DTYPES[entry.dtype], entry.shape, ())

    def _writes(self) -> set[tuple[int, int]]:
        """Returns which pieces the ranks of this process write, as (rank, input)."""
        if self._written is None:
            states = (self.model, self.unsaved, self.optimizer)
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


def _listed(groups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the options of an optimizer's groups, as text, by the way to them."""
    return {f"param_groups[{at}]": repr(sorted(group.items())) for at, group in enumerate(groups)}


def _split(label: str) -> tuple[str, str]:
    """Returns (kind, parameter) of `exp_avg/up.weight`."""
    kind, _, parameter = label.partition("/")
    return kind, parameter


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
