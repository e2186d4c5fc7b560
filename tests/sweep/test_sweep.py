"""The sweep lists all, shrinks sizes only, tells right from wrong, and outlives its children."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    CHMv2Config,
    Dinov2Config,
    Gemma4TextConfig,
    Qwen2VLConfig,
    Qwen2VLTextConfig,
    SwinConfig,
)

from autopar.compiled import CompiledModel
from tests.sweep.__main__ import _sweep
from tests.sweep.building import build
from tests.sweep.case import Inference, Training, Unbuilt, arguments, call
from tests.sweep.child import Record, run_limited
from tests.sweep.inputs import Form, make_batch
from tests.sweep.judge import Judge, _verdict, exports_otherwise
from tests.sweep.known import TABLES
from tests.sweep.known.entry import absent, floats, integers, text, uniform
from tests.sweep.listed import model_classes, model_types, whole_of
from tests.sweep.repairing import repaired
from tests.sweep.report import general, render
from tests.sweep.shrink import Rung, _chosen, shrink
from tests.sweep.state import FAMILIES, TYPES, State
from tests.sweep.tasks import Found
from tests.sweep.training import Trained, errors, train_on_mesh

MEMORY_BYTES = 4 << 30


def test_all_types_are_listed_in_the_same_order() -> None:
    assert len(model_types()) > 200
    assert model_types() == model_types()


def test_classes_with_a_loss_come_first() -> None:
    assert model_classes("bert")[0].__name__ == "BertForPreTraining"
    assert model_classes("whisper")[0].__name__ == "WhisperForConditionalGeneration"


def test_sizes_are_shrunk_and_options_stay() -> None:
    small, usual = shrink(BertConfig(), Rung("named", 64)), BertConfig()
    assert small.hidden_size == 64
    assert small.num_hidden_layers == 2
    assert small.vocab_size == 128
    assert small.hidden_dropout_prob == usual.hidden_dropout_prob
    assert small.hidden_act == usual.hidden_act


def test_configurations_inside_are_shrunk_and_tokens_fit() -> None:
    small = shrink(Qwen2VLConfig(), Rung("named", 64))
    assert small.text_config.num_hidden_layers == 2
    assert small.image_token_id < small.text_config.vocab_size
    assert small.image_token_id != small.video_token_id


def test_widths_divided_by_a_number_stay_consistent() -> None:
    small = shrink(SwinConfig(), Rung(8, None))
    assert small.hidden_size == 8 * small.embed_dim


def _trained(parameter: float) -> Trained:
    return Trained([1.0], {"weight": torch.tensor([parameter, 2.0], dtype=torch.float64)})


def test_errors_are_noticed() -> None:
    assert _verdict(errors(_trained(1.0), _trained(1.0)))["outcome"] == "right"
    found = _verdict(errors(_trained(1.0 + 1e-8), _trained(1.0)))
    assert found["outcome"] == "wrong"
    assert "weight is off by" in found["reason"]
    assert _verdict(errors(_trained(float("nan")), _trained(1.0)))["outcome"] == "wrong"


def test_children_may_die() -> None:
    def work() -> Iterator[Record]:
        yield {"check": "first"}
        os._exit(3)

    found = list(run_limited(work, MEMORY_BYTES, 10))
    assert found == [{"check": "first"}, {"ended": "exit code 3"}]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory this way")
def test_children_have_limits() -> None:
    def hungry() -> Iterator[Record]:
        yield {"bytes": len(bytearray(MEMORY_BYTES))}

    def busy() -> Iterator[Record]:
        while True:
            pass
        yield {}

    assert list(run_limited(hungry, MEMORY_BYTES, 10)) == [{"ended": "limit of memory"}]
    assert list(run_limited(busy, MEMORY_BYTES, 1)) == [{"ended": "limit of time"}]


def test_sweeps_go_on_where_they_stopped(tmp_path: Path) -> None:
    state = State(tmp_path / "sweep.jsonl")
    state.list_names(TYPES, ["one", "two"], "5")
    state.add({"type": "one", "built": "One", "draws": False})
    state.add({"type": "one", "check": "fsdp", "outcome": "right"})
    again = State(tmp_path / "sweep.jsonl")
    assert again.listed == {TYPES: ["one", "two"]}
    assert again.missing("one", ["fsdp", "drawn", "auto"]) == ["auto"]
    assert again.missing("two", ["fsdp"]) == ["fsdp"]
    assert "two" in render(again).split("not tried yet")[1]


def test_files_of_sweeps_may_be_joined(tmp_path: Path) -> None:
    kept, other = State(tmp_path / "kept.jsonl"), State(tmp_path / "other.jsonl")
    kept.list_names(TYPES, ["bert", "gpt2"], "5")
    kept.add({"type": "bert", "outcome": "unbuilt", "reason": "needs another library"})
    kept.add({"type": "gpt2", "check": "fsdp", "outcome": "right"})
    other.list_names(TYPES, ["bert", "gpt2"], "5")
    other.list_names(FAMILIES, ["timm/vgg"], "timm 1")
    other.add({"type": "bert", "built": "Bert", "draws": False})
    kept.join([other.path])
    both = State(kept.path)
    assert both.listed == {TYPES: ["bert", "gpt2"], FAMILIES: ["timm/vgg"]}
    assert [each["type"] for each in both.records] == ["bert", "gpt2"]
    assert both.missing("bert", ["fsdp"]) == ["fsdp"]
    assert both.missing("gpt2", ["fsdp"]) == []
    assert "Judged with timm 1" in render(both)


def test_files_of_other_versions_are_not_joined(tmp_path: Path) -> None:
    kept, other = State(tmp_path / "kept.jsonl"), State(tmp_path / "other.jsonl")
    kept.list_names(TYPES, ["bert"], "5")
    other.list_names(TYPES, ["bert"], "6")
    before = kept.path.read_text()
    with pytest.raises(SystemExit, match=r"is of 5, and 6 is installed.*--state"):
        kept.join([other.path])
    assert kept.path.read_text() == before


def test_reasons_tell_no_folders(tmp_path: Path) -> None:
    state = State(tmp_path / "sweep.jsonl")
    reason = "/home/me/lib/site-packages/transformers/a.py:3: size 4"
    state.add({"type": "bert", "check": "fsdp", "outcome": "refused", "reason": reason})
    assert State(state.path).of("bert")["fsdp"]["reason"] == "transformers/a.py:3: size 4"


def test_reasons_are_alike_but_for_places_and_numbers() -> None:
    one, other = "/a/b.py:3: size 4 isn't 5", "/c/d.py:71: size 12 isn't 6"
    assert general(one) == general(other)


def test_layers_keep_their_kinds() -> None:
    assert _chosen(["linear", "linear", "linear", "full"], 2) == ["linear", "full"]
    assert _chosen(["linear", "linear", "linear", "full"], 3) == ["linear", "linear", "full"]
    assert _chosen([9, 8, 7, 6], 2) == [9, 8]


def test_heads_may_stay_as_wide_as_they_are() -> None:
    small = shrink(BertConfig(), Rung("heads", 64))
    assert (small.hidden_size, small.num_attention_heads) == (128, 2)


def test_parts_without_classes_are_built_with_the_whole() -> None:
    assert not model_classes("sam_prompt_encoder")
    assert whole_of("sam_prompt_encoder") == "sam"


def test_what_is_known_is_of_types_that_are_listed() -> None:
    for pattern in TABLES:
        assert fnmatch.filter(model_types(), pattern), pattern


def test_backbones_return_as_many_stages_as_before() -> None:
    usual = Dinov2Config(out_indices=[3, 6, 9, 12])
    small = shrink(usual, Rung("named", 64))
    assert small.out_features == ["stage1", "stage2", "stage3", "stage4"]
    swin = shrink(SwinConfig(out_indices=[2, 4]), Rung(8, None))
    assert swin.out_indices == [2, 4]


def test_options_of_configurations_inside_others_stay() -> None:
    usual = CHMv2Config()
    assert shrink(usual, Rung("named", 64)).backbone_config.return_class_token


def test_sizes_of_layers_that_differ_are_shrunk() -> None:
    small = shrink(Gemma4TextConfig(), Rung("named", 64))
    assert small.num_hidden_layers == 2
    assert [each.head_dim for each in small.per_layer_config] == [16, 512]


def test_sizes_that_are_known_stay() -> None:
    known = {"text_config.hidden_size": 48, "text_config.num_attention_heads": 3}
    small = shrink(Qwen2VLConfig(), Rung("named", 64), known)
    assert (small.text_config.hidden_size, small.text_config.num_attention_heads) == (48, 3)
    assert small.text_config.num_hidden_layers == 2


def test_inputs_that_are_known_take_the_place_of_usual_ones() -> None:
    known = {"input_ids": integers(7, 8, 2, 5), "token_type_ids": absent, "more": floats(3)}
    model = torch.nn.Module()
    model.forward = lambda input_ids, token_type_ids, attention_mask: None
    batch = make_batch(model, BertConfig(), Form(), 0, known)
    assert batch.keys() == {"input_ids", "attention_mask", "more"}
    assert batch["input_ids"].tolist() == [[7] * 5] * 2
    assert make_batch(model, BertConfig(), Form(), 0, known, alone=True).keys() == {
        "input_ids",
        "more",
    }


def test_classes_and_wholes_that_are_known_come_before_others() -> None:
    assert [each.__name__ for each in model_classes("rag")] == ["RagTokenForGeneration"]
    assert whole_of("chameleon_vqgan") == "chameleon"


def test_what_the_library_cannot_run_is_said() -> None:
    with pytest.raises(Unbuilt, match="refuses what it demands"):
        build("gemma4_assistant")


def test_a_part_that_has_a_forward_may_be_built_alone() -> None:
    case = build("bark")
    assert case.config(dropout=True).model_type == "semantic"


def test_what_the_library_leaves_uninitialized_is_drawn() -> None:
    case = build("qwen3_omni_moe_talker_text")
    first, second = (case.model(dropout=True).state_dict() for _ in range(2))
    weights = [each for name, each in first.items() if ".experts." in name]
    assert all(0.01 < each.std() < 0.03 for each in weights)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_models_without_attention_are_built_without_a_cache() -> None:
    assert not build("bamba").rung.cache


def test_sections_of_rotary_embeddings_add_up_to_half_a_head() -> None:
    usual = Qwen2VLTextConfig(rope_parameters={"mrope_section": [24, 20, 20]})
    small = shrink(usual, Rung("named", 64))
    assert small.rope_parameters["mrope_section"] == [4, 2, 2]


def test_batches_differ_as_their_numbers_do() -> None:
    def made(number: int) -> list[float]:
        model = torch.nn.Module()
        batch = make_batch(model, BertConfig(), Form(), number, {"x": uniform(3)}, alone=True)
        return batch["x"].tolist()

    assert made(0) == made(0)
    assert made(0) != made(1)


def test_texts_have_tokens_that_stand_for_something_else() -> None:
    config = Qwen2VLConfig(image_token_id=5)
    [*_, row] = text(1, ("image_token_id", 2), (9, 1), 2)(
        config, Form(), torch.Generator()
    ).tolist()
    assert [each == 5 for each in row] == [False, True, True, False, False, False]
    assert row[3] == 9


def test_inputs_may_be_lists() -> None:
    one, other = torch.zeros(1), torch.ones(1)
    found = arguments({"levels.0": one, "mask": one, "levels.1": other})
    assert found == {"levels": [one, other], "mask": one}
    assert arguments({"states.a.0": one, "states.b.0": other}) == {
        "states": {"a": [one], "b": [other]}
    }


@dataclass
class Atoms:
    """What a forward takes as one argument."""

    places: torch.Tensor


class Folding(torch.nn.Module):
    """Takes a dataclass."""

    def forward(self, atoms: Atoms) -> torch.Tensor:
        return atoms.places + 1

    forward.__annotations__["atoms"] = Atoms


def test_inputs_may_be_dataclasses() -> None:
    assert call(Folding(), {"atoms.places": torch.ones(1)}, {}) == 2


class Infinite(torch.nn.Module):
    """Returns what holds an infinite element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full((1,), -float("inf"))])


