"""Operands, launch and check of the probe's streaming W4A8 kernel (`csrc/cuda/probe/stream_gemm.cuh`)."""

from dataclasses import dataclass

import torch

from tessera.kernels.cuda.launch import kernel

SMS = 132
TILE_BYTES = 4224  # 64 rows x 128 columns: 4096 bytes of codes, 128 of parameters
BYTES_TILE_BYTES = 8192  # the same with 8-bit codes


@dataclass
class StreamCase:
    """One configuration of `stream_gemm` and a problem: the fields of the C++ `StreamConfig`; M, N, K."""

    tokens: int
    consumers: int
    row_tiles: int
    stages: int
    way: str = "MultiplyAdd"
    cluster: int = 1
    once: int = 0
    m: int = 0
    n: int = 0
    k: int = 0

    def __post_init__(self) -> None:
        self.rows = 64 * self.consumers * self.row_tiles
        self.tile_bytes = BYTES_TILE_BYTES if self.way == "Bytes" else TILE_BYTES
        self.smem = self.stages * (self.tokens * 128 + self.rows // 64 * self.tile_bytes)
        self.smem += self.consumers * (8192 + self.tokens * 8)  # epilogue
        config = f"{self.tokens}, {self.consumers}, {self.row_tiles}, {self.stages}, "
        config += f"tessera::probe::{self.way}, {self.cluster}, {self.once}"
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
            torch.randint(0, 256, (tiles, self.tile_bytes), dtype=torch.uint8, device="cuda")
            for _ in range(copies)
        ]
        for w in self.weights if self.way != "Bytes" else ():
            w[:, 4096:] = parameters(self.way, tiles).view(tiles, 128)
        self.weights_nbytes = self.weights[0].nbytes
        self.x = torch.randint(-128, 128, (self.m, self.k), dtype=torch.int8, device="cuda")
        self.x_tiled = swizzled(self.x, self.tokens)
        name = self.way.partition("<")[0]
        offset = {"MultiplyAdd": 128, "RowOrder": 128, "Padded": 128, "Channel": 8}.get(name, 0)
        self.offsets = torch.full((self.n,), offset, dtype=torch.int32, device="cuda")
        self.row_scale = torch.rand(self.n, device="cuda") + 0.5
        self.token_sum = self.x.sum(1, dtype=torch.int32)
        self.token_scale = torch.rand(self.m, device="cuda") / 1000 + 1e-4
        self.cycles = torch.zeros(SMS, dtype=torch.int64, device="cuda")
        self.y = torch.full((self.m, self.n), float("nan"), dtype=torch.bfloat16, device="cuda")

    def free(self) -> None:
        """Drops the large operands."""
        del self.weights, self.x, self.x_tiled, self.y

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
        w = unpacked(self.weights[copy], rows, self.k, self.way).double()
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


def parameters(way: str, tiles: int) -> torch.Tensor:
    """Two bytes a row and group, uint8 [tiles, 64, 2], as `way` of dequant_ways.cuh wants them.

    Steps 1..8 and zeros 0..15 keep (q - z) s + 128 in 0..255 for every code.
    """
    step = torch.randint(1, 9, (tiles, 64), dtype=torch.uint8, device="cuda")
    zero = torch.randint(0, 16, (tiles, 64), dtype=torch.uint8, device="cuda")
    second = {
        "SubtractAfter": -(zero * step),
        "SubtractBefore": -zero,
        "HalfFloats": zero,
        "Naive": zero,
        "PartialSums": torch.full_like(zero, 8),
    }.get(way, 128 - zero * step)
    return torch.stack((step, second), -1)


def unpacked(packed: torch.Tensor, rows: torch.Tensor, k: int, way: str) -> torch.Tensor:
    """Integer weights [rows, K] out of the tiles [N / 64 * K / 128, 4224] that `stream_gemm` reads."""
    tiles = packed.view(-1, k // 128, packed.shape[1])[rows // 64]  # [R, K / 128, bytes]
    r = rows % 64
    warp, g, second = r // 16, r % 8, r % 16 // 8
    out = torch.empty(len(rows), k // 128, 128, dtype=torch.int32, device=packed.device)
    pick = torch.arange(len(rows), device=packed.device)
    if way == "Bytes":
        c = torch.arange(128, device=packed.device)[None]
        at = r[:, None] * 128 + (c // 16 ^ r[:, None] % 8) * 16 + c % 16
        out = tiles.gather(2, at[:, None].expand(-1, k // 128, -1)).view(torch.int8).int()
        return out.view(len(rows), k)
    for c in range(128):  # column in the tile
        j, half, t, byte = c // 32, c % 32 // 16, c % 16 // 4, c % 4
        thread = warp * 32 + g * 4 + t
        at, high = j // 2 * 2048 + thread * 16 + (j % 2 * 2 + second) * 4 + byte, half
        if way == "RowOrder":
            at, high = r * 64 + c // 2, c % 2
        out[:, :, c] = tiles[pick, :, at].int() >> (4 * high) & 15
    if way == "Channel":
        return (out - 8).view(len(rows), k)
    at = 4096 + (warp * 8 + g) * 4 + second * 2
    step, second_byte = tiles[pick, :, at].int()[..., None], tiles[pick, :, at + 1].int()[..., None]
    match way:
        case "SubtractAfter":
            values = out * step + second_byte - 256 * (second_byte > 0)
        case "SubtractBefore":
            values = (out + second_byte - 256 * (second_byte > 0)) * step
        case "HalfFloats" | "Naive" | "PartialSums":
            values = (out - second_byte) * step
        case _:
            values = out * step + second_byte - 128
    return values.view(len(rows), k)
