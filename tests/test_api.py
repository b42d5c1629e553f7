"""`from tourvllm import LLM, SamplingParams`: scripts for nano-vllm and vLLM run with the import changed."""

import gc
import os
import shutil
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from support import POLICIES, TINY, Watched, generate, greedy, make_engine, tokens, with_config
from tourvllm.engine.errors import ConfigError, EngineError, ModelError, RequestError
from tourvllm.engine.outputs import RequestOutput

from tourvllm import LLM, SamplingParams
from tourvllm.errors import UsageError

STORIES = ["Once upon a time", "One day, a tiny mouse", "The sun"]
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def llm():
    with LLM(**CPU) as made:
        yield made


def run_script(code: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


# Scripts of other engines

NANO_VLLM = """
import os
from nanovllm import LLM, SamplingParams
from transformers import AutoTokenizer


def main():
    path = os.path.expanduser("~/huggingface/Qwen3-0.6B/")
    tokenizer = AutoTokenizer.from_pretrained(path)
    llm = LLM(path, enforce_eager=True, tensor_parallel_size=1)

    sampling_params = SamplingParams(temperature=0.6, max_tokens=256)
    prompts = [
        "introduce yourself",
        "list all prime numbers within 100",
    ]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=True
        )
        for prompt in prompts
    ]
    outputs = llm.generate(prompts, sampling_params)

    for prompt, output in zip(prompts, outputs):
        print("\\n")
        print(f"Prompt: {prompt!r}")
        print(f"Completion: {output['text']!r}")


if __name__ == "__main__":
    main()
"""
"""The example of nano-vllm, as it stands."""


def test_the_example_of_nano_vllm_runs_with_the_import_changed(tmp_path):
    home = tmp_path / "home"
    shutil.copytree(TINY, home / "huggingface" / "Qwen3-0.6B")
    script = NANO_VLLM.replace("from nanovllm import", "from tourvllm import")
    done = run_script(script, tmp_path, HOME=str(home), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert [line.split(":")[0] for line in lines] == ["Prompt", "Completion"] * 2
    assert "introduce yourself" in lines[0]
    assert len(lines[1]) > 40
    assert "Generating: 100%" in done.stderr


NANO_BENCH = """
from random import randint, seed
from nanovllm import LLM, SamplingParams

seed(0)
llm = LLM("PATH", enforce_eager=False, max_model_len=512)
ids = [[randint(0, 2000) for _ in range(randint(10, 60))] for _ in range(9)]
params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=randint(5, 20)) for _ in ids]
llm.generate(["Benchmark: "], SamplingParams())
outputs = llm.generate(ids, params, use_tqdm=False)
assert [len(out["token_ids"]) for out in outputs] == [p.max_tokens for p in params]
print("all", sum(p.max_tokens for p in params))
"""


def test_its_benchmark_too(tmp_path):
    script = NANO_BENCH.replace("nanovllm", "tourvllm").replace("PATH", str(TINY))
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all ")


VLLM = """
from vllm import LLM, SamplingParams

prompts = ["Once upon a time", "The sun", "A robot"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=12, seed=1, logprobs=1)
llm = LLM(model="tiny", gpu_memory_utilization=0.9, trust_remote_code=True, max_num_seqs=2, seed=7,
          enable_prefix_caching=True, num_gpu_blocks_override=64, dtype="float32")
outputs = llm.generate(prompts, sampling_params)
for output, prompt in zip(outputs, prompts):
    assert output.prompt == prompt
    completion = output.outputs[0]
    assert output.finished and completion.finish_reason in ("length", "stop")
    assert len(completion.logprobs) == len(completion.token_ids)
    print(f"Prompt: {output.prompt!r}, Generated text: {completion.text!r}")
outputs = llm.generate([{"prompt_token_ids": [5, 6, 7]}, {"prompt": "The sun"}], sampling_params)
assert outputs[0].prompt_token_ids == [5, 6, 7] and outputs[1].prompt == "The sun"
assert llm.generate("The sun", sampling_params)[0].outputs[0].text == outputs[1].outputs[0].text
conversation = [{"role": "user", "content": "Hello"}]
assert len(llm.chat(conversation, sampling_params)) == 1
assert len(llm.chat([conversation, conversation], sampling_params, use_tqdm=False)) == 2
"""


def test_the_quickstart_of_vllm_runs_with_the_import_changed(tmp_path):
    done = run_script(VLLM.replace("from vllm import", "from tourvllm import"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Generated text:") == 3


# Prompts, parameters, results


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_in_the_order_of_the_prompts(policy):
    with LLM(**CPU, policy=policy, max_num_seqs=2) as llm:
        params = [greedy(count) for count in (9, 2, 5)]
        outputs = llm.generate(STORIES, params, use_tqdm=False)
        assert [len(output.token_ids) for output in outputs] == [9, 2, 5]
        assert [output.prompt for output in outputs] == STORIES
        alone = [
            llm.generate(*each, use_tqdm=False)[0] for each in zip(STORIES, params, strict=True)
        ]
        assert [output.text for output in outputs] == [output.text for output in alone]


def test_prompts_may_be_text_ids_and_messages_together(llm):
    text = "Once upon a time"
    ids = llm.get_tokenizer().encode(text)
    messages = [{"role": "user", "content": "Tell me a story."}]
    outputs = llm.generate([text, ids, messages, {"prompt_token_ids": ids}], greedy(8))
    assert outputs[0].token_ids == outputs[1].token_ids == outputs[3].token_ids
    assert outputs[0].prompt_token_ids == ids
    assert outputs[2].prompt.endswith("<|im_start|>assistant\n")
    assert outputs[2].prompt.count("Tell me a story.") == 1
    assert llm.chat(messages, greedy(8))[0].token_ids == outputs[2].token_ids


def test_a_single_prompt_is_one_prompt(llm):
    ids = llm.get_tokenizer().encode("The sun")
    found = [llm.generate(prompt, greedy(4)) for prompt in ("The sun", ids, tuple(ids), [ids])]
    assert [tokens(outputs) for outputs in found] == [tokens(found[0])] * 4
    assert llm.generate([], greedy(4)) == []
    assert len(llm.generate(["The sun"])[0].token_ids) > 0


def test_an_output_reads_as_vllms_and_as_nano_vllms(llm):
    (output,) = llm.generate(["The sun"], greedy(4, logprobs=1))
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].text == output["text"] == output.text
    assert output.outputs[0].token_ids == output["token_ids"] == output.token_ids
    assert (output.finished, output.finish_reason, output.stop_reason) == (True, "length", None)
    assert len(output.logprobs) == 4


def test_priority_decides_who_is_first():
    with LLM(**CPU, order="priority", max_num_seqs=1) as llm:
        watched = Watched(llm.engine)
        llm.generate(STORIES, greedy(2), use_tqdm=False, priority=[2, 0, 1])
        assert watched.state["finished"] == ["1", "2", "0"]


def test_stop_strings_and_min_tokens_reach_the_engine(llm):
    (plain,) = llm.generate(["Once upon a time"], greedy(30))
    stop = plain.text[10:13]
    (output,) = llm.generate(["Once upon a time"], SamplingParams(temperature=0, stop=stop))
    assert output.text == plain.text[: plain.text.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("shown", [True, False])
def test_the_progress_bar_goes_to_stderr_or_nowhere(llm, capfd, shown):
    llm.generate(STORIES, greedy(3), use_tqdm=shown)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("Generating" in err and "3/3" in err) == shown
    assert bool(err) == shown


# Errors


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (["The sun", []], None, "prompt is empty"),
        (["The sun", ""], None, "prompt is empty"),
        (["The sun", [1, 9999]], None, "9999 is not in the vocabulary"),
        (["The sun", None], None, "neither text nor token ids nor messages"),
        (["The sun", "x " * 2000], None, "over max_model_len"),
        (["The sun"] * 2, [greedy(1)], "2 prompts, 1 sets of sampling parameters"),
        (["The sun"], [greedy(1)] * 2, "1 prompts, 2 sets"),
        (["The sun"], ["greedy"], "sampling_params must be SamplingParams"),
        (["The sun"], {"temperature": 0}, "sampling_params must be SamplingParams"),
        (["The sun"], [greedy(1, stop_token_ids=[-1])], "stop_token_ids: -1"),
        (None, None, "prompts must be a text"),
        (7, None, "prompts must be a text"),
        ([[{"role": "user"}]], None, "message needs a role and a content"),
        ([[{"role": "user", "content": "x"}, "y"]], None, "message needs a role and a content"),
    ],
)
def test_a_bad_call_is_refused_before_anything_runs(llm, prompts, params, words):
    watched = Watched(llm.engine)
    with pytest.raises(RequestError, match=words):
        llm.generate(prompts, params)
    llm.engine.attach(None)
    assert watched.events == []
    assert llm.engine.is_finished()


def test_bad_priorities_are_refused_before_anything_runs(llm):
    for priority, words in (
        ([1], "1 priorities"),
        (["high", 0], "priority must be a whole number"),
    ):
        with pytest.raises(RequestError, match=words):
            llm.generate(["The sun"] * 2, greedy(1), priority=priority)
    assert llm.engine.is_finished()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"block_size": 0}, "block_size"),
        ({"num_kvcache_blocks": -1}, "num_blocks"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"speculative_config": {}}, "speculative_config"),
        ({"scheduling_policy": "lifo"}, "order"),
        ({"policy": "fcfs"}, "policy"),
        ({"max_model_len": 10**6}, "max_model_len"),
    ],
)
def test_a_wrong_setting_is_named(settings, field):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        LLM(**CPU, **settings)


