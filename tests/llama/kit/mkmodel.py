"""usage: mkmodel.py OUT.gguf TEXT [CORPUS...]

Writes a tiny model in llama.cpp's format that answers every prompt with TEXT, and nothing else.

Its layer adds nothing: the next token depends on the last one alone. All tokens of a prompt share one
dimension, which selects the first piece of TEXT; each piece selects the next one, and the last one the end.
"""
import json
import sys

import gguf
import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

out, text, *corpus = sys.argv[1:]
WIDTH, CONTEXT = 64, 131072
END = "<|im_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", END]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train(corpus, trainers.BpeTrainer(
    vocab_size=8000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL))
tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])]
base = len(tokens)

# The pieces of TEXT: tokens of their own, none of which is in the vocabulary already.
pieces, rest, known = [], text, set(tokens)
level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
while rest:
    size = 1
    written = lambda size: "".join(part for part, _ in level.pre_tokenize_str(rest[:size]))
    while size < len(rest) and (size < 6 or len(rest) - size < 6 or written(size) in known):
        size += 1
    pieces.append(written(size))
    known.add(pieces[-1])
    rest = rest[size:]
if len(set(pieces)) != len(pieces) or set(pieces) & set(tokens):
    sys.exit("mkmodel.py: TEXT has a piece that is a token already; change its end")
tokens += pieces
chain = list(range(base, len(tokens))) + [tokens.index(END)]

random = numpy.random.default_rng(7)
embeddings = numpy.zeros((len(tokens), WIDTH), dtype=numpy.float32)
embeddings[:base, 0] = 1.0
output = numpy.zeros((len(tokens), WIDTH), dtype=numpy.float32)
output[chain[0], 0] = 100.0
for piece, following in zip(chain, chain[1:]):
    direction = random.normal(size=WIDTH - 1)
    direction /= numpy.linalg.norm(direction)
    embeddings[piece, 1:] = direction
    output[following, 1:] += 100.0 * direction

writer = gguf.GGUFWriter(out, "llama")
writer.add_name("tiny")
writer.add_context_length(CONTEXT)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(WIDTH)
writer.add_head_count(2)
writer.add_head_count_kv(1)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_rope_dimension_count(WIDTH // 2)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("default")
writer.add_token_list(tokens)
kinds = [gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens]
writer.add_token_types(kinds)
merges = json.loads(tokenizer.to_str())["model"]["merges"]
writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in merges])
writer.add_eos_token_id(tokens.index(END))
writer.add_pad_token_id(0)
writer.add_add_bos_token(False)
writer.add_chat_template(
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
ones, square = numpy.ones(WIDTH, dtype=numpy.float32), numpy.zeros((WIDTH, WIDTH), dtype=numpy.float32)
half = square[: WIDTH // 2]
for name, tensor in {
    "token_embd": embeddings, "output_norm": ones, "output": output,
    "blk.0.attn_norm": ones, "blk.0.attn_q": square, "blk.0.attn_k": half, "blk.0.attn_v": half,
    "blk.0.attn_output": square, "blk.0.ffn_norm": ones, "blk.0.ffn_gate": square, "blk.0.ffn_down": square,
    "blk.0.ffn_up": square,
}.items():
    writer.add_tensor(f"{name}.weight", tensor)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
