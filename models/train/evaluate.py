"""Measure what the model keeps of a request: hero, object, exact counts, glossary, sums, endings.

The loss alone does not tell whether a story is about what was asked for, so judge weights by both.
With --corpus it also looks for stories that were copied from the training text.
"""

import argparse
import json
import random
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from generate_corpus import (
    GLOSSARY,
    HE_NAMES,
    HEROES,
    OBJECTS,
    SHE_NAMES,
    count_answer,
    with_article,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

TINY_MODEL = Path(__file__).resolve().parents[1] / "tiny"
END_TOKEN_IDS, PAD_TOKEN_ID = [2, 0], 0
MAX_NEW_TOKENS = 280
ALL_NAMES = {*SHE_NAMES, *HE_NAMES}


class Answer(NamedTuple):
    text: str
    length: int
    ended: bool


class Subject:
    """The model under test."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def ask(self, questions, temperature=0.0):
        """Answer all questions in one batch; the seed is fixed, so the result can be repeated."""
        if not questions:
            return []
        prompts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for question in questions
        ]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        how = {"do_sample": False}
        if temperature:
            how = {"do_sample": True, "temperature": temperature, "top_p": 0.95, "top_k": 0}
        torch.manual_seed(1)
        outputs = self.model.generate(
            **inputs,
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=END_TOKEN_IDS,
            pad_token_id=PAD_TOKEN_ID,
            **how,
        )
        return [self.cut(row.tolist()) for row in outputs[:, inputs.input_ids.shape[1] :]]

    def cut(self, token_ids):
        """Keep what comes before the first end token."""
        ends = [index for index, token in enumerate(token_ids) if token in END_TOKEN_IDS]
        length = ends[0] if ends else len(token_ids)
        return Answer(self.tokenizer.decode(token_ids[:length]).strip(), length, bool(ends))


def share(hits):
    return f"{np.mean(hits):.2f}" if len(hits) else "not asked"


def training_stories(corpus):
    """All texts of the corpus as an answer would show them; None without a corpus."""
    if corpus is None:
        return None
    with open(corpus, encoding="utf-8") as lines:
        documents = (json.loads(line) for line in lines)
        return {
            document.split("<|im_start|>assistant\n")[-1].replace("<|im_end|>", "")
            for document in documents
        }


def distinct_names(text):
    return len(ALL_NAMES.intersection(re.findall(r"[A-Z][a-z]+", text)))


def evaluate_stories(subject, rng, count, temperature, known):
    wanted = [(rng.choice(HEROES)[0], rng.choice(OBJECTS)) for _ in range(count)]
    answers = subject.ask(
        [
            f"Tell me a story about {with_article(hero)} and {with_article(thing)}."
            for hero, thing in wanted
        ],
        temperature,
    )
    if not answers:
        return
    pairs = list(zip(wanted, answers, strict=True))
    lengths = np.percentile([answer.length for answer in answers], [5, 50, 95]).astype(int)
    copied = "not checked" if known is None else share([answer.text in known for answer in answers])
    print(
        f"{count} stories at temperature {temperature}:"
        f" ended {share([answer.ended for answer in answers])},"
        f" hero used {share([hero in answer.text for (hero, _), answer in pairs])},"
        f" object used {share([thing in answer.text for (_, thing), answer in pairs])},"
        f" names {np.mean([distinct_names(answer.text) for answer in answers]):.2f},"
        f" tokens p5/p50/p95 {lengths.tolist()},"
        f" copied from the corpus {copied}",
        flush=True,
    )


def evaluate_counts(subject, rng, count):
    spans = [(rng.randint(1, 20), rng.randint(3, 20)) for _ in range(count)]
    answers = subject.ask([f"Count from {first} to {first + more}." for first, more in spans])
    hits = [
        answer.text == count_answer(first, first + more)
        for (first, more), answer in zip(spans, answers, strict=True)
    ]
    print(f"{count} counts: exact {share(hits)}", flush=True)


def evaluate_glossary(subject, count):
    entries = GLOSSARY[:count]
    answers = subject.ask([f"What is {term}?" for term, _ in entries])
    hits = [answer.text == expected for (_, expected), answer in zip(entries, answers, strict=True)]
    print(f"{len(entries)} glossary questions: exact {share(hits)}", flush=True)


def evaluate_sums(subject, count):
    sums = [(left, right) for left in range(10) for right in range(10)][:count]
    answers = subject.ask([f"What is {left} + {right}?" for left, right in sums])
    hits = [
        re.findall(r"\d+", answer.text)[-1:] == [str(left + right)]
        for (left, right), answer in zip(sums, answers, strict=True)
    ]
    print(f"{len(sums)} sums: right {share(hits)}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=TINY_MODEL, help="folder of the model")
    parser.add_argument("--corpus", type=Path, help="train.jsonl, to look for copied stories")
    parser.add_argument("--stories", type=int, default=64, help="stories for each temperature")
    parser.add_argument("--counts", type=int, default=32, help="counting questions")
    parser.add_argument("--glossary", type=int, default=30, help="glossary questions, at most 30")
    parser.add_argument("--sums", type=int, default=100, help="sums of two digits, at most 100")
    parser.add_argument("--seed", type=int, default=77, help="for the questions")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    subject = Subject(arguments.model)
    known = training_stories(arguments.corpus)
    rng = random.Random(arguments.seed)
    for temperature in (0.0, 0.8):
        evaluate_stories(subject, rng, arguments.stories, temperature, known)
    evaluate_counts(subject, rng, arguments.counts)
    evaluate_glossary(subject, arguments.glossary)
    evaluate_sums(subject, arguments.sums)


if __name__ == "__main__":
    main()
