"""Shows that a change of the compiler's structure changes nothing of what it makes.

    git worktree add --detach ../before COMMIT
    python benchmarks/same_builds.py record before.json --checkout ../before
    python benchmarks/same_builds.py record after.json
    python benchmarks/same_builds.py compare before.json after.json
    python benchmarks/same_builds.py time ../before . --only 'llama/*auto'

`record` compiles training steps of ten small models, and seven real ONNX files, for three meshes,
with presets and as search decides. Of each it notes digests of the build's files and of their text
forms, CPU seconds, what is predicted of a plan that was searched, and what is said where a preset
doesn't suit. It takes half an hour of the CPU, and goes on where it was interrupted. The texts are
kept beside the file, in `before.texts/`.

`compare` prints how many cases of each kind are equal, and the first line that differs of each that
isn't. With `--renamed TABLE`, a line `old new` for each op or field that has a new name, the texts
of the first file get the new names before. Plans that were searched may differ where they are
predicted to take as long.

`time` compiles cases with both checkouts in turn, and prints medians of the CPU seconds of search,
and of all that it takes with a preset.

Models are those of the checkout that this script is in, whichever autopar compiles them. Programs
name lines of PyTorch and of transformers, so one environment must record both sides. The seed of
Python's hashes is left to chance: builds don't depend on it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from same_builds_cases import AUTO, MANIFEST, MESHES, ROOT, Case, cases

CHILD = Path(__file__).with_name("same_builds_cases.py")
LIMIT = 1e-3
"""How far predicted seconds of plans that were searched may be apart, relatively."""

BAR, WORST_BAR = 1.02, 1.08
"""CPU seconds after a change in parts of those before: the geometric mean, and of any row."""

TIMED = {"zoo": ("fsdp+tensor", AUTO), "onnx": ("tensor", AUTO)}
SHOWN_CHARACTERS = 200

EQUAL, RENAMED, REFUSED, AS_FAST = "to the byte", "renamed", "refused alike", "as fast"
DIFFERENT, MISSING = "DIFFERENT", "MISSING"
VERDICTS = (EQUAL, RENAMED, REFUSED, AS_FAST, DIFFERENT, MISSING)


@dataclass
class Recording:
    """A file of outcomes, and the folder of texts beside it.

    Attributes:
        path: The file.
        made: By what it was made.
        outcomes: By names of cases.
    """

    path: Path
    made: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Returns what a file holds."""
        content = json.loads(path.read_text())
        return cls(path, content["made"], content["outcomes"])

    @property
    def texts(self) -> Path:
        """Where the texts are."""
        return self.path.with_suffix(".texts")

    def text(self, digest: str) -> str:
        """Returns a text."""
        return gzip.decompress((self.texts / f"{digest}.gz").read_bytes()).decode()

    def write(self) -> None:
        """Replaces the file."""
        content = {"made": self.made, "outcomes": dict(sorted(self.outcomes.items()))}
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.replace(self.path)


def made_by(checkout: Path) -> dict[str, str]:
    """Returns what builds depend on besides the models."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {"commit": commit, "python": platform.python_version(), **versions}


Ask = Callable[[Case], dict[str, Any] | None]
"""Returns what a process answers about a case; None if it has ended, and said why."""


@contextmanager
def asking(doing: str, checkout: Path, texts: Path = Path()) -> Iterator[Ask]:
    """Starts a process that runs a checkout, to ask it about cases of one model."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), doing, str(checkout), str(texts)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, told = process.stdin, process.stdout

        def ask(case: Case) -> dict[str, Any] | None:
            with suppress(BrokenPipeError):
                print(case.name, file=given, flush=True)
            line = told.readline()
            return json.loads(line) if line else None

        yield ask
        given.close()


def by_model(chosen: Iterable[Case]) -> list[list[Case]]:
    """Returns cases that one process compiles."""
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in chosen:
        groups[case.kind, case.model].append(case)
    return list(groups.values())


