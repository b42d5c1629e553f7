"""Train the tiny model on DATA/train.bin and write a folder that transformers loads.

Muon updates the matrices inside the layers, AdamW the embedding and the norms. The budget is CPU
time (--cpu-minutes) or, for a run that can be repeated exactly, a number of steps (--steps); the
learning rate follows a cosine over whichever is given.
"""

import argparse
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from model import LanguageModel, make_config
from safetensors.torch import save_file
from tokenizers import Tokenizer

END_TOKEN_IDS = [2, 0]  # <|im_end|>, <|endoftext|>
PAD_TOKEN_ID = 0
GENERATION_CONFIG = {
    "eos_token_id": END_TOKEN_IDS,
    "pad_token_id": PAD_TOKEN_ID,
    "do_sample": True,
    "temperature": 0.8,
    "top_p": 0.95,
}
WARMUP_STEPS = 60
FINAL_LEARNING_RATE = 0.1  # as a part of the peak
VALIDATION_WINDOWS = 48


# ---- data


def load_tokens(path):
    return torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))


def split_targets(windows):
    """Windows of length + 1 tokens -> (inputs, the tokens that follow them)."""
    return windows[:, :-1], windows[:, 1:]


class TrainingWindows:
    """Yields batches of windows in random order, each window once before any comes again."""

    def __init__(self, tokens, batch_size, length):
        self.tokens, self.batch_size, self.length = tokens, batch_size, length
        self.num_windows = (len(tokens) - 1) // length
        if self.num_windows < batch_size:
            raise SystemExit(f"train.bin has {self.num_windows} windows of {length} tokens only")
        self.shuffle()

    def shuffle(self):
        self.order = torch.randperm(self.num_windows)
        self.position = 0

    def next_batch(self):
        if self.position + self.batch_size > self.num_windows:
            self.shuffle()
        starts = self.order[self.position : self.position + self.batch_size] * self.length
        self.position += self.batch_size
        windows = [self.tokens[start : start + self.length + 1] for start in starts]
        return split_targets(torch.stack(windows))


