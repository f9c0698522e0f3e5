"""Tensors that travel between kernels.

T tokens of a step (prefill chunks and decode tokens of all sequences, packed without padding), S sequences,
H hidden size, D head dimension.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """int8 activations, symmetric per token: x[t, k] = codes[t, k] * scale[t].

    codes int8 [T, K] in -127..127; scale float32 [T]; row_sum int32 [T], the sum of a row's codes, which
    takes weight zero points and offsets off in the epilogue of an integer GEMM.
    """

    codes: Tensor
    scale: Tensor
    row_sum: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns


@dataclass(frozen=True, slots=True)
class TiledRows:
    """int8 activations [T, K] as tensor-core kernels read them; what QuantizedRows says holds otherwise.

    codes int8 [ceil(K / 128), ceil(T / 8), 8, 128]: 8 tokens by 128 columns are 1024 bytes in which 16-byte
    chunk c of token r lies at chunk c ^ r (the 128-byte swizzle). The columns of a step for any multiple of 8
    tokens are contiguous: one bulk copy. Columns from K on are 0; tokens from T on are undefined.
    """

    codes: Tensor
    scale: Tensor
    row_sum: Tensor
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.scale.shape[0], self.columns


Int8Rows = QuantizedRows | TiledRows
"""int8 activations: row by row on the CPU, in tiles on CUDA."""

Activation = Tensor | Int8Rows
"""What a norm or an activation function hands to a linear layer: floats [T, K], or int8 rows."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where a step's tokens stand in their sequences and in the paged KV cache.

    positions     int32 [T]      position of each token in its sequence
    slot_mapping  int64 [T]      page * page_size + offset where its K and V go; -1 stores nothing (padding)
    cu_seqlens    int32 [S + 1]  tokens of sequence s are cu_seqlens[s] .. cu_seqlens[s + 1] - 1
    context_lens  int32 [S]      tokens of the sequence in the cache once this step's are appended
    block_tables  int32 [S, P]   pages of each sequence, in order; entries past its context are ignored
    """

    positions: Tensor
    slot_mapping: Tensor
    cu_seqlens: Tensor
    context_lens: Tensor
    block_tables: Tensor
    max_query_len: int
    max_context_len: int