def record(options: argparse.Namespace) -> int:
    """Compiles what isn't known yet; returns 1 if something isn't known afterwards."""
    checkout, recording = options.checkout.resolve(), Recording(options.out.resolve())
    made = made_by(checkout)
    if recording.path.exists():
        recording = Recording.read(recording.path)
        if recording.made != made:
            raise SystemExit(f"{options.out} is of {recording.made}, not of {made}; name another")
    recording.made = made
    recording.texts.mkdir(parents=True, exist_ok=True)
    chosen = cases(options.only)
    todo = by_model(case for case in chosen if case.name not in recording.outcomes)
    lock = threading.Lock()

    def compile_group(group: list[Case]) -> None:
        with asking("record", checkout, recording.texts) as ask:
            for answer in filter(None, map(ask, group)):
                name = answer.pop("name")
                with lock:
                    recording.outcomes[name] = answer
                    recording.write()
                    print(name, *_told(answer), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(compile_group, todo))
    lost = [case.name for case in chosen if case.name not in recording.outcomes]
    if lost:
        print("not recorded:", *lost)
    return 1 if lost else 0


def _told(answer: Mapping[str, Any]) -> Iterator[str]:
    for name in ("refused", "failed"):
        if name in answer:
            yield f"{name}: {answer[name]}"[:SHOWN_CHARACTERS]
    for name, seconds in answer.get("cpu_seconds", {}).items():
        yield f"{name} {seconds:.2f} CPU s"


Renaming = Callable[[str], str]


def _pattern(name: str) -> str:
    at_start = name.startswith("^")
    return ("^" if at_start else r"(?<!\w)") + re.escape(name.removeprefix("^"))


def renaming(table: Path | None) -> Renaming | None:
    """Returns what a table does to a text, of which runs of blanks become one; None without one.

    A name behind `^` is one only where a line begins with it.
    """
    if table is None:
        return None
    lines = [line.partition("#")[0].split() for line in table.read_text().splitlines()]
    names = dict(line for line in lines if line)
    # The longest first: a name may begin with another.
    words = "|".join(map(_pattern, sorted(names, key=len, reverse=True)))
    pattern = re.compile(rf"(?:{words})(?!\w)" if words else r"(?!)", re.MULTILINE)

    def name(found: re.Match[str]) -> str:
        return names.get(found[0]) or names[f"^{found[0]}"]

    def renamed(text: str) -> str:
        return _narrow(pattern.sub(name, text))

    return renamed


