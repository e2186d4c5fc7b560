"""What is known of models of sound."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.sweep.known.entry import (
    Known,
    absent,
    always,
    floats,
    integers,
    ones,
    text,
    uniform,
    zeros,
)

_CODEC = Known(
    {
        "encoder_hidden_size": 8,
        "quantization_dim": 128,
        "semantic_model_config.feature_projection_input_dim": 160,
    },
    {
        "input_values": floats(4, 1, 6400),
        "input_features": floats(4, 20, 160),
        "input_features_mask": ones(4, 20),
    },
)

KNOWN: Mapping[str, Known] = {
    # It has no forward: generate runs three models one after another, two of them like this one.
    "bark": Known(
        kind="BarkSemanticModel",
        part="semantic_config",
        inputs={"input_ids": integers(0, 100, 4, 12), "labels": absent},
    ),
    "clap": Known(
        {"audio_config.hidden_size": 128},
        {"input_features": floats(4, 1, 256, 64), "is_longer": zeros(4, 1, dtype=torch.bool)},
    ),
    "clap_audio_model": Known(
        inputs={"input_features": floats(4, 1, 256, 64), "is_longer": zeros(4, 1, dtype=torch.bool)}
    ),
    "csm": Known(
        inputs={
            "input_ids": integers(0, 100, 4, 12, 32),
            "labels": integers(0, 100, 4, 12, 32),
            "input_values": absent,
        }
    ),
    "dia_decoder": Known(
        inputs={"input_ids": integers(0, 100, 4, 12, 9), "encoder_hidden_states": floats(4, 12, 64)}
    ),
    "dots3_note_audio_encoder": Known(
        {"adapter_input_size": 64},
        {
            "input_features": floats(4, 64, 64),
            "chunk_sample_lengths": always([64 * 160] * 4),
        },
    ),
    "fastspeech2_conformer": Known(
        {"num_mel_bins": 80},
        {
            "spectrogram_labels": floats(4, 24, 80),
            "duration_labels": always([[2] * 12] * 4),
            "pitch_labels": floats(4, 12, 1),
            "energy_labels": floats(4, 12, 1),
        },
    ),
    "fastspeech2_conformer_hifigan": Known(
        {"model_in_dim": 80, "upsample_initial_channel": 64}, {"spectrogram": floats(4, 4, 80)}
    ),
    "fastspeech2_conformer_with_hifigan": Known(
        {"model_config.num_mel_bins": 80, "vocoder_config.model_in_dim": 80},
        {
            "spectrogram_labels": floats(4, 24, 80),
            "duration_labels": always([[2] * 12] * 4),
            "pitch_labels": floats(4, 12, 1),
            "energy_labels": floats(4, 12, 1),
        },
    ),
    "fun_asr_nano_encoder": Known(
        inputs={"input_features": floats(4, 16, 560), "input_features_mask": ones(4, 16)}
    ),
    "gemma3n_audio": Known(
        inputs={
            "audio_mel": floats(4, 64, 128),
            "audio_mel_mask": zeros(4, 64, dtype=torch.bool),
        }
    ),
    "granite_speech5_ctc": Known(
        {"encoder_config.context_size": 32},
        {
            "input_features": floats(4, 64, 320),
            "attention_mask": ones(4, 64),
            "labels": integers(1, 100, 4, 4),
        },
    ),
    "granite_speech5_encoder": Known(
        {"context_size": 32}, {"input_features": floats(4, 64, 320), "attention_mask": ones(4, 64)}
    ),
    "inkling_audio": Known(inputs={"audio_input_ids": integers(0, 128, 4, 12, 80)}),
    "higgs_audio_v2_tokenizer": Known(
        {
            # By default it makes 75 frames a second of what it hears, and 50 of what that means.
            "acoustic_model_config.downsampling_ratios": [8, 5, 4, 2, 3],
            "acoustic_model_config.upsampling_ratios": [8, 5, 4, 2, 3],
            "acoustic_model_config.decoder_hidden_size": 64,
            "acoustic_model_config.encoder_hidden_size": 4,
        },
        {"input_values": floats(4, 1, 7680)},
    ),
    "kyutai_speech_to_text": Known(inputs={"input_ids": integers(0, 100, 4, 12, 33)}),
    "lasr_ctc": Known(inputs={"attention_mask": ones(4, 64), "labels": integers(1, 100, 4, 4)}),
    "mimi_decoder": Known(inputs={"latents": floats(4, 64, 12)}),
    "moonshine_streaming": Known({"num_key_value_heads": 4}),
    "moshi": Known(
        inputs={
            "input_ids": integers(0, 100, 4, 12),
            "user_audio_codes": integers(0, 100, 4, 8, 12),
            "moshi_audio_codes": integers(0, 100, 4, 8, 12),
            "text_labels": integers(0, 100, 4, 12),
            "audio_labels": integers(0, 100, 4, 8, 12),
        },
        alone=True,
    ),
    "moshi_depth": Known(
        inputs={
            "input_ids": integers(0, 100, 4, 8),
            "last_hidden_state": floats(4, 8, 64),
            "attention_mask": ones(4, 8),
            "labels": absent,
        }
    ),
    "musicgen": Known(
        {"decoder.decoder_start_token_id": 0},
        {
            "labels": integers(0, 100, 4, 12, 4),
            "encoder_hidden_states": absent,
            "input_values": absent,
        },
    ),
    "musicgen_melody": Known(
        inputs={
            "labels": integers(0, 100, 4, 12, 4),
            "input_features": floats(4, 24, 12),
            "encoder_hidden_states": absent,
        }
    ),
    "musicgen_melody_decoder": Known(
        inputs={
            "input_ids": integers(0, 100, 16, 12),
            "attention_mask": ones(4, 12),
            "labels": integers(0, 100, 4, 12, 4),
            "encoder_hidden_states": absent,
        }
    ),
    "nemotron3_5_asr": Known(
        inputs={"labels": absent, "decoder_input_ids": integers(0, 100, 4, 12)}
    ),
    "neucodec": _CODEC,
    "parakeet_ctc": Known(inputs={"attention_mask": ones(4, 64), "labels": integers(1, 100, 4, 4)}),
    "parakeet_tdt": Known(inputs={"labels": absent, "decoder_input_ids": integers(0, 100, 4, 12)}),
    "phi4_multimodal_audio": Known(
        {
            "nemo_conv_channels": 64,
            "ext_pw_out_channel": 64,
            "depthwise_separable_out_channel": 64,
            "input_size": 80,
        },
        {"hidden_states": floats(4, 64, 80), "mask": ones(4, 64, dtype=torch.bool)},
    ),
    "pocket_tts_audio_tokenizer_decoder": Known(inputs={"latents": floats(4, 64, 12)}),
    "pop2piano": Known(
        inputs={
            "input_features": floats(4, 12, 64),
            "input_ids": absent,
            "inputs_embeds": absent,
            "attention_mask": ones(4, 12),
        }
    ),
    "qwen2_5_omni": Known(whole="qwen2_5_omni_thinker"),
    "qwen2_5_omni_audio_encoder": Known(
        inputs={
            "input_features": floats(128, 400),
            "feature_lens": always([100] * 4),
            "aftercnn_lens": always([50] * 4),
        }
    ),
    "qwen2_5_omni_bigvgan": Known(
        {
            "upsample_initial_channel": 64,
            "upsample_rates": [5, 3],
            "upsample_kernel_sizes": [11, 7],
        },
        {"mel_spectrogram": floats(4, 64, 4)},
    ),
    "qwen2_5_omni_dit": Known(
        {"mel_dim": 80, "enc_dim": 128, "enc_emb_dim": 192},
        {
            "hidden_states": floats(4, 12, 80),
            "condition_vector": floats(4, 12, 80),
            "speaker_embedding": floats(4, 12, 192),
            "quantized_code": integers(0, 100, 4, 6),
            "time_step": uniform(4),
        },
    ),
    "qwen2_5_omni_token2wav": Known(
        {
            "dit_config.enc_dim": 128,
            "dit_config.enc_emb_dim": 192,
            "dit_config.mel_dim": 64,
            "bigvgan_config.upsample_initial_channel": 64,
            "bigvgan_config.upsample_rates": [5, 3],
            "bigvgan_config.upsample_kernel_sizes": [11, 7],
        },
        {
            "code": integers(0, 100, 4, 6),
            "conditioning": floats(4, 192),
            "reference_mel": floats(4, 12, 64),
        },
        options={"num_steps": 2},
    ),
    "qwen3_asr_encoder": Known(
        inputs={"input_features": floats(4, 128, 200), "input_features_mask": ones(4, 200)}
    ),
    "qwen3_omni_moe_audio_encoder": Known(
        inputs={"input_features": floats(128, 400), "feature_lens": always([100] * 4)}
    ),
    "qwen3_omni_moe_talker_code_predictor": Known(
        inputs={
            "input_ids": absent,
            "inputs_embeds": floats(4, 8, 64),
            "attention_mask": ones(4, 8),
            "labels": integers(0, 100, 4, 8),
        }
    ),
    "vibevoice": Known(
        {"audio_config.num_filters": 2, "semantic_model_config.num_filters": 2},
        {
            "input_ids": text(2, ("audio_token_id", 2), 8),
            "input_values": floats(4, 1, 6400),
            "padding_mask": ones(4, 6400, dtype=torch.bool),
        },
    ),
    "vibevoice_acoustic_tokenizer_encoder": Known(
        {"num_filters": 2}, {"hidden_states": floats(4, 1, 6400)}
    ),
    "vibevoice_asr": Known(
        {
            "acoustic_tokenizer_encoder_config.num_filters": 2,
            "semantic_tokenizer_encoder_config.num_filters": 2,
        },
        {
            "input_ids": text(2, ("audio_token_id", 2), 8),
            "input_values": floats(4, 1, 6400),
            "padding_mask": ones(4, 6400, dtype=torch.bool),
        },
    ),
    "voxtral_realtime": Known(
        inputs={"input_features": floats(4, 128, 96)}, options={"num_delay_tokens": 2}
    ),
    "xcodec2": _CODEC,
}
