"""Print what the model answers to a few prompts, greedy and sampled.

Without prompts a fixed set is used that shows what the model can do and what it cannot (it has
never seen a capital or a pirate). --check-logits also compares transformers' logits with those of
the training model in model.py.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from model import LanguageModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TINY_MODEL = Path(__file__).resolve().parents[1] / "tiny"
END_TOKEN_IDS, PAD_TOKEN_ID = [2, 0], 0

# (text, is a chat, is sampled)
DEMONSTRATION = [
    ("Once upon a time, there was a", False, False),
    ("Once upon a time, there was a", False, True),
    ("Tell me a story about a dragon and a lamp.", True, False),
    ("Tell me a short story about a penguin and a drum.", True, True),
    ("Tell me a long story about a pirate and a telescope.", True, True),
    ("One day, a tiny mouse found a piece of cheese.", False, True),
    ("Count from 7 to 25.", True, False),
    ("What is a KV cache?", True, False),
    ("What is paged attention?", True, True),
    ("What is the capital of France?", True, False),
    ("Hello!", True, False),
    ("What is 6 + 3?", True, False),
    ("Name four animals.", True, True),
    ("Why does the scheduler preempt a request?", True, False),
]


@torch.no_grad()
def largest_logit_difference(folder, model, tokenizer):
    """Compare transformers' model with model.py in float32; both read the same weights."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    reference = LanguageModel(config)
    weights = load_file(folder / "model.safetensors")
    reference.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    inputs = tokenizer("Once upon a time, there was a little fox", return_tensors="pt").input_ids
    difference = (reference(inputs) - model.float()(inputs).logits).abs().max().item()
    model.bfloat16()
    return difference


def answer(model, tokenizer, prompt, arguments, is_chat, is_sampled):
    """Generate after one prompt and print the text with its length and speed."""
    text = prompt
    if is_chat:
        system = [{"role": "system", "content": arguments.system}] if arguments.system else []
        text = tokenizer.apply_chat_template(
            [*system, {"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
        )
    how = {"do_sample": False}
    if is_sampled:
        how = {
            "do_sample": True,
            "temperature": arguments.temperature,
            "top_p": arguments.top_p,
            "top_k": 0,
        }
    inputs = tokenizer(text, return_tensors="pt")
    start = time.process_time()
    output = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        max_new_tokens=arguments.max_new_tokens,
        eos_token_id=END_TOKEN_IDS,
        pad_token_id=PAD_TOKEN_ID,
        **how,
    )[0]
    seconds = time.process_time() - start
    new_tokens = output[inputs.input_ids.shape[1] :]
    ended = new_tokens[-1].item() in END_TOKEN_IDS
    print(
        f"--- {'chat' if is_chat else 'plain'}, {'sampled' if is_sampled else 'greedy'}: {prompt!r}"
        f" -> {len(new_tokens)} tokens, {'ended' if ended else 'cut'},"
        f" {len(new_tokens) / seconds:.0f} tokens/cpu-s"
    )
    print(tokenizer.decode(new_tokens, skip_special_tokens=True).strip(), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("prompts", nargs="*", help="prompts; a fixed set if there are none")
    parser.add_argument("--model", type=Path, default=TINY_MODEL, help="folder of the model")
    parser.add_argument("--plain", action="store_true", help="continue the prompts as plain text")
    parser.add_argument("--system", help="system prompt for the chats")
    parser.add_argument("--greedy", action="store_true", help="do not sample for the prompts")
    parser.add_argument("--temperature", type=float, default=0.8, help="for sampled answers")
    parser.add_argument("--top-p", type=float, default=0.95, help="for sampled answers")
    parser.add_argument("--max-new-tokens", type=int, default=260, help="longest answer")
    parser.add_argument("--seed", type=int, default=0, help="for sampled answers")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--check-logits", action="store_true", help="compare with model.py first")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    print(type(model).__name__, model.num_parameters(), "parameters")
    if arguments.check_logits:
        difference = largest_logit_difference(arguments.model, model, tokenizer)
        print(f"largest logit difference to model.py in float32: {difference:.1e}")
    chosen = [(prompt, not arguments.plain, not arguments.greedy) for prompt in arguments.prompts]
    torch.manual_seed(arguments.seed)
    for prompt, is_chat, is_sampled in chosen or DEMONSTRATION:
        answer(model, tokenizer, prompt, arguments, is_chat, is_sampled)


if __name__ == "__main__":
    main()
