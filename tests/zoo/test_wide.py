"""Search beats the usual presets on models of few layers, but as wide as those that are in use."""

from __future__ import annotations

import pytest
import torch

from autopar.annotate import apply_mesh, parse_mesh
from autopar.completion import Complete
from autopar.cost import Cluster
from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import Program
from tests.zoo.full_size import hugging, text

LAYERS = 2
MESH = parse_mesh("dp=2,tp=4")
PRESETS = (
    "data:dp,data:tp",
    "zero1:dp,data:tp",
    "data:dp,zero1:tp",
    "zero1:dp,zero1:tp",
    "data:dp,tensor:tp",
    "fsdp:dp,fsdp:tp",
)


def step(name: str) -> Program:
    """Returns the training step of T5 or BERT, without weights."""
    layers, vocabulary = {"num_layers": LAYERS, "decoder_start_token_id": 0}, 32128
    made = hugging("T5ForConditionalGeneration", "T5Config", **layers)
    if name == "bert":
        made = hugging("BertForMaskedLM", "BertConfig", num_hidden_layers=LAYERS)
        vocabulary = 30522
    with torch.device("meta"):
        model, batch = made(), text(32, 256, vocabulary)()
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters()))
    return apply_mesh(capture(model, batch, recipe).program, MESH)


def check_faster(name: str, cluster: str) -> None:
    """Checks that search finds a plan that is faster than those of the usual presets."""
    program, known = step(name), Cluster.load(cluster)
    seconds = Complete(known, "auto").plan(program).seconds
    presets = [Complete(known, each).plan(program).seconds for each in PRESETS]
    assert seconds < min(presets) * (1 - 1e-6)


def test_search_beats_usual_presets() -> None:
    check_faster("t5", "h100")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cluster"), [("t5", "cpu"), ("bert", "h100"), ("bert", "cpu")])
def test_search_beats_usual_presets_of_more(name: str, cluster: str) -> None:
    check_faster(name, cluster)
