"""Where a thread is, as another thread sees it."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from autopar.runtime.failure.whereabouts import Whereabouts


def test_a_thread_that_waits_in_the_users_code_is_there() -> None:
    reached, done = threading.Event(), threading.Event()
    made: list[Whereabouts] = []

    def waiting() -> None:
        made.append(Whereabouts())
        reached.set()
        done.wait()

    thread = threading.Thread(target=waiting)
    thread.start()
    reached.wait()
    place = made[0].place()
    done.set()
    thread.join()
    assert place.kind == "outside"
    assert place.text.startswith("test_whereabouts.py:")
    assert place.text.endswith(" in waiting")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="frames are made without collections")
def test_nothing_is_collected_while_another_threads_frames_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collecting: list[bool] = []
    frames = sys._current_frames

    def watched() -> object:
        collecting.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", watched)
    Whereabouts().place()
    assert collecting == [False]
    assert gc.isenabled()
