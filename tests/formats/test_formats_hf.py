"""Hugging Face directories: one file or several, storage types, damage, foreign contents."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tessera.formats.errors import (
    ConfigError,
    CorruptError,
    ForeignFormatError,
    FormatError,
    MissingTensorError,
    NonFiniteError,
    ShapeMismatchError,
    TruncatedError,
    UnexpectedTensorError,
)
from tessera.formats.hf import HFCheckpoint
from tessera.spec import A16, A32
from tiny import LLAMA3_ROPE, TINY, random_tensors, tiny_config, transformers_model, write_hf_model

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def write_sharded(directory: Path) -> dict[str, torch.Tensor]:
    """A model in three files with an index."""
    write_hf_model(directory)
    (directory / "model.safetensors").unlink()
    tensors = random_tensors(TINY)
    weight_map = {}
    for i in range(3):
        name = f"model-{i + 1:05d}-of-00003.safetensors"
        part = dict(list(tensors.items())[i::3])
        save_file(part, directory / name)
        weight_map |= dict.fromkeys(part, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_tensors_come_back_in_their_type(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    config = tiny_config(tied_embeddings=tied)
    checkpoint = HFCheckpoint(write_hf_model(tmp_path, config, dtype=dtype))
    assert checkpoint.config == config
    assert checkpoint.recipe is None
    for name, expected in random_tensors(config, dtype=dtype).items():
        actual = checkpoint.tensor(name)
        assert actual.dtype == dtype
        assert torch.equal(actual, expected)
        assert checkpoint.qtensor(name).tile == checkpoint.tile(name)
    wanted = A32 if dtype == torch.float32 else A16
    assert checkpoint.activation("lm_head") == checkpoint.activation("model.layers.0.mlp.up_proj") == wanted
    checkpoint.verify()


def test_several_files(tmp_path: Path) -> None:
    tensors = write_sharded(tmp_path)
    checkpoint = HFCheckpoint(tmp_path)
    assert all(torch.equal(checkpoint.tensor(name), t) for name, t in tensors.items())


def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    config = tiny_config(tied_embeddings=False, attention_bias=True, rope=LLAMA3_ROPE, eos_ids=(2, 5))
    tensors = random_tensors(config)
    transformers_model(config, tensors).save_pretrained(tmp_path, max_shard_size="150KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    checkpoint = HFCheckpoint(tmp_path)
    assert checkpoint.config == config
    assert all(torch.equal(checkpoint.tensor(name), t) for name, t in tensors.items())


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(MissingTensorError, match=r"1 of the 3 files.*model-00002"):
        HFCheckpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("{", "not JSON"),
        ("[]", "holds a list"),
        ('{"weight_map": 3}', "no weight_map"),
        ('{"weight_map": {"x": "../../etc/passwd"}}', "outside its directory"),
    ],
)
def test_damaged_indices(tmp_path: Path, index: str, says: str) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptError, match=says):
        HFCheckpoint(tmp_path)


def test_copies_of_the_tied_head_and_old_buffers_are_ignored(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    tensors = random_tensors(TINY)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(tensors, tmp_path / "model.safetensors")
    assert "lm_head.weight" not in HFCheckpoint(tmp_path).names()


def test_missing_unexpected_misshapen_and_integer_tensors(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    tensors = random_tensors(TINY)
    path = tmp_path / "model.safetensors"
    save_file({n: t for n, t in tensors.items() if n != Q_PROJ}, path)
    with pytest.raises(MissingTensorError, match="q_proj"):
        HFCheckpoint(tmp_path)
    save_file(tensors | {Q_PROJ.replace("weight", "weight_scale"): torch.ones(1)}, path)
    with pytest.raises(UnexpectedTensorError, match="weight_scale"):
        HFCheckpoint(tmp_path)
    save_file(tensors | {Q_PROJ: tensors[Q_PROJ].T.contiguous()}, path)
    with pytest.raises(ShapeMismatchError, match=r"q_proj.*\(64, 128\).*\(128, 64\)"):
        HFCheckpoint(tmp_path)
    save_file(tensors | {Q_PROJ: torch.zeros(128, 64, dtype=torch.int8)}, path)
    with pytest.raises(ForeignFormatError, match="int8"):
        HFCheckpoint(tmp_path)


def test_an_untied_model_without_head_gets_a_hint(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(MissingTensorError, match="tie_word_embeddings"):
        HFCheckpoint(tmp_path)


def test_other_quantizers_are_refused_by_name(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ForeignFormatError, match="'gptq'"):
        HFCheckpoint(tmp_path)


def test_damaged_config(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    edit_config(tmp_path, hidden_size=None)
    with pytest.raises(ConfigError, match="hidden_size"):
        HFCheckpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": [')
    with pytest.raises(CorruptError, match="not JSON"):
        HFCheckpoint(tmp_path)


def test_nan_is_found_by_verify(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    tensors = random_tensors(TINY)
    tensors[Q_PROJ][0, 1] = float("inf")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(NonFiniteError, match=r"q_proj.*\(0, 1\)"):
        HFCheckpoint(tmp_path).verify()


@given(length=st.integers(0, 4000) | st.integers(4000, 400_000))
def test_truncation_is_found_at_open(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    directory = write_hf_model(tmp_path_factory.mktemp("cut"))
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    assert length < len(whole)
    path.write_bytes(whole[:length])
    with pytest.raises(TruncatedError, match="bytes"):
        HFCheckpoint(directory)


@given(data=st.data())
def test_damaged_headers_never_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = write_hf_model(tmp_path_factory.mktemp("damaged"))
    path = directory / "model.safetensors"
    raw = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(raw[:8], "little")
    raw[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        HFCheckpoint(directory)
    except FormatError as error:
        assert str(directory) in str(error)


def test_bytes_after_the_last_tensor_are_refused(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    with open(tmp_path / "model.safetensors", "ab") as file:
        file.write(b"more")
    with pytest.raises(CorruptError, match="4 bytes after the last tensor"):
        HFCheckpoint(tmp_path)


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    checkpoint = HFCheckpoint(write_hf_model(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CorruptError, match="changed since it was opened"):
        checkpoint.tensor(Q_PROJ)


def test_side_files_are_copied_byte_for_byte(tmp_path: Path) -> None:
    files = HFCheckpoint(write_hf_model(tmp_path)).files()
    assert files.keys() == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert all((tmp_path / name).read_bytes() == content for name, content in files.items())


def test_absurd_layer_count_is_refused_at_once(tmp_path: Path) -> None:
    write_hf_model(tmp_path)
    edit_config(tmp_path, num_hidden_layers=10**9)
    with pytest.raises(MissingTensorError, match="1000000000 layers"):
        HFCheckpoint(tmp_path)
