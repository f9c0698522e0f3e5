"""GGUF files as checkpoints: block types, row order, configuration, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from gguf_tiny import gguf_name, metadata_of, write_gguf

from tessera.formats.errors import (
    ConfigError,
    ForeignFormatError,
    FormatError,
    MissingTensorError,
    NonFiniteError,
    ShapeMismatchError,
    TruncatedError,
    UnexpectedTensorError,
    UnknownArchitectureError,
)
from tessera.formats.gguf import GGUFCheckpoint
from tessera.formats.gguf_blocks import BLOCK_TYPES
from tessera.formats.gguf_file import GGUFFile
from tessera.numerics.rope import rope_tables
from tessera.spec import A16, A32, F32, Chain, ModelConfig, RopeConfig
from tiny import TINY, random_tensors, tiny_config

V_PROJ = "model.layers.0.self_attn.v_proj.weight"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


def opened(tmp_path: Path, config: ModelConfig = TINY, **options: Any) -> GGUFCheckpoint:
    return GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", config, random_tensors(config), **options))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
        {"num_heads": 8, "num_kv_heads": 1, "head_dim": 8},
        {"rope": RopeConfig(500000.0)},
    ],
)
def test_tensors_and_configuration_come_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Rows of Q and K (weights and biases) are in canonical order again."""
    config = tiny_config(**changes)
    checkpoint = opened(tmp_path, config)
    assert replace(checkpoint.config, norm_eps=config.norm_eps) == config
    assert checkpoint.config.norm_eps == pytest.approx(config.norm_eps, rel=1e-6)
    tensors = random_tensors(config)
    assert checkpoint.names() == list(tensors)
    for name, expected in tensors.items():
        assert torch.equal(checkpoint.tensor(name), expected), name
        assert checkpoint.tile(name).shape == tuple(expected.shape)
    checkpoint.verify()


@pytest.mark.parametrize("name", [V_PROJ, Q_PROJ])
@pytest.mark.parametrize("kind", TYPES)
def test_block_types_decode_as_the_library_does(tmp_path: Path, kind: str, name: str) -> None:
    """Bit for bit. The library gives Q in file order: dimensions i and i + 16 of a head are neighbours."""
    number = GGMLQuantizationType[kind]
    checkpoint = opened(tmp_path, kinds={name: number})
    raw = next(t for t in GGUFReader(checkpoint.path).tensors if t.name == gguf_name(name))
    expected = torch.from_numpy(dequantize(raw.data, number).copy())
    actual = checkpoint.tensor(name)
    assert str(checkpoint.tile(name).chain) == (kind.lower() if kind in ("F16", "BF16") else "f32")
    assert checkpoint.qtensor(name).tile == checkpoint.tile(name)
    firsts = [head * 32 + pair for head in range(TINY.num_heads) for pair in range(16)]
    order = [row for first in firsts for row in (first, first + 16)]
    in_file_order = actual[order] if name == Q_PROJ else actual
    assert torch.equal(in_file_order.float(), expected)
    stored = checkpoint.stored(name)
    assert stored.chain == BLOCK_TYPES[number].chain
    assert torch.equal(stored.dequantize(), actual.float())


def test_q6_k_decodes_as_the_library_does(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=256)
    blocks = np.random.default_rng(0).integers(0, 256, (64, 1, 210), dtype=np.uint8)
    blocks[..., -2:] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)  # d, the last two bytes
    path = tmp_path / "m.gguf"
    tensors = random_tensors(config)
    kinds = {V_PROJ: GGMLQuantizationType.Q8_0}
    write_gguf(path, config, tensors, kinds=kinds)
    # The library does not encode Q6_K: put its number and its bytes (fewer than Q8_0's) over a tensor's.
    info = GGUFFile(path).tensors["blk.0.attn_v.weight"]
    raw = bytearray(path.read_bytes())
    at = raw.index(b"blk.0.attn_v.weight") + len(b"blk.0.attn_v.weight") + 4 + 16
    raw[at : at + 4] = int(GGMLQuantizationType.Q6_K).to_bytes(4, "little")
    raw[info.start : info.start + blocks.size] = blocks.tobytes()
    path.write_bytes(raw)
    expected = dequantize(blocks.reshape(64, 210), GGMLQuantizationType.Q6_K)
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.tile(V_PROJ).chain == Chain(F32)
    assert np.array_equal(checkpoint.tensor(V_PROJ).numpy(), expected)


def test_other_block_types_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ForeignFormatError, match=r"attn|v_proj.*Q5_1.*Q4_0"):
        opened(tmp_path, kinds={V_PROJ: GGMLQuantizationType.Q5_1})


