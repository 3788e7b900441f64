#!/usr/bin/env python3
"""Writes a Hugging Face directory with the shape of a real model and made-up weights, for measurements of loading.

  bench/load/make_checkpoint.py DIRECTORY [--shape qwen2.5-1.5b] [--dtype BF16] [--shards 1]
Needs nothing beside Python.
"""
import argparse
import json
import os
import random

SHAPES = {  # layers, hidden, heads, KV heads, head_dim, mlp, vocabulary
    "qwen2.5-0.5b": (24, 896, 14, 2, 64, 4864, 151936),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 128, 8960, 151936),
}
BYTES = {"F32": 4, "BF16": 2, "F16": 2}
# The last byte of a little-endian number: sign and most of the exponent. These keep magnitudes between 1/256 and 1/8.
HIGH = {"F32": (0x3B, 0x3D), "BF16": (0x3B, 0x3D), "F16": (0x1C, 0x2F)}


def tensors(shape):
    layers, hidden, heads, kv_heads, head_dim, mlp, vocab = shape
    yield "model.embed_tokens.weight", [vocab, hidden]
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", [hidden]
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield f"{p}self_attn.{name}_proj.weight", [rows * head_dim, hidden]
            yield f"{p}self_attn.{name}_proj.bias", [rows * head_dim]
        yield p + "self_attn.o_proj.weight", [hidden, heads * head_dim]
        yield p + "post_attention_layernorm.weight", [hidden]
        yield p + "mlp.gate_proj.weight", [mlp, hidden]
        yield p + "mlp.up_proj.weight", [mlp, hidden]
        yield p + "mlp.down_proj.weight", [hidden, mlp]
    yield "model.norm.weight", [hidden]


def noise(dtype, size):
    data = bytearray(random.Random(1).randbytes(size))
    low, high = HIGH[dtype]
    table = bytes(low + b % (high - low + 1) | b & 0x80 for b in range(256))
    step = BYTES[dtype]
    data[step - 1::step] = data[step - 1::step].translate(table)
    return bytes(data)


def write_shard(path, names, dtype, block):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in names:
        size = BYTES[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, offset, len(block)):
            f.write(block[:offset - begin])
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--dtype", choices=BYTES, default="BF16")
    parser.add_argument("--shards", type=int, default=1)
    args = parser.parse_args()
    layers, hidden, heads, kv_heads, head_dim, mlp, vocab = SHAPES[args.shape]
    os.makedirs(args.directory, exist_ok=True)
    with open(os.path.join(args.directory, "config.json"), "w") as f:
        json.dump({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": hidden, "num_hidden_layers": layers,
                   "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": mlp, "vocab_size": vocab,
                   "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True}, f, indent=1)
    block = noise(args.dtype, 32 << 20)
    names = list(tensors(SHAPES[args.shape]))
    if args.shards == 1:
        total = write_shard(os.path.join(args.directory, "model.safetensors"), names, args.dtype, block)
    else:
        weight_map, total = {}, 0
        for i in range(args.shards):
            shard = f"model-{i + 1:05}-of-{args.shards:05}.safetensors"
            part = names[i::args.shards]
            total += write_shard(os.path.join(args.directory, shard), part, args.dtype, block)
            weight_map |= {name: shard for name, _ in part}
        with open(os.path.join(args.directory, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    print(f"{args.directory}: {total / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
