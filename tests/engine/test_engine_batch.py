import torch

from tessera.engine.batch import BatchBuilder
from tessera.engine.request import Request
from tessera.engine.sampling_params import SamplingParams
from tessera.engine.scheduler import ScheduledTokens


def request(length, table):
    ids = list(range(1000, 1000 + length))
    return Request("r", ids, length, SamplingParams(), seed=0, block_table=table)


def test_a_mixed_step():
    decode, prefill, first = request(130, [5, 0, 9]), request(200, [2, 7, 1, 4]), request(3, [8])
    step = [
        ScheduledTokens(decode, 129, 1),
        ScheduledTokens(prefill, 62, 4),
        ScheduledTokens(first, 0, 3),
    ]
    builder = BatchBuilder(4, 16, 256, torch.device("cpu"))
    batch = builder.build(step)
    meta = batch.meta
    assert batch.token_ids.tolist() == [1129, 1062, 1063, 1064, 1065, 1000, 1001, 1002]
    assert batch.sample_rows.tolist() == [0, 7]  # the middle of a prefill is not sampled
    assert meta.positions.tolist() == [129, 62, 63, 64, 65, 0, 1, 2]
    assert meta.slot_mapping.tolist() == [
        9 * 64 + 1, 2 * 64 + 62, 2 * 64 + 63, 7 * 64, 7 * 64 + 1, 8 * 64, 8 * 64 + 1, 8 * 64 + 2,
    ]  # fmt: skip
    assert meta.cu_seqlens.tolist() == [0, 1, 5, 8]
    assert meta.context_lens.tolist() == [130, 66, 3]
    assert meta.block_tables.tolist() == [[5, 0, 9], [2, 7, 0], [8, 0, 0]]
    assert (meta.max_query_len, meta.max_context_len) == (4, 130)
    dtypes = (meta.positions, meta.cu_seqlens, meta.context_lens, meta.block_tables)
    assert {tensor.dtype for tensor in dtypes} == {torch.int32}
    assert {batch.token_ids.dtype, meta.slot_mapping.dtype} == {torch.int64}
    assert all(tensor.is_contiguous() for tensor in (*dtypes, batch.token_ids, meta.slot_mapping))


def test_buffers_are_reused_without_leftovers():
    builder = BatchBuilder(2, 8, 256, torch.device("cpu"))
    wide = builder.build([ScheduledTokens(request(200, [1, 2, 3, 4]), 192, 8)])
    address = wide.token_ids.data_ptr()
    steps = [ScheduledTokens(request(1, [6]), 0, 1), ScheduledTokens(request(65, [7, 8]), 64, 1)]
    batch = builder.build(steps)
    assert batch.token_ids.data_ptr() == address
    assert batch.meta.block_tables.tolist() == [[6, 0], [7, 8]]
    assert batch.meta.cu_seqlens.tolist() == [0, 1, 2]
    assert batch.sample_rows.tolist() == [0, 1]