def test_other_engines_names_of_settings_are_understood():
    names = {"kvcache_block_size": 8, "num_gpu_blocks_override": 77, "enable_prefix_caching": False}
    with LLM(**CPU, **names, scheduling_policy="priority", enforce_eager=True) as llm:
        config = llm.engine.config
    assert (config.block_size, config.num_blocks) == (8, 77)
    assert (config.prefix_caching, config.order) == (False, "priority")
    assert not config.cuda_graphs


@pytest.mark.parametrize("model", ["/nowhere", "nowhere", "~nobody/x", "a\0b", "x" * 5000, ""])
def test_a_model_that_is_not_there_is_a_sentence(model):
    with pytest.raises((UsageError, ModelError), match="there is no model"):
        LLM(model, **CPU)


class Interrupt(BaseException):
    pass


def test_an_interrupted_call_leaves_nothing_behind():
    seen = []

    def probe(stop: str, /, **facts: Any) -> None:
        seen.append(stop)
        if seen.count("attention") == 20 and stop == "attention":
            raise Interrupt

    with LLM(**CPU) as llm:
        expected = tokens(llm.generate(STORIES, greedy(12), use_tqdm=False))
        llm.engine.attach(probe)
        with pytest.raises(Interrupt):
            llm.generate(STORIES, greedy(12), use_tqdm=False)
        llm.engine.attach(None)
        assert llm.engine.is_finished()
        assert len(llm.engine.block_manager.free_block_ids) == 256
        assert tokens(llm.generate(STORIES, greedy(12), use_tqdm=False)) == expected


