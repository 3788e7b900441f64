"""Writes tiny-llama3.gguf and tiny-qwen3.gguf: the checkpoints of ../tiny-llama3 and ../tiny-qwen3 as GGUF files, with the names,
metadata and row order that converters of the field write.

  python make_tiny_gguf.py
Needs: pip install gguf==0.19.0 numpy safetensors
"""
import json
import math

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import load_file

NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def permute(w, heads):
    """Rotary pairs (i, i + d / 2) of each head become neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def rope_factors(c):
    s, d, factors = c["rope_scaling"], c["head_dim"], []
    for i in range(d // 2):
        waves = s["original_max_position_embeddings"] / (2 * math.pi * c["rope_theta"] ** (2 * i / d))
        if waves > s["high_freq_factor"]:
            factors.append(1.0)
        elif waves < s["low_freq_factor"]:
            factors.append(s["factor"])
        else:
            smooth = (waves - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write(arch, folder, file):
    c = json.load(open(f"../{folder}/config.json"))
    w = GGUFWriter(file, arch)
    w.add_name(folder)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_bos_token_id(c["bos_token_id"])
    w.add_eos_token_id(c["eos_token_id"])
    if "rope_scaling" in c:
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    for name, data in load_file(f"../{folder}/model.safetensors").items():
        if name == "model.embed_tokens.weight":
            name = "token_embd.weight"
        elif name == "model.norm.weight":
            name = "output_norm.weight"
        else:
            _, _, layer, rest = name.split(".", 3)
            stem, suffix = rest.rsplit(".", 1)
            if arch == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                data = permute(data, c["num_attention_heads"] if "q_proj" in stem else c["num_key_value_heads"])
            name = f"blk.{layer}.{NAMES[stem]}.{suffix}"
        w.add_tensor(name, data.astype(np.float32) if data.ndim == 1 else data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


write("llama", "tiny-llama3", "tiny-llama3.gguf")
write("qwen3", "tiny-qwen3", "tiny-qwen3.gguf")
