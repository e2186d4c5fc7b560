"""`save_pretrained` of parallel modules: what it writes is what the original would have written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import autopar
from autopar.base.errors import InvalidInputError
from tests.parallel import pretrained
from tests.parallel.pretrained import batch, differing, model_of
from tests.parallel.tiny import tiny, tokens
from tests.runtime.job.real import run_ranks

CASES = [
    (3, "llama", "local"),
    *(
        pytest.param(ranks, kind, parameters, marks=pytest.mark.slow)
        for ranks in (2, 3, 4)
        for kind in pretrained.KINDS
        for parameters in ("dtensor", "local")
        if (ranks, kind, parameters) != (3, "llama", "local")
    ),
]


@pytest.mark.parametrize(("ranks", "kind", "parameters"), CASES)
def test_what_ranks_save_together_is_loaded_anywhere(
    tmp_path: Path, ranks: int, kind: str, parameters: str
) -> None:
    found = run_ranks(ranks, pretrained.saved, tmp_path, kind, parameters)
    assert found == [[]] * ranks
    alone = tmp_path / "alone"
    model_of(kind).save_pretrained(alone)
    assert pretrained.left(tmp_path / "whole") == pretrained.left(alone)
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "whole" / name).read_text() == (alone / name).read_text()


@pytest.mark.faults
def test_what_cannot_be_saved_is_told_by_all_and_the_job_goes_on(tmp_path: Path) -> None:
    first, second = run_ranks(2, pretrained.refused, tmp_path)
    assert first == second
    file, limited, call, alone, elsewhere = first
    assert file.startswith(f"can't write {tmp_path / 'file'}: File exists")
    assert limited.startswith(f"can't write {tmp_path / 'limited'}: File too large")
    assert call == ""
    assert "rank 0: save_pretrained" in alone
    assert "save_directory" in elsewhere
    assert str(tmp_path / "0") in elsewhere
    assert pretrained.left(tmp_path / "limited") == []
    assert (tmp_path / "after" / "model.safetensors").exists()


def test_one_process_alone(tmp_path: Path) -> None:
    parallel = autopar.parallelize(model_of("llama"), batch(), mesh="1")
    parallel.config.bos_token_id = 7
    parallel.save_pretrained(tmp_path)
    again = type(model_of("llama")).from_pretrained(tmp_path)
    assert differing(again.state_dict(), model_of("llama").state_dict()) == []
    assert again.config.bos_token_id == 7
    assert not any(tensor.is_meta for tensor in parallel.state_dict().values())


def test_other_modules_have_no_such_method(tmp_path: Path) -> None:
    parallel = autopar.parallelize(tiny(), tokens(0), mesh="1")
    assert not hasattr(parallel, "save_pretrained")
    missing = {name: value for name, value in tiny().state_dict().items() if name != "positions"}
    from safetensors.torch import save_file

    save_file({name: value.clone() for name, value in missing.items()}, tmp_path / "w.safetensors")
    before = {name: value.clone() for name, value in parallel.state_dict().items()}
    with pytest.raises(InvalidInputError, match="has no weight 'positions'"):
        parallel.load_weights(tmp_path / "w.safetensors")
    assert differing(dict(parallel.state_dict()), before) == []


def test_weights_are_not_read_into_nothing(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = tiny()
    parallel = autopar.parallelize(model, tokens(0), mesh="1")
    with pytest.raises(InvalidInputError, match=r"is on the meta device; call to_empty"):
        parallel.load_weights(tmp_path)
