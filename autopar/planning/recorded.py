"""What a build remembers of its compilation: enough to ask afterwards what else could have been.

strategy: "data:0,tensor:1"
cluster:
  name: "h100"
  ...
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from textwrap import indent

from autopar.cost import Cluster
from autopar.cost.cluster_file import cluster_text, parse_cluster
from autopar.ir.build import OPTIONS, Build
from autopar.ir.errors import InvalidInputError


@dataclass(frozen=True)
class Recorded:
    """Options that decide how a program is completed.

    Attributes:
        cluster: The hardware whose costs decided.
        strategy: Presets, as `CompileOptions` has them.
        memory_bytes: What a device may hold at once; None for any number.
    """

    cluster: Cluster
    strategy: str | None
    memory_bytes: int | None = None

    def text(self) -> str:
        """Returns the options as YAML."""
        lines = [
            f"strategy: {json.dumps(self.strategy)}",
            f"memory_bytes: {json.dumps(self.memory_bytes)}",
            "cluster:",
        ]
        return "\n".join(lines) + "\n" + indent(cluster_text(self.cluster), "  ")

    @classmethod
    def of(cls, build: Build) -> Recorded:
        """Returns what a build remembers.

        Raises:
            InvalidInputError: If it remembers nothing, since an older autopar wrote it.
        """
        import yaml

        if not build.options:
            raise InvalidInputError(
                f"{build.path} has no {OPTIONS}, since an older autopar compiled it; compile the"
                " model again"
            )
        content = yaml.safe_load(build.options)
        cluster = parse_cluster(content["cluster"], f"{build.path / OPTIONS}")
        return cls(cluster, content["strategy"], content.get("memory_bytes"))
