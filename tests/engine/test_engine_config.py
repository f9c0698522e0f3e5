import pytest

from tessera.engine.config import EngineConfig, plan_cache
from tessera.engine.errors import CacheMemoryError, EngineConfigError
from tessera.engine.memory import available_memory
from tessera.spec import A16, Recipe, RecipeError

MIB = 2**20


def plan(available=1000 * MIB, model_max_len=2048, bytes_per_block=MIB, **options):
    return plan_cache(
        EngineConfig(**options),
        model_max_len=model_max_len,
        bytes_per_block=bytes_per_block,
        available_bytes=available,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_model_len", 3), ("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("kv_tokens", 0),
        ("threads", 0), ("memory_fraction", 0), ("memory_fraction", 1.5),
    ],
)  # fmt: skip
def test_impossible_options_are_refused_by_name(option, value):
    with pytest.raises(EngineConfigError, match=f"{option} is {value}"):
        EngineConfig(**{option: value})


def test_a_recipe_is_for_dummy_weights_only():
    assert EngineConfig(load_format="dummy", recipe="w4a8-g64").recipe == "w4a8-g64"
    with pytest.raises(EngineConfigError, match="recipe is 'w4a8-g64': it is for load_format dummy"):
        EngineConfig(recipe="w4a8-g64")
    with pytest.raises(RecipeError, match="w4a9"):
        EngineConfig(load_format="dummy", recipe="w4a9")


def test_bits_of_the_cache_are_those_of_recipes():
    assert EngineConfig().kv_chain is None
    assert EngineConfig(kv_bits=4).kv_chain == Recipe.parse("qoq-g128").kv_chain()
    assert EngineConfig(kv_bits=16).kv_chain == A16
    for bits in (8, "4", 16.0):
        with pytest.raises(EngineConfigError, match=f"kv_bits is {bits!r}: one of 4, 16"):
            EngineConfig(kv_bits=bits)


def test_a_step_must_hold_every_sequence():
    with pytest.raises(EngineConfigError, match="max_num_batched_tokens is 8, max_num_seqs 9"):
        EngineConfig(max_num_batched_tokens=8, max_num_seqs=9)


def test_a_device_has_defaults_of_its_own_and_options_win():
    assert EngineConfig.on("cpu") == EngineConfig.on("cpu", max_num_seqs=None) == EngineConfig()
    cuda = EngineConfig.on("cuda", seed=3)
    assert (cuda.max_num_seqs, cuda.max_num_batched_tokens, cuda.memory_fraction) == (256, 8192, 0.9)
    assert cuda.seed == 3
    assert EngineConfig.on("cuda", memory_fraction=0.25).memory_fraction == 0.25


def test_most_tokens_and_most_sequences_make_room_for_each_other_unless_both_are_given():
    assert EngineConfig.on("cuda", max_num_batched_tokens=64).max_num_seqs == 64
    assert EngineConfig.on("cpu", max_num_seqs=600).max_num_batched_tokens == 600
    with pytest.raises(EngineConfigError, match="max_num_batched_tokens is 0"):
        EngineConfig.on("cuda", max_num_batched_tokens=0)
    with pytest.raises(EngineConfigError, match="max_num_batched_tokens is 8, max_num_seqs 9"):
        EngineConfig.on("cuda", max_num_batched_tokens=8, max_num_seqs=9)


def test_no_more_than_can_be_used_is_planned():
    planned = plan(max_num_seqs=2, available=10_000 * MIB)
    assert (planned.num_blocks, planned.max_model_len, planned.notes) == (64, 2048, ())


def test_memory_limits_the_cache_silently_while_one_sequence_fits():
    planned = plan(available=100 * MIB, memory_fraction=0.5)
    assert (planned.num_blocks, planned.max_model_len, planned.notes) == (50, 2048, ())


def test_the_models_context_is_reduced_and_said_so():
    planned = plan(available=20 * MIB, memory_fraction=0.5)
    assert (planned.num_blocks, planned.max_model_len) == (10, 640)
    assert planned.notes == ("max_model_len reduced from 2048 to 640: the KV cache holds no more",)


def test_kv_tokens_is_kept_or_reduced_and_said_so():
    assert plan(kv_tokens=65, model_max_len=128).num_blocks == 2
    planned = plan(kv_tokens=64_000, available=100 * MIB, memory_fraction=0.5)
    assert planned.num_blocks == 50
    assert "kv_tokens reduced from 64000 to 3200: 50% of 100.0 MiB available holds no more" in planned.notes


def test_what_was_asked_for_and_does_not_fit_is_an_error_with_the_arithmetic():
    with pytest.raises(CacheMemoryError) as caught:
        plan(max_model_len=2048, available=20 * MIB, memory_fraction=0.5)
    message = str(caught.value)
    assert "2048 tokens needs 32 blocks x 1048576 bytes = 32.0 MiB" in message
    assert "50% of 20.0 MiB available = 10.0 MiB, which holds 640 tokens" in message
    assert message.endswith("tokens; set max_model_len to at most 640")
    with pytest.raises(
        CacheMemoryError, match=r"640 tokens; raise memory_fraction to 0.8, or set max_model_len"
    ):
        plan(max_model_len=1024, available=20 * MIB, memory_fraction=0.5)
    with pytest.raises(CacheMemoryError, match=r"4 tokens needs 1 blocks.*holds 0 tokens; raise .* to 1$"):
        plan(available=MIB, memory_fraction=0.5)
    with pytest.raises(EngineConfigError, match="kv_tokens is 100, max_model_len 500"):
        plan(max_model_len=500, kv_tokens=100)
    assert plan(max_model_len=128, kv_tokens=100).max_model_len == 128, "blocks hold whole sixty-fours"


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(EngineConfigError, match="max_model_len is 4096: the model was made for at most 2048"):
        plan(max_model_len=4096)


def test_available_memory_respects_a_container_limit(tmp_path):
    unlimited = available_memory(tmp_path)  # no control group there
    assert unlimited > 2**24
    (tmp_path / "memory.current").write_text("9000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 3000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 2**24
    (tmp_path / "memory.max").write_text("10000000\n")
    assert available_memory(tmp_path) == 4_000_000
    (tmp_path / "memory.max").write_text("1000000\n")
    assert available_memory(tmp_path) == 0
