"""Dense causal attention in plain torch: no pages, no kernels."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tessera.kernels.types import AttentionMetadata
from tessera.layers.rope import rope_tables
from tessera.layers.types import Observer, observe
from tessera.numerics.rope import rotate
from tessera.numerics.rounding import quantize
from tessera.spec import Chain, ModelConfig


def dense_metadata(lengths: Sequence[int], device: torch.device | str = "cpu") -> AttentionMetadata:
    """Whole sequences of `lengths` tokens, packed one after the other, that start at position 0."""
    starts = [0, *accumulate(lengths)]
    longest = max(lengths, default=0)
    return AttentionMetadata(
        positions=torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]).to(device),
        slot_mapping=torch.full((starts[-1],), -1, dtype=torch.int64, device=device),
        cu_seqlens=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=torch.empty(len(lengths), 0, dtype=torch.int32, device=device),
        max_query_len=longest,
        max_context_len=longest,
    )


class DenseAttention:
    """Each sequence of the step attends causally to itself; its tokens must start at position 0.

    K and V are rounded as `kv` says, every token's own included; a plain `kv` leaves them as computed.

    Observed points: "k_pre" and "v" as the linear layer gave them, "q" and "k" after rotation, each
    [T, heads, D].
    """

    kernel_ids: tuple[str, ...] = ()
    bytes_per_page = 0
    nbytes = 0

    def __init__(self, config: ModelConfig, kv: Chain) -> None:
        self.config = config
        self.kv = kv

    def allocate(self, num_pages: int) -> Tensor:
        raise TypeError(f"dense attention keeps no cache, so not {num_pages} pages: build with paged=True")

    def __call__(
        self, qkv: Tensor, cache: Tensor | None, meta: AttentionMetadata, observer: Observer | None = None
    ) -> Tensor:
        q, k, v = self._rotated(qkv, meta.positions, observer)
        k, v = self._as_stored(k), self._as_stored(v)
        lengths = meta.cu_seqlens.diff()
        if not torch.equal(lengths, meta.context_lens):
            raise ValueError("dense attention sees whole sequences: context_lens must be the step's lengths")
        parts = zip(*(torch.split(x, lengths.tolist()) for x in (q, k, v)), strict=True)
        return torch.cat([_causal(*part) for part in parts]).flatten(1)

    def _as_stored(self, x: Tensor) -> Tensor:
        return x if self.kv.is_plain else quantize(x, self.kv).dequantize(x.dtype)

    def _rotated(
        self, qkv: Tensor, positions: Tensor, observer: Observer | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        observe(observer, "k_pre", k)
        observe(observer, "v", v)
        cos, sin = (table.to(qkv.device)[positions] for table in rope_tables(config))
        q, k = (rotate(x, cos, sin).to(qkv.dtype) for x in (q, k))  # the tables are float32
        observe(observer, "q", q)
        observe(observer, "k", k)
        return q, k, v


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [L, heads, D], k and v [L, kv heads, D] of one sequence -> [L, heads, D]."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.squeeze(0).transpose(0, 1)
