"""The trainer: keeps the state of a training, and does on all ranks what users ask of it.

In each rank of a job it holds the rank's pieces of parameters, buffers and optimizer state. The
same class trains on the virtual mesh: only who runs the ranks differs (see `ranks`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import torch
from torch import Tensor, nn

from autopar.base.errors import AutoparError, InvalidInputError
from autopar.ir.builds.files import Build
from autopar.ir.layout import Layout
from autopar.runtime.execute.gate import Gate
from autopar.runtime.execute.ranks import Ranks, jointly
from autopar.runtime.init.initialize import MakeModel, initialize
from autopar.runtime.job.closing import Closing, close_at_exit
from autopar.runtime.ports.ports import check_present, seed_input
from autopar.runtime.ports.rates import trains
from autopar.runtime.state.state import Piece
from autopar.runtime.training.checkpointed import EXTRA
from autopar.runtime.training.checkpoints import Checkpoints
from autopar.runtime.training.rates import LearningRates
from autopar.runtime.training.stepping import NO_BATCH, Asked, Steps, wrong_call
from autopar.runtime.training.training_state import TrainingState
from autopar.runtime.training.verdicts import LAG

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


class Trainer(Closing):
    """Trains a compiled program, a step per batch. A context manager.

    Every rank of a job makes the same calls.

    Args:
        ranks: Who runs the ranks of this process.
        gate: What the ranks look at before they overwrite anything.
        build: What the ranks run.
        seed: What the random numbers of all steps depend on; by default the build's own.
        layouts: How the ranks hold stored inputs, by value name.

    Attributes:
        steps: Number of steps done.
        optimizer: The learning rates, on which torch's schedulers work.
        extra: What the user had the checkpoint keep that was loaded last; None without one.

    Raises:
        InvalidInputError: If the program doesn't train.
    """

    def __init__(
        self,
        ranks: Ranks,
        gate: Gate,
        build: Build,
        *,
        seed: int | None = None,
        layouts: Mapping[str, Layout] | None = None,
    ) -> None:
        self.ranks = ranks
        self._layouts = layouts or {}
        self.steps = 0
        self._first = min(ranks.programs)
        program = ranks.programs[self._first]
        if not trains(program):
            raise InvalidInputError(
                f"{build.path} computes outputs and trains nothing; compile with an optimizer"
            )
        drawing = seed_input(program)
        self.seed = int((drawing.fill if drawing else None) or 0) if seed is None else seed
        self.optimizer = LearningRates(program, ranks.stored[self._first])
        self._state = TrainingState(ranks, self.optimizer)
        self._steps = Steps(ranks, gate, build, self.optimizer)
        self.extra: Any = None
        self._checkpoints = Checkpoints(ranks, self._state)
        ranks.standing.what = "trainer"
        ranks.standing.remedy = "load it again, with resume= from its checkpoints"
        close_at_exit(self)

    def step(
        self,
        batch: Any = NO_BATCH,
        lr: float | Sequence[float] | None = None,
        *surplus: Never,
        local: bool = False,
        **unknown: Never,
    ) -> Tensor:
        """Trains on a batch and returns its loss, the same on all ranks.

        Args:
            batch: The global batch, in the structure of the example that was compiled, and of its
                shapes or those of another batch that was compiled with it. Tensors that the model
                writes to are written to.
            lr: The learning rate of this step, or one per parameter group; by default those of
                `optimizer`.
            local: Whether `batch` is only what this rank reads of the global one. On the virtual
                mesh it is then a sequence with a batch per rank.
            surplus, unknown: There is nothing else. One rank alone that gives more is waited for
                by the others, so all of them are told.

        Raises:
            InvalidInputError: If the batch doesn't fit the program, here or on another rank, or
                the ranks aren't given the same, or a checkpoint that was being written couldn't
                be. The state is what it was.
            NonFiniteLoss: If the loss is NaN or infinite, of this step or, on GPUs, one before: see
                `check_losses`. The state is what it was.
            RuntimeFailure: If this or another rank fails.
        """
        self._checkpoints.settle(wait=False)
        wrong = wrong_call(batch, surplus, unknown)
        loss = self._steps.run(Asked(batch, lr, local, wrong, self.steps, self.seed))
        self.steps += 1
        self.optimizer.step()
        self._steps.verdicts.look(LAG)
        return loss

    def check_losses(self) -> None:
        """Waits for all steps whose losses are looked at later, and looks at them.

        On GPUs, where the host would have to wait for each loss, a step whose loss isn't finite
        changes nothing and counts as done. `step` raises what became of the one two before.

        Raises:
            InvalidInputError: If an assumption of the program didn't hold in one.
            NonFiniteLoss: If the loss of one isn't finite: the first such.
        """
        self.ranks.standing.check()
        self._steps.verdicts.look()

    def request_stop(self) -> None:
        """Asks all ranks to stop behind the next step; may be called by a handler of a signal.

            signal.signal(signal.SIGTERM, lambda *_: trainer.request_stop())

        Nothing stops by itself: see `stopping`. That one rank asks is enough.
        """
        self.ranks.agreement.asks_to_stop = True

    @property
    def stopping(self) -> bool:
        """Whether a rank asked to stop. Between two steps it is the same on all ranks.

        What ranks compare in each step says so too: a rank that asks learns of it with the others,
        behind the next step that it begins. So all of them save the same step, and end.
        """
        return self.ranks.agreement.stopping

    def initialize(self, make_model: MakeModel, *, absent: bool = False) -> None:
        """Gives parameters and buffers the values that the model's constructor gives them.

            torch.manual_seed(0)
            trainer.initialize(lambda: GPT(config))

        Each rank draws what one device would draw, whose state of torch's generator is that of
        rank 0, and keeps its pieces. In memory are these and one tensor of the model at a time,
        with what its initialization needs.

        Args:
            make_model: Makes the model that was compiled, on the CPU.
            absent: Whether only what has no values yet is given any.

        Raises:
            InvalidInputError: On all ranks, if on one of them it raises anything, makes another
                model, or does what depends on numbers that it drew. The state is what it was.
        """
        initialize(self.ranks, make_model, absent)

    def state_dict(self, *, rank0_only: bool = False) -> dict[str, Tensor]:
        """Returns parameters and buffers, whole and in main memory, by the model's names.

        Args:
            rank0_only: Whether only rank 0 gets them, and the other ranks nothing.

        Raises:
            InvalidInputError: On all ranks, if there are tensors without values, or they make
                different calls.
        """
        self._agree_present("state_dict", rank0_only=rank0_only)
        with self.ranks.reported():
            return self._state.model_state(not rank0_only)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Takes over whole parameters and buffers by the model's names.

        Raises:
            InvalidInputError: On all ranks, if names are missing or surplus, or shapes wrong on one
                of them, or they were given other values. Names all. The state is what it was.
        """
        self._state.put_model(state_dict)

    def optimizer_state_dict(self, *, rank0_only: bool = False) -> dict[str, Any]:
        """Returns the optimizer's state, whole and in main memory, by the names of parameters.

        The structure is that of `torch.distributed.checkpoint.state_dict`: `state` has tensors by
        parameter and name, `param_groups` a dict with `lr` and `params` per group.

        Args:
            rank0_only: Whether only rank 0 gets the tensors.

        Raises:
            InvalidInputError: On all ranks, if there are tensors without values, or they make
                different calls.
        """
        self._agree_present("optimizer_state_dict", rank0_only=rank0_only)
        with self.ranks.reported():
            return self._state.optimizer_state(not rank0_only)

    def load_optimizer_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over an optimizer's state of that structure.

        Raises:
            InvalidInputError: On all ranks, if names are missing or surplus, or shapes wrong on one
                of them, or they were given other values. Names all. The state is what it was.
        """
        self._state.put_optimizer(state_dict)

    def copy_to(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Puts the state into a model and its optimizer on one device, to go on without autopar.

        Args:
            model: A model with the same parameters and buffers.
            optimizer: An optimizer over its parameters, of the kind that was compiled.

        Raises:
            InvalidInputError: If the model hasn't got these parameters and buffers, or there are
                tensors without values.
        """
        self._agree_present("copy_to")
        self._state.copy_to(model, optimizer)

    def save_checkpoint(
        self,
        path: str | Path,
        *,
        keep: int | None = None,
        wait: bool = True,
        extra: Any = None,
    ) -> None:
        """Writes parameters, buffers, optimizer state, steps done and seed to a folder.

        The format is that of `torch.distributed.checkpoint`. The folder is complete or absent, and
        an older checkpoint there stays whole until the new one is complete. All ranks must see one
        file system.

        Args:
            path: The folder, the same on all ranks; with `keep`, a folder of several, as
                `path/step-00000100`.
            keep: How many checkpoints stay there. Older ones are removed when this one is complete.
            wait: Whether to return when it is complete. Otherwise what is written is copied to main
                memory, `snapshot_bytes` of it, and written while training goes on; what goes
                wrong is raised by the next call of `step`, of this, or of `close`. There is one
                copy at a time: a save waits for the one before it.
            extra: What else to keep, the same on all ranks: whatever JSON can hold. It is `extra`
                again after loading.

        Raises:
            InvalidInputError: On all ranks, if the folder can't be written, is something else, or
                another job that still runs has saved there; or a rank can't be given what it was,
                or is given another. Training can go on.
            RuntimeFailure: If another rank fails.
        """
        values = {"steps": self.steps, "seed": self.seed, EXTRA: extra}
        self._checkpoints.save(path, values, keep=keep, wait=wait)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of main memory that a save takes on this process which training doesn't wait for.

        They are what the process writes: its part of what the ranks hold, each piece once.
        """
        return self._checkpoints.snapshot_bytes

    def load_checkpoint(self, path: str | Path) -> None:
        """Goes on from a checkpoint that any mesh wrote, or plain PyTorch with the same names.

        What is read is compared with the digests that the checkpoint has; behind a first step,
        before anything is overwritten, for which it is read twice.

        Raises:
            DamagedCheckpoint: On all ranks, if it isn't what was saved: names the file and a
                tensor. The state is what it was, if it has been trained; before the first step,
                parameters may have no values after that, until another checkpoint is loaded.
            InvalidInputError: On all ranks, if there is none, or names or shapes are wrong. Names
                all.
        """
        self._take_over(self._checkpoints.load(path, careful=self.steps > 0))

    def _take_over(self, found: Mapping[str, Any]) -> None:
        """Goes on where a checkpoint was made, of which this is what it has of plain values."""
        self._steps.verdicts.forget()
        self.steps = found.get("steps", self.steps)
        self.seed = found.get("seed", self.seed)
        self.extra = found.get(EXTRA)

    def resume(self, folder: str | Path) -> int | None:
        """Goes on from the newest checkpoint of a folder that is whole, or starts anew.

        Args:
            folder: A checkpoint, or what `save_checkpoint` was given with `keep`. It needn't exist.

        Returns:
            The number of steps done; None if there is no checkpoint. Incomplete or damaged ones
            are skipped, with a warning that names them.

        Raises:
            InvalidInputError: On all ranks, if there are only damaged ones, the newest doesn't fit
                the program, or `folder` is a file, can't be read, or holds a build, a program
                or a model and no checkpoint.
        """
        found = self._checkpoints.resume(folder, careful=self.steps > 0)
        if found is None:
            return None
        self._take_over(found)
        return self.steps

    def save_weights(self, path: str | Path, *, max_shard_bytes: int | None = None) -> None:
        """Writes whole parameters and buffers to safetensors files, gathered one at a time.

        Args:
            path: A file; or a folder, which gets Hugging Face's layout: `model.safetensors`, or
                several files and `model.safetensors.index.json`. What else is in it stays.
            max_shard_bytes: Largest size of the tensors of a file in a folder, which is made if it
                isn't there. By default 5 GB, where `path` is a folder already.

        Raises:
            InvalidInputError: On all ranks, if the file or folder can't be written. Training can go
                on.
        """
        messages = partial(self._checkpoints.messages, meeting=True)
        self._state.save_weights(path, max_shard_bytes, messages)

    def load_weights(self, path: str | Path) -> None:
        """Reads parameters and buffers, on each rank its own pieces.

        Args:
            path: A safetensors file, or a folder or index of Hugging Face's with several.

        Raises:
            InvalidInputError: On all ranks, if one can't read the file, or it lacks a tensor or has
                it otherwise, or their files aren't the same, of which samples are compared. The
                state is what it was then.
        """
        self._state.read_weights(path)

    def shards(self) -> dict[str, tuple[Piece, ...]]:
        """Returns this rank's pieces of parameters and buffers, and where they are, by name.

        It is one piece, or several of a fused weight that was taken apart. They are the memory
        that steps write to. On the virtual mesh they are those of rank 0.
        """
        self.ranks.standing.check()
        model = self._state.model
        return {label: model.pieces(label)[self._first] for label in model.entries}

    def dtensors(self, mesh: DeviceMesh | None = None) -> dict[str, DTensor]:
        """Returns parameters and buffers as DTensors by name; all ranks call alike.

        Their local parts are the memory that steps write to. Of what no DTensor can be, as a fused
        weight that is split between its heads, it is a copy, whole on every rank.

        Args:
            mesh: The ranks, in the order and shape of the compiled mesh; by default one is made.

        Raises:
            InvalidInputError: On all ranks, if there is no process group, or on one of them the
                mesh is another one.
        """
        return self._state.dtensors(self._layouts, mesh)

    def close(self) -> None:
        """Ends the trainer, and the process group if it was made for it.

        Waits for a checkpoint that is being written, and looks at the last losses.

        Raises:
            InvalidInputError: If that couldn't be written.
            NonFiniteLoss, InvalidInputError: See `check_losses`.
        """
        saving = self._checkpoints.close()
        try:
            if self.ranks.standing.is_open:
                self._steps.verdicts.look()
        finally:
            self.ranks.close()
            if saving is not None:
                saving.raise_error()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            self.close()
        except AutoparError as error:
            if kind is None:
                raise
            # What ended the block counts more.
            warnings.warn(str(error), stacklevel=2)

    def fetched(self) -> dict[str, Tensor]:
        """Returns what else the last step computed, by label: global values, on all ranks.

        Values that ranks hold parts of are put together: all ranks make this call then.

        Raises:
            InvalidInputError: If there was no step yet, or the last one was refused.
        """
        return self._steps.fetched()

    def _agree_present(self, call: str, **alike: object) -> None:
        """Has all ranks begin a call that takes that all tensors have values; see `jointly`."""
        jointly(self.ranks, call, lambda: check_present(self.ranks.absent), **alike)