def make_validation_batches(tokens, batch_size, length):
    """The first windows of the validation tokens, the same ones each time."""
    count = min(VALIDATION_WINDOWS, (len(tokens) - 1) // length)
    count -= count % batch_size  # whole batches: one shape to compile
    if count == 0:
        raise SystemExit(f"validation.bin is shorter than one batch of {length}-token windows")
    starts = range(0, count * length, length)
    return torch.stack([tokens[start : start + length + 1] for start in starts]).split(batch_size)


# ---- optimizers


@torch.no_grad()
def orthogonalise(matrix, iterations=5):
    """Push all singular values towards 1 (Newton-Schulz iteration in bfloat16)."""
    result = matrix.bfloat16()
    tall = result.shape[-2] > result.shape[-1]
    if tall:
        result = result.mT
    result = result / (result.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = result @ result.mT
        result = 3.4445 * result + (-4.775 * gram + 2.0315 * gram @ gram) @ result
    return (result.mT if tall else result).float()


class Muon:
    """Momentum whose update is orthogonalised, so that no direction of a matrix is neglected."""

    def __init__(self, matrices, momentum=0.95, weight_decay=0.05):
        self.matrices, self.momentum, self.weight_decay = matrices, momentum, weight_decay
        self.averages = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, learning_rate):
        for matrix, average in zip(self.matrices, self.averages, strict=True):
            average.lerp_(matrix.grad, 1 - self.momentum)
            update = orthogonalise(matrix.grad.lerp(average, self.momentum))  # Nesterov
            matrix.mul_(1 - learning_rate * self.weight_decay)
            rows, columns = matrix.shape
            matrix.add_(update, alpha=-learning_rate * max(1, rows / columns) ** 0.5)


class Optimizers:
    """Muon and AdamW, driven by one schedule that runs from 0 to 1."""

    def __init__(self, model, learning_rate, muon_learning_rate):
        embedding = model.model.embed_tokens.weight
        others = [parameter for parameter in model.parameters() if parameter is not embedding]
        self.parameters = list(model.parameters())
        self.learning_rate, self.muon_learning_rate = learning_rate, muon_learning_rate
        self.muon = Muon([parameter for parameter in others if parameter.dim() == 2])
        norms = [parameter for parameter in others if parameter.dim() < 2]
        self.adamw = torch.optim.AdamW(
            [
                {"params": [embedding], "weight_decay": 0.01},
                {"params": norms, "weight_decay": 0.0},
            ],
            lr=learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )

    def step(self, scale):
        """Apply the gradients with both learning rates multiplied by `scale`, and drop them."""
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rate * scale
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adamw.step()
        self.muon.step(self.muon_learning_rate * scale)
        self.clear()

    def clear(self):
        for parameter in self.parameters:
            parameter.grad = None


def learning_rate_scale(step, progress):
    """Linear warm-up over the first steps, then a cosine down to a tenth of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1, progress)))
    warmup = min(1, (step + 1) / WARMUP_STEPS)
    return warmup * (FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * cosine)


# ---- budget


class Budget:
    """Tells how much of the training is done, from 0 to 1, by steps or else by CPU time.

    CPU time and not wall time, so that other work on the machine does not shorten the training.
    """

    def __init__(self, steps, cpu_minutes, threads):
        self.steps, self.cpu_seconds = steps, cpu_minutes * 60 * threads
        self.start = time.process_time()
        self.wall_start = time.time()

    def elapsed(self):
        return time.process_time() - self.start

    def wall(self):
        return time.time() - self.wall_start

    def exclude(self, seconds):
        """Do not count CPU seconds that were spent on something else."""
        self.start += seconds

    def progress(self, step):
        return step / self.steps if self.steps is not None else self.elapsed() / self.cpu_seconds


# ---- training


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


@torch.no_grad()
def validation_loss(forward, batches):
    with autocast():
        return sum(forward(*split_targets(batch)).item() for batch in batches) / len(batches)


def save_model(model, folder, tokenizer_folder):
    """Write weights (bfloat16), configuration, tokenizer and sampling defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors leaves it to the owner alone
    config = {
        **model.config,
        "eos_token_id": END_TOKEN_IDS,
        "bos_token_id": None,
        "pad_token_id": PAD_TOKEN_ID,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generation = json.dumps(GENERATION_CONFIG, indent=1)
    (folder / "generation_config.json").write_text(generation, encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_folder / name, folder / name)


class Trainer:
    """The model with its data and optimizers, ready to step."""

    def __init__(self, arguments, config):
        self.arguments = arguments
        self.model = LanguageModel(config)
        self.forward = torch.compile(self.model) if arguments.compile else self.model
        shape = (arguments.batch_size, arguments.length)
        self.optimizers = Optimizers(
            self.model, arguments.learning_rate, arguments.muon_learning_rate
        )
        self.windows = TrainingWindows(load_tokens(arguments.data / "train.bin"), *shape)
        self.validation = make_validation_batches(
            load_tokens(arguments.data / "validation.bin"), *shape
        )

    def loss(self):
        """Loss of the next batch, with gradients."""
        with autocast():
            loss = self.forward(*self.windows.next_batch())
        loss.backward()
        return loss.item()

    def validate(self):
        return validation_loss(self.forward, self.validation)

    def warm_up(self):
        """Compile and touch everything once, so that the budget pays for training only."""
        self.loss()
        self.optimizers.clear()
        self.validate()

    def save(self, folder):
        save_model(self.model, folder, self.arguments.data)

    def report(self, step, loss, learning_rate, budget):
        tokens = step * self.arguments.batch_size * self.arguments.length
        seconds = budget.elapsed()
        print(
            f"step {step}: loss {loss:.4f}, {tokens / 1e6:.2f}M tokens,"
            f" cpu {seconds:.0f}s, wall {budget.wall():.0f}s,"
            f" {tokens / max(seconds, 1e-9):.0f} tokens/cpu-s, learning rate {learning_rate:.5f}",
            flush=True,
        )

    def train(self):
        """Step until the budget is spent, reporting on the way; returns (steps, budget)."""
        arguments = self.arguments
        budget = Budget(arguments.steps, arguments.cpu_minutes, arguments.threads)
        step, mean_loss, checkpoints = 0, None, 0
        while (progress := budget.progress(step)) < 1:
            scale = learning_rate_scale(step, progress)
            loss = self.loss()
            self.optimizers.step(scale)
            step += 1
            mean_loss = loss if mean_loss is None else 0.95 * mean_loss + 0.05 * loss
            if step % arguments.log_every == 0:
                self.report(step, mean_loss, arguments.learning_rate * scale, budget)
            if step % arguments.validate_every == 0:
                before = time.process_time()
                print(f"  validation loss {self.validate():.4f}", flush=True)
                budget.exclude(time.process_time() - before)
            if arguments.checkpoints and progress > 0.33 * (checkpoints + 1):
                checkpoints += 1
                self.save(arguments.output.with_name(f"{arguments.output.name}-{checkpoints}"))
        return step, budget


def add_model_arguments(parser):
    group = parser.add_argument_group("model")
    group.add_argument("--hidden-size", type=int, default=256, help="width of the model")
    group.add_argument("--layers", type=int, default=5, help="number of layers")
    group.add_argument("--heads", type=int, default=8, help="query heads")
    group.add_argument("--kv-heads", type=int, default=4, help="key and value heads")
    group.add_argument("--head-dim", type=int, default=32, help="size of a head")
    group.add_argument("--intermediate-size", type=int, default=640, help="width of the FFN")
    group.add_argument("--max-positions", type=int, default=1024, help="context to note down")


def add_training_arguments(parser):
    group = parser.add_argument_group("training")
    group.add_argument("--cpu-minutes", type=float, default=81.0, help="budget, per thread")
    group.add_argument("--steps", type=int, help="budget in steps, replaces --cpu-minutes")
    group.add_argument("--batch-size", type=int, default=8, help="windows a step")
    group.add_argument("--length", type=int, default=512, help="tokens a window")
    group.add_argument("--learning-rate", type=float, default=3e-3, help="peak of AdamW")
    group.add_argument("--muon-learning-rate", type=float, default=0.02, help="peak of Muon")
    group.add_argument("--seed", type=int, default=0, help="of the weights and the order")
    group.add_argument("--threads", type=int, default=1, help="CPU threads")
    group.add_argument("--log-every", type=int, default=50, help="steps between two reports")
    group.add_argument("--validate-every", type=int, default=200, help="steps between validations")
    group.add_argument(
        "--no-compile", dest="compile", action="store_false", help="skip torch.compile"
    )
    group.add_argument(
        "--checkpoints", action="store_true", help="also save OUTPUT-1, OUTPUT-2, ... by thirds"
    )


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "data", type=Path, help="folder with train.bin, validation.bin and the tokenizer"
    )
    parser.add_argument("output", type=Path, help="folder to write the model to")
    add_model_arguments(parser)
    add_training_arguments(parser)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = Tokenizer.from_file(str(arguments.data / "tokenizer.json"))
    config = make_config(
        hidden_size=arguments.hidden_size,
        num_layers=arguments.layers,
        num_heads=arguments.heads,
        num_kv_heads=arguments.kv_heads,
        intermediate_size=arguments.intermediate_size,
        vocabulary_size=tokenizer.get_vocab_size(),
        head_dim=arguments.head_dim,
        max_positions=arguments.max_positions,
    )
    trainer = Trainer(arguments, config)
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{count} parameters", flush=True)
    trainer.warm_up()
    steps, budget = trainer.train()
    trainer.save(arguments.output)
    print(
        f"{arguments.output}: {steps} steps,"
        f" {steps * arguments.batch_size * arguments.length} tokens,"
        f" cpu {budget.elapsed():.0f}s, wall {budget.wall():.0f}s,"
        f" validation loss {trainer.validate():.4f}"
    )


if __name__ == "__main__":
    main()
