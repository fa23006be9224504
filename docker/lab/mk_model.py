"""Makes a tiny random Llama with a byte-level BPE tokenizer trained on the standard library. No network.

usage: python mk_model.py OUT_DIR

Runs in the workers' environment (`tokenizers` comes with vLLM). Weights are not written: the workers start with
`--load-format dummy`.
"""

import glob
import json
import os
import sys
import sysconfig

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
TRAINING_FILES_MAX = 120
SPECIAL_TOKENS = [f"<|{name}|>" for name in ("bos", "eos", "pad", "system", "user", "assistant", "tool", "end")]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOKEN_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "mlp_bias": False,
    **TOKEN_IDS,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|bos|>",
    "eos_token": "<|eos|>",
    "pad_token": "<|pad|>",
    "model_max_length": 32768,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def main(folder):
    os.makedirs(folder, exist_ok=True)
    train_tokenizer().save(os.path.join(folder, "tokenizer.json"))
    write(folder, "tokenizer_config.json", TOKENIZER)
    write(folder, "generation_config.json", TOKEN_IDS)
    with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
        file.write(CHAT_TEMPLATE)
    # Last: its presence says that the model is complete.
    write(folder, "config.json", MODEL)


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))
    tokenizer.train(files[:TRAINING_FILES_MAX], trainer)
    return tokenizer


def write(folder, name, content):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(content, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
