"""Builds a model of a type: its default configuration, shrunk, with inputs that it takes."""

from __future__ import annotations

import fnmatch
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.integrations import moe

from tests.sweep.case import Inference, Infinite, Training, Unbuilt, take_step
from tests.sweep.child import Record
from tests.sweep.inputs import Form, forms, make_batch
from tests.sweep.known import known_of
from tests.sweep.known.entry import Known
from tests.sweep.listed import default_config, model_classes, whole_of
from tests.sweep.repairing import repaired
from tests.sweep.shrink import Rung, rungs, shrink, without_dropout

PARAMETERS = 30_000_000
"""More than which a model isn't small."""

REPAIRS = 3
"""The most that is mended of a form of inputs."""


@dataclass(frozen=True)
class TypeCase:
    """A model of a type, and how its batches look.

    Attributes:
        kind: The model's class.
        rung: How its configuration was shrunk.
        form: What its inputs are like.
        loss: `own`, or `made up`.
        draws: Whether its training step draws random numbers.
        masked: Whether outputs have infinite elements.
        parameters: Their number.
    """

    name: str
    kind: type[nn.Module]
    rung: Rung
    form: Form
    loss: str = "own"
    draws: bool = False
    masked: bool = False
    parameters: int = 0

    @property
    def known(self) -> Known:
        """What is known of the model type."""
        return known_of(self.name)

    def config(self, dropout: bool) -> PretrainedConfig:
        """Returns a new configuration."""
        found = small_config(self.name, self.rung)
        return found if dropout else without_dropout(found)

    def model(self, dropout: bool) -> nn.Module:
        """Returns a new model, always with the same weights."""
        return new_model(self.kind, self.config(dropout), self.known.drawn)

    def config_of(self, model: nn.Module) -> PretrainedConfig:
        """Returns a model's configuration."""
        found = getattr(model, "config", None)
        return found if isinstance(found, PretrainedConfig) else self.config(dropout=True)

    def training(self, model: nn.Module) -> Training:
        """Returns what is trained of a model."""
        return Training(model, self.known.options, self.masked)

    def inference(self, model: nn.Module) -> Inference:
        """Returns what is run of a model."""
        return Inference(model, self.known.options)

    def batch(self, model: nn.Module, number: int) -> dict[str, Tensor]:
        """Returns the batch of a step."""
        known, config = self.known, self.config_of(model)
        made = make_batch(model, config, self.form, number, known.inputs, known.alone)
        return {
            name: each.double() if each.is_floating_point() else each for name, each in made.items()
        }

    def record(self) -> Record:
        """Returns what is told of it."""
        return {
            "built": self.kind.__name__,
            "rung": str(self.rung),
            "loss": self.loss,
            "draws": self.draws,
            "parameters": self.parameters,
        }


def small_config(model_type: str, rung: Rung) -> PretrainedConfig:
    """Returns a model type's default configuration, with smaller sizes."""
    known = known_of(model_type)
    found = shrink(default_config(model_type), rung, known.sizes)
    return getattr(found, known.part) if known.part else found


def new_model(
    kind: type[nn.Module], config: PretrainedConfig, drawn: Sequence[str] = ()
) -> nn.Module:
    """Returns a model in float64.

    Args:
        kind: The model's class.
        config: Its configuration.
        drawn: Patterns of parameters' names that are drawn here.
    """
    torch.manual_seed(0)
    made = kind(config).double()
    for name, each in made.named_parameters():
        if any(fnmatch.fnmatch(name, pattern) for pattern in drawn):
            nn.init.normal_(each, std=0.02)
        if not each.isfinite().all():
            raise Unbuilt(f"{name} is not initialized")
    return made


def build(model_type: str, seconds: float = 12) -> TypeCase:
    """Finds a class, sizes and inputs with which a model of a type takes a training step.

    Of a type that has no classes, as it is always a part of another one, that is built.

    Raises:
        Unbuilt: If none of those that are tried do.
    """
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    # The library's own way where its kernel doesn't know a dtype; it doesn't ask for float64.
    moe._can_use_grouped_mm = lambda *_, **__: False
    until = time.process_time() + seconds
    if known_of(model_type).unable:
        raise Unbuilt(known_of(model_type).unable)
    try:
        classes = [] if known_of(model_type).whole else model_classes(model_type)
    except ImportError as error:
        raise Unbuilt(f"its module can't be imported: {error}") from error
    if not classes:
        model_type = whole_of(model_type) or model_type
        classes = model_classes(model_type)
    if not classes:
        raise Unbuilt("no class of a model is for this configuration")
    reasons: dict[str, None] = {}
    for kind in classes[:3]:
        for rung in rungs():
            if time.process_time() > until:
                break
            try:
                return _fitted(model_type, kind, rung)
            except Exception as error:  # what a library raises for sizes that don't fit
                told = str(error).strip() or "nothing"
                reasons[f"{kind.__name__}: {type(error).__name__}: {told}"[:200]] = None
    raise Unbuilt(" | ".join([*reasons][:4]))


_SECTIONS = re.compile(r"sum exactly to (\d+) .* but got split_sizes=\[\d+, \d+, \d+\]")
_CACHE = re.compile(r"current Cache|Config' object has no attribute 'num_hidden_layers'")


def _fitted(model_type: str, kind: type[nn.Module], rung: Rung) -> TypeCase:
    """Tries sizes, and once more with what the model says of them.

    That are sections of rotary embeddings, or that nothing can be kept for the next token.
    """
    try:
        return _tried(model_type, kind, rung)
    except Exception as error:
        told = " ".join([str(error), *getattr(error, "__notes__", ())])
        sections = _SECTIONS.search(told)
        if sections is not None:
            rung = replace(rung, sections=int(sections[1]))
        elif rung.cache and _CACHE.search(told):
            rung = replace(rung, cache=False)
        else:
            raise
    return _tried(model_type, kind, rung)


def _tried(model_type: str, kind: type[nn.Module], rung: Rung) -> TypeCase:
    rung = replace(rung, tokens={})
    config = small_config(model_type, rung)
    with torch.device("meta"):
        count = sum(each.numel() for each in kind(config).parameters())
    if count > PARAMETERS:
        raise Unbuilt(f"{count:,} parameters at the smallest sizes that fit")
    model = new_model(kind, small_config(model_type, rung), known_of(model_type).drawn)
    first: Exception | None = None
    case = TypeCase(model_type, kind, rung, Form(), parameters=count)
    for form in forms(model, case.config_of(model)):
        try:
            return _mended(replace(case, form=form), model, REPAIRS)
        except Exception as error:  # what a library raises for inputs that don't fit
            if first is not None:
                first.add_note(" ".join([str(error), *getattr(error, "__notes__", ())]))
            first = first or error
    assert first is not None
    raise first


def _mended(case: TypeCase, model: nn.Module, repairs: int) -> TypeCase:
    """Takes a step, with inputs that are mended by what the model says of them."""
    try:
        return _stepped(case, model)
    except Exception as error:
        failed = error
    batch = case.batch(model, 0)
    for form in repaired(case.form, case.config_of(model), batch, failed) if repairs else ():
        try:
            return _mended(replace(case, form=form), model, repairs - 1)
        except Exception as error:
            failed.add_note(str(error))
    raise failed


def _stepped(case: TypeCase, model: nn.Module) -> TypeCase:
    """Takes a step, with a loss that leaves out what is infinite if there is something."""
    try:
        loss, draws = take_step(case, model)
    except Infinite:
        case = replace(case, masked=True)
        loss, draws = take_step(case, model)
    return replace(case, loss=loss, draws=draws)
