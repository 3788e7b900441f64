"""Writes a GGUF with the tokenizer's metadata of another GGUF and no tensors.

  python make_vocabulary.py SmolLM2-135M-Instruct.Q4_1.gguf vocabulary.gguf

Needs: pip install gguf
"""
import sys

from gguf import GGUFReader, GGUFWriter

reader = GGUFReader(sys.argv[1])
writer = GGUFWriter(sys.argv[2], "llama")
value = lambda key: reader.fields[key].contents()
writer.add_tokenizer_model(value("tokenizer.ggml.model"))
writer.add_tokenizer_pre(value("tokenizer.ggml.pre"))
writer.add_token_list(value("tokenizer.ggml.tokens"))
writer.add_token_types(value("tokenizer.ggml.token_type"))
writer.add_token_merges(value("tokenizer.ggml.merges"))
writer.add_bos_token_id(value("tokenizer.ggml.bos_token_id"))
writer.add_eos_token_id(value("tokenizer.ggml.eos_token_id"))
writer.add_add_bos_token(value("tokenizer.ggml.add_bos_token"))
writer.add_chat_template(value("tokenizer.chat_template"))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()
