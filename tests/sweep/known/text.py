"""What is known of models of text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sweep.known.entry import Known, floats

KNOWN: Mapping[str, Known] = {
    "bamba": Known({"mamba_d_head": 32, "mamba_n_heads": 4}),
    "gemma4_assistant": Known(
        {
            "text_config.num_hidden_layers": 2,
            "text_config.num_kv_shared_layers": 2,
            "text_config.hidden_size_per_layer_input": 0,
            "text_config.vocab_size_per_layer_input": 0,
            "text_config.global_head_dim": 32,
        },
        {
            "inputs_embeds": floats(4, 12, 128),
            "shared_kv_states.sliding_attention.0": floats(4, 2, 12, 16),
            "shared_kv_states.sliding_attention.1": floats(4, 2, 12, 16),
            "shared_kv_states.full_attention.0": floats(4, 2, 12, 32),
            "shared_kv_states.full_attention.1": floats(4, 2, 12, 32),
        },
        alone=True,
    ),
    "lfm2_moe": Known({"layer_types": ["conv", "full_attention"]}),
    "nemotron": Known({"num_key_value_heads": 2}),
    "voxtral_realtime_text": Known(inputs={"t_cond": floats(4, 64)}),
}