def test_formats_around_the_weights(tmp_path: Path) -> None:
    blocks = opened(tmp_path, kinds={V_PROJ: GGMLQuantizationType.Q4_1})
    assert blocks.recipe is None
    assert blocks.activation("model.layers.0.self_attn.v_proj") == A32
    halves = dict.fromkeys(random_tensors(TINY), GGMLQuantizationType.F16)
    stored16 = opened(tmp_path, kinds=halves)
    assert (stored16.activation("lm_head"), stored16.kv_chain) == (A16, A16)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_factors_are_recognised(tmp_path: Path, factor: float) -> None:
    """The file's factors are how much slower each pair turns: here from our own rotary tables."""
    rope = RopeConfig(500000.0, "llama3", factor)
    config = tiny_config(rope=rope)
    slow, fast = (
        rope_tables(replace(config, rope=r).rope, config.head_dim, 2)[1][1].double().asin()
        for r in (rope, RopeConfig(500000.0))
    )
    factors = (fast / slow).float().numpy()
    checkpoint = opened(tmp_path, config, extra={"rope_freqs.weight": factors})
    assert checkpoint.config.rope == rope
    with pytest.raises(ConfigError, match="rope_freqs"):
        opened(tmp_path, config, extra={"rope_freqs.weight": factors * 3})


def test_linear_scaling(tmp_path: Path) -> None:
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    assert opened(tmp_path, changes=changes).config.rope == RopeConfig(10000.0, "linear", 2.5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "mixture of 8 experts"),
        ({"llama.block_count": 2.0}, r"block_count is 2.0, not int"),
        ({"llama.rope.dimension_count": 16}, "rotates 16 of 32"),
        ({"llama.context_length": None}, "lacks the key llama.context_length"),
        ({"llama.attention.head_count_kv": [2, 2]}, r"head_count_kv is .*not int"),
    ],
)
def test_unsupported_settings_are_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(tmp_path, changes=changes)


def test_nonsense_sizes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="4 query heads do not share 3"):
        opened(tmp_path, changes={"llama.attention.head_count_kv": 3})


def test_unknown_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitectureError, match=r"mamba.*known in GGUF: llama"):
        opened(tmp_path, architecture="mamba")


def test_missing_unexpected_and_misshapen_tensors(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    without = {n: t for n, t in tensors.items() if n != V_PROJ}
    with pytest.raises(MissingTensorError, match="v_proj"):
        GGUFCheckpoint(write_gguf(tmp_path / "a.gguf", TINY, without))
    with pytest.raises(UnexpectedTensorError, match="ffn_moe"):
        opened(tmp_path, extra={"blk.0.ffn_moe.weight": np.zeros((2, 32), np.float32)})
    with pytest.raises(ShapeMismatchError, match="v_proj"):
        GGUFCheckpoint(write_gguf(tmp_path / "c.gguf", TINY, tensors | {V_PROJ: tensors[V_PROJ][:32]}))


def test_truncated_data_is_found_at_open(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TINY, random_tensors(TINY))
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(TruncatedError):
        GGUFCheckpoint(path)


def test_nan_is_found_by_verify(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    tensors[V_PROJ][3, 5] = float("nan")
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", TINY, tensors))
    with pytest.raises(NonFiniteError, match=r"1 of 4096 values of .*v_proj.*\(3, 5\)"):
        checkpoint.verify()


def test_a_key_less_file_is_one_of_our_errors(tmp_path: Path) -> None:
    """Any one key may be missing; each is either optional or named."""
    for key in metadata_of(TINY):
        try:
            checkpoint = opened(tmp_path, changes={key: None})
            checkpoint.tokenizer()
        except FormatError as error:
            assert str(tmp_path) in str(error)


@pytest.mark.model
def test_smollm2(smollm2_gguf: Path) -> None:
    checkpoint = GGUFCheckpoint(smollm2_gguf)
    config = checkpoint.config
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads, config.vocab_size)
    assert sizes == (30, 576, 9, 3, 49152)
    assert config.tied_embeddings
    assert config.rope == RopeConfig(100000.0)
    assert (config.bos_id, config.eos_ids) == (1, (2,))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert str(checkpoint.stored(name).chain).startswith("u4 --affine_min")
    raw = next(t for t in GGUFReader(smollm2_gguf).tensors if t.name == "blk.0.attn_q.weight")
    expected = dequantize(raw.data, raw.tensor_type).reshape(9, 32, 2, 576).swapaxes(1, 2).reshape(576, 576)
    assert np.array_equal(checkpoint.tensor(name).numpy(), expected)
