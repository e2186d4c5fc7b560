"""Validates every rule on every sample, looks for splits that rules lack, and writes both down.

    python -m tests.ops.validate [--jobs N] [--write docs/op-coverage.md] [KIND ...]

Exits with 1 if a rule is wrong, or lacks a split for no stated reason.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from autopar.ir.ops import RULES
from autopar.ir.program import refs
from autopar.ir.rules.rule import Rule
from tests.ops.brute_force import Strategy, missing_strategies, valid_strategies
from tests.ops.child import in_child
from tests.ops.coverage_page import write_page
from tests.ops.harvest import harvest
from tests.ops.missing import reason_for, stated
from tests.ops.sample import Sample
from tests.ops.samples import NOT_RUN, samples_by_kind
from tests.ops.split_run_combine import check_body, check_linear, check_splits


@dataclass
class Finding:
    """What there is to say about an op.

    Attributes:
        kind: The op.
        rule: Its rule for one of the samples; "" if none has one.
        linear: The arguments that may be pending, as text.
        bodies: Names of the bodies.
        samples: How many samples were run.
        validated: How many of them have a rule, and it is right.
        wrong: What is wrong with rules.
        splits: How many valid splits brute force found.
        missing: Splits that rules lack, each once.
        missing_count: How many splits rules lack, counted per sample as `splits` is.
        pending: Ways to be pending that rules lack: valid in all samples, of at least two.
    """

    kind: str
    rule: str = ""
    linear: str = ""
    bodies: tuple[str, ...] = ()
    samples: int = 0
    validated: int = 0
    wrong: list[str] = field(default_factory=list)
    splits: int = 0
    missing: list[str] = field(default_factory=list)
    missing_count: int = 0
    pending: list[str] = field(default_factory=list)

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Why splits are missing -> which are; those of which nobody says why at ""."""
        found: dict[str, list[str]] = {}
        for split in self.missing:
            found.setdefault(reason_for(self.kind, split), []).append(split)
        return found

    @property
    def unexplained(self) -> list[str]:
        """The missing splits of which nobody says why."""
        return self.reasons.get("", [])

    @property
    def outdated(self) -> list[str]:
        """The splits of which somebody says why they are missing, and which aren't."""
        return [split for split in stated(self.kind) if split not in self.missing]


def all_samples(harvested: bool = True) -> dict[str, list[Sample]]:
    """Returns the samples of every op that is the same whenever it runs.

    Args:
        harvested: Whether the calls of PyTorch's operator database are among them.
    """
    found = {kind: list(samples) for kind, samples in harvest().items()} if harvested else {}
    for kind, samples in samples_by_kind().items():
        found.setdefault(kind, []).extend(samples)
    return {kind: found[kind] for kind in sorted(found) if _is_repeatable(kind)}


def _is_repeatable(kind: str) -> bool:
    if kind in NOT_RUN:
        return False
    name, _, overload = kind.removeprefix("aten.").partition(".")
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    return found is None or torch.Tag.nondeterministic_seeded not in found.tags


def validate(kind: str, samples: Sequence[Sample]) -> Finding:
    """Checks the rule of an op on samples, and looks for what it lacks.

    In a child process, and if that dies of what brute force tries, each trial in one of its own.
    """
    try:
        found = in_child(partial(_validate, kind, samples))
    except RuntimeError:
        found = None
    try:
        return found or _validate(kind, samples, guarded=True)
    except Exception as error:
        return Finding(kind, samples=len(samples), wrong=[f"{kind}: {error}"])


def _validate(kind: str, samples: Sequence[Sample], guarded: bool = False) -> Finding:
    found = Finding(kind, samples=len(samples))
    pending: list[tuple[Sample, list[Strategy], list[Strategy]]] = []
    for sample in samples:
        rule = sample.rule if sample.has_rule else None
        if rule is not None:
            _describe(found, sample, rule)
            _check(found, sample, rule)
        valid = valid_strategies(sample, guarded=guarded)
        missing = missing_strategies(sample, valid)
        lacking = [strategy for strategy in missing if strategy.is_split]
        found.splits += sum(1 for strategy in valid if strategy.is_split)
        found.missing_count += len(lacking)
        found.missing.extend(str(strategy) for strategy in lacking)
        pending.append((sample, valid, missing))
    found.missing = list(dict.fromkeys(found.missing))
    found.pending = _lacking_pending(pending)
    return found


