"""usage: mkmodel.py DIR

Writes the configuration and the tokenizer, one token for each byte, of a model of Qwen 2's architecture. It has no weights.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

DIR = pathlib.Path(sys.argv[1])
END, WINDOW = "<|im_end|>", 1 << 20

tokenizer = Tokenizer(models.BPE({byte: place for place, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens([AddedToken(END, special=True)])
DIR.mkdir(exist_ok=True)
tokenizer.save(str(DIR / "tokenizer.json"))
files = {
    "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "pad_token": END,
                         "model_max_length": WINDOW},
    "config": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 257, "eos_token_id": 256,
               "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
               "intermediate_size": 8, "max_position_embeddings": WINDOW},
}
for name, value in files.items():
    (DIR / f"{name}.json").write_text(json.dumps(value))
