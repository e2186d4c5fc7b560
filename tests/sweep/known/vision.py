"""What is known of models of images and videos."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sweep.known.entry import (
    PERCEIVING,
    Known,
    absent,
    always,
    floats,
    integers,
    ones,
    uniform,
)

_HIERARCHY = {
    "prompt_encoder_config.image_size": 64,
    "vision_config.backbone_channel_list": [128, 64, 32, 16],
    "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "vision_config.backbone_config.hidden_size": 16,
    "vision_config.backbone_config.embed_dim_per_stage": [16, 32, 64, 128],
    "vision_config.backbone_config.image_size": [64, 64],
}
"""Four stages of small widths, of images of 64."""

_REPVIT = {
    # The default names it as `archirecture`, which nothing reads.
    "backbone_config.architecture": "repvit_m1",
    "backbone_config.model_args": {
        "in_chans": 3,
        "features_only": True,
        "out_indices": [0, 1, 2, 3],
        "embed_dim": [8, 16, 32, 64],
        "depth": [1, 1, 1, 1],
    },
    "backbone_channel_list": [64, 32, 16, 8],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
}
"""Four stages of a small backbone, of images of 64."""

_ENCODED = {
    "vision_features.0": floats(4, 64, 4, 4),
    "vision_pos_embeds.0": floats(4, 64, 4, 4),
    "text_features": floats(4, 12, 64),
}
"""What an encoder of features and texts takes."""

_DECODED = {
    "vision_features": floats(4, 16, 64),
    "vision_pos_encoding": floats(4, 16, 64),
    "text_features": floats(4, 12, 64),
    "spatial_shapes": always([[4, 4]]),
}
"""What a decoder of features and texts takes."""

_MASKED = {
    "decoder_queries": floats(4, 16, 64),
    "backbone_features.0": floats(4, 64, 16, 16),
    "backbone_features.1": floats(4, 64, 8, 8),
    "backbone_features.2": floats(4, 64, 4, 4),
    "encoder_hidden_states": floats(4, 16, 64),
}
"""What a decoder of masks takes, with features of three sizes."""

_PATCHES = {
    "pixel_values": floats(4, 16, 768),
    "pixel_attention_mask": ones(4, 16),
    "spatial_shapes": always([[4, 4]] * 4),
}
"""Images as patches."""

_ROWS_OF_PATCHES = {
    "pixel_values": floats(4, 3, 16, 16 * 16),
    "target_sizes": always([[4, 4]]),
}
"""Images of one size, each a row of patches; those of several sizes would be one row together."""

_SMALL_BLOCKS = {
    "backbone_config.stem_channels": (3, 8, 16),
    "backbone_config.block_configs": [
        [[3, 16, 16, 1, True]],
        [[3, 16, 24, 2, False]],
        [[3, 24, 32, 2, False]],
        [[3, 32, 48, 2, False]],
    ],
    "backbone_config.out_indices": [1, 2, 3, 4],
}

_KERNELS = {
    "reduce_channel": [1, 1, 0],
    "return_channel": [1, 1, 0],
    "vertical_long_to_small_conv_longratio": [[7, 1], [1, 1], [3, 0]],
    "vertical_long_to_small_conv_midratio": [[5, 1], [1, 1], [2, 0]],
    "vertical_long_to_small_conv_shortratio": [[3, 1], [1, 1], [1, 0]],
    "horizontal_small_to_long_conv_longratio": [[1, 7], [1, 1], [0, 3]],
    "horizontal_small_to_long_conv_midratio": [[1, 5], [1, 1], [0, 2]],
    "horizontal_small_to_long_conv_shortratio": [[1, 3], [1, 1], [0, 1]],
    "symmetric_conv_long_longratio": [[7, 7], [1, 1], [3, 3]],
    "symmetric_conv_long_midratio": [[5, 5], [1, 1], [2, 2]],
    "symmetric_conv_long_shortratio": [[3, 3], [1, 1], [1, 1]],
}
"""Sizes, strides and paddings of convolutions; the library has no defaults of them."""

KNOWN: Mapping[str, Known] = {
    "align_vision_model": Known(
        {
            "in_channels": [32, 16, 24, 40, 80, 112, 192],
            "out_channels": [16, 24, 40, 80, 112, 192, 320],
            "width_coefficient": 0.25,
            "depth_coefficient": 0.5,
            "hidden_dim": 320,
        }
    ),
    "bit": Known({"num_groups": 4}),
    "chameleon_vqgan": Known(whole="chameleon"),
    "deepseek_ocr2_encoder": Known(inputs={"num_patches": absent}, options={"num_patches": 6}),
    "deepseek_ocr2_vision": Known({"sam_config.downsample_channels": [32, 64]}),
    "depth_pro": Known(
        {
            "patch_size": 64,
            "intermediate_hook_ids": (1, 0),
            "intermediate_feature_dims": (32, 32),
            "scaled_images_feature_dims": (64, 32, 32),
            "image_model_config.image_size": 64,
            "patch_model_config.image_size": 64,
            "fov_model_config.image_size": 64,
        },
        {"pixel_values": floats(4, 3, 256, 256)},
    ),
    "dots3_note_vision_encoder": Known(
        {
            "mlp_layer_types": ["dense", "sparse"],
            "per_layer_config": {1: {"num_local_experts": 4, "num_experts_per_tok": 2}},
        }
    ),
    "edgetam": Known(
        {f"vision_config.{name}": each for name, each in _REPVIT.items()}
        | {"prompt_encoder_config.image_size": 64}
    ),
    "edgetam_video": Known(_HIERARCHY),
    "edgetam_vision_model": Known(_REPVIT),
    "efficientloftr": Known(
        {"out_features": [16, 16, 32, 64], "hidden_size": 64, "stage_num_blocks": [1, 1, 1, 1]}
    ),
    "efficientnet": Known(
        {
            "in_channels": [32, 16, 24, 40, 80, 112, 192],
            "out_channels": [16, 24, 40, 80, 112, 192, 320],
            "width_coefficient": 0.25,
            "depth_coefficient": 0.5,
            "hidden_dim": 320,
        }
    ),
    "emu3_vqgan": Known(whole="emu3"),
    "flava_image_codebook": Known(whole="flava"),
    "florence_vision": Known(
        {
            "depths": [1, 1, 1, 1],
            "embed_dim": [16, 32, 64, 128],
            "num_heads": [2, 2, 4, 4],
            "num_groups": [2, 2, 4, 4],
            "projection_dim": 64,
            "window_size": 4,
        },
        {"hidden_states": floats(4, 3, 64, 64)},
        alone=True,
    ),
    "gemma3n_vision": Known(
        {"model_args": {"channel_multiplier": 0.0625}}, {"pixel_values": floats(4, 3, 256, 256)}
    ),
    "gemma4_unified_audio": Known(whole="gemma4_unified"),
    "gemma4_unified_vision": Known(whole="gemma4_unified"),
    "gemma4_vision": Known(
        inputs={
            "pixel_values": uniform(4, 36, 768),
            "pixel_position_ids": always([[[x, y] for y in range(6) for x in range(6)]] * 4),
        }
    ),
    "glm_image_vqmodel": Known(whole="glm_image"),
    "grounding-dino": Known(
        {"backbone_config.embed_dim": 24, "backbone_config.image_size": 128},
        {"pixel_values": floats(4, 3, 128, 128)},
    ),
    "idefics2_perceiver": Known(inputs={"attention_mask": ones(4, 12)}),
    "inkling_vision": Known(
        {"patch_size": 10, "num_hidden_layers": 4}, {"pixel_values": floats(64, 2, 10, 10, 3)}
    ),
    "inkling2_vision": Known(inputs={"pixel_values": floats(64, 40, 40, 3)}),
    "janus_vqgan": Known({"num_patches": 4}),
    "kimi_k25_vision": Known(inputs={"pixel_values": floats(64, 3, 14, 14)}),
    "llama4_vision_model": Known({"intermediate_size": 256}),
    "lw_detr": Known({"projector_scale_factors": [1.0]}),
    "mask2former": Known(
        {"backbone_config.embed_dim": 24, "backbone_config.image_size": 128},
        {"pixel_values": floats(4, 3, 128, 128)},
    ),
    "minicpm_ocr_vision": Known({"hidden_size": 64, "insert_layer_id": 1}, _ROWS_OF_PATCHES),
    "minicpmv4_6_vision": Known({"hidden_size": 64, "insert_layer_id": 1}, _ROWS_OF_PATCHES),
    "minicpmv4_7_vision": Known({"hidden_size": 64, "insert_layer_id": 1}, _ROWS_OF_PATCHES),
    "mllama_vision_model": Known(
        {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
        {
            "pixel_values": floats(4, 1, 4, 3, 56, 56),
            "aspect_ratio_ids": ones(4, 1),
            "aspect_ratio_mask": ones(4, 1, 4),
        },
    ),
    "mm-grounding-dino": Known(
        {"backbone_config.embed_dim": 24, "backbone_config.image_size": 128},
        {"pixel_values": floats(4, 3, 128, 128)},
    ),
    "mobilevit": Known({"hidden_sizes": [32, 48, 64]}),
    "molmo2_adapter": Known(inputs={"pooled_patches_idx": integers(0, 48, 16, 4)}),
    # No class takes its configuration: its models are of this type, with an encoder of donut-swin.
    "nougat": Known(whole="vision-encoder-decoder"),
    "omdet-turbo": Known(
        {"class_embed_dim": 128, "text_projection_in_dim": 128, "text_projection_out_dim": 128},
        {
            "vision_features.0": floats(4, 32, 8, 8),
            "vision_features.1": floats(4, 32, 4, 4),
            "vision_features.2": floats(4, 32, 2, 2),
            "class_features": floats(5, 4, 128),
            "task_features": floats(6, 4, 128),
            "task_mask": ones(4, 6),
        },
        alone=True,
    ),
    "oneformer": Known(
        {"backbone_config.embed_dim": 24, "backbone_config.image_size": 128, "task_seq_len": 8},
        {"pixel_values": floats(4, 3, 128, 128), "task_inputs": integers(0, 100, 4, 8)},
    ),
    "paddleocr_vl_vision": Known(inputs={"pixel_values": floats(1, 64, 3, 14, 14)}),
    "pe_video_encoder": Known(
        {"vision_config.model_args": PERCEIVING}, {"pixel_values_videos": floats(4, 2, 3, 56, 56)}
    ),
    "pix2struct": Known(
        {"vision_config.patch_embed_hidden_size": 768}, {"flattened_patches": uniform(4, 16, 770)}
    ),
    "pix2struct_vision_model": Known(
        {"patch_embed_hidden_size": 768}, {"flattened_patches": uniform(4, 16, 770)}
    ),
    "pp_doclayout_v4": Known({"decoder_in_channels": [64, 64, 64]}, {"labels": absent}),
    "pp_ocrv5_mobile_det": Known(inputs={"hidden_states": floats(4, 3, 64, 64)}),
    "pp_ocrv5_mobile_rec": Known(inputs={"pixel_values": floats(4, 3, 96, 320)}),
    "pp_ocrv5_server_det": Known(
        {
            "intraclass_block_config": _KERNELS,
            "scale_factor_list": [1, 2, 4, 8],
            "kernel_list": [3, 2, 2],
        }
    ),
    "pp_ocrv6_medium_det": Known(
        {
            "intraclass_block_config": _KERNELS,
            "scale_factor_list": [1, 2, 4, 8],
            "kernel_list": [3, 2, 2],
            **_SMALL_BLOCKS,
        }
    ),
    "pp_ocrv6_small_det": Known(
        {
            **_SMALL_BLOCKS,
            "layer_list_out_channels": (16, 24, 32, 48),
        }
    ),
    "pp_ocrv6_small_rec": Known(
        {"backbone_config.stem_channels": (3, 48, 96)}, {"pixel_values": floats(4, 3, 96, 320)}
    ),
    "pp_ocrv6_tiny_rec": Known(
        {"backbone_config.stem_channels": (3, 48, 96)}, {"pixel_values": floats(4, 3, 96, 320)}
    ),
    "sam2": Known(_HIERARCHY),
    "sam2_hiera_det_model": Known(
        {"hidden_size": 16, "embed_dim_per_stage": [16, 32, 64, 128], "image_size": [64, 64]}
    ),
    "sam2_video": Known(_HIERARCHY),
    "sam2_vision_model": Known(
        {
            "backbone_channel_list": [128, 64, 32, 16],
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            "backbone_config.hidden_size": 16,
            "backbone_config.embed_dim_per_stage": [16, 32, 64, 128],
            "backbone_config.image_size": [64, 64],
        }
    ),
    "sam3_detr_decoder": Known(inputs=_DECODED, alone=True),
    "sam3_detr_encoder": Known(inputs=_ENCODED, options={"spatial_sizes": [(4, 4)]}, alone=True),
    "sam3_lite_text_detr_decoder": Known(inputs=_DECODED, alone=True),
    "sam3_lite_text_detr_encoder": Known(
        inputs=_ENCODED, options={"spatial_sizes": [(4, 4)]}, alone=True
    ),
    "sam3_lite_text_mask_decoder": Known(inputs=_MASKED, alone=True),
    "sam3_mask_decoder": Known(inputs=_MASKED, alone=True),
    "sam3_tracker": Known(
        {
            "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            "prompt_encoder_config.image_size": 56,
            "vision_config.backbone_config.image_size": 56,
        },
        {"pixel_values": floats(4, 3, 56, 56)},
    ),
    "sam3_tracker_video": Known(whole="sam3_tracker"),
    "sam3_tracker_video_mask_decoder": Known(
        kind="Sam3TrackerVideoMaskDecoder",
        inputs={
            "image_embeddings": floats(4, 64, 4, 4),
            "image_positional_embeddings": floats(4, 64, 4, 4),
            "sparse_prompt_embeddings": floats(4, 1, 2, 64),
            "dense_prompt_embeddings": floats(4, 64, 4, 4),
            "high_resolution_features.0": floats(4, 8, 16, 16),
            "high_resolution_features.1": floats(4, 16, 8, 8),
        },
        options={"multimask_output": True},
        alone=True,
    ),
    "sam3_tracker_video_prompt_encoder": Known(
        {"image_size": 56},
        kind="Sam3TrackerVideoPromptEncoder",
        inputs={
            "input_points": uniform(4, 1, 2, 2),
            "input_labels": integers(0, 2, 4, 1, 2),
            "input_masks": floats(4, 1, 16, 16),
        },
        options={"input_boxes": None},
        alone=True,
    ),
    "seggpt": Known(
        {
            "image_size": [64, 32],
            "pretrain_image_size": 32,
            "num_hidden_layers": 5,
            "merge_index": 0,
            "intermediate_hidden_state_indices": [1, 2, 3, 4],
        },
        {
            "pixel_values": floats(4, 3, 32, 32),
            "prompt_pixel_values": floats(4, 3, 32, 32),
            "prompt_masks": floats(4, 3, 32, 32),
            "labels": floats(4, 3, 32, 32),
        },
        kind="SegGptForImageSegmentation",
    ),
    "siglip2": Known(inputs=_PATCHES),
    "siglip2_vision_model": Known(inputs=_PATCHES),
    "slanet": Known({"max_text_length": 8}, kind="SLANetForTableRecognition"),
    "slanext": Known({"max_text_length": 8}, kind="SLANeXtForTableRecognition"),
    "swin2sr": Known({"embed_dim": 24}),
    "timm_backbone": Known({"backbone": "resnet10t"}),
    "tvp": Known(
        {
            "max_img_size": 64,
            "visual_prompt_size": 8,
            "num_frames": 2,
            "backbone_config.hidden_sizes": [8, 16, 32, 64],
        },
        {
            "input_ids": integers(3, 100, 1, 12),
            "attention_mask": ones(1, 12),
            "pixel_values": floats(1, 2, 3, 64, 64),
        },
    ),
    "unlimited_ocr_vision_encoder": Known(inputs={"patch_embeds": floats(4, 64, 4, 4)}),
    "uvdoc": Known({"backbone_config.out_indices": [1, 2, 3, 4, 5, 6]}),
    "video_llama_3_vision": Known(inputs={"merge_sizes": always([2, 2, 2, 2])}),
    "videomae": Known(
        inputs={
            "pixel_values": floats(4, 16, 3, 64, 64),
            # Of every video as many patches are hidden.
            "bool_masked_pos": always([[True, False] * 64] * 4),
        }
    ),
    "vitmatte": Known(
        {
            "convstream_hidden_sizes": [8, 16, 24],
            "fusion_hidden_sizes": [32, 16, 8, 4],
            "backbone_config.num_channels": 4,
        },
        {"pixel_values": floats(4, 4, 64, 64)},
    ),
    "xclip_vision_model": Known(inputs={"pixel_values": floats(16, 3, 64, 64)}),
    "zoedepth": Known({"bottleneck_features": 64}),
}
