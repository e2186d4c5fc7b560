"""What is known of models of images and videos."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sweep.known.entry import Known, absent, always, floats, ones, uniform

KNOWN: Mapping[str, Known] = {
    "deepseek_ocr2_encoder": Known(inputs={"num_patches": absent}, options={"num_patches": 6}),
    "gemma4_vision": Known(
        inputs={
            "pixel_values": uniform(4, 36, 768),
            "pixel_position_ids": always([[[x, y] for y in range(6) for x in range(6)]] * 4),
        }
    ),
    "kimi_k25_vision": Known(inputs={"pixel_values": floats(64, 3, 14, 14)}),
    "lw_detr": Known({"projector_scale_factors": [1.0]}),
    "minicpmv4_7_vision": Known(
        {"hidden_size": 64, "insert_layer_id": 0},
        {"pixel_values": floats(1, 3, 16, 64 * 16), "target_sizes": always([[4, 4]] * 4)},
    ),
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
    "paddleocr_vl_vision": Known(inputs={"pixel_values": floats(1, 64, 3, 14, 14)}),
    "pix2struct": Known(inputs={"flattened_patches": floats(4, 16, 770)}),
    "pix2struct_vision_model": Known(inputs={"flattened_patches": floats(4, 16, 770)}),
    "xclip_vision_model": Known(inputs={"pixel_values": floats(16, 3, 64, 64)}),
    "zoedepth": Known({"bottleneck_features": 64}),
    "vitmatte": Known(
        {
            "convstream_hidden_sizes": [8, 16, 24],
            "fusion_hidden_sizes": [32, 16, 8, 4],
            "backbone_config.num_channels": 4,
        },
        {"pixel_values": floats(4, 4, 64, 64)},
    ),
}
