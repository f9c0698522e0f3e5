"""The engine on a CUDA device: plans and inputs without one, tokens and logits of a tiny model with one."""

from dataclasses import replace

import pytest
import torch

from tessera.engine.config import EngineConfig
from tessera.engine.cuda_load import arrays_to_send
from tessera.engine.cuda_memory import held_bytes, page_bytes, plan_memory, step_bytes
from tessera.engine.cuda_runner import graph_sizes
from tessera.engine.dummy import DummyCheckpoint, DummyTokenizer, open_dummy
from tessera.engine.errors import CacheMemoryError, DeviceMemoryError, EngineConfigError
from tessera.engine.llm import LLM
from tessera.engine.sampling_params import SamplingParams
from tessera.formats import open_checkpoint
from tessera.kernels.cuda.gemm.half_weights import LAYOUT, takes
from tessera.kernels.cuda.gemm.weights import layout_of
from tessera.layers.dense import dense_metadata
from tessera.models.loader import build_model
from tessera.spec import BF16, Chain, GroupSizeError, Recipe
from tiny import tiny_config, write_hf_model

GIB = 2**30
LLAMA_8B = tiny_config(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8,
    head_dim=128, max_position=8192, tied_embeddings=False,
)  # fmt: skip
WIDE = tiny_config(hidden_size=128, head_dim=32, num_heads=4, num_kv_heads=2, intermediate_size=384)
SMALL = tiny_config(hidden_size=128, head_dim=64, num_heads=6, num_kv_heads=2, max_position=1024)
GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_graph_sizes_leave_little_padding() -> None:
    for most in (1, 3, 8, 16, 100, 256):
        sizes = graph_sizes(most)
        assert sizes == sorted(set(sizes), reverse=True) and sizes[0] == most
        for batch in range(1, most + 1):
            padded = min(n for n in sizes if n >= batch)
            assert padded - batch < 16 and (padded <= 2 * batch or padded <= 16)


def test_memory_plan_adds_up() -> None:
    options = EngineConfig(max_num_seqs=256, max_num_batched_tokens=8192, memory_fraction=1.0)
    plan = plan_memory(options, LLAMA_8B, 16 * GIB, free=139 * GIB, num_graphs=20)
    assert page_bytes(LLAMA_8B) == 64 * 32 * 2 * 8 * 128 * 2
    assert plan.cache_bytes == plan.cache.num_blocks * page_bytes(LLAMA_8B)
    used = sum(plan.uses.values()) + plan.cache_bytes
    assert 0 <= 139 * GIB - used < page_bytes(LLAMA_8B)
    table = plan.table()
    assert "weights" in table and "16.00 GiB" in table and "KV cache" in table


def test_memory_that_does_not_fit_says_what_would() -> None:
    options = EngineConfig(max_num_seqs=256, max_num_batched_tokens=65536, max_model_len=8192)
    needed = 16 * GIB + step_bytes(LLAMA_8B, 65536, 256) + step_bytes(LLAMA_8B, 256, 256) + GIB
    with pytest.raises(DeviceMemoryError, match=r"max_num_batched_tokens to \d+; or set \w+") as error:
        plan_memory(options, LLAMA_8B, 16 * GIB, free=needed, num_graphs=20)
    assert "weights 16.00" in str(error.value)
    fixed = int(str(error.value).split("max_num_batched_tokens to ")[1].split(";")[0])
    smaller = replace(options, max_num_batched_tokens=fixed)
    assert plan_memory(smaller, LLAMA_8B, 16 * GIB, free=needed, num_graphs=20).cache.max_model_len == 8192
    with pytest.raises(CacheMemoryError):
        plan_memory(
            EngineConfig(max_model_len=8192, memory_fraction=0.001), LLAMA_8B, 0, free=20 * GIB, num_graphs=1
        )


def test_dummy_weights_have_the_shapes_of_the_model(tmp_path) -> None:
    checkpoint = DummyCheckpoint(SMALL, device="cpu")
    for name, shape in SMALL.tensor_shapes().items():
        tensor = checkpoint.tensor(name)
        assert tensor.shape == shape and tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, checkpoint.qtensor(name).codes)
    with pytest.raises(EngineConfigError, match=r"config\.json"):
        open_dummy(tmp_path, "cpu")
    write_hf_model(tmp_path / "m", SMALL)
    assert open_dummy(tmp_path / "m", "cpu").config.hidden_size == SMALL.hidden_size


@pytest.mark.parametrize("name", ["w4a8-g64", "w4a8-chn", "w8a8-chn", "w4a16-g32", "qoq-g128"])
@pytest.mark.parametrize("tied", [False, True])
def test_dummy_weights_of_a_recipe_are_what_it_would_store(name: str, tied: bool) -> None:
    recipe = Recipe.parse(name)
    config = replace(WIDE, tied_embeddings=tied)
    checkpoint = DummyCheckpoint(config, device="cpu", recipe=recipe)
    assert checkpoint.kv_chain == (recipe.kv_chain() if recipe.kv_bits == 4 else Chain(BF16))
    for linear in config.linears():
        weight = checkpoint.qtensor(f"{linear}.weight")
        assert weight.chain == recipe.weight_chain()
        assert checkpoint.activation(linear) == recipe.activation_chain()
        values = checkpoint.tensor(f"{linear}.weight")
        assert float(values.var()) * values.shape[1] == pytest.approx(1, rel=0.2)
    table = checkpoint.qtensor("model.embed_tokens.weight")
    assert table.chain.is_plain == (recipe.activation_bits == 16)
    assert checkpoint.activation("lm_head") == recipe.activation_chain()
    assert checkpoint.tensor("model.norm.weight").dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["w4a8-g32", "w4a8-g128", "w4a8-chn", "w8a8-chn", "w4a16-g64", "w4a16-chn"])
