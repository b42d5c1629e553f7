"""Train the byte-level BPE tokenizer on DATA/train.jsonl.

Same design as Qwen's tokenizer (split pattern, byte fallback, chat markup) with a vocabulary that
fits a model of 4M parameters. Digits are single tokens, so that counting stays learnable.

Output: DATA/tokenizer.json and DATA/tokenizer_config.json (with the chat template).
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, CHAT_START, CHAT_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, CHAT_START, CHAT_END]  # ids 0, 1, 2

# Words take the space or sign before them; digits stay single; signs and line breaks form groups.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer():
    """An untrained byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(corpus, vocabulary_size, max_documents):
    """Train on the first documents; the grammar repeats itself, so more would change little."""
    tokenizer = build_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with open(corpus, encoding="utf-8") as lines:
        documents = (json.loads(line) for line in islice(lines, max_documents))
        tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def tokenizer_config(max_length):
    """What transformers needs besides tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": CHAT_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [CHAT_START],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("data", type=Path, help="folder with train.jsonl")
    parser.add_argument("--vocabulary-size", type=int, default=2048, help="at most, specials too")
    parser.add_argument("--max-documents", type=int, default=20_000, help="documents to train on")
    parser.add_argument("--max-length", type=int, default=1024, help="context length to note down")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    tokenizer = train_tokenizer(
        arguments.data / "train.jsonl", arguments.vocabulary_size, arguments.max_documents
    )
    tokenizer.save(str(arguments.data / "tokenizer.json"))
    config = json.dumps(tokenizer_config(arguments.max_length), indent=1)
    (arguments.data / "tokenizer_config.json").write_text(config, encoding="utf-8")
    print(f"{arguments.data / 'tokenizer.json'}: {tokenizer.get_vocab_size()} tokens")
    sample = "<|im_start|>user\nCount from 7 to 25.<|im_end|>"
    print("sample:", tokenizer.encode(sample).tokens)


if __name__ == "__main__":
    main()
