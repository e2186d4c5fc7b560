"""Who differs: what ranks say of themselves when they turn out not to agree, and what follows.

Every rank reports, and one looks at all reports. Where it takes more to know whether floats differ
by rounding only, it asks for sketches, one of each version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import torch

from autopar.runtime.agree.sketch import Sketch, differ_by_rounding

_T = TypeVar("_T")

SHOWN = 8
"""Ranks, or values, that a message lists."""

SHAPES = "shapes"
CALL = "call"
MODULE = "module"
LOCAL = "local"
METHOD = "method"

SAME_CALLS = "every rank makes the same calls (step, fetched, state_dict, ...) in the same order"

GLOBAL_BATCH = (
    "every rank needs the global batch, so leave DistributedSampler out; to hand over only each"
    " rank's part of it, pass local=True"
)

SAME_CONTENTS = (
    "every rank needs the same weights: give all of them one file, or up-to-date copies of it, and"
    " seed all alike (torch.manual_seed) before a model is made"
)

TURN_OFF = "check_inputs=False turns the comparison off"

SAME_PART = (
    "with local=True a rank brings what its program reads of the batch, and these ranks read the"
    " same: no input is split along a mesh axis between them; give them the same, or compile with a"
    " strategy or pins that split the batch"
)


@dataclass(frozen=True)
class Report:
    """What a rank has to say of itself.

    Attributes:
        refused: Why it can't go on; empty if it can.
        values: What must be the same on all ranks, by name.
        peers: The first of the ranks that must bring the same tensors.
        digests: Of its tensors, by label.
        dtypes: Of its tensors, as torch calls them.
        call: The call that it can't go on with; by default one with a batch.
        contents: What tensors hold that must be the same on all ranks, by label.
    """

    refused: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    peers: int = 0
    digests: Mapping[str, int] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    call: str = ""
    contents: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Returns the report as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Report:
        """Returns the report that `to_text` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Ruling:
    """What follows from reports, or from sketches.

    Attributes:
        refusal: Why no rank can go on; empty if all can.
        versions: By label, a rank for each version of a tensor whose sketch is asked for.
        warning: What there is to warn of.
    """

    refusal: str = ""
    versions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    warning: str = ""

    def to_text(self) -> str:
        """Returns the ruling as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Ruling:
        """Returns the ruling that `to_text` wrote."""
        return cls(**json.loads(text))


def rule_on_reports(reports: Sequence[Report]) -> Ruling:
    """Returns what follows from the reports of all ranks."""
    for rank, each in enumerate(reports):
        if each.refused:
            what = f"refused {each.call}" if each.call else "was given a wrong batch"
            return Ruling(f"{_ranks([rank])} {what}: {each.refused}")
    for name in reports[0].values:
        found = _by_version(dict(enumerate(each.values.get(name, "") for each in reports)))
        if len(found) > 1:
            # What a call is given, and not what a step depends on.
            usual = _argument if reports[0].call else _plain
            return Ruling(_TEXTS.get(name, usual)(name, found))
    if loaded := _loaded(reports):
        return Ruling(_contents(reports[0].call, loaded))
    dtypes = _dtypes(reports)
    differing = {label: groups for label in dtypes if (groups := _differing(reports, label))}
    inexact = {
        label: sorted(ranks[0] for versions in groups for ranks in versions.values())
        for label, groups in differing.items()
        if dtypes[label].is_floating_point
    }
    if inexact.keys() < differing.keys():
        exact = {label: each for label, each in differing.items() if label not in inexact}
        return Ruling(_batches(exact, _brings_parts(reports)))
    return Ruling(versions=inexact)


def rule_on_sketches(
    reports: Sequence[Report], sketches: Mapping[int, Mapping[str, Sketch]]
) -> Ruling:
    """Returns what follows from the sketches that were asked for.

    Args:
        reports: Of all ranks.
        sketches: By rank and label.
    """
    rounded: set[int] = set()
    apart: dict[str, list[dict[int, list[int]]]] = {}
    dtypes = _dtypes(reports)
    labels = dict.fromkeys(label for each in sketches.values() for label in each)
    for label in labels:
        for versions in _differing(reports, label):
            usual, *others = versions.values()
            one = sketches[usual[0]][label]
            if all(
                differ_by_rounding(one, sketches[ranks[0]][label], dtypes[label])
                for ranks in others
            ):
                rounded.update(rank for ranks in others for rank in ranks)
            else:
                apart.setdefault(label, []).append(versions)
    if apart:
        return Ruling(_batches(apart, _brings_parts(reports)))
    return Ruling(
        warning=f"{', '.join(labels)}: what {_ranks(sorted(rounded))} brought differs from what the"
        " other ranks brought, by rounding only; each rank goes on with its own, and floats are"
        " compared in every 20th call from now on"
    )


def _dtypes(reports: Sequence[Report]) -> dict[str, torch.dtype]:
    return {label: getattr(torch, name) for each in reports for label, name in each.dtypes.items()}


def _differing(reports: Sequence[Report], label: str) -> list[dict[int, list[int]]]:
    """Returns, for ranks that must bring the same, the ranks of each version; the usual first."""
    peers: dict[int, dict[int, int]] = {}
    for rank, each in enumerate(reports):
        if label in each.digests:
            peers.setdefault(each.peers, {})[rank] = each.digests[label]
    found = [_by_version(digests) for digests in peers.values()]
    return [each for each in found if len(each) > 1]


def _by_version(versions: Mapping[int, _T]) -> dict[_T, list[int]]:
    """Returns the ranks of each version, the version of most ranks first."""
    found: dict[_T, list[int]] = {}
    for rank, version in versions.items():
        found.setdefault(version, []).append(rank)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def _brings_parts(reports: Sequence[Report]) -> bool:
    return reports[0].values.get(LOCAL) == str(True)


def _loaded(reports: Sequence[Report]) -> dict[str, list[dict[str, list[int]]]]:
    """Returns the ranks of each version of the contents that differ, by label; see `_differing`."""
    found: dict[str, list[dict[str, list[int]]]] = {}
    for label in reports[0].contents:
        given = {rank: each.contents.get(label, "") for rank, each in enumerate(reports)}
        if len(versions := _by_version(given)) > 1:
            found[label] = [versions]
    return found


def _contents(call: str, differing: Mapping[str, Sequence[Mapping[str, Sequence[int]]]]) -> str:
    return (
        f"{call}: the ranks were given different contents: {_said(differing)}; nothing is loaded;"
        f" {SAME_CONTENTS}; {TURN_OFF}"
    )


def _batches(differing: Mapping[str, Sequence[Mapping[int, Sequence[int]]]], in_parts: bool) -> str:
    return (
        f"the ranks were given different batches: {_said(differing)};"
        f" {SAME_PART if in_parts else GLOBAL_BATCH}; {TURN_OFF}"
    )


def _said(differing: Mapping[str, Sequence[Mapping[_T, Sequence[int]]]]) -> str:
    """Returns what differs, and on which ranks."""
    label, groups = next(iter(differing.items()))
    names = [*differing][1:SHOWN]
    rest = len(differing) - 1 - len(names)
    more = f", and {', '.join(names)}" if names else ""
    more += f" and {rest} more" if rest else ""
    usual, *others = groups[0].values()
    odd = sorted(rank for ranks in others for rank in ranks)
    if len(usual) > 1:
        return f"{label!r} of {_ranks(odd)} is not what the other ranks have{more}"
    return f"{label!r} is not the same on {_ranks(sorted([*usual, *odd]))}{more}"


def _plain(name: str, found: Mapping[str, Sequence[int]]) -> str:
    return (
        f"the ranks differ: {name} is {_listed(found)}; every rank must be given the same,"
        " or random numbers and parameters drift apart"
    )


def _argument(name: str, found: Mapping[str, Sequence[int]]) -> str:
    return f"the ranks differ: {name} is {_listed(found)}; give every rank the same {name}="


def _shapes(_: str, found: Mapping[str, Sequence[int]]) -> str:
    return (
        f"the ranks were given batches of different shapes: {' and '.join([*found][:SHOWN])};"
        " every rank needs the global batch, or its part of it"
    )


def _local(_: str, found: Mapping[str, Sequence[int]]) -> str:
    return f"local= is {_listed(found)}; all ranks bring the global batch, or all bring parts"


def _calls(_: str, found: Mapping[str, Sequence[int]]) -> str:
    listed = "; ".join(f"{_ranks(ranks)}: {call}" for call, ranks in _first_first(found))
    return (
        f"the ranks call the module differently: {listed}; every rank has to call it with the"
        " global batch, in the same mode"
    )


def _modules(_: str, found: Mapping[str, Sequence[int]]) -> str:
    del found
    return (
        "the ranks have different modules: of some parts, or parameters, one rank has more"
        " than another, or has them in another mode; every rank must build the same model"
    )


def _methods(_: str, found: Mapping[str, Sequence[int]]) -> str:
    return f"the ranks make different calls: {_listed(found)}; {SAME_CALLS}"


_TEXTS: Mapping[str, Callable[[str, Mapping[str, Sequence[int]]], str]] = {
    SHAPES: _shapes,
    LOCAL: _local,
    CALL: _calls,
    MODULE: _modules,
    METHOD: _methods,
}


def _listed(found: Mapping[str, Sequence[int]]) -> str:
    return " and ".join(f"{value} on {_ranks(ranks)}" for value, ranks in _first_first(found))


def _first_first(found: Mapping[str, Sequence[int]]) -> list[tuple[str, Sequence[int]]]:
    return sorted(found.items(), key=lambda each: each[1][0])[:SHOWN]


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:SHOWN]))}{more}"
