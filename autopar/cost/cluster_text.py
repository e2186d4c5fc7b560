"""A cluster as the YAML that describes it (see `cluster`)."""

from __future__ import annotations

import json

from autopar.cost.cluster import Cluster
from autopar.cost.links import TOPOLOGIES
from autopar.cost.rates import OpRate
from autopar.ir.devices import CPU


def cluster_text(cluster: Cluster) -> str:
    """Returns a cluster as the YAML that describes it; `Cluster.load` reads an equal one."""
    lines = [
        f"name: {_scalar(cluster.name)}",
        f"device: {_scalar(cluster.device)}",
        *([f"device_type: {cluster.device_type}"] if cluster.device_type != CPU else []),
        f"memory_bytes: {cluster.memory_bytes}",
        f"memory_bytes_per_second: {cluster.memory_bytes_per_second!r}",
        "flops_per_second:",
        *(f"  {dtype}: {flops!r}" for dtype, flops in cluster.flops_per_second),
        f"compute_efficiency: {cluster.compute_efficiency!r}",
        f"memory_efficiency: {cluster.memory_efficiency!r}",
    ]
    if cluster.launch_seconds:
        lines.append(f"launch_seconds: {cluster.launch_seconds!r}")
    if (link := cluster.host_link) is not None:
        lines.append(
            f"host_link: {{name: {_scalar(link.name)}, alpha_seconds: {link.alpha_seconds!r},"
            f" beta_seconds_per_byte: {link.beta_seconds_per_byte!r}}}"
        )
    if (host := cluster.host_memory_bytes_per_second) is not None:
        lines.append(f"host_memory_bytes_per_second: {host!r}")
    lines += ["op_rates:"] if cluster.op_rates else []
    lines += [f"  - {_op_rate(each)}" for each in cluster.op_rates]
    if (fresh := cluster.fresh_memory) is not None:
        lines.append(
            f"fresh_memory: {{above_bytes: {fresh.above_bytes!r},"
            f" seconds_per_byte: {fresh.seconds_per_byte!r}}}"
        )
    lines.append("links:")
    for level in cluster.links:
        lines += [
            f"  - name: {_scalar(level.name)}",
            f"    size: {level.size}",
            f"    alpha_seconds: {level.alpha_seconds!r}",
            f"    beta_seconds_per_byte: {level.beta_seconds_per_byte!r}",
        ]
        if level.topology != TOPOLOGIES[0]:
            lines.append(f"    topology: {level.topology}")
        lines += ["    collectives:"] if level.collectives else []
        lines += [
            f"      {each.kind}: {{alpha_seconds: {each.alpha_seconds!r},"
            f" beta_seconds_per_byte: {each.beta_seconds_per_byte!r}}}"
            for each in level.collectives
        ]
    return "\n".join(lines) + "\n"


def _op_rate(rate: OpRate) -> str:
    """Returns a measured family as a YAML mapping."""
    fields = [f"family: {rate.family}"]
    fields += [f"dtype: {rate.dtype}"] if rate.dtype else []
    fields += [f"intensity: {rate.intensity!r}"] if rate.intensity != 1.0 else []
    rates = ", ".join(f"[{work!r}, {each!r}]" for work, each in rate.rates)
    return f"{{{', '.join(fields)}, rates: [{rates}]}}"


def _scalar(text: str) -> str:
    """Returns a text as YAML: every JSON text is one."""
    return json.dumps(text, ensure_ascii=False)
