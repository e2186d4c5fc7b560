"""Files of traces: one per rank, as Chrome has them, and one of all ranks together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autopar.base.errors import InvalidInputError, os_reason
from autopar.base.file import write_file
from autopar.runtime.tracing.recorders import CATEGORY, COLLECTIVE, STEP, Event

_WANTED = "give a trace, as autopar run --trace or trace= in Python writes it"

_BASE = "baseTimeNanoseconds"
"""Of a file: what its times are since, in nanoseconds since 1970."""

_NAMING = ("process_name", "process_sort_index")
"""The events that name a process, and say where it is shown."""

_RANKS = 1000
"""Numbers of processes in a merged file that each rank has: 0 is its host, the others its GPUs."""


def path_of_rank(trace: Path, rank: int) -> Path:
    """Returns where a rank writes what is merged into a trace."""
    return trace.with_name(f"{trace.name}.ranks") / f"rank{rank}.json"


def write_rank(
    trace: Path, rank: int, size: int, name: str, base: int, events: Iterable[Event]
) -> None:
    """Writes the trace of one rank.

    Args:
        trace: Where the trace of all ranks will be.
        rank: The rank.
        size: How many there are.
        name: What the rank is called.
        base: What times are since, in nanoseconds since 1970 by the clock of rank 0.
        events: What happened.

    Raises:
        InvalidInputError: If the file can't be written.
    """
    path = path_of_rank(trace, rank)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "distributedInfo": {"rank": rank, "world_size": size},
        "name": name,
        _BASE: base,
    }
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error
    write_file(path, _json(head, events))


def merge_ranks(trace: Path, ranks: Sequence[int]) -> None:
    """Writes the trace of all ranks.

    Args:
        trace: Where to.
        ranks: Those whose files there are.

    Raises:
        InvalidInputError: If a file can't be read or written.
    """
    found = {rank: read_trace(path_of_rank(trace, rank)) for rank in ranks}
    base = min((int(each.get(_BASE, 0)) for each in found.values()), default=0)
    events = (event for rank, each in found.items() for event in _merged(rank, each, base))
    write_file(trace, _json({"displayTimeUnit": "ms", _BASE: base}, events))


def read_trace(path: Path) -> Mapping[str, Any]:
    """Returns the content of a file in Chrome's format.

    Raises:
        InvalidInputError: If there is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"can't read {path}: {os_reason(error)}") from error
    except ValueError as error:
        raise InvalidInputError(f"{path} is no JSON; {_WANTED}") from error
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise InvalidInputError(f"{path} has no list traceEvents; {_WANTED}")
    return found


def rank_of(event: Event) -> int:
    """Returns the rank of which an event of a merged file is."""
    return int(event["pid"]) // _RANKS


def own_events(found: Mapping[str, Any]) -> Iterator[Event]:
    """Yields the events of a trace that are ours, of ops and calls; others may be anything."""
    for event in found["traceEvents"]:
        if not isinstance(event, dict) or event.get("cat") not in (CATEGORY, COLLECTIVE, STEP):
            continue
        has_numbers = all(isinstance(event.get(key), int | float) for key in ("pid", "dur"))
        if has_numbers and isinstance(event.get("args"), dict):
            yield event


def _json(head: Mapping[str, Any], events: Iterable[Event]) -> Iterator[str]:
    yield json.dumps(head)[:-1] + ', "traceEvents": ['
    for number, event in enumerate(events):
        yield f"{',' if number else ''}\n{json.dumps(event)}"
    yield "\n]}\n"


def _merged(rank: int, found: Mapping[str, Any], base: int) -> Iterator[Event]:
    """Returns the events of a rank as those of processes of its own, since the common base."""
    later = (int(found.get(_BASE, 0)) - base) / 1000
    pids: dict[Any, int] = {}
    for event in found["traceEvents"]:
        pid = pids.setdefault(event.get("pid"), rank * _RANKS + len(pids))
        moved = {**event, "pid": pid}
        if "ts" in event:
            moved["ts"] = event["ts"] + later
        if "id" in event:
            moved["id"] = f"{rank}.{event['id']}"
        if event.get("ph") != "M" or event.get("name") not in (
            "process_name",
            "process_sort_index",
        ):
            yield moved
    for given, pid in pids.items():
        name = found.get("name", f"rank {rank}")
        where = "" if pid == rank * _RANKS else f", {given}"
        yield _about(pid, "process_name", name=f"{name}{where}")
        yield _about(pid, "process_sort_index", sort_index=pid)


def _about(pid: int, what: str, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": 0, "args": args}
