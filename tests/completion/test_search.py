"""Search: plans equal the serial program, whatever the mesh, and come with a bound."""

from __future__ import annotations

import pytest

from tests.captured import check, compiled
from tests.completion.test_training import language


@pytest.mark.parametrize("mesh", ["a=3", "a=2,b=2"])
def test_a_searched_step_is_that_of_one_device(mesh: str) -> None:
    captured = language("adamw")
    done = compiled(captured, mesh, "auto")
    check(captured, done, 1e-5)
    (entry,) = [entry for entry in done.report if entry.category == "search"]
    assert "no plan takes less than" in entry.detail
