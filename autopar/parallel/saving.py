"""`save_pretrained` of parallel modules, for the libraries whose modules have it.

The library's own code writes. It is given the original module with whole tensors, which are
gathered one at a time into a file and mapped from there, so that they never are in memory together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from autopar.base.errors import InvalidInputError, os_reason
from autopar.parallel.module import ParallelModule
from autopar.parallel.spilling import Spill
from autopar.runtime.agree.agreement import Offer
from autopar.runtime.agree.disagreement import CALL, LOCAL
from autopar.runtime.execute.ranks import path_text

_SETTINGS = ("config", "generation_config")
"""What users change of a module, and what is saved beside its parameters."""


class Saving(ParallelModule):
    """A parallel module that is saved as the original one is."""

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> Any:
        """Saves the whole model to a folder, as the original module would; all ranks call alike.

        Rank 0 writes. While it does, its disk has the model's parameters twice.

        Args:
            save_directory: The folder.
            args, kwargs: Those of the original module's `save_pretrained`.

        Returns:
            What that returns, on rank 0.

        Raises:
            InvalidInputError: On all ranks, if the folder can't be written, or they name others.
        """
        folder, job = Path(save_directory), self._parallel.runner.job
        # Of what differs the first is told: which call it is.
        alike = {CALL: "save_pretrained", "save_directory": path_text(save_directory)}
        job.agree(Offer(values={LOCAL: str(False), **alike}))
        if job.rank:
            self._gather(lambda tensor: None)
            job.made_by_first(bytes)
            return None
        returned: list[Any] = []

        def write() -> bytes:
            returned.append(self._write(folder, *args, **kwargs))
            return b"saved"

        job.made_by_first(write)
        return returned[0]

    def _write(self, folder: Path, *args: Any, **kwargs: Any) -> Any:
        """Writes the model, whose parameters the other ranks send."""
        try:
            with Spill(folder) as spill:
                self._gather(spill.add)
                whole = self._whole(spill.tensors())
                return whole.save_pretrained(str(folder), *args, **kwargs)
        except OSError as error:
            raise InvalidInputError(f"can't write {folder}: {os_reason(error)}") from error

    def _gather(self, take: Callable[[Tensor], None]) -> None:
        """Puts parameters together on rank 0, one at a time, and hands each on there.

        Raises:
            OSError: If one of them couldn't be taken, once the other ranks have sent all.
        """
        gather = self._parallel.gather(everywhere=False)
        refused: OSError | None = None
        for name, parameter in self.named_parameters():
            whole = gather(name, parameter)
            try:
                if whole is not None and refused is None:
                    take(whole)
            except OSError as error:
                refused = error
        if refused is not None:
            raise refused

    def _whole(self, tensors: Sequence[Tensor]) -> Any:
        """Returns the original module with these parameters, and with the buffers of this rank."""
        skeleton = self._parallel.runner.compiler.skeleton
        memo: dict[int, Any] = {}
        for parameter, tensor in zip(skeleton.parameters(), tensors, strict=True):
            memo[id(parameter)] = nn.Parameter(tensor, parameter.requires_grad)
        for absent, buffer in zip(skeleton.buffers(), self.buffers(), strict=True):
            memo[id(absent)] = buffer.detach().cpu()
        whole = copy.deepcopy(skeleton, memo)
        for name in _SETTINGS:
            if name in vars(self):
                setattr(whole, name, copy.deepcopy(vars(self)[name]))
        return whole
