"""Every number of the lecture (tests/data/lecture_numbers.json), from public calls, within its tolerance."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.hardware import GPUS
from tessera.planner import (
    REFERENCE_7B,
    Plan,
    Quantity,
    board,
    memory,
    plan,
    precision_of,
    roofline,
    serving,
    sparsity,
    with_weights,
)
from tessera.spec import F16, S8, U4, U8, Chain, Grid, Pattern, Step, affine_zero, param, plain, symmetric

NUMBERS = json.loads((Path(__file__).parents[1] / "data" / "lecture_numbers.json").read_text())
EXPECTED = {row["id"]: row for row in NUMBERS["quantities"]}

H100 = GPUS["h100-sxm"]
N = memory.parameter_count(REFERENCE_7B)
BF16 = precision_of("bf16")
W4 = precision_of("qoq-g128")
GQA = replace(REFERENCE_7B, kv_heads=8)
CONTEXT, RESERVE, LONG = 4096, 4e9, 32768

INT4 = plain(U4)
G128 = symmetric(Grid(4, signed=True), Pattern.blocks(1, 128))
TWO_LEVEL = Chain(
    U4,
    (
        Step("scale", S8, (param("group_scale", U8),), Pattern.blocks(1, 128)),
        Step("scale", F16, (param("scale", F16),), Pattern.channel()),
    ),
)
"""The lecture's two levels: int8 scales of groups without zero points, floating scales of rows."""


def weights(chain: Chain) -> Quantity:
    return memory.weight_bytes(REFERENCE_7B, with_weights(W4, chain))


def floor(chain: Chain) -> Quantity:
    return roofline.memory_time(weights(chain), H100.bandwidth)


def params_20bit(group: int) -> Chain:
    return affine_zero(4, Pattern.blocks(1, group))


def lecture(recipe: str, **changes: object) -> Plan:
    """A plan by the lecture's conventions: parameters of the cache not counted, data sheet values."""
    options = {"kv_heads": 32, "context": CONTEXT, "reserve_gb": 4, "kv_params": "none"} | changes
    return plan(REFERENCE_7B, H100, recipe, **options)  # type: ignore[arg-type]


def kv(model: object, precision: object, context: int) -> Quantity:
    token = memory.kv_bytes_per_token(model, precision.kv, "none")  # type: ignore[attr-defined, arg-type]
    return memory.kv_bytes_per_sequence(token, context)


ISSUE = board.issue_ceiling(H100)
DEQUANT = board.dequant_time(N, 4, ISSUE)
PREFILL = serving.prefill_operations(N, 32, 4096, 4096)
PREFILL_BF16 = serving.prefill_time(PREFILL, H100.peak("bf16"), 0.5)
PREFILL_W4A8 = serving.prefill_time(PREFILL, H100.peak("int8"), 0.5)
GEMM_256 = roofline.gemm_time(N, 256, H100.peak("int8"))
SPARSE = sparsity.kept_ratio(2, 4)


def single_token_cost() -> Quantity:
    """The lecture's naive deployment: one sequence, weights alone."""
    return roofline.cost(roofline.throughput(1, floor(BF16.linear)))


