"""transformers as a candidate: static batches, continuous batching, and single forward passes."""

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    StaticCache,
)

from .turns import Candidate, Unavailable, now, timed
from .workloads import Workload


def load(folder: str, dtype: str) -> PreTrainedModel:
    """The model, which never takes a token for an end."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


def static_batches(model: PreTrainedModel, workload: Workload, size: int) -> Candidate:
    """`generate` on batch after batch, padded on the left; each goes on until its longest answer is done."""

    def run() -> None:
        for batch in workload.batches(size):
            ids, mask = _pad_left(batch.prompts)
            with torch.inference_mode():
                out = model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=max(batch.lengths)
                )
            assert out.shape[1] == ids.shape[1] + max(batch.lengths)

    return timed(run)


def _pad_left(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    ids = [[0] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    return torch.tensor(ids), torch.tensor(mask)


def continuous_batching(
    model: PreTrainedModel, workload: Workload, size: int, budget: int
) -> Candidate:
    """The manager behind `generate_batch`, which takes one length for all. Its start and stop are not timed."""
    page = 256
    settings = ContinuousBatchingConfig(
        page_size=page, num_blocks=2 * size * -(-workload.longest // page), max_batch_tokens=budget,
        max_requests_per_batch=size, allow_block_sharing=False,
    )  # fmt: skip
    config = GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=-1)

    def run() -> float:
        with (
            torch.inference_mode(),
            model.continuous_batching_context_manager(
                config, continuous_batching_config=settings
            ) as manager,
        ):
            start = now()
            for i, (prompt, length) in enumerate(
                zip(workload.prompts, workload.lengths, strict=True)
            ):
                manager.add_request(prompt, str(i), max_new_tokens=length)
            done: dict[str, int] = {}
            while len(done) < len(workload.prompts):
                result = manager.get_result(timeout=1)
                if result is not None and (result.error or result.is_finished()):
                    if result.error:
                        raise Unavailable(str(result.error))
                    done[result.request_id] = len(result.generated_tokens)
                elif not manager.is_running():
                    raise Unavailable("its thread has ended")
            seconds = now() - start
        assert [done[str(i)] for i in range(len(done))] == workload.lengths
        return seconds

    return run


def prefill(model: PreTrainedModel, workload: Workload) -> Candidate:
    """One forward pass over prompts of one length: keys and values kept, logits of the last token only."""
    ids = torch.tensor(workload.prompts)

    def run() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)

    return timed(run)


class ForwardSteps:
    """Decode steps as single forward passes, with a cache that grows (`dynamic`) or does not (`static`)."""

    def __init__(self, model: PreTrainedModel, kind: str) -> None:
        self.model = model
        self.kind = kind

    def begin(self, workload: Workload) -> None:
        """Compute the prompts, all of one length."""
        if self.kind == "static":
            self._cache = StaticCache(config=self.model.config, max_cache_len=workload.longest)
        else:
            self._cache = DynamicCache(config=self.model.config)
        self._tokens = torch.tensor(workload.prompts)
        self.step()

    def step(self) -> float:
        """One token for each."""
        start = now()
        with torch.inference_mode():
            out = self.model(self._tokens, past_key_values=self._cache, logits_to_keep=1)
            self._tokens = out.logits[:, -1].argmax(-1, keepdim=True)
        return now() - start
