"""llama.cpp behind the commands of backend-bench: prefill TOKENS, decode BATCH CONTEXT STEPS, one JSON line each.

usage: llama_cpp_bench.py MODEL.gguf THREADS      (commands on stdin)

Through llama-cpp-python's bindings of the C API, without sampling: each step decodes a fixed token a sequence and
computes its logits.
"""
import json
import statistics
import sys
import time

import llama_cpp

BATCH_ROWS = 512


class Peer:
    def __init__(self, path: str, threads: int):
        llama_cpp.llama_backend_init()
        self.threads = threads
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context = None
        self.shape = None
        self.batch = llama_cpp.llama_batch_init(BATCH_ROWS, 0, 1)

    def open_context(self, sequences: int, tokens: int) -> None:
        if self.context:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * ((tokens + 255) // 256 * 256)
        params.n_batch = params.n_ubatch = BATCH_ROWS
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot open a context")

    def decode(self, rows: list) -> None:
        """rows: (token, position, sequence, whether logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def token(self, i: int) -> int:
        return i * 2654435761 % self.vocab_size

    def fill(self, sequence: int, tokens: int) -> None:
        for begin in range(0, tokens, BATCH_ROWS):
            end = min(begin + BATCH_ROWS, tokens)
            self.decode([(self.token(i), i, sequence, i == tokens - 1) for i in range(begin, end)])

    def prefill(self, tokens: int) -> dict:
        self.shape = None
        self.open_context(1, tokens)
        self.fill(0, 1)  # allocates and warms
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        self.fill(0, tokens)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens_per_second": tokens / seconds}

    def generate(self, sequences: int, context: int, steps: int) -> dict:
        if self.shape != (sequences, context, steps):
            self.open_context(sequences, context + steps + 1)
            for sequence in range(sequences):
                self.fill(sequence, context)
            self.shape = (sequences, context, steps)

        def step(position: int) -> None:
            self.decode([(self.token(s + position), position, s, True) for s in range(sequences)])

        def rewind() -> None:
            memory = llama_cpp.llama_get_memory(self.context)
            for sequence in range(sequences):
                llama_cpp.llama_memory_seq_rm(memory, sequence, context, -1)

        rewind()
        step(context)
        rewind()
        seconds = []
        for i in range(steps):
            start = time.perf_counter()
            step(context + i)
            seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds)
        return {"step_seconds": median, "tokens_per_second": sequences / median}


def main() -> None:
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"system": llama_cpp.llama_print_system_info().decode()}), flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        arguments = [int(number) for number in numbers]
        result = peer.prefill(*arguments) if command == "prefill" else peer.generate(*arguments)
        print(json.dumps(result), flush=True)


main()
