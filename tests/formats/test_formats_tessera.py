"""Own checkpoints: what is written comes back, damage is found, nothing foreign is overwritten."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tessera.formats import CheckpointWriter, open_checkpoint, safetensors_file
from tessera.formats.errors import (
    AccessError,
    CorruptError,
    DiskFullError,
    ForeignFormatError,
    FormatError,
    MissingTensorError,
    NonFiniteError,
    OutputExistsError,
    ShapeMismatchError,
    TruncatedError,
    UnexpectedTensorError,
)
from tessera.formats.hf import HFCheckpoint
from tessera.formats.tessera import TesseraCheckpoint
from tessera.numerics import QTensor, plain, quantize
from tessera.spec import (
    A8,
    A16,
    F16,
    F32,
    S8,
    S8N,
    U4,
    Chain,
    Grid,
    Param,
    Pattern,
    Qtile,
    Recipe,
    Step,
    param,
)
from tiny import TINY, TinyCheckpoint, quantized, random_tensors, tiny_config, write_hf_model

RECIPES = ("qoq-g32", "qoq-chn", "w4a16-g64", "w8a8kv4-chn")
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def source(recipe: str = "qoq-g32", seed: int = 0, **changes: Any) -> TinyCheckpoint:
    config = tiny_config(**changes)
    return quantized(config, random_tensors(config, seed, torch.float16), Recipe.parse(recipe))


def write(path: Path, model: TinyCheckpoint, recipe: str = "qoq-g32", **options: Any) -> TesseraCheckpoint:
    with CheckpointWriter(path, model.config, Recipe.parse(recipe), **options) as writer:
        for name, tensor in model.qtensors.items():
            writer.add(name, tensor)
        writer.finish()
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, TesseraCheckpoint)
    return checkpoint


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to copy and damage."""
    return write(tmp_path_factory.mktemp("written") / "out", source()).path


def assert_equal(actual: QTensor, expected: QTensor) -> None:
    assert actual.tile == expected.tile
    assert torch.equal(actual.codes, expected.codes)
    for name in expected.params:
        assert_equal(actual.params[name], expected.params[name])


def edit_manifest(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] |= changes
    (path / "config.json").write_text(json.dumps(config))


