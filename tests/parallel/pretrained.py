"""Models of `transformers` that real processes make parallel, save and load."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from autopar.base.errors import AutoparError
from autopar.runtime.job.processes import Processes
from tests.parallel.targets import join

KINDS = ("gpt2", "llama", "t5")


def model_of(kind: str, seed: int = 0) -> Any:
    """Returns a small model; with 3 processes its splits are uneven."""
    import transformers

    torch.manual_seed(seed)
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=29, n_positions=8, n_embd=16, n_layer=2, n_head=4, use_cache=False
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=29,
            hidden_size=16,
            intermediate_size=28,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
        return transformers.LlamaForCausalLM(config).eval()
    config = transformers.T5Config(
        vocab_size=29,
        d_model=16,
        d_kv=4,
        d_ff=20,
        num_layers=1,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def batch() -> dict[str, Tensor]:
    """Returns a global batch."""
    ids = torch.arange(24).reshape(4, 6) % 29
    return {"input_ids": ids, "labels": ids}


def parallel_of(kind: str, parameters: str, seed: int = 0) -> Any:
    """Returns a model in parallel; with weights that are split unevenly where that can be."""
    size = dist.get_world_size()
    mesh, strategy = ("dp=2,tp=2", "fsdp:dp,tensor:tp") if size == 4 else (f"x={size}", "fsdp:x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return autopar.parallelize(
            model_of(kind, seed), batch(), mesh=mesh, strategy=strategy, parameters=parameters
        )


def differing(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    """Returns the tensors that aren't the same, bit by bit."""
    return [
        name
        for name in sorted(found.keys() | wanted.keys())
        if name not in found or name not in wanted or not torch.equal(found[name], wanted[name])
    ]


def saved(processes: Processes, folder: Path, kind: str, parameters: str) -> list[str]:
    """Trains, saves, and loads in all ways; returns what differs."""
    import transformers

    join(processes)
    parallel = parallel_of(kind, parameters)
    parallel.train()
    parallel(**batch()).loss.backward()
    torch.optim.SGD(parallel.parameters(), lr=0.1).step()
    wanted = parallel.full_state_dict()
    problems = differing(wanted, model_of(kind).state_dict())
    problems = [] if problems else ["nothing was trained"]
    other = parallel_of(kind, parameters, seed=1)
    for name, options in {"whole": {}, "shards": {"max_shard_size": "2KB"}}.items():
        parallel.save_pretrained(folder / name, **options)
        again: nn.Module = type(model_of(kind)).from_pretrained(folder / name)
        problems += [f"{name}: {each}" for each in differing(again.state_dict(), wanted)]
        other.load_weights(folder / name)
        problems += [f"{name} taken: {each}" for each in differing(other.full_state_dict(), wanted)]
        other.load_state_dict(model_of(kind).state_dict())
        other.load_state_dict(again.state_dict())
        problems += [f"{name} given: {each}" for each in differing(other.full_state_dict(), wanted)]
        other.load_state_dict(model_of(kind).state_dict())
    config = transformers.AutoConfig.from_pretrained(folder / "whole")
    if config.architectures != [type(model_of(kind)).__name__]:
        problems.append(f"the architecture is {config.architectures}")
    dist.barrier()
    return problems


def refused(processes: Processes, folder: Path) -> list[str]:
    """Saves where nothing can be saved, on one rank alone, and elsewhere on each; what was said."""
    join(processes)
    parallel = parallel_of("gpt2", "dtensor")
    said = []
    (folder / "file").touch()
    limited = folder / "limited"
    for place in (folder / "file", limited):
        with _full_disk(place == limited):
            said.append(_told(lambda place=place: parallel.save_pretrained(place)))
    said.append(_told(lambda: parallel(**batch()) and None))
    said.append(
        _told(lambda: parallel.save_pretrained(folder / "alone"))
        if dist.get_rank() == 0
        else _told(lambda: parallel(**batch()) and None)
    )
    said.append(_told(lambda: parallel.save_pretrained(folder / str(dist.get_rank()))))
    parallel.save_pretrained(folder / "after")
    return said


class _full_disk:
    """A limit on the size of files, which is like a disk that is full."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __enter__(self) -> None:
        import resource
        import signal

        if self.on:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, self.before[1]))

    def __exit__(self, *args: object) -> None:
        import resource

        if self.on:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def _told(call: Any) -> str:
    try:
        call()
    except AutoparError as error:
        return str(error)
    return ""


def left(folder: Path) -> list[str]:
    """Returns the files in a folder, hidden ones too."""
    return sorted(os.listdir(folder))
