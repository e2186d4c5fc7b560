"""What `compile` and `compile_onnx` return: a compiled model, to be looked at and to be saved.

step = autopar.compile(model, (x, y), mesh="dp=2,tp=4", loss=criterion, optimizer=adamw)
print(step.summary())
step.save("build/")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.analysis.plan_file import plan_of
from autopar.analysis.profiling import Profile, profile
from autopar.analysis.reports.summary import render_summary, summarize_programs
from autopar.base.arguments import PATH, expect
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.pipeline import Compiled, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, repr=False, eq=False)
class CompiledModel(Compiled):
    """A compiled model or training step.

    Attributes:
        source: The serial program, before anything was decided about it.
        weights: What it stores, by name, as the model has it.
        variants: The programs for further batches, of other shapes.
    """

    source: Program = field(kw_only=True)
    weights: Mapping[str, Tensor] = field(kw_only=True)
    variants: tuple[Compiled, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(
        cls,
        compiled: Compiled,
        source: Program,
        weights: Mapping[str, Tensor],
        variants: Sequence[Compiled] = (),
    ) -> CompiledModel:
        """Returns a compiled program together with what it was made of, and what it stores."""
        known = {each.name: getattr(compiled, each.name) for each in fields(compiled)}
        return cls(**known, source=source, weights=weights, variants=tuple(variants))

    def save(self, build: str | Path) -> None:
        """Writes the build folder; an older build there stays whole until the new one is complete.

        Raises:
            InvalidInputError: If the folder can't be written, or is something else than a build.
        """
        expect(PATH, build=build)
        write(self, self.weights, Path(build), self.variants)

    def summary(self) -> str:
        """Returns what an execution costs, as `autopar compile` and `autopar inspect` show it."""
        device = self.options.device
        summary = summarize_programs(self.serial, self.deployment, self.report, device)
        return render_summary(summary)

    def plan(self) -> str:
        """Returns what was decided, as the text of a file for `plan=`; see `autopar plan`."""
        return plan_of(self)

    def profile(self, cluster: str | Cluster | None = None) -> Profile:
        """Returns what an execution costs per op, per layer and over time, without running it.

        Args:
            cluster: The hardware: a profile's name, a YAML file, or a Cluster; by default that for
                which it was compiled.

        Raises:
            InvalidInputError: If there is no such hardware.
        """
        return profile(self, cluster=cluster)
