#!/usr/bin/env python3
"""vLLM's own hermes parser on the texts of benches/engine.rs, to compare with it in one run:

    DIR/venv/bin/python crates/tool-call-parser/benches/vllm_hermes.py      # DIR as given to tests/vllm/run.sh
    cargo bench -p tool-call-parser
"""

import time
from types import SimpleNamespace

from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

REQUEST = SimpleNamespace(tools=[], tool_choice="auto")
MARKS = {"<tool_call>": 1, "</tool_call>": 2}
PIECE = 16


class Tokenizer:
    """As much of a tokenizer as the parser asks for."""

    def get_vocab(self):
        return MARKS

    def encode(self, text, add_special_tokens=False):
        return [MARKS.get(text, 3)]

    def decode(self, ids):
        names = {number: mark for mark, number in MARKS.items()}
        return "".join(names.get(number, "x") for number in ids)


def calls(count, size):
    content = 'line of \\"content\\" with <b>tags</b>\\n' * (size // 40)
    one = '<tool_call>\n{{"name": "write", "arguments": {{"path": "f{}.txt", "content": "{}"}}}}\n</tool_call>\n'
    return "".join(one.format(index, content) for index in range(count))


def whole(text):
    parser = Hermes2ProToolParser(Tokenizer())
    best = float("inf")
    for _ in range(7):
        began = time.perf_counter()
        parser.extract_tool_calls(text, REQUEST)
        best = min(best, time.perf_counter() - began)
    return len(text) / best / 1e6


def streamed(text):
    parser = Hermes2ProToolParser(Tokenizer())
    before = ""
    began = time.perf_counter()
    for start in range(0, len(text), PIECE):
        piece = text[start:start + PIECE]
        parser.extract_tool_calls_streaming(before, before + piece, piece, [3], [3], [3], REQUEST)
        before += piece
    return len(text) / (time.perf_counter() - began) / 1e6


for count, size in ((100, 1024), (10, 40960)):
    print(f"whole, {count} calls of {size} bytes: {whole(calls(count, size)):.1f} MB/s")
for count in (20, 40):
    print(f"in pieces of {PIECE} letters, {count} calls of 1024 bytes: {streamed(calls(count, 1024)):.2f} MB/s")
