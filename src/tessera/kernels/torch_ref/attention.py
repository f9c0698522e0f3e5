"""Rotary embedding, KV append and paged causal attention in torch."""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.kernels.ops import AttentionProblem
from tessera.kernels.registry import YES, Verdict, no, runs
from tessera.kernels.types import AttentionMetadata
from tessera.numerics import quantize_kv, rotate
from tessera.numerics.qtensor import FLOAT_DTYPES
from tessera.spec import WHOLE, Chain, Pattern, affine_min

KV4: Final = affine_min(4, Pattern((1, 1, WHOLE)))
"""What `Recipe.kv_chain` says for 4-bit caches: fp16 scale and minimum per token and head."""


class TorchAttention:
    """A page's slice per KV head: K codes | V codes | K (scale, min) | V (scale, min), or plain K | V."""

    id = "torch_attention"

    def can_implement(self, problem: AttentionProblem) -> Verdict:
        if problem.device.kind != "cpu":
            return no("runs on the CPU only")
        if problem.kv != KV4 and not _is_plain_float(problem.kv):
            return no(f"the cache is {problem.kv}: plain floats and {KV4} are implemented")
        if problem.head_dim % 2:
            return no(f"head_dim {problem.head_dim} is odd: rotary pairs do not fill it")
        return YES

    def bind(self, problem: AttentionProblem, cos: Tensor, sin: Tensor) -> "BoundTorchAttention":
        return BoundTorchAttention(problem, cos, sin)


def _is_plain_float(chain: Chain) -> bool:
    return chain.is_plain and str(chain.codes) in FLOAT_DTYPES


@dataclass(frozen=True, slots=True)
class _PlainPages:
    """K or V as floats: views [pages, kv heads, page, D] of a cache's bytes."""

    values: Tensor

    def store(self, page: Tensor, offset: Tensor, x: Tensor) -> None:
        self.values[page, :, offset] = x.to(self.values.dtype)

    def load(self, pages: Tensor) -> Tensor:
        """float32 [tokens, kv heads, D] of whole pages in order."""
        return self.values[pages].transpose(1, 2).flatten(0, 1).float()


@dataclass(frozen=True, slots=True)
class _Kv4Pages:
    """K or V in 4 bits: views of a cache's codes [pages, kv heads, page, D / 2] and (scale, min) [..., 2]."""

    codes: Tensor
    params: Tensor

    def store(self, page: Tensor, offset: Tensor, x: Tensor) -> None:
        kv = quantize_kv(x)
        self.codes[page, :, offset] = kv.codes[..., ::2] | kv.codes[..., 1::2] << 4
        self.params[page, :, offset] = torch.stack((kv.scale, kv.minimum), dim=-1)

    def load(self, pages: Tensor) -> Tensor:
        packed, params = self.codes[pages], self.params[pages].float()
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).float()
        values = codes * params[..., :1] + params[..., 1:]
        return values.transpose(1, 2).flatten(0, 1)


class BoundTorchAttention:
    def __init__(self, problem: AttentionProblem, cos: Tensor, sin: Tensor) -> None:
        self._problem = problem
        self._cos, self._sin = cos.float(), sin.float()

    @property
    def _body_bytes(self) -> int:
        """Of K or V of one page and head, without parameters."""
        p = self._problem
        return p.page_size * p.head_dim * p.kv.codes.bits // 8

    @property
    def _param_bytes(self) -> int:
        return 4 * self._problem.page_size if self._problem.kv == KV4 else 0

    @property
    def bytes_per_page(self) -> int:
        return self._problem.num_kv_heads * 2 * (self._body_bytes + self._param_bytes)

    def allocate(self, num_pages: int) -> Tensor:
        heads = self._problem.num_kv_heads
        return torch.zeros(num_pages, heads, self.bytes_per_page // heads, dtype=torch.uint8)

    def __call__(self, qkv: Tensor, cache: Tensor, meta: AttentionMetadata) -> Tensor:
        runs[TorchAttention.id] += 1
        p = self._problem
        heads = qkv.float().view(qkv.shape[0], -1, p.head_dim)
        q, k, v = torch.split(heads, [p.num_heads, p.num_kv_heads, p.num_kv_heads], dim=1)
        positions = meta.positions.long()
        cos, sin = self._cos[positions], self._sin[positions]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)

        stored = meta.slot_mapping >= 0
        slots = meta.slot_mapping[stored]
        page, offset = slots // p.page_size, slots % p.page_size
        k_pages, v_pages = self._pages(cache)
        k_pages.store(page, offset, k[stored])
        v_pages.store(page, offset, v[stored])

        out = torch.zeros_like(q)
        bounds = meta.cu_seqlens.tolist()
        for s, context in enumerate(meta.context_lens.tolist()):
            rows = slice(bounds[s], bounds[s + 1])
            pages = meta.block_tables[s, : -(-context // p.page_size)].long()
            keys, values = k_pages.load(pages)[:context], v_pages.load(pages)[:context]
            out[rows] = self._attend(q[rows], keys, values, positions[rows])
        return out.flatten(1).to(p.dtype)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """q [R, heads, D] over k, v [context, kv heads, D], each row up to its own position."""
        visible = torch.arange(k.shape[0]) <= positions.unsqueeze(-1)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
        return y.squeeze(0).transpose(0, 1)

    def _pages(self, cache: Tensor) -> tuple[_PlainPages | _Kv4Pages, _PlainPages | _Kv4Pages]:
        p, body, params = self._problem, self._body_bytes, self._param_bytes
        k_bytes, v_bytes = cache[..., :body], cache[..., body : 2 * body]
        if p.kv != KV4:
            dtype = FLOAT_DTYPES[str(p.kv.codes)]
            k, v = (_rows(b.view(dtype), p.page_size) for b in (k_bytes, v_bytes))
            return _PlainPages(k), _PlainPages(v)
        k, v = (_rows(b, p.page_size) for b in (k_bytes, v_bytes))
        halves = cache[..., 2 * body :].view(torch.float16)
        middle = params // 2
        k_params, v_params = (
            _rows(halves[..., :middle], p.page_size),
            _rows(halves[..., middle:], p.page_size),
        )
        return _Kv4Pages(k, k_params), _Kv4Pages(v, v_params)


def _rows(x: Tensor, count: int) -> Tensor:
    """The last axis as `count` rows."""
    return x.view(*x.shape[:-1], count, x.shape[-1] // count)
