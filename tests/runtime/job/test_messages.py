"""Short texts between processes, here between threads over one store."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import DistNetworkError, HashStore  # type: ignore[attr-defined]

from autopar.base.errors import AnnotationError, AutoparError, RuntimeFailure
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job import messages as messages_module
from autopar.runtime.job.messages import Messages


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


def test_all_hear_all() -> None:
    found, _ = among(3, lambda messages: messages.of_all(str(messages.rank) * 3))
    assert found == [["000", "111", "222"]] * 3


def test_what_the_first_makes_may_be_long() -> None:
    content = random.Random(0).randbytes(3 * (1 << 20) + 5)
    found, _ = among(2, lambda messages: messages.made_by_first(lambda: content))
    assert found == [content] * 2
    assert among(2, lambda messages: messages.made_by_first(bytes))[0] == [b""] * 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AnnotationError("no axis"), "AnnotationError: no axis"),
        (AutoparError("no layout"), "AutoparError: no layout"),
        (OSError("no space"), "RuntimeFailure: rank 0 failed: OSError: no space"),
    ],
)
def test_what_the_first_fails_of_fails_everywhere(error: Exception, told: str) -> None:
    def made(messages: Messages) -> str:
        try:
            messages.made_by_first(raising)
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"
        return ""

    def raising() -> bytes:
        raise error

    found, _ = among(3, made)
    assert found == [f"{type(error).__name__}: {error}", told, told]


def test_too_much_is_refused_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "MOST", 10)

    def made(messages: Messages) -> str:
        with pytest.raises(RuntimeFailure, match="11 bytes are too much to tell; 10 go"):
            messages.made_by_first(lambda: bytes(11))
        return messages.from_first("next")

    assert among(2, made)[0] == ["next"] * 2


def test_texts_do_not_pile_up() -> None:
    assert among(3, lambda messages: [messages.agreed("") for _ in range(50)])[1] == 1
    assert among(3, lambda messages: [messages.of_all("") for _ in range(50)])[1] == 2


def test_processes_meet_in_each_exchange() -> None:
    met: list[int] = []
    among(2, lambda messages: messages.agreed(""), meet=lambda: met.append(1))
    assert len(met) == 6


def test_silence_is_an_error() -> None:
    messages = Messages(HashStore(), 1, 2, seconds=0.05)
    with pytest.raises(RuntimeFailure, match=r"rank 0 failed: no word from it within 0.05 s"):
        messages.from_first()


def test_the_failure_of_another_process_ends_waiting() -> None:
    messages = Messages(HashStore(), 1, 2, failure=lambda: RuntimeFailure("rank 0 failed"))
    with pytest.raises(RuntimeFailure, match="rank 0 failed"):
        messages.from_first()


class Gone:
    """A store whose server has ended."""

    def __getattr__(self, _: str) -> Callable[..., Any]:
        def reset(*_: Any) -> None:
            raise DistNetworkError("Connection reset by peer")

        return reset


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "talk",
    [
        lambda messages: messages.from_first(),
        lambda messages: messages.to_first("") if messages.rank else messages.of_all(""),
        lambda messages: messages.made_by_first(lambda: b"made"),
    ],
)
def test_who_served_a_store_that_is_gone_is_named(rank: int, talk: Callable[..., Any]) -> None:
    store: Any = Gone()
    messages = Messages(store, rank, 2, lost=lambda: RankFailure(0, "it ended without a word"))
    with pytest.raises(RankFailure, match="rank 0 failed: it ended without a word"):
        talk(messages)
