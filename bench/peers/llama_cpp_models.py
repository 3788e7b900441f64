"""GGUF files with F16 matrices for the peer: a quantised file converted, and a model's shape with random weights."""
import pathlib

import gguf
import numpy

# The shape of worker/model/synthetic.cc's qwen2.5-0.5b.
QWEN2_5_0_5B = {
    "layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "head_dim": 64, "mlp": 4864, "vocab": 151936,
    "context": 32768, "epsilon": 1e-6, "theta": 1e6,
}


def convert_to_f16(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes `source`, in whatever type, with matrices in F16 and vectors in F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        if field.name == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(numpy.float16 if values.ndim > 1 else numpy.float32))
    _write(writer)


def write_random_qwen2(shape: dict, target: pathlib.Path) -> None:
    """Writes a Qwen2 model of this shape without a vocabulary: enough to decode token ids."""
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_block_count(shape["layers"])
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["mlp"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_layer_norm_rms_eps(shape["epsilon"])
    writer.add_rope_freq_base(shape["theta"])
    writer.add_vocab_size(shape["vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, cols: int) -> None:
        values = random.standard_normal((rows, cols), dtype=numpy.float32) / numpy.float32(cols**0.5)
        writer.add_tensor(name, values.astype(numpy.float16))

    def vector(name: str, value: float, size: int) -> None:
        writer.add_tensor(name, numpy.full(size, value, dtype=numpy.float32))

    hidden, mlp = shape["hidden"], shape["mlp"]
    q_size, kv_size = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    matrix("token_embd.weight", shape["vocab"], hidden)
    vector("output_norm.weight", 1.0, hidden)
    for layer in range(shape["layers"]):
        prefix = f"blk.{layer}."
        vector(prefix + "attn_norm.weight", 1.0, hidden)
        for name, rows in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            matrix(f"{prefix}attn_{name}.weight", rows, hidden)
            vector(f"{prefix}attn_{name}.bias", 0.1, rows)
        matrix(prefix + "attn_output.weight", hidden, q_size)
        vector(prefix + "ffn_norm.weight", 1.0, hidden)
        matrix(prefix + "ffn_gate.weight", mlp, hidden)
        matrix(prefix + "ffn_up.weight", mlp, hidden)
        matrix(prefix + "ffn_down.weight", hidden, mlp)
    _write(writer)


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