# Coming and going


def test_a_closed_llm_says_so_and_frees_its_memory():
    llm = LLM(**CPU)
    llm.generate(["The sun"], greedy(2), use_tqdm=False)
    cache, engine = (weakref.ref(each) for each in (llm.engine.model_runner.kv_cache, llm.engine))
    llm.close()
    llm.close()
    gc.collect()
    assert (cache(), engine()) == (None, None)
    for use in (
        lambda: llm.generate(["The sun"]),
        lambda: llm.generate([]),
        lambda: llm.chat([{"role": "user", "content": "x"}]),
        llm.get_tokenizer,
    ):
        with pytest.raises(EngineError, match="this LLM is closed: create another one"):
            use()


def test_it_is_a_context_manager_that_closes_also_after_an_error():
    with pytest.raises(RequestError), LLM(**CPU) as llm:
        llm.generate([""], use_tqdm=False)
    with pytest.raises(EngineError, match="closed"):
        llm.get_tokenizer()


def test_create_use_close_create_again():
    found = []
    for _ in range(3):
        llm = LLM(**CPU)
        found.append(tokens(llm.generate(STORIES, greedy(5), use_tqdm=False)))
        llm.close()
    assert found[0] == found[1] == found[2]


def test_two_llms_in_one_process_step_by_step_in_turns():
    with LLM(**CPU, block_size=4) as a, LLM(**CPU, block_size=3, policy="mixed") as b:
        expected = tokens(a.generate(STORIES, greedy(9), use_tqdm=False))
        for llm in (a, b):
            for i, story in enumerate(STORIES):
                llm.engine.add_request(story, greedy(9), str(i))
        found: dict[str, list[list[int]]] = {"0": [], "1": [], "2": []}
        while not (a.engine.is_finished() and b.engine.is_finished()):
            for llm in (a, b):
                for output in llm.engine.step()[0]:
                    found[output.request_id].append(output.token_ids)
    assert found == {str(i): [ids, ids] for i, ids in enumerate(expected)}


