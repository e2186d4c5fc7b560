"""Goes on writing a text with a decoder of transformers, from PyTorch, on a mesh.

    python examples/generate_torch.py gpt2 "The station is" --mesh 2

The model takes keys and values of past tokens as tensors, and returns those of past and present: so
says the module around it. They stay on the ranks, laid out as the plan says.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import autopar

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [batch, heads, length, width]."""

STATE = {"past.*": "present.*"}


class Decoder(nn.Module):
    """A model whose past is made of tensors.

    Args:
        model: A decoder of transformers.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: Layers
    ) -> dict[str, Any]:
        """Returns logits, and keys and values of past and present."""
        found = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=DynamicCache(list(past)),
            use_cache=True,
        )
        layers = found.past_key_values.layers
        return {"logits": found.logits, "present": [(each.keys, each.values) for each in layers]}


def compile_decoder(model: Any, mesh: str, strategy: str = "tensor") -> autopar.CompiledModel:
    """Compiles a model for any batch, any prompt, and one token after another.

    Args:
        model: A decoder of transformers.
        mesh: The processes.
        strategy: See `autopar.compile`.
    """
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    batch, length, past = 2, 3, 5
    ids = torch.zeros(batch, length, dtype=torch.long)
    each = torch.zeros(batch, heads, past, width, dtype=model.dtype)
    example = {
        "input_ids": ids,
        "attention_mask": torch.ones(batch, past + length, dtype=torch.long),
        "position_ids": torch.arange(past, past + length).repeat(batch, 1),
        "past": [(each.clone(), each.clone()) for _ in range(config.num_hidden_layers)],
    }
    tokens = {0: "batch", 1: "length=1~1:"}
    layers = [f"past.{at}.{kind}" for at in range(config.num_hidden_layers) for kind in (0, 1)]
    dynamic = {
        "input_ids": tokens,
        "position_ids": tokens,
        "attention_mask": {0: "batch", 1: "past + length"},
        **{name: {0: "batch", 2: "past"} for name in layers},
    }
    return autopar.compile(
        Decoder(model.eval()), example, mesh=mesh, strategy=strategy, dynamic=dynamic, state=STATE
    )


def main() -> int:
    """Writes the text; returns 0."""
    options = _parser().parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model)
    compiled = compile_decoder(model, options.mesh, options.strategy)
    print(compiled.summary(), file=sys.stderr)
    ids = tokenizer(options.prompt, return_tensors="np").input_ids
    with autopar.InferenceSession(compiled) as session:
        found = autopar.generate(
            session, ids, max_new_tokens=options.tokens, eos_token_id=tokenizer.eos_token_id
        )
    print(tokenizer.decode(found[0], skip_special_tokens=True))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a name of the Hugging Face hub, or a folder")
    parser.add_argument("prompt", help="the beginning of the text")
    parser.add_argument("--mesh", default="2", help="processes, as 2 or 2x2")
    parser.add_argument("--strategy", default="tensor", help="see autopar compile")
    parser.add_argument("--tokens", type=int, default=40, help="how many to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
