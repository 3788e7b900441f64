"""What Hugging Face's tokenizers gives for 20,000 random and nasty strings: hashes of the ids, in answers-<model>.bin.

  python make_answers.py           # writes the answers
  python make_answers.py --check   # compares the installed package with them; exits with 77 where there is none
  python make_answers.py DIRECTORY # writes DIRECTORY/answers.bin for its tokenizer.json: any other model

The strings are drawn from pools.json by a generator that tokenizer_differential_test.cc has too. Each string has two hashes
(FNV-1a of the ids as 32-bit numbers, low byte first): special tokens parsed, and taken as text. Needs: pip install tokenizers gguf
"""
import importlib.util
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent
COUNT = 20000
MASK = (1 << 64) - 1


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % bound


def draw(rng, pool):
    if isinstance(pool[0], str):
        return pool[rng.below(len(pool))]
    first, last = pool[rng.below(len(pool))]
    code = first + rng.below(last - first + 1)
    return " " if 0xD800 <= code < 0xE000 else chr(code)


def string(index, pools):
    """A few draws from one pool, now and then from another, now and then many times the same."""
    rng = Random(index * 1000003 + 17)
    home = rng.below(len(pools))
    count = 1 + rng.below(rng.below(4) * 20 + 6)
    parts = []
    for _ in range(count):
        pool = home if rng.below(4) > 0 else rng.below(len(pools))
        repeats = 1 + rng.below(40) if rng.below(16) == 0 else 1
        parts.append(draw(rng, pools[pool]) * repeats)
    return "".join(parts)


def fnv(ids):
    hash = 0x811C9DC5
    for id in ids:
        for byte in id.to_bytes(4, "little"):
            hash = ((hash ^ byte) * 0x01000193) & 0xFFFFFFFF
    return hash


def load(name, path):
    """The module of a script."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def qwen25(folder):
    from tokenizers import Tokenizer
    load("pack", GOLDEN / "tokenizer-qwen2.5" / "pack_tokenizer.py").unpack(GOLDEN / "tokenizer-qwen2.5", folder / "tokenizer.json")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def smollm2(folder):
    """As ../smollm2-135m/make_golden.py builds it, from a vocabulary without tensors."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    fields = GGUFReader(GOLDEN / "tokenizer-smollm2" / "vocabulary.gguf").fields
    tokens, types, merges = (fields["tokenizer.ggml." + key].contents() for key in ("tokens", "token_type", "merges"))
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types) if k == 3])
    return tokenizer


def answers(tokenizer, strings):
    out = bytearray()
    hashes = []
    for literal in (False, True):
        tokenizer.encode_special_tokens = literal
        hashes.append([fnv(e.ids) for e in tokenizer.encode_batch(strings, add_special_tokens=False)])
    for pair in zip(*hashes):
        for hash in pair:
            out += hash.to_bytes(4, "little")
    return bytes(out)


def main():
    try:
        import gguf, tokenizers  # noqa: F401
    except ImportError:
        print("skipped: the packages tokenizers and gguf are not installed")
        sys.exit(77)
    pools = json.loads((HERE / "pools.json").read_text(encoding="utf-8"))
    strings = [string(i, pools) for i in range(COUNT)]
    if len(sys.argv) == 2 and sys.argv[1] != "--check":
        folder = pathlib.Path(sys.argv[1])
        (folder / "answers.bin").write_bytes(answers(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), strings))
        return
    failed = False
    for name, make in (("qwen2.5", qwen25), ("smollm2", smollm2)):
        with tempfile.TemporaryDirectory() as folder:
            got = answers(make(pathlib.Path(folder)), strings)
        path = HERE / f"answers-{name}.bin"
        if "--check" in sys.argv:
            recorded = path.read_bytes()
            wrong = [i for i in range(COUNT) if got[8 * i:8 * i + 8] != recorded[8 * i:8 * i + 8]]
            print(f"{name}: {len(wrong)} of {COUNT} answers differ", [strings[i] for i in wrong[:5]])
            failed |= bool(wrong)
        else:
            path.write_bytes(got)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
