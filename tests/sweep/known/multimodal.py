"""What is known of models of several kinds of inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.sweep.known.entry import (
    PERCEIVING,
    Known,
    absent,
    always,
    floats,
    integers,
    ones,
    text,
    uniform,
)

_IMAGE_CODES = {"<image>": 5} | {
    f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z": 64 + code
    for code in range(32)
}
"""The token of each code of an image."""

_VISUAL_TOKENS = {"<image>": 5, "<|extra_200|>": 6} | {
    f"<|visual token {code:06}|>": 64 + code for code in range(32)
}
"""The same, as another model calls them."""

KNOWN: Mapping[str, Known] = {
    "align": Known(
        {
            "projection_dim": 80,
            "vision_config.in_channels": [32, 16, 24, 40, 80, 112, 192],
            "vision_config.out_channels": [16, 24, 40, 80, 112, 192, 320],
            "vision_config.width_coefficient": 0.25,
            "vision_config.depth_coefficient": 0.5,
            "vision_config.hidden_dim": 320,
        }
    ),
    "aria": Known({"projector_patch_to_query_dict": {4: 2}}),
    "blip-2": Known({"image_token_index": 5}),
    "chameleon": Known(
        {"vq_config.num_embeddings": 32, "vocabulary_map": _IMAGE_CODES},
        {
            "input_ids": text(1, (5, 16), 4),
            "attention_mask": ones(4, 21),
            "labels": integers(0, 64, 4, 21),
        },
    ),
    "cohere_compass": Known(
        {
            "text_config.rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        }
    ),
    "colmodernvbert": Known(inputs={"pixel_values": floats(4, 1, 3, 64, 64)}),
    "deepseek_ocr2": Known(
        {
            "text_config.mlp_layer_types": ["dense", "sparse"],
            "text_config.num_experts_per_tok": 2,
            "vision_config.sam_config.downsample_channels": [32, 64],
        }
    ),
    "dots3_note": Known(
        {
            "audio_config.adapter_input_size": 64,
            "audio_config.adapter_out_dim": 64,
            "vision_config.adapter_in_dim": 64,
            "vision_config.adapter_out_dim": 64,
            "vision_config.mlp_layer_types": ["dense", "sparse"],
            "vision_config.per_layer_config": {
                1: {"num_local_experts": 4, "num_experts_per_tok": 2}
            },
        }
    ),
    "emu3": Known(
        {
            "vq_config.codebook_size": 32,
            "vq_config.base_channels": 32,
            "vq_config.hidden_size": 128,
            "vocabulary_map": _VISUAL_TOKENS,
        },
        {
            "input_ids": text(1, (5, 72), 3),
            "attention_mask": ones(4, 76),
            "labels": integers(0, 64, 4, 76),
            "pixel_values": floats(4, 3, 64, 64),
            "image_sizes": always([[64, 64]] * 4),
        },
    ),
    "fast_vlm": Known(
        {
            "vision_config.hidden_size": 256,
            "vision_config.model_args": {
                "inference_mode": True,
                "layers": [1, 1, 1, 1, 1],
                "embed_dims": [8, 16, 32, 64, 128],
            },
        }
    ),
    "gemma3": Known({"mm_tokens_per_image": 4}),
    "gemma3n": Known(
        {
            "text_config.num_hidden_layers": 4,
            "text_config.num_kv_shared_layers": 2,
            "text_config.layer_types": ["sliding_attention", "full_attention"] * 2,
            "text_config.intermediate_size": [128] * 4,
            "text_config.activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
            "text_config.vocab_size": 128,
            "text_config.vocab_size_per_layer_input": 112,
            "vision_config.vocab_offset": 112,
            "vision_config.vocab_size": 8,
            "vision_config.hidden_size": 2048,
            "vision_config.model_args": {"channel_multiplier": 0.0625},
            "audio_config.vocab_offset": 120,
            "audio_config.vocab_size": 8,
        },
        {
            "input_ids": text(2, ("image_token_id", 256), 6),
            "attention_mask": ones(4, 264),
            "token_type_ids": absent,
            "labels": integers(0, 100, 4, 264),
            "pixel_values": floats(4, 3, 256, 256),
            "input_features": absent,
            "input_features_mask": absent,
        },
    ),
    "gemma4_unified": Known(
        {
            "vision_config": {
                "patch_size": 4,
                "mm_embed_dim": 64,
                "mm_posemb_size": 64,
                "output_proj_dims": 64,
            },
            "audio_config": {"audio_embed_dim": 64},
            "text_config.global_head_dim": 32,
        },
        {
            "pixel_values": uniform(4, 9, 432),
            "image_position_ids": always([[[x, y] for y in range(3) for x in range(3)]] * 4),
            "input_features": floats(4, 4, 64),
            "input_features_mask": ones(4, 4, dtype=torch.bool),
            "input_ids": text(2, ("image_token_id", 9), ("audio_token_id", 4), 5),
            "attention_mask": ones(4, 20),
            "labels": integers(3, 100, 4, 20),
        },
        alone=True,
    ),
    "granite4_vision": Known(
        {
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[0, 0], [1, 1]],
            "spatial_target_layers": [0, 0, 1, 1],
        }
    ),
    "hunyuan_vl": Known(
        {
            "text_config.head_dim": 16,
            "text_config.rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 2, 2, 2],
            },
        }
    ),
    "idefics": Known(
        inputs={"pixel_values": floats(4, 1, 3, 64, 64), "image_attention_mask": ones(4, 12, 1)}
    ),
    "idefics_perciever": Known(whole="idefics"),
    "instructblip": Known({"image_token_id": 5}),
    "instructblipvideo": Known({"video_token_id": 5}, {"pixel_values": floats(4, 2, 3, 64, 64)}),
    "kosmos-2": Known(
        {"latent_query_num": 4},
        {"image_embeds_position_mask": always([[False] + [True] * 4 + [False] * 7] * 4)},
    ),
    "llama4": Known({"vision_config.intermediate_size": 256}),
    "llava_next": Known(
        {"image_grid_pinpoints": [[64, 64]]},
        {"pixel_values": floats(4, 2, 3, 64, 64), "image_sizes": always([[64, 64]] * 4)},
    ),
    "llava_next_video": Known(
        {"image_grid_pinpoints": [[64, 64]]},
        {"pixel_values": floats(4, 2, 3, 64, 64), "image_sizes": always([[64, 64]] * 4)},
    ),
    "lxmert": Known(
        {"visual_feat_dim": 64}, {"visual_feats": floats(4, 5, 64), "visual_pos": uniform(4, 5, 4)}
    ),
    "muse_glimmer": Known({"out_hidden_size": 256}),
    "muse_spark": Known(
        {"out_hidden_size": 256},
        {
            "input_ids": text(2, ("image_token_id", 4), ("audio_token_id", 10), 4),
            "attention_mask": ones(4, 20),
            "labels": integers(0, 100, 4, 20),
            "input_values": floats(4, 960),
        },
    ),
    "nemo_speechlm": Known(
        {"text_config.n_groups": 2},
        {
            "input_ids": text(2, ("audio_token_id", 8), 4),
            "attention_mask": ones(4, 14),
            "labels": integers(0, 100, 4, 14),
        },
    ),
    "paddleocr_vl": Known(inputs={"pixel_values": floats(64, 3, 14, 14)}),
    "pe_audio_video": Known(
        {"audio_video_config.video_config.vision_config.model_args": PERCEIVING},
        {
            "pixel_values_videos": floats(4, 2, 3, 56, 56),
            "input_values": floats(4, 1, 7680),
        },
    ),
    "pe_audio_video_encoder": Known(
        {"video_config.vision_config.model_args": PERCEIVING},
        {
            "pixel_values_videos": floats(4, 2, 3, 56, 56),
            "input_values": floats(4, 1, 7680),
        },
    ),
    "pe_video": Known(
        {"video_config.vision_config.model_args": PERCEIVING},
        {"pixel_values_videos": floats(4, 2, 3, 56, 56)},
        options={"return_loss": True},
    ),
    "perception_lm": Known(
        {
            # Its own default, a ResNet, has no width that the projection can be made for.
            "vision_config.architecture": "vit_pe_core_large_patch14_336",
            "vision_config.model_args": PERCEIVING | {"global_pool": ""},
        },
        {
            "input_ids": text(2, ("image_token_id", 16), 6),
            "attention_mask": ones(4, 24),
            "labels": integers(0, 100, 4, 24),
            "pixel_values": floats(4, 1, 3, 56, 56),
        },
    ),
    "pi0": Known(
        {"chunk_size": 4, "vlm_config.text_config.hidden_size": 64, "dit_config.hidden_size": 64},
        {
            "input_ids": text(("image_token_index", 16), 8),
            "pixel_values": floats(4, 1, 3, 56, 56),
            "attention_mask": ones(4, 24),
            "pixel_attention_mask": ones(4, 1, dtype=torch.bool),
            "state": floats(4, 32),
            "actions": floats(4, 4, 32),
            "noise": floats(4, 4, 32),
            "timestep": uniform(4),
        },
    ),
    "qwen2_5_omni_talker": Known(
        inputs={
            "thinker_reply_part": floats(4, 12, 64),
            "input_text_ids": integers(3, 100, 4, 12),
            "image_grid_thw": absent,
        }
    ),
    "qwen2_5_omni_thinker": Known(
        {"vision_start_token_id": 100},
        {
            "input_ids": text(1, ("image_token_id", 4), ("audio_token_id", 16), 3),
            "attention_mask": ones(4, 24),
            "position_ids": always([[list(range(24))] * 4] * 3),
            "labels": integers(0, 100, 4, 24),
            "input_features": floats(4, 128, 64),
            "feature_attention_mask": ones(4, 64),
        },
    ),
    "qwen3_omni_moe": Known(whole="qwen3_omni_moe_thinker"),
    "qwen3_omni_moe_thinker": Known(
        {"vision_start_token_id": 100},
        {
            "input_ids": text(1, ("image_token_id", 4), ("audio_token_id", 8), 51),
            "attention_mask": ones(4, 64),
            "position_ids": always([[list(range(64))] * 4] * 3),
            "labels": integers(0, 100, 4, 64),
            "input_features": floats(4, 128, 64),
            "feature_attention_mask": ones(4, 64),
        },
    ),
    "sam3_video": Known(whole="sam3_tracker"),
    "step3p7": Known({"text_config.sliding_window": 8}),
    "t5gemma2": Known({"encoder.mm_tokens_per_image": 4}),
    "video_llama_3": Known(inputs={"image_merge_sizes": always([2, 2, 2, 2])}),
    "vipllava": Known({"vision_feature_layers": [-1, -2, -1, -2, -1]}),
    "visual_bert": Known(
        {"visual_embedding_dim": 64},
        {
            "visual_embeds": floats(4, 5, 64),
            "visual_attention_mask": ones(4, 5),
            "labels": integers(0, 100, 4, 17),
        },
    ),
}
