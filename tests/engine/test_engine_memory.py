"""What the engine allocates is what `tessera plan` counts: the same functions, and the kernels' own sizes."""

from math import prod

import pytest

from tessera.engine.block_pool import BLOCK_SIZE
from tessera.engine.cuda_memory import page_bytes
from tessera.engine.info import float32_sizes
from tessera.engine.memory import block_bytes
from tessera.formats import open_checkpoint
from tessera.models.loader import build_model
from tessera.planner import ModelShape, precision_of
from tessera.planner.memory import kv_bytes_per_token, weight_bytes
from tessera.spec import A32, Recipe
from tiny import tiny_config, write_hf_model, write_quantized

CONFIG = tiny_config(head_dim=64, max_position=256)


@pytest.mark.parametrize("kv", [A32, Recipe.parse("qoq-g32").kv_chain()], ids=str)
def test_a_block_is_64_tokens_of_the_plan(kv):
    token = kv_bytes_per_token(ModelShape.from_config(CONFIG), kv)
    assert block_bytes(CONFIG, kv) == page_bytes(CONFIG, kv) == BLOCK_SIZE * token.value


def test_kernels_allocate_the_plan_s_cache_and_checkpoints_hold_its_weights(tmp_path):
    write_hf_model(tmp_path / "hf", CONFIG)
    checkpoint = open_checkpoint(write_quantized(tmp_path / "q", tmp_path / "hf", "qoq-g32"))
    model = build_model(checkpoint, "cpu")
    assert model.cache_bytes_per_page == block_bytes(CONFIG, checkpoint.kv_chain)
    stored = sum(checkpoint.tile(name).bytes for name in checkpoint.names())
    planned = weight_bytes(ModelShape.from_config(CONFIG), precision_of("qoq-g32")).value
    # The checkpoint stores norms as the model it came from does, in float32 here; a plan prices 16 bits.
    norms = sum(prod(s) for n, s in CONFIG.tensor_shapes().items() if n.endswith("norm.weight"))
    assert planned <= stored <= planned + 2 * norms


def test_float32_sizes_are_four_bytes_a_value():
    sizes = float32_sizes(CONFIG)
    assert sizes["float32_weight_bytes"] == 4 * sum(map(prod, CONFIG.tensor_shapes().values()))
    per_token = 4 * 2 * CONFIG.num_layers * CONFIG.kv_size
    assert sizes["float32_cache_bytes_per_block"] == BLOCK_SIZE * per_token
