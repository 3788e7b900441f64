"""Packs Qwen2.5's tokenizer.json (7 MB) into skeleton.json and merges.bin (1 MB), from which it follows byte for byte.

  python pack_tokenizer.py pack   tokenizer.json .
  python pack_tokenizer.py unpack . tokenizer.json

The vocabulary is 256 single bytes, then what each merge gives, in order of rank; so a merge is two ids. merges.bin holds
them as numbers of 24 bits, low byte first: left, right, left, right... skeleton.json is the file with the single bytes as
its vocabulary and no merges.
"""
import json
import pathlib
import sys


def pack(source, folder):
    tokenizer = json.loads(source.read_text(encoding="utf-8"))
    model = tokenizer["model"]
    ids = model["vocab"]
    pairs = bytearray()
    for merge in model["merges"]:
        for part in merge.split(" "):
            pairs += ids[part].to_bytes(3, "little")
    model["vocab"] = {piece: id for piece, id in ids.items() if id < 256}
    model["merges"] = []
    (folder / "merges.bin").write_bytes(pairs)
    (folder / "skeleton.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1), encoding="utf-8")


def unpack(folder, target):
    tokenizer = json.loads((folder / "skeleton.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    pieces = list(model["vocab"])
    data = (folder / "merges.bin").read_bytes()
    for at in range(0, len(data), 6):
        left = pieces[int.from_bytes(data[at:at + 3], "little")]
        right = pieces[int.from_bytes(data[at + 3:at + 6], "little")]
        model["merges"].append(f"{left} {right}")
        pieces.append(left + right)
    model["vocab"] = {piece: id for id, piece in enumerate(pieces)}
    target.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2), encoding="utf-8")


if __name__ == "__main__":
    {"pack": pack, "unpack": unpack}[sys.argv[1]](pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