def tree(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tied", [True, False])
def test_everything_comes_back(tmp_path: Path, recipe: str, tied: bool) -> None:
    model = source(recipe, tied_embeddings=tied, attention_bias=True)
    checkpoint = write(tmp_path / "out", model, recipe)
    parsed = Recipe.parse(recipe)
    assert (checkpoint.config, checkpoint.recipe) == (model.config, parsed)
    assert checkpoint.kv_chain == parsed.kv_chain()
    assert checkpoint.names() == list(model.qtensors)
    for name, expected in model.qtensors.items():
        assert_equal(checkpoint.qtensor(name), expected)
        assert checkpoint.tile(name) == expected.tile
        assert torch.equal(checkpoint.tensor(name).float(), expected.dequantize())
    for name in model.config.linears():
        assert checkpoint.activation(name) == parsed.activation_chain()
    assert checkpoint.activation("lm_head") == (A8 if parsed.activation_bits == 8 else A16)
    checkpoint.verify()


def test_ragged_groups_come_back(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=72, num_layers=1)
    recipe = Recipe.parse("w4a16-g64", ragged_tail=True)
    model = quantized(config, random_tensors(config), recipe)
    with CheckpointWriter(tmp_path / "out", config, recipe) as writer:
        for name, tensor in model.qtensors.items():
            writer.add(name, tensor)
        writer.finish()
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.recipe == recipe
    assert_equal(checkpoint.qtensor(Q_PROJ), model.qtensors[Q_PROJ])


def unusual_tensors(shape: tuple[int, int]) -> list[QTensor]:
    """Formats no recipe makes: odd widths, a table, a parameter with a mapping of its own."""
    generator = torch.Generator().manual_seed(3)

    def codes(low: int, high: int, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high + 1, size, generator=generator).to(dtype)

    groups = Pattern.blocks(1, 16)
    counts = (shape[0], shape[1] // 16)
    s3 = Chain(Grid(3, signed=True), (Step("scale", F32, (param("scale", F16),), groups),))
    table = Chain(U4, (Step("lookup", F32, (param("table", F16),)),))
    inner = Chain(Grid(6), (Step("scale", F32, (param("super", F16),), Pattern.channel()),))
    nested = Chain(S8, (Step("scale", F32, (Param("scale", inner),), groups),))
    return [
        QTensor(
            Qtile(shape, s3), codes(-4, 3, shape, torch.int8), {"scale": plain(torch.rand(counts).half())}
        ),
        QTensor(
            Qtile(shape, table), codes(0, 15, shape, torch.uint8), {"table": plain(torch.rand(16).half())}
        ),
        QTensor(
            Qtile(shape, nested),
            codes(-128, 127, shape, torch.int8),
            {
                "scale": QTensor(
                    Qtile(counts, inner),
                    codes(0, 63, counts, torch.uint8),
                    {"super": plain(torch.rand(shape[0], 1).half())},
                )
            },
        ),
    ]


def test_unusual_formats_come_back(tmp_path: Path) -> None:
    model = source()
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in ("q", "k", "o")]
    for name, shape in zip(names, [(128, 64), (64, 64), (64, 128)], strict=True):
        index = names.index(name)
        model.qtensors[name] = unusual_tensors(shape)[index]
    checkpoint = write(tmp_path / "out", model)
    for name in names:
        assert_equal(checkpoint.qtensor(name), model.qtensors[name])


def test_activation_formats_are_kept(tmp_path: Path) -> None:
    model = source("w4a16-g32")
    with CheckpointWriter(tmp_path / "out", model.config, Recipe.parse("w4a16-g32")) as writer:
        for name, tensor in model.qtensors.items():
            writer.add(name, tensor, A8 if name == Q_PROJ else None)
        writer.finish()
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.activation("model.layers.0.self_attn.q_proj") == A8
    assert checkpoint.activation("model.layers.0.self_attn.k_proj") == A16


def test_several_shards(tmp_path: Path) -> None:
    model = source()
    checkpoint = write(tmp_path / "out", model, shard_bytes=20_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 3
    for name, expected in model.qtensors.items():
        assert_equal(checkpoint.qtensor(name), expected)
    checkpoint.verify()


def test_writing_is_deterministic(tmp_path: Path) -> None:
    model = source()
    for name in ("a", "b"):
        write(tmp_path / name, model, files={"tokenizer.json": b"{}"}, shard_bytes=50_000)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_side_files_and_tokenizer(tmp_path: Path) -> None:
    original = HFCheckpoint(write_hf_model(tmp_path / "hf"))
    checkpoint = write(tmp_path / "out", source(), files=original.files() | {"report.json": b"{}"})
    assert checkpoint.files() == original.files()
    assert (tmp_path / "out" / "report.json").read_bytes() == b"{}"
    assert checkpoint.tokenizer().encode("the cat") == original.tokenizer().encode("the cat")


def test_an_existing_checkpoint_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "out", source(seed=1), files={"old.txt": b""})
    model = source(seed=2)
    assert_equal(write(tmp_path / "out", model).qtensor(Q_PROJ), model.qtensors[Q_PROJ])
    assert not (tmp_path / "out" / "old.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_foreign_outputs_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    write_hf_model(tmp_path / "hf")
    (tmp_path / "file").write_text("x")
    for name in ("notes", "hf", "file"):
        with pytest.raises(OutputExistsError, match="not a Tessera checkpoint"):
            CheckpointWriter(tmp_path / name, TINY, None)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "hf", "notes"]
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", source())


def test_nothing_is_left_without_finish(tmp_path: Path) -> None:
    model = source()
    with pytest.raises(KeyError), CheckpointWriter(tmp_path / "out", TINY, None) as writer:
        writer.add(Q_PROJ, model.qtensors[Q_PROJ])
        raise KeyError
    with CheckpointWriter(tmp_path / "out", TINY, None) as writer:
        writer.add(Q_PROJ, model.qtensors[Q_PROJ])
        with pytest.raises(MissingTensorError, match=r"tensors were not added"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_wrong_tensors_are_refused_before_they_are_written(tmp_path: Path) -> None:
    model = source()
    with CheckpointWriter(tmp_path / "out", TINY, None) as writer:
        with pytest.raises(UnexpectedTensorError, match="not a tensor of Llama"):
            writer.add("model.layers.9.mlp.up_proj.weight", model.qtensors[Q_PROJ])
        with pytest.raises(ShapeMismatchError):
            writer.add("model.norm.weight", model.qtensors[Q_PROJ])
        broken = torch.ones(64)
        broken[5] = float("nan")
        with pytest.raises(NonFiniteError, match=r"model.norm.weight.*\(5,\)"):
            writer.add("model.norm.weight", plain(broken))
        writer.add("model.norm.weight", plain(torch.ones(64)))
        with pytest.raises(UnexpectedTensorError, match="added before"):
            writer.add("model.norm.weight", plain(torch.ones(64)))


def test_a_non_finite_scale_is_refused(tmp_path: Path) -> None:
    tensor = quantize(random_tensors(TINY)[Q_PROJ], Recipe.parse("w8a8-chn").weight_chain())
    tensor.params["scale"].codes[3] = float("inf")
    with CheckpointWriter(tmp_path / "out", TINY, None) as writer:
        with pytest.raises(NonFiniteError, match=r"q_proj\.weight\.scale"):
            writer.add(Q_PROJ, tensor)


@pytest.mark.parametrize("call", range(4))
def test_a_full_disk_leaves_the_old_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """ENOSPC at the n-th fsync, where the kernel reports it for delayed writes."""
    old = source(seed=1)
    write(tmp_path / "out", old)
    before = tree(tmp_path / "out")
    calls = iter(range(100))
    real = safetensors_file.os.fsync

    def fsync(descriptor: int) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(DiskFullError, match=r"MB free.*untouched"):
        write(tmp_path / "out", source(seed=2), shard_bytes=100_000)
    assert tree(tmp_path / "out") == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_denied_output_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def mkdtemp(**options: Any) -> str:
        raise OSError(code, "denied", str(options["dir"]))

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    with pytest.raises(AccessError, match=r"out cannot be written: denied"):
        CheckpointWriter(tmp_path / "out", TINY, None)


def test_other_failures_of_the_disk_keep_their_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        write(tmp_path / "out", source())


@settings(max_examples=25)
@given(data=st.data())
def test_any_flipped_bit_of_the_data_is_found_by_verify(
    written: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = Path(shutil.copytree(written, tmp_path_factory.mktemp("flip") / "out"))
    file = path / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    raw[data.draw(st.integers(start, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(raw)
    with pytest.raises(CorruptError, match="sha256"):
        open_checkpoint(path).verify()


def test_truncation_and_missing_shards_are_found_at_open(tmp_path: Path) -> None:
    write(tmp_path / "out", source(), shard_bytes=50_000)
    last = sorted((tmp_path / "out").glob("*.safetensors"))[-1]
    raw = last.read_bytes()
    last.write_bytes(raw[:-1])
    with pytest.raises(TruncatedError, match="1 are missing"):
        open_checkpoint(tmp_path / "out")
    last.unlink()
    with pytest.raises(MissingTensorError, match=last.name):
        open_checkpoint(tmp_path / "out")


def test_codes_off_their_grid_are_found_when_read(tmp_path: Path) -> None:
    """Damage that a checksum would find, met by a reader that did not ask for one."""
    checkpoint = write(tmp_path / "out", source("w8a8-chn"), "w8a8-chn")
    path = tmp_path / "out" / "model.safetensors"
    codes = checkpoint.qtensor(Q_PROJ).codes.numpy().tobytes()
    path.write_bytes(path.read_bytes().replace(codes, b"\x80" + codes[1:]))  # -128, which s8n excludes
    with pytest.raises(CorruptError, match=r"q_proj.*damaged"):
        open_checkpoint(tmp_path / "out").qtensor(Q_PROJ)


def test_arrays_that_do_not_fit_the_manifest_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, source())
    manifest = json.loads((out / "config.json").read_text())["quantization_config"]
    tensors = dict(manifest["tensors"])
    edit_manifest(out, tensors=tensors | {"model.norm.weight": tensors[Q_PROJ]})
    with pytest.raises(CorruptError, match=r"model.norm.weight does not fit"):
        open_checkpoint(out)
    edit_manifest(out, tensors={k: v for k, v in tensors.items() if k != Q_PROJ})
    with pytest.raises(MissingTensorError, match="q_proj"):
        open_checkpoint(out)
    row = Chain(S8N, (Step("scale", F32, (param("scale", F16),), Pattern.channel()),)).to_json()
    edit_manifest(out, tensors=tensors, chains=[row] * len(manifest["chains"]))
    with pytest.raises(FormatError, match="arrays"):
        open_checkpoint(out)


def test_a_shard_without_checksum_is_named(tmp_path: Path) -> None:
    write(tmp_path / "out", source())
    edit_manifest(tmp_path / "out", sha256={})
    with pytest.raises(CorruptError, match=r"no checksum of model\.safetensors"):
        open_checkpoint(tmp_path / "out")


def test_another_version_of_the_format_is_named(tmp_path: Path) -> None:
    write(tmp_path / "out", source())
    edit_manifest(tmp_path / "out", format_version=99)
    with pytest.raises(ForeignFormatError, match="format version 99"):
        open_checkpoint(tmp_path / "out")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=60)
@example(key="sha256", value=[[None, None]])
@given(
    key=st.sampled_from(["recipe", "chains", "kv_chain", "tensors", "sha256", "format_version"]), value=JSON
)
def test_damaged_manifests_never_crash(
    written: Path, tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    path = Path(shutil.copytree(written, tmp_path_factory.mktemp("manifest") / "out"))
    edit_manifest(path, **{key: value})
    try:
        open_checkpoint(path)
    except FormatError as error:
        assert str(path) in str(error)


def test_an_unquantized_model_can_be_written(tmp_path: Path) -> None:
    tensors = random_tensors(TINY, dtype=torch.bfloat16)
    with CheckpointWriter(tmp_path / "out", replace(TINY, eos_ids=(2, 5)), None) as writer:
        for name, tensor in tensors.items():
            writer.add(name, plain(tensor))
        writer.finish()
    checkpoint = open_checkpoint(tmp_path / "out")
    assert (checkpoint.recipe, checkpoint.kv_chain, checkpoint.config.eos_ids) == (None, A16, (2, 5))
    assert all(torch.equal(checkpoint.tensor(name), t) for name, t in tensors.items())


def test_absurd_layer_count_is_refused_at_once(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    with pytest.raises(MissingTensorError, match="1000000000 layers"):
        open_checkpoint(tmp_path / "out")


@pytest.mark.parametrize(
    "changes",
    [{"sha256": {"model.safetensors": 5}}, {"sha256": [["model.safetensors", "0"]]}, {"recipe": []}],
)
def test_manifest_of_the_wrong_kind_is_corrupt(
    written: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = Path(shutil.copytree(written, tmp_path / "out"))
    edit_manifest(path, **changes)
    with pytest.raises(CorruptError):
        open_checkpoint(path)
