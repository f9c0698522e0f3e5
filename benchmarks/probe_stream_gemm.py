"""Operands, launch and check of the probe's streaming W4A8 kernel (`csrc/cuda/probe/stream_gemm.cuh`)."""

from dataclasses import dataclass

import torch

from tessera.kernels.cuda.launch import kernel

SMS = 132
TILE_BYTES = 4224  # 64 rows x 128 columns: 4096 bytes of codes, 128 of parameters


@dataclass
class StreamCase:
    """One configuration of `stream_gemm` and a problem: the fields of the C++ `StreamConfig`; M, N, K."""

    tokens: int
    consumers: int
    row_tiles: int
    stages: int
    group: bool = True
    cluster: int = 1
    once: int = 0
    m: int = 0
    n: int = 0
    k: int = 0

    def __post_init__(self) -> None:
        self.rows = 64 * self.consumers * self.row_tiles
        self.smem = self.stages * (self.tokens * 128 + self.rows // 64 * TILE_BYTES)
        self.smem += self.consumers * (8192 + self.tokens * 8)  # epilogue
        group = str(self.group).lower()
        config = (
            f"{self.tokens}, {self.consumers}, {self.row_tiles}, {self.stages}, {group}, {self.cluster}, "
        )
        config += f"{self.once}"
        self.fn = kernel(
            "probe/stream_gemm.cuh",
            f"tessera::probe::stream_gemm<tessera::probe::StreamConfig<{config}>>",
            signature="PPPPPPPPiii",
            max_smem=self.smem,
        )

    def allocate(self, copies: int) -> None:
        """Random operands, with `copies` of the weights to rotate through."""
        tiles = self.n // 64 * self.k // 128
        self.weights = [
            torch.randint(0, 256, (tiles, TILE_BYTES), dtype=torch.uint8, device="cuda")
            for _ in range(copies)
        ]
        for w in self.weights:
            # Steps 1..8 and zeros 0..15 keep (q - z) s + 128 in 0..255 for every code.
            step = torch.randint(1, 9, (tiles, 64), dtype=torch.uint8, device="cuda")
            zero = torch.randint(0, 16, (tiles, 64), dtype=torch.uint8, device="cuda")
            w[:, 4096:] = torch.stack((step, 128 - zero * step), -1).view(tiles, 128)
        self.x = torch.randint(-128, 128, (self.m, self.k), dtype=torch.int8, device="cuda")
        self.x_tiled = swizzled(self.x, self.tokens)
        # With groups every weight carries +128; without, take a common zero point of 8.
        self.offsets = torch.full((self.n,), 128 if self.group else 8, dtype=torch.int32, device="cuda")
        self.row_scale = torch.rand(self.n, device="cuda") + 0.5
        self.token_sum = self.x.sum(1, dtype=torch.int32)
        self.token_scale = torch.rand(self.m, device="cuda") / 1000 + 1e-4
        self.cycles = torch.zeros(SMS, dtype=torch.int64, device="cuda")
        self.y = torch.full((self.m, self.n), float("nan"), dtype=torch.bfloat16, device="cuda")

    def launch(self, copy: int) -> None:
        self.fn(
            SMS,
            128 * (1 + self.consumers),
            self.weights[copy],
            self.x_tiled,
            self.offsets,
            self.row_scale,
            self.token_sum,
            self.token_scale,
            self.y,
            self.cycles,
            self.m // self.tokens,
            self.n,
            self.k // 128,
            smem=self.smem,
            cluster=(self.cluster, 1, 1) if self.cluster > 1 else None,
        )

    def mma_share(self) -> float:
        """Part of the SM's cycles in the last launch in which its tensor cores multiplied, by operations.

        The clock is the SM's own, so that this does not move with the power limit as TOP/s do.
        """
        ideal = self.m * self.n * self.k / SMS / 4096  # 4096 int8 multiply-adds a clock
        return float(ideal / self.cycles.double().median())

    def error(self, copy: int, count: int = 192) -> float:
        """Largest relative difference from the exact result over `count` output channels, in 2^-8."""
        rows = torch.randperm(self.n, device="cuda")[:count]
        w = unpacked(self.weights[copy], rows, self.k, self.group).double()
        exact = (self.x.double() @ w.T) * self.row_scale[rows].double() * self.token_scale.double()[:, None]
        got = self.y[:, rows].double()
        return float(((got - exact).abs() / (exact.abs() * 2**-8 + 1e-6)).nan_to_num(torch.inf).max())


def swizzled(x: torch.Tensor, tokens: int) -> torch.Tensor:
    """x int8 [M, K] to [M / tokens, K / 128, tokens, 128] with 16-byte chunks xor-ed by the row modulo 8."""
    m, k = x.shape
    tiled = x.view(m // tokens, tokens, k // 128, 8, 16).permute(0, 2, 1, 3, 4)
    row = torch.arange(tokens, device=x.device)[:, None]
    chunk = torch.arange(8, device=x.device)[None] ^ (row % 8)
    return tiled[:, :, row, chunk].contiguous()


def unpacked(packed: torch.Tensor, rows: torch.Tensor, k: int, group: bool) -> torch.Tensor:
    """Integer weights [rows, K] out of the tiles [N / 64 * K / 128, 4224] that `stream_gemm` reads."""
    tiles = packed.view(-1, k // 128, TILE_BYTES)[rows // 64]  # [R, K / 128, bytes]
    r = rows % 64
    warp, g, second = r // 16, r % 8, r % 16 // 8
    out = torch.empty(len(rows), k // 128, 128, dtype=torch.int32, device=packed.device)
    pick = torch.arange(len(rows), device=packed.device)
    for c in range(128):  # column in the tile
        j, half, t, byte = c // 32, c % 32 // 16, c % 16 // 4, c % 4
        thread = warp * 32 + g * 4 + t
        at = j // 2 * 2048 + thread * 16 + (j % 2 * 2 + second) * 4 + byte
        out[:, :, c] = tiles[pick, :, at].int() >> (4 * half) & 15
    if not group:
        return (out - 8).view(len(rows), k)
    at = 4096 + (warp * 8 + g) * 4 + second * 2
    step, offset = tiles[pick, :, at].int(), tiles[pick, :, at + 1].int()
    return (out * step[..., None] + offset[..., None] - 128).view(len(rows), k)
