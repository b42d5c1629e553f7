"""Every backend's pair of kernels against attention in float64 over a plain, unpaged copy of the keys."""

import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from attention_cases import make_case
from flash_stand_in import stand_in
from tourvllm.kernels import flash_paged, torch_paged
from tourvllm.kernels.paged_batch import PagedBatch

HERE = os.path.dirname(__file__)
PYTHONPATH = os.pathsep.join((HERE, os.path.join(HERE, "helpers")))
CASES = {
    # block_size, num_heads, num_kv_heads, head_dim, (new tokens, cached prefix) of each sequence
    "decode-bs1": (1, 4, 2, 32, [(1, 6), (1, 0), (1, 30)]),
    "decode-group3-split": (4, 9, 3, 64, [(1, 300), (1, 3)]),
    "mixed-odd-head": (16, 4, 4, 80, [(5, 0), (1, 17), (3, 8)]),
    "prefill-cached-prefix": (8, 8, 2, 32, [(20, 24), (70, 0)]),
    "one-big-block": (256, 2, 1, 128, [(3, 5)]),
    "widest-head": (5, 2, 1, 256, [(2, 4), (1, 8)]),
}
FLASH_CASES = {
    # What FlashAttention 2 takes: blocks of 256 tokens.
    "decode": (256, 4, 2, 64, [(1, 300), (1, 0), (1, 255)]),
    "mixed": (256, 8, 2, 128, [(5, 0), (1, 17), (70, 260)]),
}


def check(name, case, dtype, tolerance, device="cpu"):
    backend = import_module(f"tourvllm.kernels.{name}")
    (query, key, value), (k_cache, v_cache), batch, expected = make_case(*case, dtype, device)
    backend.store_kvcache(key, value, k_cache, v_cache, batch)
    out = backend.paged_attention(query, k_cache, v_cache, batch, query.shape[2] ** -0.5)
    assert out.dtype == dtype
    assert (out.cpu().double() - expected).abs().max() < tolerance


def check_padding(name, device="cpu"):
    """A slot of -1 writes nothing."""
    backend = import_module(f"tourvllm.kernels.{name}")
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 16, device=device)
    key = torch.ones(3, 1, 16, device=device)
    batch = PagedBatch.from_lists([5, -1, 0], [0, 3], [3], [[0]], device)
    backend.store_kvcache(key, key, k_cache, v_cache, batch)
    for cache in (k_cache, v_cache):
        assert sorted(cache.sum((2, 3)).flatten().nonzero().flatten().tolist()) == [0, 5]


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
@pytest.mark.parametrize("name", ["torch_paged", "cpu_paged"])
def test_on_the_cpu(name, case, dtype, tolerance):
    check(name, case, dtype, tolerance)


@pytest.mark.parametrize("name", ["torch_paged", "cpu_paged"])
def test_padding_on_the_cpu(name):
    check_padding(name)


def check_no_keys(name, device="cpu"):
    """A row of padding, context 0 and slot -1, gets zeros and leaves its neighbour and the cache alone."""
    backend = import_module(f"tourvllm.kernels.{name}")
    case = (4, 2, 1, 32, [(1, 9), (1, 3)])
    (query, key, value), caches, batch, expected = make_case(*case, torch.float32, device)
    batch.slot_mapping[1] = -1
    batch.context_lens[1] = 0
    batch.host_context_lens[1] = 0
    batch.has_padding = True
    before = [cache.clone() for cache in caches]
    backend.store_kvcache(key, value, *caches, batch)
    out = backend.paged_attention(query, *caches, batch, 32**-0.5).cpu().double()
    assert (out[0] - expected[0]).abs().max() < 2e-5
    assert (out[1] == 0).all()
    for cache, old in zip(caches, before, strict=True):
        changed = (cache.nan_to_num(7) != old.nan_to_num(7)).flatten(0, 1).any(-1).any(-1)
        assert changed.nonzero().flatten().tolist() == batch.slot_mapping[:1].tolist()


def test_rows_without_keys_on_the_cpu():
    check_no_keys("torch_paged")


