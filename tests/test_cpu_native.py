"""The C++ kernels: they build themselves, they are right for all shapes, and everything works without them."""

import shutil

import pytest
import torch
from attention_cases import make_case
from tourvllm.kernels import cpp_build, cpu_linear, cpu_native, cpu_paged, ops, torch_paged

with_compiler = pytest.mark.skipif(
    cpp_build.load().library is None, reason=f"no C++ kernel here: {cpp_build.load().reason}"
)


@pytest.fixture
def _fresh(monkeypatch, tmp_path):
    """Nothing built yet, and nothing that this test builds is kept."""
    monkeypatch.setattr(cpp_build.platformdirs, "user_cache_path", lambda name: tmp_path)
    cpp_build.load.cache_clear()
    yield
    cpp_build.load.cache_clear()


def decode_case(num_heads, num_kv_heads, head_dim, block_size, dtype, contexts=(1, 15, 16, 17, 70)):
    sequences = [(1, context - 1) for context in contexts]
    return make_case(block_size, num_heads, num_kv_heads, head_dim, sequences, dtype, "cpu")


@with_compiler
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(9, 3, 64), (16, 2, 128), (14, 2, 80), (5, 1, 112), (8, 8, 96), (7, 1, 256), (32, 8, 16)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_every_group_and_head_size(num_heads, num_kv_heads, head_dim, block_size, dtype, tolerance):
    case = decode_case(num_heads, num_kv_heads, head_dim, block_size, dtype)
    (query, key, value), (k_cache, v_cache), batch, expected = case
    cpu_paged.store_kvcache(key, value, k_cache, v_cache, batch)
    assert cpu_native.can_decode(query, k_cache)
    out = cpu_native.decode(query, k_cache, v_cache, batch, head_dim**-0.5)
    assert (out.double() - expected).abs().max() < tolerance


@with_compiler
@pytest.mark.parametrize("sequences", [[(1, 40), (6, 3), (1, 0), (30, 0)], [(2, 5), (3, 0)]])
def test_a_mixed_batch(sequences):
    """Single new tokens among prompts, and prompts alone."""
    case = make_case(4, 9, 3, 64, sequences, torch.float32, "cpu")
    (query, key, value), (k_cache, v_cache), batch, expected = case
    cpu_paged.store_kvcache(key, value, k_cache, v_cache, batch)
    out = cpu_paged.paged_attention(query, k_cache, v_cache, batch, 0.125)
    assert (out.double() - expected).abs().max() < 2e-6


@with_compiler
def test_a_sequence_has_the_same_result_in_any_company_and_with_any_number_of_threads():
    (query, key, value), (k_cache, v_cache), batch, _ = decode_case(9, 3, 64, 16, torch.float32)
    cpu_paged.store_kvcache(key, value, k_cache, v_cache, batch)
    together = cpu_native.decode(query, k_cache, v_cache, batch, 0.125)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(cpu_native.decode(query, k_cache, v_cache, batch, 0.125), together)
    finally:
        torch.set_num_threads(threads)
    for i in range(len(query)):
        tables = batch.block_tables
        alone = type(batch).from_lists(
            [0], [0, 1], [batch.host_context_lens[i]], [tables[i].tolist()], "cpu"
        )
        out = cpu_native.decode(query[i : i + 1], k_cache, v_cache, alone, 0.125)
        assert torch.equal(out[0], together[i])


@with_compiler
@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0])
def test_scores_of_any_size(scale):
    """Very peaked and very flat weights: exp neither overflows nor loses its sum."""
    (query, key, value), (k_cache, v_cache), batch, _ = decode_case(9, 3, 64, 16, torch.float32)
    cpu_paged.store_kvcache(key, value, k_cache, v_cache, batch)
    out = cpu_native.decode(query, k_cache, v_cache, batch, scale)
    plain = torch_paged.paged_attention(query, k_cache, v_cache, batch, scale)
    assert torch.allclose(out, plain, rtol=1e-3, atol=5e-4)