MS, GIGA, TERA = 1e3, 1e-9, 1e-12
COMPUTED: dict[str, Callable[[], float]] = {
    "floor.bf16.batch1": lambda: MS * float(floor(BF16.linear)),
    "floor.int4_raw.batch1": lambda: MS * float(floor(INT4)),
    "rate.int4_raw.batch1": lambda: float(roofline.throughput(1, floor(INT4))),
    "bits.int4_g128_fp16scale": lambda: float(memory.bits_per_weight(G128)),
    "bytes.int4_g128_fp16scale": lambda: GIGA * float(weights(G128)),
    "floor.int4_g128.batch1": lambda: MS * float(floor(G128)),
    **{
        f"bits.int4_g{g}_20bit_params": lambda g=g: float(memory.bits_per_weight(params_20bit(g)))
        for g in (32, 128, 256)
    },
    **{
        f"bytes.int4_g{g}_20bit_params": lambda g=g: GIGA * float(weights(params_20bit(g)))
        for g in (32, 128, 256)
    },
    **{
        f"floor.int4_g{g}_20bit_params": lambda g=g: MS * float(floor(params_20bit(g)))
        for g in (32, 128, 256)
    },
    "issue_ceiling": lambda: float(ISSUE),
    "dequant.board_model.k4": lambda: MS * float(DEQUANT),
    "dequant.unoverlapped_batch1": lambda: MS * float(board.unoverlapped(floor(G128), DEQUANT)),
    "dequant.share.batch1": lambda: float(roofline.share("share", DEQUANT, floor(G128))),
    "gemm_time.int8.B256": lambda: MS * float(GEMM_256),
    "dequant.share.B256": lambda: float(roofline.share("share", DEQUANT, GEMM_256)),
    "dequant.k_at_floor": lambda: float(board.instructions_at_floor(floor(G128), N, ISSUE)),
    "dequant.k2.ms": lambda: MS * float(board.dequant_time(N, 2, ISSUE)),
    "dequant.k2.share": lambda: float(roofline.share("share", board.dequant_time(N, 2, ISSUE), floor(G128))),
    "kv.mha.bf16.per_seq_4k": lambda: GIGA * float(kv(REFERENCE_7B, BF16, CONTEXT)),
    "kv.mha.kv4.per_seq_4k": lambda: GIGA * float(kv(REFERENCE_7B, W4, CONTEXT)),
    "kv.gqa8.bf16.per_seq_4k": lambda: GIGA * float(kv(GQA, BF16, CONTEXT)),
    "kv.gqa8.kv4.per_seq_4k": lambda: GIGA * float(kv(GQA, W4, CONTEXT)),
    "maxB.mha.bf16": lambda: float(lecture("bf16")["max_batch"]),
    "maxB.gqa8.bf16": lambda: float(lecture("bf16", kv_heads=8)["max_batch"]),
    "maxB.mha.w4kv4": lambda: float(lecture("w4a8kv4")["max_batch"]),
    "maxB.gqa8.w4kv4": lambda: float(lecture("w4a8kv4", kv_heads=8)["max_batch"]),
    "maxB.mha.w4kv4.params_counted": lambda: float(lecture("w4a8kv4", kv_params="counted")["max_batch"]),
    "maxB.gqa8.w4kv4.params_counted": lambda: float(
        lecture("w4a8kv4", kv_heads=8, kv_params="counted")["max_batch"]
    ),
    "bytes_per_step.gqa8.bf16": lambda: GIGA * float(lecture("bf16", kv_heads=8)["step_bytes"]),
    "bytes_per_step.gqa8.w4kv4": lambda: GIGA * float(lecture("w4a8kv4", kv_heads=8)["step_bytes"]),
    "tpot.gqa8.bf16": lambda: MS * float(lecture("bf16", kv_heads=8)["tpot"]),
    "tpot.gqa8.w4kv4": lambda: MS * float(lecture("w4a8kv4", kv_heads=8)["tpot"]),
    "throughput.gqa8.bf16": lambda: float(lecture("bf16", kv_heads=8)["throughput"]),
    "throughput.gqa8.w4kv4": lambda: float(lecture("w4a8kv4", kv_heads=8)["throughput"]),
    "cost.gqa8.bf16": lambda: float(lecture("bf16", kv_heads=8)["cost"]),
    "cost.gqa8.w4kv4": lambda: float(lecture("w4a8kv4", kv_heads=8)["cost"]),
    "cost.naive_bf16_batch1": lambda: float(single_token_cost()),
    "kv_share_of_step.gqa8.w4kv4": lambda: float(lecture("w4a8kv4", kv_heads=8)["kv_share_of_step"]),
    "knee.bf16": lambda: float(lecture("bf16", kv_heads=8)["knee"]),
    "knee.w4kv4": lambda: float(lecture("w4a8kv4", kv_heads=8)["knee"]),
    "ridge.int8": lambda: float(lecture("w4a8kv4")["ridge_int8"]),
    "ridge.bf16": lambda: float(lecture("bf16")["ridge_bf16"]),
    "crossover.w4a8": lambda: lecture("w4a8kv4")["crossover_batch"].also["codes alone"],
    "compute_check.B540": lambda: MS * float(lecture("w4a8kv4", kv_heads=8)["gemm_time"]),
    "two_level.scale_bytes": lambda: GIGA * memory.bits_per_weight(TWO_LEVEL).inputs["group_scale"] / 4096**2
    * float(N) / 8,
    "two_level.total": lambda: GIGA * float(weights(TWO_LEVEL)),
    "sparse24.bytes_ratio": lambda: float(SPARSE),
    "sparse24.max_gain": lambda: float(sparsity.sparse_gain(SPARSE)),
    "sparse24.bf16_bytes": lambda: GIGA * float(sparsity.sparse_bytes(weights(BF16.linear), SPARSE)),
    "sparse24.floor": lambda: (
        MS
        * float(roofline.memory_time(sparsity.sparse_bytes(weights(BF16.linear), SPARSE), H100.bandwidth))
    ),
    "sparse24_int4.bytes": lambda: GIGA * float(sparsity.sparse_bytes(weights(G128), SPARSE)),
    "sparse24_int4.floor": lambda: (
        MS * float(roofline.memory_time(sparsity.sparse_bytes(weights(G128), SPARSE), H100.bandwidth))
    ),
    "long.kv16.per_seq_32k": lambda: GIGA * float(kv(REFERENCE_7B, BF16, LONG)),
    "long.kv16.max_seqs": lambda: float(lecture("bf16", context=LONG)["max_batch"]),
    "long.kv4.per_seq_32k": lambda: GIGA * float(kv(REFERENCE_7B, W4, LONG)),
    "long.kv4.max_seqs": lambda: float(lecture("w4a8kv4", context=LONG)["max_batch"]),
    "long.kv4.tpot_B16": lambda: MS * float(lecture("w4a8kv4", context=LONG, batch=16)["tpot"]),
    "long.kv4.throughput_B16": lambda: float(lecture("w4a8kv4", context=LONG, batch=16)["throughput"]),
    "long.bytes_per_step_B16": lambda: GIGA * float(lecture("w4a8kv4", context=LONG, batch=16)["step_bytes"]),
    "prefill4096.flop": lambda: TERA * float(PREFILL),
    "prefill4096.bf16_at_half_peak": lambda: MS * float(PREFILL_BF16),
    "prefill4096.w4a8_at_half_peak": lambda: MS * float(PREFILL_W4A8),
    "prefill4096.dequant_share": lambda: float(roofline.share("share", DEQUANT, PREFILL_W4A8)),
    "dequant.instructions.k4": lambda: float(board.dequant_instructions(N, 4)),
    "dequant.share.prefill_bf16": lambda: float(roofline.share("share", DEQUANT, PREFILL_BF16)),
    "speedup.int4_unoverlapped": lambda: float(
        roofline.ratio("gain", floor(BF16.linear), board.unoverlapped(floor(G128), DEQUANT))
    ),
    "speedup.int4_ideal": lambda: float(roofline.ratio("gain", floor(BF16.linear), floor(G128))),
    "free_kv.bf16": lambda: GIGA * float(lecture("bf16")["free_for_kv"]),
    "free_kv.w4": lambda: GIGA * float(lecture("w4a8kv4")["free_for_kv"]),
    "ratio.throughput": lambda: float(
        roofline.ratio(
            "gain",
            lecture("w4a8kv4", kv_heads=8)["throughput"],
            lecture("bf16", kv_heads=8)["throughput"],
        )
    ),
    "ratio.cost_vs_naive": lambda: float(
        roofline.ratio("gain", single_token_cost(), lecture("w4a8kv4", kv_heads=8)["cost"])
    ),
    "ratio.cost_bf16_vs_naive": lambda: float(
        roofline.ratio("gain", single_token_cost(), lecture("bf16", kv_heads=8)["cost"])
    ),
    "session.stalled_kv4": lambda: GIGA * float(serving.session_bytes(
        memory.kv_bytes_per_token(REFERENCE_7B, W4.kv, "none"),
        13.4e9 / float(memory.kv_bytes_per_token(REFERENCE_7B, BF16.kv)),
    )),
    "group_tax.g32_over_g256": lambda: float(
        roofline.ratio(
            "tax", memory.bits_per_weight(params_20bit(32)), memory.bits_per_weight(params_20bit(256))
        )
    ),
    "crossover.naive_w4a8_loses_to_w8a8": lambda: float(
        board.naive_loses_from(
            weights(symmetric(Grid(8, signed=True), Pattern.channel())),
            DEQUANT,
            N,
            H100.peak("int8"),
            H100.bandwidth,
            weights(G128),
        )
    ),
}  # fmt: skip


