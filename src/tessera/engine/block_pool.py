"""Who owns which block of the KV cache.

A block is 64 tokens of K and V in every layer (kernels call the same thing a page). Blocks are reference
counted, so that several requests can hold one full block; a block with no holder is free.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from tessera.engine.errors import BlockAccountingError

BLOCK_SIZE: Final = 64


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockPool:
    """Blocks 0 .. num_blocks - 1. The block freed longest ago is handed out first."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Fraction of blocks that somebody holds."""
        return 1 - len(self._free) / self.num_blocks

    def allocate(self, count: int) -> list[int]:
        """`count` free blocks, one reference each. Raises BlockAccountingError if there are fewer."""
        if count > len(self._free):
            raise BlockAccountingError(
                f"{count} blocks asked for, {len(self._free)} free: check num_free first"
            )
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """One more holder of a block that already has one."""
        if self._ref_counts[block] == 0:
            raise BlockAccountingError(f"block {block} is free: it cannot be shared")
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less of each block; those without a holder become free."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise BlockAccountingError(f"block {block} was released twice")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare reference counts and the free list with the block tables of all requests.

        Raises BlockAccountingError with the counts if a block is lost, free and held at once, or miscounted.
        """
        held = Counter(block for table in tables for block in table)
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlockAccountingError(f"{len(self._free) - len(free)} blocks are in the free list twice")
        wrong = [block for block, count in enumerate(self._ref_counts) if count != held[block]]
        if wrong:
            block = wrong[0]
            raise BlockAccountingError(
                f"{len(wrong)} of {self.num_blocks} blocks are miscounted: block {block} has "
                f"{self._ref_counts[block]} references and {held[block]} holders"
            )
        if len(free) + len(held) != self.num_blocks or free & held.keys():
            raise BlockAccountingError(
                f"{len(free)} free + {len(held)} held blocks, {len(free & held.keys())} of them in both, "
                f"out of {self.num_blocks}"
            )
