"""Renders conversations with models' own chat templates, as transformers does, and records the prompts.

  python make_chat_golden.py NAME TEMPLATE.jinja > NAME.json     (needs: pip install jinja2)

The conversations are made from a seed: all shapes that a template tells apart, with contents that are hard on it. A
conversation that the template refuses is recorded with "text": null.
"""
import hashlib
import json
import random
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTENTS = [
    "", "Hi", "  spaces kept  ", "\n\nlines\n", "\u00a0\u2003wide\u3000\x1c", "a <|im_end|> b <|eot_id|> c <|start_header_id|>",
    "<think>\nhm\n</think>\n\nso", "x</think>y</think>\n\nz", "</think>", "<think>", "\n", "\n\n<think>one<think>two\n\n</think>three",
    "<tool_response>\n1\n</tool_response>", "<tool_response>half", "caf\u00e9 \U0001f600 \"q\" 'q' \\ / & <b>", "{\"t\": 18}", "tab\there\r\n",
]
NAMES = ["get_weather", "f", "na\"me"]
VALUES = [
    '"Paris"', '"caf\\u00e9 <now> & \\"here\\" \\ud83d\\ude00 \\u001f\\u007f\\n\\/"', "2", "-0", "-0.0", "1.0", "1e5", "1E+20", "0.1", "1e-7",
    "123456789012345678901234567890", "1.7976931348623157e308", "5e-324", "12345678.9", "1e16", "123456789012345680.0", "0.0001", "true",
    "null", "[]", "{}", "[1, [2, {\"a\": []}], \"x\"]", "{\"z\": {\"a\": 1}, \"a\": [{}]}",
]


def arguments(rng):
    keys = rng.sample(["city", "days", "z", "a b", "caf\u00e9", ""], rng.randint(0, 3))
    return "{" + ",".join(f"{json.dumps(k)}:{rng.choice(VALUES)}" for k in keys) + "}"


def tool(rng):
    return ('{"type": "function", "function": {"name": "get_weather", "description": "Get the weather <now> & \\"here\\".", '
            '"parameters": {"type": "object", "properties": ' + arguments(rng) + ', "required": ["city"]}}}')


def message(rng, role, thinking):
    made = {"role": role, "content": rng.choice(CONTENTS)}
    if role == "assistant" and rng.random() < 0.4:
        made["tool_calls"] = [{"name": rng.choice(NAMES), "arguments": arguments(rng)} for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    if role == "assistant" and thinking and rng.random() < 0.3:
        made["reasoning_content"] = rng.choice(CONTENTS)
    return made


def conversation(rng, has_tools, thinking, can_switch):
    roles = ["system"] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        roles += rng.choice([["user"], ["user", "assistant"], ["user", "assistant", "tool"], ["user", "assistant", "tool", "tool"],
                             ["assistant"], ["tool"], ["system"], ["user", "assistant", "tool", "assistant"]])
    made = {"messages": [message(rng, role, thinking) for role in roles], "add_generation_prompt": rng.random() < 0.7}
    if has_tools and rng.random() < 0.5:
        made["tools"] = [tool(rng) for _ in range(rng.randint(1, 2))]
    if not has_tools:
        for m in made["messages"]:
            m.pop("tool_calls", None)
    if can_switch and rng.random() < 0.5:
        made["enable_thinking"] = rng.random() < 0.5
    return made


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(text):
        raise TemplateError(text)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    return env


def render(template, case):
    variables = {k: v for k, v in case.items() if k in ("add_generation_prompt", "enable_thinking")}
    if "tools" in case:
        variables["tools"] = [json.loads(t) for t in case["tools"]]
    messages = []
    for m in case["messages"]:
        m = dict(m)
        if "tool_calls" in m:
            m["tool_calls"] = [{"type": "function", "function": {"name": c["name"], "arguments": json.loads(c["arguments"])}}
                               for c in m["tool_calls"]]
        messages.append(m)
    try:
        return template.render(messages=messages, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", **variables)
    except TemplateError:
        return None


def main():
    name, path = sys.argv[1:]
    source = open(path, encoding="utf-8").read()
    template = environment().from_string(source)
    rng = random.Random("chat " + name)
    cases = []
    for _ in range(100):
        case = conversation(rng, "tools" in source, "reasoning_content" in source, "enable_thinking" in source)
        cases.append(case | {"text": render(template, case)})
    head = json.dumps({"family": name, "template_sha256": hashlib.sha256(source.encode()).hexdigest()})[1:-1]
    print("{" + head + ', "cases": [')
    print(",\n".join(json.dumps(c) for c in cases))
    print("]}")


if __name__ == "__main__":
    main()
