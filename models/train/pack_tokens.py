"""Encode the corpus into flat arrays of token ids: DATA/train.jsonl -> DATA/train.bin, and so on.

Training reads windows of a fixed length from one long array, which needs neither padding nor a
loader. Every document ends with <|endoftext|>; ids are uint16.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

ENCODE_AT_ONCE = 1000


def pack(tokenizer, source, target):
    """Encode the documents of one .jsonl file, one after the other, into one .bin file."""
    end_of_text = tokenizer.token_to_id("<|endoftext|>")
    with open(source, encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    token_ids, lengths = [], []
    for start in range(0, len(documents), ENCODE_AT_ONCE):
        for encoding in tokenizer.encode_batch(documents[start : start + ENCODE_AT_ONCE]):
            token_ids += [*encoding.ids, end_of_text]
            lengths.append(len(encoding.ids))
    np.array(token_ids, dtype=np.uint16).tofile(target)
    characters = sum(map(len, documents))
    percentiles = np.percentile(lengths, [5, 50, 95, 100]).astype(int).tolist()
    print(
        f"{target}: {len(documents)} documents, {len(token_ids)} tokens, "
        f"{characters / len(token_ids):.2f} characters a token, "
        f"document length p5/p50/p95/max {percentiles}"
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with tokenizer.json and the .jsonl files")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    tokenizer = Tokenizer.from_file(str(arguments.data / "tokenizer.json"))
    if tokenizer.get_vocab_size() > np.iinfo(np.uint16).max + 1:
        raise SystemExit("the vocabulary is too large for uint16 ids")
    for split in ("train", "validation"):
        pack(tokenizer, arguments.data / f"{split}.jsonl", arguments.data / f"{split}.bin")


if __name__ == "__main__":
    main()