@dataclass(frozen=True)
class Comparison:
    """Two recordings.

    Attributes:
        before, after: The recordings.
        renamed: What a table of names does to a text.
    """

    before: Recording
    after: Recording
    renamed: Renaming | None = None

    def judge(self, case: Case) -> tuple[str, str]:
        """Returns a verdict on a case, and its reason if that needs one."""
        pair = [each.outcomes.get(case.name) for each in (self.before, self.after)]
        old, new = pair
        if old is None or new is None:
            which = self.after if new is None else self.before
            return MISSING, f"not in {which.path.name}"
        if "files" not in old or "files" not in new:
            return self._refused(old, new)
        if case.is_searched and abs(more := apart(old, new)) > LIMIT:
            return DIFFERENT, f"{more:+.4%} predicted seconds; {self._difference(old, new)}"
        if self._is_same(old, new):
            return EQUAL, ""
        reason = self._difference(old, new)
        if self.renamed is not None and not reason:
            return RENAMED, ""
        return (AS_FAST if case.is_searched else DIFFERENT), reason

    def _refused(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str]:
        before, after = (
            each.get("refused") or each.get("failed") or "compiled" for each in (old, new)
        )
        if self.renamed is not None:
            before, after = self.renamed(before), self.renamed(after)
        return (REFUSED, "") if before == after else (DIFFERENT, _side_by_side(before, after))

    def _is_same(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        # What a manifest says but for its maker's version, digests of the other files among it.
        files = _unequal(old, new)
        return not files or (files == [MANIFEST] and old["manifest"] == new["manifest"])

    def _difference(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
        """Returns how builds begin to differ; "" if they don't, but for names."""
        renamed = self.renamed or str
        texts = {renamed(name): digest for name, digest in old["texts"].items()}
        for name in sorted(texts.keys() | new["texts"].keys()):
            if name not in texts or name not in new["texts"]:
                return f"{name} is in one build only"
            if found := self._line(texts[name], new["texts"][name]):
                return f"{name}, {found}"
        untold = {MANIFEST, *old["texts"], *new["texts"]} if self.renamed else set()
        files = [name for name in _unequal(old, new) if name not in untold]
        return f"{', '.join(files)}: other bytes, but no other text" if files else ""

    def _line(self, old: str, new: str) -> str:
        """Returns where texts of these digests begin to differ; "" if they don't."""
        if old == new:
            return ""
        before, after = self.before.text(old), self.after.text(new)
        if self.renamed is not None:
            before, after = self.renamed(before), _narrow(after)
        return first_difference(before, after)


def _narrow(text: str) -> str:
    """Returns a text without columns, which are as wide as the names in them, and empty lists.

    What lists nothing isn't there in summaries of before there was such a list.
    """
    return re.sub(" +", " ", re.sub(r'^ *"\w+": \[\],?\n', "", text, flags=re.MULTILINE))


def _unequal(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the names of files that differ, or that one build has alone."""
    one, other = old["files"], new["files"]
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def apart(old: Mapping[str, Any], new: Mapping[str, Any], key: str = "seconds") -> float:
    """Returns how much more is predicted after than before, relatively; 0 where neither is."""
    before, after = (each["predicted"][key] for each in (old, new))
    if before is None or after is None:
        return 0.0 if before == after else math.inf
    return float(after / before - 1)


def first_difference(before: str, after: str) -> str:
    """Returns where texts begin to differ; "" if they don't."""
    lines = zip_longest(before.splitlines(), after.splitlines(), fillvalue="(end)")
    for number, (old, new) in enumerate(lines, 1):
        if old != new:
            return f"line {number}: {_side_by_side(old, new)}"
    return ""


def _side_by_side(before: str, after: str) -> str:
    # From shortly before where they part: lines may be longer than what is shown.
    pairs = enumerate(zip(before, after, strict=False))
    parting = next((at for at, (old, new) in pairs if old != new), 0)
    start = max(0, parting - SHOWN_CHARACTERS // 2)
    shown = (text[start : start + SHOWN_CHARACTERS] for text in (before, after))
    return "\n      - {}\n      + {}".format(*shown)


def compare(options: argparse.Namespace) -> int:
    """Prints what is equal and what isn't; returns 1 if something isn't."""
    comparison = Comparison(
        Recording.read(options.before), Recording.read(options.after), renaming(options.renamed)
    )
    before, after = comparison.before, comparison.after
    print(f"before: {before.made}\nafter:  {after.made}")
    known = before.outcomes.keys() | after.outcomes.keys()
    chosen = [case for case in cases(options.only) if case.name in known]
    judged = {case: comparison.judge(case) for case in chosen}
    counts = Counter((case.kind, verdict) for case, (verdict, _) in judged.items())
    print(f"{'':16}{'cases':>7}" + "".join(f"{verdict:>15}" for verdict in VERDICTS))
    for kind in dict.fromkeys(case.kind for case in chosen):
        columns = [counts[kind, verdict] for verdict in VERDICTS]
        print(f"{kind:16}{sum(columns):7}" + "".join(f"{count:15}" for count in columns))
    for case, (verdict, reason) in judged.items():
        if reason:
            print(f"{case.name}: {verdict}: {reason}")
    _show_plans(comparison, [case for case in chosen if case.is_searched])
    wrong = [case for case, (verdict, _) in judged.items() if verdict in (DIFFERENT, MISSING)]
    print(f"{len(wrong)} of {len(chosen)} cases differ")
    return 1 if wrong or not chosen else 0


def _show_plans(comparison: Comparison, searched: Sequence[Case]) -> None:
    """Prints how far predictions are apart, the worst first."""
    rows = []
    for case in searched:
        pair = [each.outcomes.get(case.name, {}) for each in (comparison.before, comparison.after)]
        if all("predicted" in each for each in pair):
            seconds, bound = (apart(pair[0], pair[1], key) for key in ("seconds", "bound"))
            both = " -> ".join(f"{each['predicted']['seconds']:.6g} s" for each in pair)
            rows.append((seconds, bound, f"{case.name:40} {both}"))
    if not rows:
        return
    print(f"plans: predicted seconds after against before, limit {LIMIT:.1%}, and lower bounds")
    moved = [row for row in rows if row[0] or row[1]]
    for seconds, bound, shown in sorted(moved, reverse=True):
        print(f"{seconds:+9.4%}  {shown}, bound {bound:+.4%}")
    print(f"{len(rows) - len(moved)} of {len(rows)} have equal ones")


def time_both(options: argparse.Namespace) -> int:
    """Prints CPU seconds of two checkouts."""
    checkouts = [path.resolve() for path in (options.before, options.after)]
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    print(f"{'median CPU seconds':44}{'before':>10}{'after':>10}{'ratio':>8}")
    for group in by_model(filter(_is_timed, cases(options.only))):
        for case, (before, after) in measured_in_turn(group, checkouts, options.rounds).items():
            ratios[_measure(case)][case.name] = ratio = after / before
            columns = f"{before:10.3f}{after:10.3f}{ratio:8.3f}"
            print(f"{_measure(case):8}{case.name:36}{columns}", flush=True)
    for measure, rows in ratios.items():
        worst = max(rows, key=lambda name: rows[name])
        mean = f"geometric mean {statistics.geometric_mean(rows.values()):.3f}, bar {BAR}"
        print(f"{measure}: {mean}; worst {rows[worst]:.3f}, bar {WORST_BAR}: {worst}")
    return 0


def _is_timed(case: Case) -> bool:
    return case.mesh == MESHES[0] and case.strategy in TIMED[case.family] and not case.memory


def _measure(case: Case) -> str:
    return "search" if case.is_searched else "compile"


def measured_in_turn(
    group: Sequence[Case], checkouts: Sequence[Path], rounds: int
) -> dict[Case, list[float]]:
    """Returns the median of the CPU seconds of cases of one model, with each checkout.

    Those of a case that is refused are left out.
    """
    runs: dict[tuple[str, Path], list[float]] = defaultdict(list)
    with ExitStack() as held:
        asks = {path: held.enter_context(asking("time", path)) for path in checkouts}
        for case, _, checkout in product(group, range(rounds), checkouts):
            answer = asks[checkout](case)
            if answer is not None and "refused" not in answer:
                runs[case.name, checkout].append(_seconds(answer))
    return {
        case: [statistics.median(runs[case.name, checkout]) for checkout in checkouts]
        for case in group
        if all(runs[case.name, checkout] for checkout in checkouts)
    }


def _seconds(answer: Mapping[str, Any]) -> float:
    """Returns what is measured of a case: its search, or else all that it takes."""
    if answer["name"].endswith(f"/{AUTO}"):
        return float(answer["search"])
    return float(answer["capture"] + answer["search"] + answer["rest"])


def _parsed() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="compile the cases and note what they become")
    recording.add_argument("out", type=Path, metavar="OUT.json")
    recording.add_argument("--checkout", type=Path, default=ROOT, help="by default, the script's")
    recording.add_argument("--jobs", type=int, default=1, help="processes at once")
    recording.set_defaults(run=record)
    comparing = commands.add_parser("compare", help="compare two recordings")
    comparing.add_argument("before", type=Path, metavar="BEFORE.json")
    comparing.add_argument("after", type=Path, metavar="AFTER.json")
    comparing.add_argument("--renamed", type=Path, metavar="TABLE", help="lines `old new`")
    comparing.set_defaults(run=compare)
    timing = commands.add_parser("time", help="measure CPU seconds of two checkouts")
    timing.add_argument("before", type=Path, metavar="BEFORE_CHECKOUT")
    timing.add_argument("after", type=Path, metavar="AFTER_CHECKOUT")
    timing.add_argument("--rounds", type=int, default=5)
    timing.set_defaults(run=time_both)
    for command in (recording, comparing, timing):
        command.add_argument("--only", default="", metavar="PATTERN", help="of names of cases")
    return parser.parse_args()


def main() -> int:
    """Does what the command line says."""
    options = _parsed()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
