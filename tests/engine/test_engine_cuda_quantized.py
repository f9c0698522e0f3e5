"""Quantized models on a CUDA device, from file to tokens, against the float reference of their formats."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from tessera.engine.llm import LLM
from tessera.engine.sampling_params import SamplingParams
from tessera.formats import open_checkpoint
from tessera.kernels.errors import NoKernelError
from tessera.kernels.registry import runs
from tessera.layers.dense import dense_metadata
from tessera.models.loader import build_model
from tiny import tiny_config, write_hf_model, write_quantized

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = tiny_config(
    hidden_size=192, intermediate_size=320, head_dim=64, num_heads=6, num_kv_heads=2, max_position=1024
)
RECIPES = {
    "w4a8-g64": "int8_g64", "w4a8-chn": "int8_chn", "w8a8-chn": "int8_w8", "w4a16-g64": "int4_g64",
    "w4a16-chn": "int4_chn",
}  # fmt: skip
"""Recipes, and what the ids of the kernels that run them contain."""


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def source(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    config = tiny_config(**{**_fields(), "tied_embeddings": request.param})
    return write_hf_model(tmp_path_factory.mktemp("models") / "float", config)


def _fields() -> dict[str, object]:
    return {name: getattr(SMALL, name) for name in SMALL.__slots__}


def prompts(count: int, longest: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, longest + 1, (count,), generator=draw).tolist()
    return [torch.randint(3, SMALL.vocab_size, (n,), generator=draw).tolist() for n in lengths]


@pytest.mark.parametrize("recipe", RECIPES)
def test_logits_and_tokens_are_the_references(source: Path, tmp_path: Path, recipe: str) -> None:
    directory = write_quantized(tmp_path / "m", source, recipe)
    llm = LLM(directory, device="cuda", max_num_seqs=20, max_num_batched_tokens=256, kv_tokens=16384, seed=1)
    reference = build_model(open_checkpoint(str(directory)), "cpu", paged=False)

    def logits(ids: list[int]) -> torch.Tensor:
        return reference.logits(reference.forward(torch.tensor(ids), dense_metadata([len(ids)])))

    ids = prompts(1, 1)[0] * 700
    got, want = torch.cat(list(llm.prompt_logits(ids))).cpu(), logits(ids)
    # bf16 between the layers, and int8 codes that round the other way: a step in 127 of a few values a row.
    assert (got - want).norm() / want.norm() < 0.05
    runs.clear()
    outputs = llm.generate(prompts(37, 300), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    for prompt, output in zip(prompts(37, 300), outputs, strict=True):
        rows = logits([*prompt, *output.token_ids])[len(prompt) - 1 : -1]
        chosen = rows.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
        assert (rows.max(dim=-1).values - chosen).max() < 0.3, "more than rounding apart"
    assert any(RECIPES[recipe] in name for name in runs), Counter(runs)
    llm.core.scheduler.check_integrity()
    llm.core.self_check()


@pytest.mark.parametrize("recipe", RECIPES)
def test_dummy_weights(source: Path, recipe: str) -> None:
    llm = LLM(
        source, device="cuda", load_format="dummy", recipe=recipe, max_num_seqs=4, kv_tokens=1024,
        max_model_len=256,
    )  # fmt: skip
    (output,) = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    assert len(output.token_ids) == 5 and llm.info.weight_bytes < llm.info.float32_weight_bytes / 3


@pytest.mark.parametrize(("recipe", "same"), [("qoq-g64", "w4a8-g64-qoq"), ("qoq-chn", "w4a8-chn-qoq")])
def test_a_4_bit_cache_is_served_with_16_bits(source: Path, tmp_path: Path, recipe: str, same: str) -> None:
    directory = write_quantized(tmp_path / "m", source, recipe)
    with pytest.raises(NoKernelError, match="--kv-bits 16"):
        LLM(directory, device="cuda")
    plain = write_quantized(tmp_path / "same", source, same)
    want = LLM(plain, device="cuda", max_num_seqs=37, kv_tokens=16384)
    got = LLM(directory, device="cuda", kv_bits=16, max_num_seqs=37, kv_tokens=16384)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    for a, b in zip(
        got.generate(prompts(37, 70), greedy), want.generate(prompts(37, 70), greedy), strict=True
    ):
        assert a.token_ids == b.token_ids
