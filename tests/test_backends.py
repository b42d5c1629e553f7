"""Which kernels are chosen, what is said about it, and the way out where there are none."""

import flash_stand_in
import pytest
import torch
from flash_stand_in import stand_in
from tourvllm.engine.config import ATTENTION, EngineConfig
from tourvllm.engine.errors import ConfigError
from tourvllm.engine.llm_engine import LLMEngine
from tourvllm.kernels import BACKENDS, BLOCK_SIZES, flash_paged, get_backend

from tourvllm.doctor import examine

TINY_CALL = flash_paged._tried.__wrapped__


@pytest.fixture
def gpu(monkeypatch):
    """The choice as on a machine with a GPU: the tiny calls that try a library out are made on the CPU."""

    def tried(library, device, *rest):
        return TINY_CALL(library, "cpu", *rest)

    def installed(**libraries):
        stand_in(monkeypatch, **libraries)
        monkeypatch.setattr(flash_paged, "_tried", tried)

    return installed


def without_triton(monkeypatch):
    from importlib.util import find_spec

    for module in ("tourvllm.kernels", "tourvllm.kernels.flash_paged"):
        monkeypatch.setattr(
            f"{module}.find_spec", lambda n: None if n == "triton" else find_spec(n)
        )


def test_the_config_knows_every_backend():
    assert ("auto", *BACKENDS) == ATTENTION
    assert set(BLOCK_SIZES) == set(BACKENDS)


def test_on_a_cpu():
    assert get_backend("auto", "cpu").name == "cpu"
    assert get_backend("torch", "cpu").reason == "it was asked for"
    assert not get_backend("cpu", "cpu").capturable


def test_on_another_device():
    backend = get_backend("auto", "mps")
    assert (backend.name, backend.reason) == ("torch", "it is the one that runs on mps")


def test_triton_is_the_default_on_a_gpu(gpu):
    pytest.importorskip("triton")
    gpu(flash=False)
    backend = get_backend("auto", "cuda", 256, "bfloat16")
    assert (backend.name, backend.capturable) == ("triton", True)
    assert backend.reason == "the device is a GPU and triton is installed"


def test_flash_attn_is_taken_by_itself_where_blocks_and_dtype_fit(gpu):
    gpu()
    backend = get_backend("auto", "cuda:1", 512, "float16", 128)
    assert backend.name == "flash"
    assert backend.paged_attention is flash_paged.with_flash_attn
    assert backend.reason == "flash-attn is installed; flash-attn takes blocks of 512"


@pytest.mark.parametrize(
    ("block_size", "dtype", "head_dim", "why"),
    [
        (16, "bfloat16", 64, "does not take blocks of 16 in bfloat16"),
        (256, "float32", 64, "computes in float16 or bfloat16, not in float32"),
        (256, "float16", 36, "with a head_dim of 36"),
    ],
)
def test_flash_attn_that_does_not_fit_is_named(gpu, block_size, dtype, head_dim, why):
    pytest.importorskip("triton")
    gpu()
    backend = get_backend("auto", "cuda", block_size, dtype, head_dim)
    assert backend.name == "triton"
    assert "flash is not taken" in backend.reason
    assert why in backend.reason


def test_torchs_own_flash_only_runs_when_it_is_asked_for(gpu):
    pytest.importorskip("triton")
    gpu(flash=False)
    assert get_backend("auto", "cuda", 256, "bfloat16").name == "triton"
    backend = get_backend("flash", "cuda", 256, "bfloat16")
    assert backend.paged_attention is flash_paged.with_torch_varlen
    assert "torch's varlen_attn" in backend.reason
    assert "flash-attn is not installed" in backend.reason


@pytest.mark.parametrize(
    ("arguments", "why", "way_out"),
    [
        (("cpu", 256, "bfloat16"), "runs on a CUDA device, not on cpu", "Take auto"),
        (("cuda", 256, "float32"), "not in float32", "Set dtype bfloat16, or take auto or triton"),
        (("cuda", 16, "float32"), "not in float32", "Set dtype bfloat16 and block_size 256, or"),
        (("cuda", 16, "float16"), "must be divisible by 256", "Set block_size 256, or take auto"),
    ],
)
def test_flash_that_cannot_run_is_refused(gpu, arguments, why, way_out):
    gpu()
    with pytest.raises(ValueError, match="flash cannot run here") as error:
        get_backend("flash", *arguments)
    assert why in str(error.value)
    assert way_out in str(error.value)


