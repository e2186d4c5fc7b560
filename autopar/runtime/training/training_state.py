"""What a training can be left with and taken up from: the model and the optimizer.

Whole, by the names that PyTorch uses; or, of the model, as a file of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autopar.base.arguments import MAPPING, PATH, WHOLE, Kind, expect
from autopar.base.errors import InvalidInputError
from autopar.ir.layout import Layout
from autopar.runtime.execute.ranks import Ranks, jointly, path_text, understood
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.ports import check_present
from autopar.runtime.state.state import (
    MODEL_ROLES,
    OPTIMIZER_ROLES,
    State,
)
from autopar.runtime.state.state_file import read_state, write_state
from autopar.runtime.training.rates import LearningRates

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_GROUPS = Kind(
    lambda value: isinstance(value, (list, tuple)) and all(map(MAPPING.fits, value)),
    "a list with a dict per group",
)


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
        self.note_values(self.model)

    def optimizer_state(self, everywhere: bool) -> dict[str, Any]:
        """Returns the optimizer's state, by names, as `get_optimizer_state_dict` of torch does."""
        state: dict[str, dict[str, Tensor]] = {}
        for label, tensor in self.optimizer.by_name(everywhere).items():
            kind, parameter = kind_and_parameter(label)
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
        self.note_values(self.optimizer)

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

    def save_weights(
        self, path: str | Path, max_shard_bytes: int | None, connect: Callable[[], Messages]
    ) -> None:
        """Writes parameters and buffers, gathered one at a time. See `Trainer.save_weights`.

        Args:
            path: A file or folder.
            max_shard_bytes: Largest size of the tensors of a file in a folder.
            connect: Connects the processes.

        Raises:
            InvalidInputError: On all ranks, if the file or folder can't be written.
        """

        def prepare() -> None:
            expect(PATH, path=path)
            expect(WHOLE.or_none, max_shard_bytes=max_shard_bytes)
            check_present(self.ranks.absent)
            if max_shard_bytes is not None and max_shard_bytes <= 0:
                raise InvalidInputError(
                    f"max_shard_bytes={max_shard_bytes}: a file holds some bytes"
                )

        alike = {"path": path_text(path), "max_shard_bytes": max_shard_bytes}
        jointly(self.ranks, "save_weights", prepare, **alike)
        with self.ranks.reported():
            messages = connect()
        understood(
            self.ranks, lambda: write_state(self.model, Path(path), messages, max_shard_bytes)
        )

    def read_weights(self, path: str | Path) -> None:
        """Takes over parameters and buffers from files, each rank its own pieces.

        Raises:
            InvalidInputError: On all ranks, if one can't read the file, or it lacks a tensor or has
                it otherwise. The state is what it was then.
        """
        read_state(self.model, path, "load_weights")
        self.note_values(self.model)

    def note_values(self, *states: State) -> None:
        """Notes that all of these tensors have values."""
        for state in states:
            self.ranks.absent.difference_update(state.entries)


def _listed(groups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the options of an optimizer's groups, as text, by the way to them."""
    return {f"param_groups[{at}]": repr(sorted(group.items())) for at, group in enumerate(groups)}


def kind_and_parameter(label: str) -> tuple[str, str]:
    """Returns (kind, parameter) of `exp_avg/up.weight`."""
    kind, _, parameter = label.partition("/")
    return kind, parameter
