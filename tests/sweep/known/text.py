"""What is known of models of text."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.sweep.known.entry import Known, absent, always, floats, integers, ones, zeros

KNOWN: Mapping[str, Known] = {
    "bamba": Known({"mamba_d_head": 32, "mamba_n_heads": 4}),
    "blt": Known(
        {
            "encoder_hash_byte_group_vocab": 64,
            "encoder_config.hidden_size_global": 64,
            "decoder_config.hidden_size_global": 64,
        }
    ),
    "blt_local_decoder": Known(
        {"hidden_size_global": 64},
        {
            "input_ids": absent,
            "inputs_embeds": floats(4, 12, 64),
            "patch_embeds": floats(4, 12, 64),
            "attention_mask": absent,
        },
    ),
    "blt_local_encoder": Known(
        inputs={
            "attention_mask": absent,
            "patch_ids": always([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]] * 4),
        },
        options={"num_patches": 3},
    ),
    "cohere_compass_text": Known(
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        }
    ),
    "dbrx": Known({"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0}),
    "deepseek_ocr2_text": Known({"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}),
    "deepseek_v2": Known({"num_experts_per_tok": 2}),
    "diffusion_gemma": Known(
        {
            "text_config.num_experts": 4,
            "text_config.top_k_experts": 2,
            "text_config.moe_intermediate_size": 32,
            "text_config.global_head_dim": 32,
        }
    ),
    "diffusion_gemma_text": Known(
        {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32, "global_head_dim": 32}
    ),
    "dots1": Known({"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}),
    "encoder-decoder": Known({"decoder_start_token_id": 2, "pad_token_id": 1}),
    "esm": Known({"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}),
    "esmfold2": Known(
        {
            "single_inputs_size": 131,
            "num_loops": 1,
            "atom_encoder.hidden_size": 64,
            "atom_encoder.num_attention_heads": 2,
            "atom_encoder.head_dim": 32,
            "atom_encoder.output_dim": 64,
            "structure_head.diffusion_module.hidden_size": 64,
            "structure_head.diffusion_module.atom_encoder.hidden_size": 64,
            "structure_head.diffusion_module.atom_encoder.num_attention_heads": 2,
            "structure_head.diffusion_module.atom_encoder.head_dim": 32,
            "structure_head.diffusion_module.atom_encoder.output_dim": 64,
        },
        {
            "token_index": always([list(range(8))] * 4),
            "residue_index": always([list(range(8))] * 4),
            **dict.fromkeys(("asym_id", "sym_id", "entity_id", "mol_type"), zeros(4, 8)),
            "res_type": integers(0, 33, 4, 8),
            "token_bonds": floats(4, 8, 8, 1),
            "attention_mask": ones(4, 8, dtype=torch.bool),
            "atom_inputs.ref_pos": floats(4, 16, 3),
            "atom_inputs.ref_charge": floats(4, 16),
            "atom_inputs.atom_attention_mask": ones(4, 16, dtype=torch.bool),
            "atom_inputs.ref_element": integers(0, 100, 4, 16),
            "atom_inputs.ref_atom_name_chars": integers(0, 64, 4, 16, 4),
            "atom_inputs.ref_space_uid": always([[at // 2 for at in range(16)]] * 4),
            "atom_inputs.atom_to_token": always([[at // 2 for at in range(16)]] * 4),
            "msa": integers(0, 33, 4, 3, 8),
            "lm_hidden_states": floats(4, 8, 3, 64),
        },
        alone=True,
    ),
    "gemma3n_text": Known(
        {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "intermediate_size": [128] * 4,
            "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        }
    ),
    "gemma4_assistant": Known(
        unable="its configuration refuses what it demands: that all layers share keys and values"
    ),
    "gemma4_unified_assistant": Known(
        unable="its configuration refuses what it demands: that all layers share keys and values"
    ),
    "gemma4_unified_text": Known({"global_head_dim": 32}),
    "gptj": Known({"rotary_dim": 8}),
    "granitemoehybrid": Known({"mamba_d_head": 32, "mamba_n_heads": 4}),
    "hunyuan_v1_*": Known({"head_dim": 16}),
    "hunyuan_vl_text": Known(
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 2, 2, 2],
            },
        }
    ),
    "jev": Known(
        inputs={
            "input_ids": integers(3, 100, 1, 12),
            "marks": always([[4, 8, 12]]),
            "num_options": always([[1, 2, 1]]),
            "question_type_ids": always([[0, 1, 2]]),
        }
    ),
    "layoutlmv3": Known(
        {"coordinate_size": 12, "shape_size": 8, "input_size": 64},
        {"pixel_values": floats(4, 3, 64, 64)},
    ),
    "layoutxlm": Known(whole="layoutlmv2"),
    "lfm2_moe": Known({"layer_types": ["conv", "full_attention"]}),
    "longt5": Known({"decoder_start_token_id": 0}),
    "mamba2": Known({"num_heads": 8, "head_dim": 16}),
    "ministral": Known({"head_dim": 16}),
    "nemotron": Known({"num_key_value_heads": 2}),
    "openai_privacy_filter": Known(inputs={"labels": integers(0, 2, 4, 12)}),
    "perceiver": Known(
        {"d_latents": 64, "d_model": 64, "num_self_attends_per_block": 2, "num_latents": 16}
    ),
    "pix2struct_text_model": Known(whole="pix2struct"),
    "qwen3_omni_moe_talker_text": Known(
        {"shared_expert_intermediate_size": 32},
        {"input_ids": absent, "inputs_embeds": floats(4, 12, 64), "attention_mask": ones(4, 12)},
        drawn=["*.experts.*", "*.gate.weight"],
    ),
    "rag": Known(
        kind="RagTokenForGeneration",
        inputs={
            "input_ids": integers(3, 100, 4, 12),
            "attention_mask": ones(4, 12),
            "context_input_ids": integers(3, 100, 20, 12),
            "context_attention_mask": ones(20, 12),
            "doc_scores": floats(4, 5),
            "labels": integers(3, 100, 4, 6),
        },
        alone=True,
    ),
    "reformer": Known({"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [3, 4]}),
    "step3p5": Known({"sliding_window": 8}),
    "switch_transformers": Known({"decoder_start_token_id": 0}),
    "t5gemma2_decoder": Known(whole="t5gemma2"),
    "t5gemma2_encoder": Known(whole="t5gemma2"),
    "t5gemma2_text": Known(whole="t5gemma2"),
    "voxtral_realtime_text": Known(inputs={"t_cond": floats(4, 1, 64)}),
    "xmod": Known(inputs={"lang_ids": zeros(4)}),
    "zamba2": Known({"layers_block_type": ["linear_attention", "hybrid"]}),
}