def test_flash_without_a_library_is_refused(gpu):
    gpu(flash=False, torch_varlen=False)
    with pytest.raises(ValueError, match="flash-attn is not installed") as error:
        get_backend("flash", "cuda", 256, "bfloat16")
    assert "has no paged varlen_attn, torch 2.12 has" in str(error.value)


def test_a_flash_attn_that_cannot_be_imported_is_named(gpu, monkeypatch):
    pytest.importorskip("triton")
    gpu()

    def broken(name, package=None):
        raise ImportError("undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(flash_paged, "import_module", broken)
    assert flash_paged.missing("flash-attn") == (
        "flash-attn cannot be imported (undefined symbol: _ZN3c10)"
    )
    assert get_backend("auto", "cuda", 256, "float16").name == "triton"


def test_wrong_results_are_found_out(gpu, monkeypatch):
    gpu(torch_varlen=False)
    monkeypatch.setitem(
        flash_paged.LIBRARIES, "flash-attn", lambda query, *_: torch.full_like(query, torch.nan)
    )
    with pytest.raises(ValueError, match="flash-attn gives wrong results with blocks of 256"):
        get_backend("flash", "cuda", 256, "bfloat16")


def test_a_graph_holds_flash_only_with_tritons_store(gpu, monkeypatch):
    gpu()
    without_triton(monkeypatch)
    backend = get_backend("flash", "cuda", 256, "bfloat16")
    assert not backend.capturable
    assert backend.store_kvcache.__module__.endswith("torch_paged")
    assert get_backend("auto", "cuda", 256, "bfloat16").name == "flash"


def test_without_triton_a_gpu_still_works(gpu, monkeypatch):
    gpu(flash=False)
    without_triton(monkeypatch)
    backend = get_backend("auto", "cuda", 16, "bfloat16")
    assert backend.name == "torch"
    assert "triton is not installed" in backend.reason
    with pytest.raises(ValueError, match="triton is not installed"):
        get_backend("triton", "cuda")


def test_float64_is_not_tritons():
    assert get_backend("auto", "cuda", 16, "float64").name == "torch"
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="needs a GPU, or its interpreter"):
            get_backend("triton", "cpu")
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="float32, not in float64"):
        get_backend("triton", "cuda", 16, "float64")


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="there are auto, torch, cpu, triton, flash"):
        get_backend("xformers", "cpu")
    with pytest.raises(ValueError, match="runs on the cpu, not on cuda"):
        get_backend("cpu", "cuda")


def test_the_engine_names_the_setting(mini):
    with pytest.raises(ConfigError, match="runs on a CUDA device, not on cpu") as error:
        LLMEngine(mini, EngineConfig(device="cpu", attention="flash"))
    assert error.value.field == "attention"


def test_the_stand_in_has_the_arguments_of_the_installed_torch():
    """Else the tests of the calls would prove nothing."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if flash_paged.missing("torch's varlen_attn"):
        pytest.skip("this torch has no paged varlen_attn")
    assert flash_stand_in.same_arguments(varlen.varlen_attn, flash_stand_in.varlen_attn)


def test_the_stand_ins_have_the_arguments_of_the_installed_flash_attn():
    flash = pytest.importorskip("flash_attn")
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
        assert flash_stand_in.same_arguments(getattr(flash, name), getattr(flash_stand_in, name))


def test_the_doctor_tells_of_every_backend():
    lines, _ = examine()
    told = {line[:13].strip(): line[14:] for line in lines}
    assert set(BACKENDS) < set(told)
    assert told["torch"] == "any block size from 1"
    assert "because" in told["attention"]
    if torch.cuda.is_available():
        pytest.skip("the rest is of a machine without a GPU")
    assert told["cuda graphs"].startswith("off, because the device is cpu")
    assert told["flash"].startswith("flash cannot run here: it runs on a CUDA device, not on cpu")