def test_triton_in_its_interpreter():
    """The real kernels without a GPU. In a process of its own: triton reads the switch when it is imported."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: the kernels run on it")
    script = "import test_kernels as t; t.run_interpreted()"
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.split() == [*CASES, "all"]


def run_interpreted() -> None:
    """All cases, in a process with the interpreter on."""
    for name, case in CASES.items():
        check("triton_paged", case, torch.float32, 2e-6)
        print(name, flush=True)
    check("triton_paged", CASES["decode-bs1"], torch.float16, 3e-3)
    check_padding("triton_paged")
    check_no_keys("triton_paged")
    print("all")


@pytest.mark.gpu
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
@pytest.mark.parametrize("name", ["torch_paged", "triton_paged"])
def test_on_a_gpu(name, case, dtype, tolerance):
    check(name, case, dtype, tolerance, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["torch_paged", "triton_paged"])
def test_padding_on_a_gpu(name):
    check_padding(name, "cuda")
    check_no_keys(name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in FLASH_CASES.items()])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 3e-3)])
@pytest.mark.parametrize("library", list(flash_paged.LIBRARIES))
def test_flash_on_a_gpu(library, case, dtype, tolerance):
    problem = flash_paged.problem_of(library, "cuda", case[0], dtype, case[3])
    if problem:
        pytest.skip(problem)
    check_attention(flash_paged.LIBRARIES[library], case, getattr(torch, dtype), tolerance, "cuda")


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in FLASH_CASES.items()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("library", list(flash_paged.LIBRARIES))
def test_flash_is_called_as_it_wants_to_be(library, case, dtype, monkeypatch):
    """The layout of a batch, given to stand-ins with the signatures and the checks of the real functions."""
    stand_in(monkeypatch)
    check_attention(flash_paged.LIBRARIES[library], case, dtype, 2e-2)


def check_attention(attention, case, dtype, tolerance, device="cpu"):
    (query, key, value), caches, batch, expected = make_case(*case, dtype, device)
    write, _ = flash_paged.store() if device == "cuda" else (torch_paged.store_kvcache, False)
    write(key, value, *caches, batch)
    out = attention(query, *caches, batch, query.shape[2] ** -0.5)
    assert out.dtype == dtype
    assert out.shape == query.shape
    assert (out.cpu().double() - expected).abs().max() < tolerance


@pytest.mark.parametrize("capability", [80, 90])
def test_triton_kernels_compile_for_a_gpu_that_is_not_there(capability):
    """PTX and machine code for all kernels, and tiles that the shared memory of consumer cards can hold."""
    pytest.importorskip("triton", reason="triton is not installed")
    script = f"import test_kernels as t; t.compile_all({capability})"
    environ = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ptx") == 8


def compile_all(capability: int) -> None:
    """Compile every kernel, in a process with the interpreter off."""
    import triton
    from tourvllm.kernels import triton_paged as kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tiles = [("bf16", 128, 1), ("bf16", 128, 4), ("fp32", 128, 2)]
    wanted = [
        (kernels._store_kernel, "bf16", {"SIZE": 1024}),
        (kernels._combine_kernel, "bf16", {"SPLITS": 8, "DIM": 128}),
    ]
    for dtype, head_dim, group in tiles:
        keys = kernels.tile_of(head_dim, torch.float32 if dtype == "fp32" else torch.bfloat16)
        sizes = {"KEYS": keys, "DIM": head_dim, "UPCAST": False, "GROUP": group}
        wanted.append((kernels._prefill_kernel, dtype, {**sizes, "ROWS": keys}))
        wanted.append((kernels._decode_kernel, dtype, {**sizes, "ROWS": 16}))
    for kernel, dtype, constants in wanted:
        source = ASTSource(
            kernel,
            signature(kernel, dtype, constants),
            {(kernel.arg_names.index(k),): v for k, v in constants.items()},
        )
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        assert f"sm_{capability}" in built.asm["ptx"]
        assert built.asm["cubin"][:4] == b"\x7fELF"
        assert built.metadata.shared <= 99 * 1024
        print("ptx", kernel.__name__, len(built.asm["ptx"]))


def signature(kernel: Any, dtype: str, constants: dict[str, Any]) -> dict[str, str]:
    """The type of each argument, as a launch would find it."""
    types = (
        dict.fromkeys(("key", "value", "k_cache", "v_cache", "query", "output"), f"*{dtype}")
        | dict.fromkeys(("partial", "stats"), "*fp32")
        | dict.fromkeys(("starts", "lens", "tables"), "*i32")
        | {"slots": "*i64", "scale": "fp32"}
        | dict.fromkeys(constants, "constexpr")
    )
    return {name: types.get(name, "i32") for name in kernel.arg_names}
