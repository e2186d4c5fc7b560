"""Which models there are: every model type of the installed transformers, and its classes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import configuration_auto, modeling_auto

from tests.sweep.known import known_of

SEED = "models"
"""Of the order in which types are judged."""

PREFERRED = (
    "ForPreTraining",
    "ForConditionalGeneration",
    "CausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForCTC",
    "ForMaskedImageModeling",
    "ForImageClassification",
    "ForSequenceClassification",
    "ForAudioClassification",
    "ForVideoClassification",
    "ForTokenClassification",
    "Classification",
    "ForQuestionAnswering",
    "ForPrediction",
    "Model",
    "",
)
"""Parts of names of classes, first those whose losses take inputs that are easily made."""

UNUSUAL = (
    "ForAudioFrameClassification",
    "ForXVector",
    "ForMultipleChoice",
    "ForInstanceSegmentation",
)
"""Classes whose inputs have another form than their model type's other classes."""


def model_types() -> list[str]:
    """Returns every model type, in an order that is random but always the same."""
    found = sorted(configuration_auto.CONFIG_MAPPING_NAMES)
    random.Random(SEED).shuffle(found)
    return found


def config_class(model_type: str) -> type[PretrainedConfig]:
    """Returns the class of a model type's configuration."""
    name = configuration_auto.CONFIG_MAPPING_NAMES[model_type]
    found = getattr(transformers, name, None)
    return found or configuration_auto.CONFIG_MAPPING[model_type]


def default_config(model_type: str) -> PretrainedConfig:
    """Returns a new configuration with the library's defaults, and what has none."""
    kind, known = config_class(model_type), known_of(model_type).sizes
    try:
        return kind()
    except Exception:  # some have no defaults
        return kind(**_nested(known))


def _nested(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns sizes by dotted path as arguments of configurations inside each other."""
    found: dict[str, Any] = {}
    for path, value in sizes.items():
        *outer, name = path.split(".")
        at = found
        for each in outer:
            at = at.setdefault(each, {})
        at[name] = value
    return found


def model_classes(model_type: str) -> list[type[nn.Module]]:
    """Returns the classes of a model type, those first that have a loss of their own."""
    config = config_class(model_type)
    named = known_of(model_type).kind
    if named:
        modules = [*_modeling(config.__module__.rpartition(".")[0]), transformers]
        return [getattr(each, named) for each in modules if hasattr(each, named)][:1]
    found = {each.__name__: each for each in _from_modules(config)}
    found |= {each.__name__: each for each in _from_mappings(model_type)}
    usual = [each for name, each in found.items() if not name.startswith(UNUSUAL)]
    return sorted(usual, key=lambda each: (_rank(each.__name__), each.__name__))


def whole_of(model_type: str) -> str | None:
    """Returns the model type that one without classes of its own is a part of; None if none is."""
    if known_of(model_type).whole:
        return known_of(model_type).whole
    part = config_class(model_type)
    for name in sorted(configuration_auto.CONFIG_MAPPING_NAMES):
        kind = config_class(name)
        beside = kind.__module__ == part.__module__ and kind is not part
        if beside and model_classes(name):
            found = vars(default_config(name)).values()
            if any(type(each) is part for each in found):
                return name
    return None


def _rank(name: str) -> int:
    return next(at for at, part in enumerate(PREFERRED) if part in name)


def _from_mappings(model_type: str) -> Iterator[type[PreTrainedModel]]:
    for mapping in _mappings():
        names = mapping.get(model_type, ())
        for name in (names,) if isinstance(names, str) else names:
            found = getattr(transformers, name, None)
            if inspect.isclass(found) and issubclass(found, PreTrainedModel):
                yield found


@cache
def _mappings() -> tuple[dict[str, str | tuple[str, ...]], ...]:
    names = [name for name in dir(modeling_auto) if name.endswith("MAPPING_NAMES")]
    return tuple(getattr(modeling_auto, name) for name in names)


def _from_modules(config: type[PretrainedConfig]) -> Iterator[type[PreTrainedModel]]:
    """Returns the classes of a configuration's package that say that they are for it."""
    for module in _modeling(config.__module__.rpartition(".")[0]):
        for found in vars(module).values():
            if not inspect.isclass(found) or not issubclass(found, PreTrainedModel):
                continue
            own = vars(found).get("forward") or not found.__name__.endswith("PreTrainedModel")
            if found.__module__ == module.__name__ and _takes(found, config) and own:
                yield found


def _takes(model: type[PreTrainedModel], config: type[PretrainedConfig]) -> bool:
    if model.__name__.endswith("PreTrainedModel"):
        return False
    hint = inspect.signature(model.__init__).parameters.get("config")
    told = getattr(hint, "annotation", None)
    if told in (config, config.__name__):
        return True
    return told in (None, inspect.Parameter.empty) and model.config_class is config


def _modeling(package: str) -> Iterator[ModuleType]:
    home = importlib.import_module(package)
    for each in pkgutil.iter_modules(home.__path__):
        if each.name.startswith("modeling_") and "_tf_" not in each.name:
            yield importlib.import_module(f"{package}.{each.name}")