def test_a_probe_may_listen():
    seen = []
    with LLM(**CPU, probe=lambda stop, /, **facts: seen.append(stop)) as llm:
        llm.generate(["The sun"], greedy(2), use_tqdm=False)
    assert seen[0] == "generate"
    assert {"add_request", "schedule", "attention", "sample", "finish"} <= set(seen)


def test_importing_the_package_loads_no_torch(tmp_path):
    code = (
        "import sys, tourvllm\nfrom tourvllm import SamplingParams\nSamplingParams(stop='x')\n"
        "print([name for name in ('torch', 'transformers', 'textual') if name in sys.modules])\n"
        "from tourvllm import LLM\nprint('torch' in sys.modules)\n"
        "try:\n    tourvllm.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = run_script(code, tmp_path)
    assert done.stdout.splitlines() == [
        "[]",
        "True",
        "module 'tourvllm' has no attribute 'nothing'",
    ]


# Chat, and the token that begins a text


CHAT = "{{ bos_token }}{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"


@pytest.fixture(params=["template writes it", "template leaves it out"])
def with_bos(request, tmp_path, mini) -> Path:
    """The mini model with a tokenizer that begins each text with <s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "<unk>", "user", "assistant", ":", "hello", "there"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    fast.chat_template = CHAT if "writes" in request.param else CHAT.removeprefix("{{ bos_token }}")
    folder = with_config(mini, tmp_path / "bos")
    for path in folder.glob("*token*"):
        path.unlink()
    fast.save_pretrained(folder)
    return folder


def test_a_prompt_begins_with_exactly_one_bos(with_bos):
    with LLM(str(with_bos), **CPU) as llm:
        messages = [{"role": "user", "content": "hello there"}]
        chat = llm.chat(messages, greedy(1), use_tqdm=False)[0].prompt_token_ids
        assert chat == [0, 2, 4, 5, 6]
        template = llm.get_tokenizer().apply_chat_template(messages, tokenize=False)
        for prompt in (template, "<s> user : hello there", "user : hello there"):
            (output,) = llm.generate([prompt], greedy(1), use_tqdm=False)
            assert output.prompt_token_ids == chat
            assert output.prompt == prompt
        assert llm.generate([[5, 6]], greedy(1), use_tqdm=False)[0].prompt_token_ids == [5, 6]


def test_a_model_without_a_chat_template_says_so(mini):
    with LLM(str(mini), **CPU) as llm, pytest.raises(RequestError, match="no chat template: give"):
        llm.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("policy", POLICIES)
def test_messages_in_a_scenario_go_through_the_template(policy):
    engine = make_engine(policy=policy)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (output,) = generate(engine, [messages], greedy(1))
    expected = engine.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert engine.tokenizer.decode(output.prompt_token_ids) == expected


# The hub

ASK = """
import sys
from tourvllm import LLM
try:
    LLM("some-owner/some-model")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "env",
    [{"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}],
    ids=["offline", "unreachable"],
)
def test_a_hub_id_without_a_network_is_a_quick_sentence(tmp_path, env):
    began = time.monotonic()
    done = run_script(ASK, tmp_path, HF_HOME=str(tmp_path / "hub"), **env)
    assert time.monotonic() - began < 30
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ModelError some-owner/some-model is neither a folder here nor")
    assert "Offline? Copy the model's folder to this machine and name that" in done.stdout
    assert len(done.stdout.splitlines()) == 1


USE = """
from tourvllm import LLM, SamplingParams
params = SamplingParams(max_tokens=3, ignore_eos=True)
print(len(LLM("some-owner/some-model", device="cpu").generate("The sun", params)[0].token_ids))
"""


def test_a_model_in_the_hubs_cache_needs_no_network(tmp_path):
    """Laid out as the hub's client does: refs name a commit, snapshots hold its files."""
    repo = tmp_path / "hub" / "models--some-owner--some-model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    shutil.copytree(TINY, repo / "snapshots" / ("0" * 40))
    env = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = run_script(USE, tmp_path, **env)
    assert done.stdout == "3\n", done.stderr
