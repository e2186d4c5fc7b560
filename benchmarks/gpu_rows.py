"""The rows of the table that `gpu.py` prints; what isn't known is a dash."""

from __future__ import annotations

from collections.abc import Mapping


def row(name: str, found: Mapping[str, float], why: str) -> str:
    """Returns the row of a model."""
    columns = ("torch ms", "ms", "predicted ms", "torch MiB", "MiB", "predicted MiB")
    cells = [f"{found[each]:>10.1f}" if each in found else f"{'-':>10}" for each in columns]
    cells[2:2] = [_ratio(found, "ms", "torch ms")]
    return f"{name:8}{''.join(cells)}{f'  {why}' if why else ''}"


def _ratio(found: Mapping[str, float], one: str, other: str) -> str:
    both = one in found and other in found
    return f"{found[one] / found[other]:>8.3f}" if both else f"{'-':>8}"


def head_row(parts: int, found: Mapping[str, float], whole: Mapping[str, float], why: str) -> str:
    """Returns the row of a head in parts."""
    cells = [f"{parts:>3} parts"]
    for each in ("MiB", "ms"):
        known = each in found and each in whole
        cells += [f"{found[each]:>10.1f}" if each in found else f"{'-':>10}"]
        cells += [f"{found[each] / whole[each]:>8.3f}" if known else f"{'-':>8}"]
    return "".join(cells) + (f"  {why}" if why else "")
