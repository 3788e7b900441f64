#!/usr/bin/env python3
"""Replays a frozen workload on Hugging Face transformers in this process and records what it did: requests in the order of their
arrival, one at a time, greedy, to their full budget.

usage: bench/peers/hf_transformers.py --model DIR --workload FILE --prompts FILE --out DIR [--called transformers] [--rate R] [--device cuda] [--random]

The workload and the prompts come from `ridge-bench draw --model ... --out FILE` (prompts: FILE.prompts.json). Records go to
DIR/NAME/arrivals.csv.gz with the columns of ridge-bench. --random takes a directory's config.json alone and makes weights up, which
changes neither bytes nor arithmetic. Needs torch and transformers.
"""
import argparse
import pathlib
import time

import torch
import transformers

import completions


class TokenTimes:
    """A streamer of generate(): notes when each token was there. The first call brings the prompt."""

    def __init__(self, begin):
        self.begin = begin
        self.times = None

    def put(self, _):
        if self.times is None:
            self.times = []
        else:
            self.times.append(time.perf_counter() - self.begin)

    def end(self):
        pass


def replay(model, requests, device):
    begin = time.perf_counter()
    for request in requests:
        while (left := request.arrival_s - (time.perf_counter() - begin)) > 0:
            time.sleep(left)
        request.sent_s = request.arrival_s  # it waits for the ones before it, not for its client
        request.start_s = time.perf_counter() - begin
        streamer = TokenTimes(begin)
        budget = request.item["max_tokens"]
        with torch.inference_mode():
            model.generate(torch.tensor([request.prompt], device=device), max_new_tokens=budget, min_new_tokens=budget, do_sample=False,
                           streamer=streamer)
        request.first_s, request.end_s = streamer.times[0], streamer.times[-1]
        request.tokens, request.end = len(streamer.times), "length"


def load(name, dtype, device, random):
    if not random:
        return transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(device).eval()
    torch.set_default_dtype(dtype)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(name)).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face directory or name")
    parser.add_argument("--workload", type=pathlib.Path, required=True)
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--called", default="transformers", help="what the records call it")
    parser.add_argument("--device", default="cuda", help="torch's name")
    parser.add_argument("--dtype", default="float16", help="torch's name")
    parser.add_argument("--random", action="store_true", help="made-up weights in the shape of the model's config.json")
    parser.add_argument("--device-name", default="", help="recorded")
    parser.add_argument("--rate", type=float, help="requests a second: the workload's times, scaled from 1/s")
    arguments = parser.parse_args()
    if arguments.rate is not None and arguments.rate <= 0:
        parser.error("--rate: must be more than 0")
    arguments.in_flight = 0
    header, requests = completions.requests_of(arguments.workload, arguments.prompts, as_text=False, rate=arguments.rate)
    completions.check_out(arguments)
    replay(load(arguments.model, getattr(torch, arguments.dtype), arguments.device, arguments.random), requests, arguments.device)
    completions.record(arguments, header, requests)


if __name__ == "__main__":
    main()
