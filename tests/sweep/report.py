"""Writes what became of each model type and family: totals, reasons, and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from tests.sweep.child import Record
from tests.sweep.families import left_out
from tests.sweep.judge import CHECKS, RIGHT
from tests.sweep.state import FAMILIES, TYPES, State

OUTCOMES = (
    *(*RIGHT, "undivided", "unsteady", "refused", "inconsistent"),
    *("wrong", "crash", "ended", "unbuilt"),
)
"""From what is best to what is worst known."""

_START = """\
# Models that are tried

`python -m tests.sweep --report docs/models.md` writes this page; `make test-zoo-wide` first runs
what isn't known yet.

Every model type of transformers {version} is listed, in an order that is drawn once. Each is built
from its library's default configuration, made small in sizes only, and judged in float64; of a type
that is always a part of another one, that; of one without a forward that takes tensors, as where
`generate` runs its parts, the largest part that has one. Where a default lacks what the model needs
to run, `tests/sweep/known` says what it is given. What a model computes in float32 by itself, as
norms, is computed in float64 too.

* `fsdp`: 3 steps of AdamW on 2x2 with `fsdp:a,tensor:b`, losses and parameters against eager
  PyTorch, with all probabilities of dropping or masking something set to zero. `3x2`: the same on
  3x2. `auto`: on 2x2, searched for. `pin`: the same with one random pin.
* `drawn`: as `fsdp`, with the library's probabilities, against autopar on one rank: PyTorch draws
  other numbers. So is what draws something whatever the probabilities are, in inference too.
* `inference`: on 2x2, searched for, in evaluation mode, against eager PyTorch.

Right is within 1e-9 of the largest element, or of 1 where that is less. *Undivided*: right, but
`fsdp:a,tensor:b` leaves half of the flops or more whole along one of the axes; the part is in the
table, if it is over 10%. *Unsteady*: off by more, but so is PyTorch where weights are off by
rounding, since AdamW makes full steps of gradients that are as small as rounding; each gradient of
a step is right, or off by no more than 10 times what it is off by in PyTorch then. *Steadied*: it
would be unsteady, but 3 steps of an AdamW that doesn't do that, with an `eps` of 1e-3, are right.
*Refused*: by an error that says why. *Inconsistent*: other than eager PyTorch, and so is what
torch.export makes of the model: its code goes another way where it is traced. *Unbuilt*: sizes or
inputs that fit weren't found here, which says nothing about the model. *Ended*: by the limits of
memory and time of its process. The loss is the model's own, or the mean of its outputs' squares
(marked \\*). Searches end after 15 seconds.
"""


_FAMILIES = """\
# Families of timm and torchvision

Judged with {version}.

The families that differ most from one another were listed before any was compiled (s3d was left
out later), each by one of its smallest models, made small in sizes only. They are trained in
training mode with their own losses where they have some, as detectors; else with the cross
entropy of what they return, or the mean of its squares (marked \\*). In detectors' own losses and
in what they detect, shapes depend on data; `_parts` are everything that they learn, without the
choice among what is found.
"""


def render(state: State) -> str:
    """Returns the text of the page."""
    parts = [_START.format(version=state.versions[TYPES]), *_section(state, TYPES, "model type")]
    if FAMILIES in state.listed:
        parts += [
            _FAMILIES.format(version=state.versions[FAMILIES]),
            *_section(state, FAMILIES, "family"),
        ]
    parts += ["# Families left out\n", _left_out()]
    return "\n".join(parts)


def _section(state: State, source: str, noun: str) -> list[str]:
    """Returns totals, reasons, and a table of everything that there is of a source."""
    known = {each: state.of(each) for each in state.listed[source]}
    tried = {name: found for name, found in known.items() if found}
    built = {name: found for name, found in tried.items() if "built" in found.get("", {})}
    nouns = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return [
        f"{len(known)} {nouns} are listed, {len(tried)} were tried, {len(built)} were built.\n",
        _totals(built),
        f"## Reasons of {nouns}\n",
        _reasons(tried, nouns),
        f"## {nouns.capitalize()}\n",
        _table(tried, noun),
        f"## {nouns.capitalize()} not tried yet\n",
        (", ".join(sorted(set(known) - set(tried))) or "None.") + "\n",
    ]


def _left_out() -> str:
    lines = ["| library | families | because |", "|---|---|---|"]
    lines += [
        f"| {each.library} | {', '.join(each.families)} | {each.because} |" for each in left_out()
    ]
    return "\n".join(lines) + "\n"


def _totals(built: Mapping[str, Mapping[str, Record]]) -> str:
    lines = [
        "| check | judged | " + " | ".join(OUTCOMES) + " |",
        "|---" * (2 + len(OUTCOMES)) + "|",
    ]
    for check in CHECKS:
        found = Counter(each[check]["outcome"] for each in built.values() if check in each)
        counts = " | ".join(str(found[outcome]) for outcome in OUTCOMES)
        lines.append(f"| {check} | {found.total()} | {counts} |")
    return "\n".join(lines) + "\n"


def _reasons(tried: Mapping[str, Mapping[str, Record]], nouns: str) -> str:
    models: dict[tuple[str, str], dict[str, str]] = {}
    for name, found in tried.items():
        for record in found.values():
            if record.get("outcome") not in (None, *RIGHT):
                key = (record["outcome"], general(record.get("reason", "")))
                models.setdefault(key, {})[name] = record.get("reason", "")
    lines = [f"| outcome | {nouns} | reason, of one of them |", "|---|---|---|"]
    for (outcome, _), found in sorted(models.items(), key=lambda each: (each[0][0], -len(each[1]))):
        name, reason = next(iter(found.items()))
        lines.append(f"| {outcome} | {len(found)} | {name}: {_cell(reason)} |")
    return "\n".join(lines) + "\n"


def general(reason: str) -> str:
    """Returns a reason without what differs between models: places, names, and numbers."""
    reason = re.sub(r"^\S+\.py:\d+: ", "", reason)
    reason = re.sub(r"\d[\d.e+-]*", "#", reason)
    return re.sub(r"'[^']*'|\b\w+\.\w[\w.]*\b", "_", reason)[:120]


def _table(tried: Mapping[str, Mapping[str, Record]], noun: str) -> str:
    lines = [
        f"| {noun} | class | ops | undivided | largest error | seconds | "
        + " | ".join(CHECKS)
        + " |",
        "|---" * (6 + len(CHECKS)) + "|",
    ]
    lines += [_row(name, found) for name, found in sorted(tried.items())]
    return "\n".join(lines) + "\n"


def _row(name: str, found: Mapping[str, Record]) -> str:
    built = found.get("", {})
    checks = [found[each] for each in CHECKS if each in found]
    fsdp = found.get("fsdp", {})
    divided = f"{fsdp['undivided']:.0%}" if "undivided" in fsdp else ""
    errors = [each["error"] for each in checks if "error" in each]
    kind = built.get("built", "unbuilt") + ("\\*" if built.get("loss") == "made up" else "")
    cells = [
        name,
        kind,
        str(fsdp.get("ops", "")),
        divided,
        f"{max(errors):.0e}" if errors else "",
        f"{sum(each.get('seconds', 0) for each in checks):.0f}",
        *(found.get(each, {}).get("outcome", "") for each in CHECKS),
    ]
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/").replace("<", "&lt;")[:220]
