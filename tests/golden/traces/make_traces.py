"""Small traces in the formats of recorded ones, with their quirks. usage: python make_traces.py"""
import json
import random

draw = random.Random(0)

# Mooncake: milliseconds; several requests at the same time; lines not quite in the order of time; the last block is not whole; the first
# blocks are shared (a system prompt), some requests share all; very long prompts; answers of one token.
lines = []
for i in range(40):
    at = 3000 * (i // 4) - (draw.choice([0, 0, 0, 1500]) if i > 4 else 0)
    tokens = draw.choice([1, 400, 513, 1024, 1537, 6755, 121000])
    blocks = -(-tokens // 512)
    shared = min(blocks, draw.choice([0, 1, 2, blocks]))
    ids = list(range(shared)) + [1000 + 300 * i + k for k in range(blocks - shared)]
    lines.append(json.dumps({"timestamp": at, "input_length": tokens, "output_length": draw.choice([1, 26, 200, 889]), "hash_ids": ids}))
open("mooncake.jsonl", "w").write("\n".join(lines) + "\n")

# BurstGPT: seconds with and without a fraction; no answer where a request failed; Windows' line ends; names with blanks; no line feed at
# the end.
rows = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
at = 5
for i in range(40):
    at += draw.choice([0, 0, 1, 40, 2.5])
    asked, answered = draw.choice([0, 12, 472, 1087, 3417]), draw.choice([0, 18, 230, 276, 1024])
    rows.append(f"{at},{draw.choice(['ChatGPT', 'GPT-4'])},{asked},{answered},{asked + answered},{draw.choice(['Conversation log', 'API log'])}")
open("burstgpt.csv", "w", newline="").write("\r\n".join(rows))