@with_compiler
@pytest.mark.skipif(not cpu_native.can_multiply(), reason="the processor does not multiply bf16")
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 7, 12, 16, 17, 31, 64])
@pytest.mark.parametrize(("num_in", "num_out"), [(512, 512), (2, 16), (578, 528), (1536, 80)])
def test_matrices_against_float64(rows, num_in, num_out):
    torch.manual_seed(rows)
    weight, x = torch.randn(num_out, num_in).bfloat16(), torch.randn(rows, num_in).bfloat16()
    bias = torch.randn(num_out).bfloat16()
    expected = x.double() @ weight.double().T
    packed = cpu_native.pack(weight)
    for given, wanted in ((None, expected), (bias, expected + bias.double())):
        out = cpu_native.linear(x, packed, given).double()
        assert ((out - wanted).abs() <= wanted.abs() * 2**-8 + 2e-4 * num_in**0.5).all()


def test_a_matrix_that_does_not_fit_the_kernel_is_multiplied_all_the_same():
    weight, x = torch.randn(3001, 131).bfloat16(), torch.randn(3, 131).bfloat16()
    held, product = cpu_linear.prepared(weight)
    out = product(x, held, None).double()
    assert (out - x.double() @ weight.double().T).abs().max() < 0.3


@with_compiler
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_small_operations_are_those_of_pytorch(monkeypatch, dtype, tolerance):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 576).to(dtype) * 3, torch.randn(576).to(dtype)
    heads = torch.randn(5, 3 * 576).to(dtype).view(5, 27, 64)[:, :9]  # a slice, as of a fused qkv
    gate_up = torch.randn(5, 1152).to(dtype) * 20
    angles = torch.rand(5, 1, 32) * 6
    calls = [
        lambda: ops.rms_norm(x, weight, 1e-5),
        lambda: ops.rms_norm(heads, weight[:64], 1e-5),
        lambda: ops.silu_and_mul(gate_up),
        lambda: ops.rotate(heads, angles.cos().to(dtype), angles.sin().to(dtype)),
    ]
    assert cpu_native.can_operate(heads)
    native = [call() for call in calls]
    monkeypatch.setattr(cpu_native, "can_operate", lambda *given: False)
    for ours, plain in zip(native, [call() for call in calls], strict=True):
        assert torch.allclose(ours.double(), plain.double(), rtol=tolerance, atol=tolerance)


@with_compiler
@pytest.mark.usefixtures("_fresh")
def test_it_is_built_once(tmp_path):
    assert cpp_build.load().library is not None
    (made,) = (tmp_path / "kernels").glob("*.so")
    stamp = made.stat().st_mtime_ns
    cpp_build.load.cache_clear()
    assert "in C++" in cpp_build.load().reason
    assert made.stat().st_mtime_ns == stamp


@with_compiler
@pytest.mark.usefixtures("_fresh")
def test_a_damaged_library_is_built_again(tmp_path):
    cpp_build.load()
    (made,) = (tmp_path / "kernels").glob("*.so")
    whole = made.read_bytes()
    made.unlink()  # the loaded one must not change under this process
    made.write_bytes(whole[:20_000])
    cpp_build.load.cache_clear()
    assert cpp_build.load().library is not None
    assert made.read_bytes()[:20_000] == whole[:20_000]
    assert len(made.read_bytes()) == len(whole)


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (None, "no C++ compiler was found"),
        ("#!/bin/sh\necho 'x.cpp:1: error: no such thing' >&2\nexit 1", "no such thing"),
        ("#!/bin/sh\nprintf '\\377 error' >&2\nexit 1", "could not be built"),
        ("#!/bin/sh\nexit 0", "could not be built"),
        ("#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\necho junk > $1", "could not be built"),
    ],
    ids=["no compiler", "an error", "bytes", "no output", "junk"],
)
def test_without_a_working_compiler_pytorch_does_the_work(monkeypatch, tmp_path, program, reason):
    compiler = None
    if program:
        compiler = tmp_path / "cc"
        compiler.write_text(program)
        compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: compiler and str(compiler))
    found = cpp_build.load()
    assert found.library is None
    assert reason in found.reason
    case = decode_case(9, 3, 64, 16, torch.bfloat16)
    (query, key, value), (k_cache, v_cache), batch, expected = case
    cpu_paged.store_kvcache(key, value, k_cache, v_cache, batch)
    out = cpu_paged.paged_attention(query, k_cache, v_cache, batch, 0.125)
    assert (out.double() - expected).abs().max() < 2e-2
