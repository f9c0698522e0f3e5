"""The first block of a real model: trained weights and activations, which random ones do not resemble."""

import pytest
import torch

from smollm2 import smollm2_path
from tessera.formats import open_checkpoint
from tessera.layers.dense import dense_metadata
from tessera.numerics import quantize
from tessera.quantization.calibration import calibration_text, calibration_windows
from tessera.quantization.passes import Sample, transform
from tessera.quantization.pipeline import EMBEDDING
from tessera.quantization.stream import Tokens, quantize_block, read_block
from tessera.spec import Recipe

pytestmark = pytest.mark.model
QOQ = Recipe.parse("qoq-g64")


@pytest.fixture(scope="module")
def source():
    return open_checkpoint(smollm2_path())


@pytest.fixture(scope="module")
def tokens(source):
    windows = calibration_windows(calibration_text(None), source.tokenizer(), 4, 512, seed=0)
    return Tokens.embed(quantize(source.tensor(EMBEDDING).float(), QOQ.table_chain()), windows)


@pytest.fixture(scope="module")
def block(source):
    return read_block(source, 0)


def test_every_layer_gains_on_nearest(block, tokens):
    done = quantize_block(block, QOQ, tokens, check=True)
    linear = [item.row for item in done.tensors if item.row.rounding]
    assert len(linear) == 7 and all(row.rounding == "gptq" and not row.note for row in linear)
    assert all(row.error < 0.7 * row.nearest_error for row in linear)


@torch.inference_mode()
def test_passes_lower_the_error_of_keys(block, tokens):
    """KV4's error on the scores of fresh tokens, before and after: less than 70 %."""
    meta = dense_metadata([512])
    changed, _ = transform(block, QOQ, Sample(tokens.hidden[:512], meta), check=True)
    fresh = Sample(tokens.hidden[512:1024], meta)
    errors = []
    for candidate in (block, changed):
        seen, _ = fresh.observe(candidate)
        error = quantize(seen["k"], QOQ.kv_chain()).dequantize() - seen["k"]
        error = error.repeat_interleave(seen["q"].shape[1] // error.shape[1], dim=1)
        errors.append(float(torch.einsum("qhd,khd->hqk", seen["q"], error).square().mean()))
    assert errors[1] < 0.7 * errors[0]