def test_the_plan_counts_packed_weights(name: str) -> None:
    checkpoint = DummyCheckpoint(WIDE, device="cpu", recipe=Recipe.parse(name))
    for linear in WIDE.linears():
        weight = checkpoint.qtensor(f"{linear}.weight")
        layouts = [layout_of(weight.chain), None if takes(weight.chain) else LAYOUT]
        packed = [layout.pack(weight).nbytes for layout in layouts if layout]
        assert held_bytes(weight.tile) == max(packed)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_the_plan_counts_what_loading_holds(tmp_path, stored: torch.dtype) -> None:
    """GGUF files give float32, too: twice the memory, unless narrowed on the way."""
    checkpoint = open_checkpoint(str(write_hf_model(tmp_path / "m", SMALL, dtype=stored)))
    for name in checkpoint.names():
        arrays = arrays_to_send(checkpoint, name, torch.float16)
        assert sum(array.nbytes for array in arrays.values()) == held_bytes(checkpoint.tile(name))
        assert torch.equal(checkpoint.assemble(name, arrays).codes, checkpoint.tensor(name).half())


def test_groups_that_do_not_fit_the_shape_are_named() -> None:
    with pytest.raises(GroupSizeError, match="groups of 128"):
        DummyCheckpoint(replace(WIDE, intermediate_size=320), device="cpu", recipe=Recipe.parse("w4a8-g128"))


def test_dummy_tokenizer_writes_numbers() -> None:
    tokenizer = DummyTokenizer()
    assert tokenizer.encode(tokenizer.decode([3, 14, 15])) == [3, 14, 15]
    stream = tokenizer.decode_stream()
    assert "".join(map(stream.push, [3, 14, 15])) + stream.flush() == tokenizer.decode([3, 14, 15])


def test_dummy_weights_need_a_device(tmp_path) -> None:
    with pytest.raises(EngineConfigError, match="load_format is 'fast'"):
        EngineConfig(load_format="fast")
    write_hf_model(tmp_path / "m", SMALL)
    with pytest.raises(EngineConfigError, match="needs a CUDA device"):
        LLM(tmp_path / "m", load_format="dummy")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_hf_model(tmp_path_factory.mktemp("models") / "small", SMALL, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def llm(directory):
    return LLM(
        directory, device="cuda", max_num_seqs=20, max_num_batched_tokens=256, kv_tokens=16384,
        max_model_len=1024, seed=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference(directory):
    """fp32 logits of whole sequences on the CPU."""
    model = build_model(open_checkpoint(str(directory)), "cpu", paged=False)

    def logits(ids: list[int]) -> torch.Tensor:
        return model.logits(model.forward(torch.tensor(ids), dense_metadata([len(ids)])))

    return logits


class TestOnDevice:
    pytestmark = GPU

    def prompts(self, count: int, longest: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(count)
        lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
        return [torch.randint(3, SMALL.vocab_size, (n,), generator=generator).tolist() for n in lengths]

    def test_prompt_logits(self, llm: LLM, reference) -> None:
        ids = self.prompts(1, 1)[0] * 700
        got = torch.cat(list(llm.prompt_logits(ids))).cpu()
        want = reference(ids)
        # bf16 weights and activations through two layers: a few roundings of 2^-9 each.
        assert (got - want).norm() / want.norm() < 0.03

    def test_greedy_tokens_are_the_references_up_to_near_ties(self, llm: LLM, reference) -> None:
        prompts = self.prompts(37, 500)
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        for prompt, output in zip(prompts, outputs, strict=True):
            assert len(output.token_ids) == 40
            rows = reference([*prompt, *output.token_ids])[len(prompt) - 1 : -1]
            chosen = rows.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            assert (rows.max(dim=-1).values - chosen).max() < 0.15, "more than rounding apart"
        llm.core.scheduler.check_integrity()

    def test_sampled_tokens_depend_on_seed_and_not_on_the_batch(self, llm: LLM) -> None:
        prompt = self.prompts(1, 100)[0]
        sampling = SamplingParams(seed=5, temperature=9, top_p=0.9, top_k=40, max_tokens=30, ignore_eos=True)
        alone = llm.generate(prompt, sampling)[0].token_ids
        assert alone == llm.generate(prompt, sampling)[0].token_ids
        other = SamplingParams(seed=6, temperature=9, max_tokens=30, ignore_eos=True)
        assert alone != llm.generate(prompt, other)[0].token_ids

    def test_preemption_and_many_short_requests(self, directory) -> None:
        llm = LLM(
            directory, device="cuda", max_num_seqs=8, max_num_batched_tokens=64, kv_tokens=640,
            max_model_len=512, seed=1,
        )  # fmt: skip
        prompts = self.prompts(30, 200)
        params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
        outputs = llm.generate(prompts, params)
        assert llm.metrics.num_preemptions > 0
        assert [len(output.token_ids) for output in outputs] == [50] * 30
        llm.core.scheduler.check_integrity()

    def test_info_names_kernels_and_phases(self, llm: LLM) -> None:
        info = llm.info
        assert (
            "sm90_bf16_paged_attention" in info.kernel_ids or "sm80_bf16_paged_attention" in info.kernel_ids
        )
        assert {"load weights", "compile kernels", "capture graphs"} <= info.startup_seconds.keys()
        assert info.weight_bytes == sum(
            2 * torch.Size(shape).numel() for shape in SMALL.tensor_shapes().values()
        )

    def test_self_check(self, llm: LLM) -> None:
        llm.core.self_check()

    def test_dummy_weights(self, directory) -> None:
        llm = LLM(directory, device="cuda", load_format="dummy", max_num_seqs=4, kv_tokens=1024)
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        assert output.text.split() == [str(token) for token in output.token_ids]
