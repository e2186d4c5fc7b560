"""What building a model sets for the process is set back for the tests behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers.integrations import moe


@pytest.fixture(autouse=True)
def _settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(moe, "_can_use_grouped_mm", moe._can_use_grouped_mm)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