def _describe(found: Finding, sample: Sample, rule: Rule) -> None:
    """Keeps the rule of the first sample that has one."""
    if found.rule:
        return
    owners = [name for name, arg in sample.ir_args.items() for _ in refs(arg)]
    rows = (" + ".join(owners[at] for at in sorted(row.operands)) for row in rule.linear)
    found.rule = str(rule)
    found.linear = ", ".join(dict.fromkeys(rows))
    found.bodies = tuple(body.name for body in rule.bodies)


def _check(found: Finding, sample: Sample, rule: Rule) -> None:
    checks: list[Callable[[], None]] = [lambda: check_splits(sample, rule)]
    checks.extend(lambda row=row: check_linear(sample, rule, row) for row in rule.linear)  # type: ignore[misc]
    checks.append(lambda: check_body(sample, rule))
    try:
        for check in checks:
            check()
    except Exception as error:
        found.wrong.append(f"{sample}: {error}")
    else:
        found.validated += 1


def _lacking_pending(
    found: Sequence[tuple[Sample, list[Strategy], list[Strategy]]],
) -> list[str]:
    """Returns the ways to be pending that are valid in all samples of a form, of at least two.

    In a single one they may be so by chance: the largest of some numbers is that of their cubes.
    """
    forms: dict[int, list[tuple[list[Strategy], list[Strategy]]]] = {}
    for sample, valid, missing in found:
        forms.setdefault(len(sample.tensors), []).append((valid, missing))
    lacking: dict[str, None] = {}
    for results in forms.values():
        everywhere = set.intersection(*({_same_monoid(s) for s in valid} for valid, _ in results))
        anywhere = {_same_monoid(s) for _, missing in results for s in missing if not s.is_split}
        if len(results) > 1:
            lacking.update(dict.fromkeys(sorted((everywhere & anywhere) - {""})))
    return list(lacking)


def _same_monoid(strategy: Strategy) -> str:
    """Returns a strategy as text if one monoid is pending before and after the op, else ""."""
    monoids = {place for place in strategy.operands if isinstance(place, str)}
    if len(monoids) != 1 or not all(places & (monoids | {None}) for places in strategy.results):
        return ""
    (monoid,) = monoids
    marks = (monoid if monoid in places else "whole" for places in strategy.results)
    before = (place or "whole" for place in strategy.operands)
    return f"{', '.join(map(str, before))} -> {', '.join(marks)}"


def findings(samples: Mapping[str, Sequence[Sample]], jobs: int) -> Iterator[Finding]:
    """Yields what there is to say about each op, in the order of `samples`."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(validate, samples, samples.values())


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="ops, or patterns like aten.m*")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = {
        kind: samples
        for kind, samples in all_samples().items()
        if not options.kinds or any(fnmatch.fnmatch(kind, glob) for glob in options.kinds)
    }
    found = []
    for finding in findings(chosen, options.jobs):
        found.append(finding)
        _print(finding)
        if len(found) % 50 == 0:
            print(f"{len(found)} of {len(chosen)} ops", flush=True)
    without_sample = sorted(set(RULES) - set(chosen)) if not options.kinds else []
    if options.write is not None:
        options.write.write_text(write_page(found, without_sample))
    return _conclude(found)


def _print(finding: Finding) -> None:
    for text in finding.wrong:
        print(f"WRONG {text}")
    for text in finding.unexplained:
        print(f"missing {finding.kind}: {text}")
    for text in finding.outdated:
        print(f"there after all {finding.kind}: {text}")


def _conclude(found: Sequence[Finding]) -> int:
    splits = sum(finding.splits for finding in found)
    missing = sum(finding.missing_count for finding in found)
    wrong = sum(len(finding.wrong) for finding in found)
    unexplained = sum(len(finding.unexplained) for finding in found)
    print(
        f"{len(found)} ops, {sum(finding.samples for finding in found)} samples,"
        f" {wrong} on which a rule is wrong; {splits - missing} of {splits} valid splits are in"
        f" the rules ({100 * (splits - missing) / max(1, splits):.1f}%); {unexplained} are missing"
        " for no stated reason"
    )
    return 1 if wrong or unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
