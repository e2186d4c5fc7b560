"""What is known of models of sound."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.sweep.known.entry import Known, floats, integers, uniform, zeros

KNOWN: Mapping[str, Known] = {
    "gemma3n_audio": Known(
        inputs={
            "audio_mel": floats(4, 64, 128),
            "audio_mel_mask": zeros(4, 64, dtype=torch.bool),
        }
    ),
    "inkling_audio": Known(inputs={"audio_input_ids": integers(0, 128, 4, 12, 80)}),
    "qwen2_5_omni_dit": Known(
        inputs={
            "hidden_states": floats(4, 12, 80),
            "condition_vector": floats(4, 12, 80),
            "speaker_embedding": floats(4, 12, 192),
            "quantized_code": integers(0, 100, 4, 6),
            "time_step": uniform(4),
        }
    ),
    "moonshine_streaming": Known({"num_key_value_heads": 4}),
}