def test_every_number_of_the_lecture_is_computed():
    assert COMPUTED.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_number_of_the_lecture(name):
    row = EXPECTED[name]
    assert COMPUTED[name]() == pytest.approx(row["expect"], rel=max(row["rel_tol"], 1e-12)), row["note"]


def test_reference_values_are_the_lecture_s():
    model, gpu = NUMBERS["reference"]["model"], NUMBERS["reference"]["gpu"]
    shape = REFERENCE_7B
    assert (shape.layers, shape.hidden, shape.heads, shape.head_dim) == (
        model["layers"], model["hidden"], model["heads"], model["head_dim"],
    )  # fmt: skip
    assert float(N) == pytest.approx(model["params"], rel=1e-6)
    assert float(weights(BF16.linear)) == pytest.approx(model["bf16_bytes"], rel=1e-6)
    assert H100.memory == gpu["hbm_gb"] * 1e9
    assert H100.bandwidth == gpu["hbm_gbps"] * 1e9
    assert (H100.peak("bf16"), H100.peak("int8")) == (gpu["bf16_tflops"] * 1e12, gpu["int8_tops"] * 1e12)
    assert (H100.sms, H100.schedulers, H100.clock) == (
        gpu["sms"], gpu["schedulers_per_sm"], gpu["clock_ghz"] * 1e9,
    )  # fmt: skip


def test_sparse_int4_as_it_has_to_be_stored_stands_beside_the_lecture_s_convention():
    stored = sparsity.sparse_int4_bytes(N, weights(G128))
    assert GIGA * float(stored) == pytest.approx(2.63, rel=0.005)
    assert MS * float(roofline.memory_time(stored, H100.bandwidth)) == pytest.approx(0.79, rel=0.01)
    assert float(roofline.ratio("gain", weights(G128), stored)) == pytest.approx(1.3, rel=0.02)


def test_bf16_step_at_capacity_is_82_percent_cache_and_not_the_96_that_the_lecture_quotes():
    assert float(lecture("bf16", kv_heads=8)["kv_share_of_step"]) == pytest.approx(0.82, abs=0.005)
