"""Puts load on examples/serve.py, and says how many requests it answers and how fast.

    python examples/serve_load.py --callers 8 --seconds 10

Every caller sends sentences of random lengths over one connection, the next when it has the answer
to the last. Ends with exit code 1 if a request failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import numpy as np

WORDS = ["where", "does", "the", "next", "train", "to", "a", "city", "by", "the", "sea", "leave"]
PATIENCE = 60.0
"""Seconds after which a request without an answer has failed."""


@dataclass
class Answers:
    """What became of requests.

    Attributes:
        seconds: What each that was answered took.
        failures: Why others failed, and how often.
    """

    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


def main() -> None:
    """Calls, and prints what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--address", default="127.0.0.1:8000")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--words", type=int, default=60, help="of the longest sentence")
    parser.add_argument("--sentences", type=int, default=1, help="of a request")
    options = parser.parse_args()

    started = time.perf_counter()
    with ThreadPoolExecutor(options.callers) as callers:
        found = list(callers.map(lambda seed: call(options, seed), range(options.callers)))
    print_answers(found, time.perf_counter() - started)
    if any(answers.failures for answers in found):
        sys.exit(1)


def call(options: argparse.Namespace, seed: int) -> Answers:
    """Sends requests until the time is over, or one fails.

    Args:
        options: Those of the command line.
        seed: What the sentences depend on.
    """
    answers, choose = Answers(), random.Random(seed)
    connection = HTTPConnection(options.address, timeout=PATIENCE)
    ends = time.perf_counter() + options.seconds
    while time.perf_counter() < ends and not answers.failures:
        sentences = [sentence(choose, options.words) for _ in range(options.sentences)]
        started = time.perf_counter()
        failure = send(connection, sentences)
        if failure:
            answers.failures[failure] += 1
        else:
            answers.seconds.append(time.perf_counter() - started)
    connection.close()
    return answers


def sentence(choose: random.Random, longest: int) -> str:
    """Returns a sentence of 1 to `longest` words."""
    return " ".join(choose.choices(WORDS, k=choose.randint(1, longest)))


def send(connection: HTTPConnection, sentences: list[str]) -> str:
    """Sends a request, reads the answer, and returns why it failed; empty if it didn't."""
    try:
        connection.request("POST", "/embed", json.dumps({"sentences": sentences}))
        response = connection.getresponse()
        answer = response.read()
    except (OSError, HTTPException) as error:
        return f"{connection.host}:{connection.port}: {error or type(error).__name__}"
    if response.status != 200:
        return f"{response.status}: {answer.decode(errors='replace')}"
    count = len(json.loads(answer)["vectors"])
    return "" if count == len(sentences) else f"{count} vectors of {len(sentences)} sentences"


def print_answers(found: Iterable[Answers], seconds: float) -> None:
    """Prints how many requests were answered, how fast, and why others weren't."""
    taken = [each for answers in found for each in answers.seconds]
    failures = sum((answers.failures for answers in found), Counter[str]())
    print(f"{len(taken)} requests in {seconds:.1f} s, {len(taken) / seconds:.1f} per second")
    if taken:
        least, most, worst = np.percentile(taken, [50, 95, 99]) * 1e3
        print(f"p50 {least:.1f} ms, p95 {most:.1f} ms, p99 {worst:.1f} ms")
    for reason, count in failures.most_common():
        print(f"failed {count} times: {reason}")


if __name__ == "__main__":
    main()
