"""Writes types.gguf: each data type that Ridge reads, with the values that the `gguf` package gives it.

  python make_types.py
Needs: pip install gguf==0.19.0 numpy

For each type T a tensor "T" of raw blocks and a tensor "T.values" (F32) with gguf.quants.dequantize of them. The blocks are
random bytes, except that their fp16 scales go through zero, the smallest and largest subnormal, the smallest normal, one,
the largest number, and these negated: the first blocks' in both scales, where there are two.
"""
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter
from gguf.quants import dequantize

SCALES = {  # where a block's fp16 scales lie
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def blocks_of(kind, rng):
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (16, size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for n, at in enumerate(SCALES[kind]):
            bits = SPECIAL[(i + 5 * n) % len(SPECIAL)] if i < len(SPECIAL) else int(rng.integers(0x1400, 0x3C00)) | int(rng.integers(0, 2)) << 15
            block[at:at + 2] = [bits & 255, bits >> 8]
    return blocks


def main():
    rng = np.random.default_rng(20)
    writer = GGUFWriter("types.gguf", "ridge-types")
    for kind in SCALES:
        blocks = blocks_of(kind, rng)
        writer.add_tensor(kind.name, blocks.reshape(1, -1), raw_dtype=kind)
        writer.add_tensor(kind.name + ".values", dequantize(blocks.reshape(1, -1), kind).astype(np.float32))
    bf16 = rng.integers(0, 0x7F80, 64, dtype=np.uint16) | (rng.integers(0, 2, 64, dtype=np.uint16) << 15)
    writer.add_tensor("BF16", bf16.view(np.uint8).reshape(1, -1), raw_dtype=T.BF16)
    writer.add_tensor("BF16.values", dequantize(bf16.view(np.uint8).reshape(1, -1), T.BF16).astype(np.float32))
    f16 = rng.integers(0, 0x7C00, 64, dtype=np.uint16).view(np.float16)
    writer.add_tensor("F16", f16)
    writer.add_tensor("F16.values", f16.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
