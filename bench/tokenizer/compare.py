"""Our tokenizer against Hugging Face's tokenizers, on one core, in one run.

  python bench/tokenizer/compare.py BINARY DIRECTORY english=GLOB code=GLOB cjk=GLOB [--headline]   (needs: pip install tokenizers)

BINARY is tokenizer-bench, DIRECTORY holds a tokenizer.json. Each corpus is what its glob finds, up to 1 MB, in documents of about
2 KB. The peer is measured with encode_batch, encode_batch_fast and, for one long text, encode: its best counts. Prints MB/s of
both, the ratio, and whether they give as many tokens. With --headline the figures go to bench/results/<processor>/headline.json.
"""
import glob
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402  (reads the environment)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from headline import processor, write_headline  # noqa: E402

MOST_BYTES, DOCUMENT_BYTES, ROUNDS = 1_000_000, 2000, 3


def documents(pattern):
    made, size = [], 0
    for path in sorted(glob.glob(pattern, recursive=True)):
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8").replace("\0", "")
        except (UnicodeDecodeError, IsADirectoryError):
            continue
        current = ""
        for line in text.splitlines(keepends=True):
            current += line
            if len(current.encode()) >= DOCUMENT_BYTES:
                made.append(current)
                size += len(current.encode())
                current = ""
            if size >= MOST_BYTES:
                return made
    return made


def best(run):
    seconds = 1e9
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        result = run()
        seconds = min(seconds, time.perf_counter() - begin)
    return seconds, result


def peer(tokenizer, texts):
    runs = [lambda: tokenizer.encode_batch(texts, add_special_tokens=False),
            lambda: tokenizer.encode_batch_fast(texts, add_special_tokens=False),
            lambda: [tokenizer.encode(t, add_special_tokens=False) for t in texts]]
    results = [best(run) for run in runs]
    return min(seconds for seconds, _ in results), sum(len(e.ids) for e in results[0][1])


def main():
    headline = "--headline" in sys.argv
    binary, directory, *corpora = [a for a in sys.argv[1:] if a != "--headline"]
    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    with tempfile.TemporaryDirectory() as folder:
        texts = {}
        for corpus in corpora:
            name, pattern = corpus.split("=", 1)
            texts[name] = documents(pattern)
            (pathlib.Path(folder) / name).write_bytes("\0".join(texts[name]).encode())
        out = subprocess.run([binary, directory] + [f"{folder}/{name}" for name in texts], check=True, capture_output=True, text=True).stdout
        ours = {}
        for line in out.splitlines():
            name, size, tokens, seconds = line.split("\t")
            ours[name] = (int(size), int(tokens), float(seconds))
        print("| corpus | MB | ours, MB/s | peer, MB/s | ratio | same number of tokens |\n|---|---|---|---|---|---|")
        ratios, runs, decoded = [], [], []
        for name, made in texts.items():
            for mode, batch in (("documents", made), ("one text", ["".join(made)])):
                size, tokens, seconds = ours[f"{name} {mode}"]
                peer_seconds, peer_tokens = peer(tokenizer, batch)
                ratios.append(peer_seconds / seconds)
                print(f"| {name}, {mode} | {size / 1e6:.2f} | {size / seconds / 1e6:.1f} | {size / peer_seconds / 1e6:.2f} "
                      f"| {peer_seconds / seconds:.1f} | {'yes' if tokens == peer_tokens else 'no'} |")
        for name, (size, tokens, seconds) in ours.items():
            if "detokenised" in name:
                decoded.append(tokens / seconds)
                print(f"{name}: {tokens / seconds / 1e6:.1f} million tokens/s")
            elif name.startswith("1 MB") or name == "load":
                print(f"{name}: {seconds * 1000:.0f} ms")
                runs += [seconds] if name != "load" else []
        if headline:
            name = os.path.basename(os.path.normpath(directory))
            command = f"bench/tokenizer/compare.py build/release/bin/tokenizer-bench {name} english=... code=... cjk=... --headline"
            write_headline(processor(), command, [
                (f"tokenizer_{name}_encode_over_peer", min(ratios), "ratio", ">= 1.5",
                 "tokenizers, best of three ways, the smallest ratio over corpora"),
                (f"tokenizer_{name}_longest_1mb_run", max(runs), "s", "<= 0.5", "one letter, spaces, one emoji"),
                (f"tokenizer_{name}_detokenise", min(decoded), "tokens/s", ">= 200000", "stop strings searched")])


if __name__ == "__main__":
    main()
