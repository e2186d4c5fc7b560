"""Short texts between processes, here between threads over one store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autopar.ir.errors import RuntimeFailure
from autopar.runtime.messages import Messages


def among(count: int, talk: Callable[[Messages], Any], **options: Any) -> tuple[list[Any], int]:
    """Returns what each of some processes returns, and how many texts are left in the store."""
    store = HashStore()
    with ThreadPoolExecutor(count) as pool:
        found = pool.map(lambda rank: talk(Messages(store, rank, count, **options)), range(count))
        return list(found), store.num_keys()


def test_all_hear_what_the_first_says() -> None:
    found, _ = among(3, lambda messages: messages.from_first(f"I am {messages.rank}"))
    assert found == ["I am 0"] * 3


def test_the_first_hears_all() -> None:
    found, _ = among(3, lambda messages: messages.to_first(str(messages.rank)))
    assert found == [["0", "1", "2"], [], []]


def test_the_problem_of_the_first_that_has_one_is_that_of_all() -> None:
    found, _ = among(3, lambda messages: messages.agreed("mine" * messages.rank))
    assert found == ["mine"] * 3
    assert among(3, lambda messages: messages.agreed(""))[0] == [""] * 3


def test_texts_do_not_pile_up() -> None:
    assert among(3, lambda messages: [messages.agreed("") for _ in range(50)])[1] == 1


def test_processes_meet_in_each_exchange() -> None:
    met: list[int] = []
    among(2, lambda messages: messages.agreed(""), meet=lambda: met.append(1))
    assert len(met) == 4


def test_silence_is_an_error() -> None:
    messages = Messages(HashStore(), 1, 2, seconds=0.05)
    with pytest.raises(RuntimeFailure, match=r"rank 0 failed: no word from it within 0.05 s"):
        messages.from_first()


def test_the_failure_of_another_process_ends_waiting() -> None:
    messages = Messages(HashStore(), 1, 2, failure=lambda: RuntimeFailure("rank 0 failed"))
    with pytest.raises(RuntimeFailure, match="rank 0 failed"):
        messages.from_first()