def test_losses_that_are_made_up_leave_out_what_is_infinite() -> None:
    assert Training(Infinite(), masked=True)(x=torch.full((3,), 2.0)) == 3.0


def test_inputs_are_mended_by_what_is_said_of_them() -> None:
    batch = {"input_values": torch.zeros(4, 12, 14), "labels": torch.zeros(4, 12).long()}
    error = RuntimeError("expected input[4, 12, 14] to have 8 channels, but got 12 channels")
    [form] = repaired(Form(), BertConfig(), batch, error)
    assert form.shapes == (("input_values", (4, 8, 14)),)
    error = RuntimeError("the length 8000 isn't a multiple of 1920")
    [form] = repaired(Form(), BertConfig(), batch, error)
    assert form.samples == 9600


class Cancelling(torch.nn.Module):
    """Its gradient is zero, but for rounding, which the loss makes large."""

    scale = 1e2

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(31, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Found:
        product = x @ self.weight
        loss = self.scale * (product @ product - self.weight @ (x.T @ x) @ self.weight)
        return Found(loss, [])


@dataclass(frozen=True)
class Made:
    """A case of a model that is made here."""

    kind: type[torch.nn.Module]
    name: str = "made"
    draws: bool = False

    def model(self, dropout: bool) -> torch.nn.Module:
        torch.manual_seed(0)
        return self.kind()

    def batch(self, model: torch.nn.Module, number: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(number)
        return {"x": torch.rand(17, 31, generator=draw, dtype=torch.float64)}

    def training(self, model: torch.nn.Module) -> Training:
        return Training(model)

    def inference(self, model: torch.nn.Module) -> Inference:
        return Inference(model)

    def record(self) -> Record:
        return {}


class Exploding(Cancelling):
    """As that, so large that rounding is more of the gradient than is right elsewhere."""

    scale = 1e8

    def forward(self, x: torch.Tensor) -> Found:
        loss = super().forward(x).loss
        return Found(loss - loss.detach(), [])


class Squared(Cancelling):
    """Nothing special."""

    def forward(self, x: torch.Tensor) -> Found:
        return Found((x @ self.weight).square().sum(), [])


@pytest.mark.parametrize(("kind", "outcome"), [(Cancelling, "steadied"), (Exploding, "unsteady")])
def test_what_pytorch_blows_up_too_is_told_apart(kind: type[torch.nn.Module], outcome: str) -> None:
    found = Judge(Made(kind)).record("fsdp")
    assert found["outcome"] == outcome, found


def test_what_is_steady_is_right() -> None:
    assert Judge(Made(Squared)).record("fsdp")["outcome"] in ("right", "undivided")


class Hungry(Squared):
    """Asks PyTorch for more memory than there is."""

    def forward(self, x: torch.Tensor) -> Found:
        return Found((x @ self.weight).square().sum() + torch.empty(1 << 50)[0], [])


def test_memory_that_is_used_up_is_no_word_of_autopar() -> None:
    with pytest.raises(MemoryError, match="allocate"):
        Judge(Made(Hungry)).record("fsdp")


class Drawing(torch.nn.Linear):
    """Draws random numbers, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__(31, 8, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.rand(8, dtype=torch.float64)


def test_what_draws_in_inference_is_compared_with_one_process() -> None:
    assert Judge(Made(Drawing)).record("inference")["outcome"] == "right"


def test_errors_of_steady_models_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(compiled: CompiledModel, batches: Sequence[dict[str, torch.Tensor]]) -> Trained:
        found = train_on_mesh(compiled, batches)
        return Trained([each + 1.0 for each in found.losses], found.state)

    monkeypatch.setattr("tests.sweep.judge.train_on_mesh", off)
    assert Judge(Made(Squared)).record("fsdp")["outcome"] == "wrong"
    assert Judge(Made(Cancelling)).record("fsdp")["outcome"] == "wrong"
    assert Judge(Made(Exploding)).record("fsdp")["outcome"] == "wrong"


def test_what_ends_late_is_tried_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(source: str, name: str, checks: Sequence[str]) -> Iterator[Record]:
        yield {"built": "It", "draws": False}
        for check in checks:
            if check == "auto" and len(checks) > 1:
                os._exit(3)
            yield {"check": check, "outcome": "right"}

    monkeypatch.setattr("tests.sweep.__main__._judged", work)
    state = State(tmp_path / "sweep.jsonl")
    _sweep(state, TYPES, "it", ["fsdp", "auto"])
    assert {each["outcome"] for each in state.of("it").values() if "check" in each} == {"right"}


class Otherwise(torch.nn.Module):
    """Computes something else where it is traced, if it is told to."""

    def __init__(self, tells: bool) -> None:
        super().__init__()
        self.tells = tells

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if self.tells and torch.compiler.is_exporting() else 1)


def test_models_that_export_otherwise_are_told_apart() -> None:
    assert exports_otherwise(Otherwise(True), {"x": torch.ones(3)})
    assert not exports_otherwise(Otherwise(False), {"x": torch.ones(3)})
