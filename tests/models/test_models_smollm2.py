"""A real model: logits against transformers, perplexity against the published measurement."""

from pathlib import Path

import pytest
import torch

from smollm2 import smollm2_path
from tessera.evaluation.run import evaluate
from tessera.formats import open_checkpoint
from tessera.layers.dense import dense_metadata
from tessera.models.loader import build_model
from tiny import transformers_model

TEXT = (Path(__file__).parents[1] / "data" / "wikitext2_test_head.txt").read_bytes().decode()

pytestmark = pytest.mark.model


def test_logits_equal_transformers():
    checkpoint = open_checkpoint(smollm2_path())
    token_ids = torch.tensor(checkpoint.tokenizer().encode(TEXT)[:200])
    model = build_model(checkpoint, paged=False)
    got = model.logits(model.forward(token_ids, dense_metadata([200])))
    peer = transformers_model(
        checkpoint.config, {name: checkpoint.tensor(name) for name in checkpoint.names()}
    )
    with torch.no_grad():
        want = peer(token_ids[None]).logits[0]
    # float32 through 30 layers, with a residual of several thousand at the first position.
    assert float((got - want).norm() / want.norm()) < 1e-4


def test_perplexity_of_the_first_windows():
    # 22.899 by transformers in float32 on the same tokens.
    result = evaluate(smollm2_path(), TEXT, window=2048)
    assert result.windows == 3
    assert result.ppl == pytest.approx(22.899, abs=0.01)
