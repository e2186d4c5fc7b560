"""The checkpoints of a training: written at once or beside it, and gone on from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from autopar.base.arguments import FLAG, PATH, expect
from autopar.base.errors import RuntimeFailure
from autopar.runtime.checkpoint.index import DamagedCheckpoint
from autopar.runtime.checkpoint.owner import Owner
from autopar.runtime.execute.ranks import Ranks, jointly, path_text, understood
from autopar.runtime.job.messages import Messages
from autopar.runtime.ports.ports import check_present
from autopar.runtime.training.checkpointed import EXTRA, CheckpointedState
from autopar.runtime.training.saving import FAILED, RUNNING, Saving
from autopar.runtime.training.training_state import TrainingState


class Checkpoints:
    """Writes and reads the checkpoints of one training. All processes call alike.

    Args:
        ranks: Who holds the state.
        state: The state of the training.

    Attributes:
        saving: The save that runs beside the training, until it was asked how that went.
    """

    def __init__(self, ranks: Ranks, state: TrainingState) -> None:
        self.ranks = ranks
        self.saving: Saving | None = None
        self._state = CheckpointedState(state)
        self._owner = Owner()
        self._connected: dict[bool, Messages] = {}

    def messages(self, meeting: bool) -> Messages:
        """Returns the connection of the processes for the main thread, or for one that saves."""
        if meeting not in self._connected:
            self._connected[meeting] = self.ranks.messages(meeting)
        return self._connected[meeting]

    def save(
        self,
        path: str | Path,
        values: Mapping[str, Any],
        *,
        keep: int | None,
        wait: bool,
    ) -> None:
        """Writes a checkpoint; see `Trainer.save_checkpoint`.

        Args:
            path: The folder; with `keep`, one of several.
            values: The values of `PROGRESS`, and of `EXTRA`.
            keep: How many stay there.
            wait: Whether to return when it is complete.
        """
        self.settle()
        # Here, since it takes torch.distributed.checkpoint a second to load.
        from autopar.runtime.checkpoint.checkpoint import brief, check_extra, write_checkpoint
        from autopar.runtime.checkpoint.files import copied, rectangles_of
        from autopar.runtime.checkpoint.series import Place

        def prepare() -> Place:
            expect(PATH, path=path)
            expect(FLAG, wait=wait)
            check_present(self.ranks.absent)
            check_extra(values[EXTRA])
            return Place.of(Path(path), keep, values["steps"])

        alike = {"path": path_text(path), "keep": keep, "wait": wait, "extra": brief(values[EXTRA])}
        place = jointly(self.ranks, "save_checkpoint", prepare, **alike)
        with self.ranks.reported():
            content = self._state.content(values)
            messages = self.messages(meeting=wait)
            rectangles = rectangles_of(content)
            if not wait:
                rectangles = copied(rectangles)
        if not wait:
            content = content.without_pieces()
        write = partial(write_checkpoint, place, content, rectangles, messages, self._owner)
        if wait:
            understood(self.ranks, write)
            return
        self.saving = Saving(write)
        self.saving.start()

    @property
    def snapshot_bytes(self) -> int:
        """See `Trainer.snapshot_bytes`."""
        from autopar.runtime.checkpoint.files import nbytes, rectangles_of

        self.ranks.standing.check()
        return nbytes(rectangles_of(self._state.content({})))

    def load(self, path: str | Path, careful: bool) -> dict[str, Any]:
        """Takes over a checkpoint and returns what it has of `PROGRESS` and `EXTRA`.

        Args:
            path: The folder.
            careful: See `CheckpointedState.read`.

        Raises:
            DamagedCheckpoint: On all ranks, if it isn't what was saved.
            InvalidInputError: On all ranks, if there is none, or names or shapes are wrong.
        """
        self.settle()
        jointly(self.ranks, "load_checkpoint", lambda: expect(PATH, path=path))
        with self.ranks.reported():
            messages = self.messages(meeting=True)
        return understood(self.ranks, lambda: self._state.read(Path(path), messages, careful))

    def resume(self, folder: str | Path, careful: bool) -> dict[str, Any] | None:
        """Takes over the newest checkpoint of a folder that is whole; see `Trainer.resume`.

        Args:
            folder: A checkpoint, or a folder of several. It needn't exist.
            careful: See `CheckpointedState.read`.

        Returns:
            What it has of `PROGRESS` and `EXTRA`; None if there is no checkpoint.

        Raises:
            InvalidInputError: On all ranks, if there are only damaged ones, or the newest doesn't
                fit the program.
        """
        self.settle()
        jointly(
            self.ranks,
            "resume",
            lambda: expect(PATH, folder=folder),
            folder=path_text(folder),
        )
        from autopar.runtime.checkpoint.series import agreed_candidates

        with self.ranks.reported():
            messages = self.messages(meeting=True)
        found, problems = understood(self.ranks, lambda: agreed_candidates(Path(folder), messages))
        for problem in problems:
            self._warn(problem)
        for path in found:
            try:
                return self.load(path, careful)
            except DamagedCheckpoint as error:
                problems.append(str(error))
                self._warn(str(error))
        if problems:
            lines = "\n".join(f"  - {problem}" for problem in problems)
            raise DamagedCheckpoint(
                f"no checkpoint in {folder} is whole; to start anew, choose another folder or"
                f" delete them:\n{lines}"
            )
        return None

    def _warn(self, problem: str) -> None:
        if 0 in self.ranks.programs:
            # Behind `resume` of this and of the trainer is the line of who calls that.
            warnings.warn(f"skipped a checkpoint: {problem}", stacklevel=4)

    def settle(self, wait: bool = True) -> None:
        """Raises what went wrong with a save that ran beside the training, on all ranks at once.

        Args:
            wait: Whether to wait until it is done; otherwise one that isn't goes on.
        """
        if (saving := self.saving) is None:
            return
        if wait:
            saving.join()
        tally = self.ranks.tally(saving.outcome)
        if tally[RUNNING]:
            return
        self.saving = None
        saving.raise_error()
        if tally[FAILED]:
            raise RuntimeFailure("the checkpoint couldn't be written: another rank failed")

    def close(self) -> Saving | None:
        """Waits for a save that runs beside the training and returns it; writes no more."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.join()
        self._owner.release()
        return saving
