"""Who owns which block of the KV cache, and which blocks can be used again.

A block is 64 tokens of K and V in every layer (kernels call the same thing a page). Blocks are reference
counted; a block with no holder is free. A full block can be kept under the hash of all tokens up to its end:
it is found by that hash while it is held, and after that until it is handed out again. Only full blocks are
shared, and full blocks are never written, so nothing has to be copied.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from tessera.engine.errors import BlockAccountingError

BLOCK_SIZE: Final = 64


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def block_hash(before: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of a full block's tokens and, through the hash of the block before, of all tokens before them."""
    digest = blake2b(before, digest_size=16)
    digest.update(b"".join(token.to_bytes(4, "little") for token in tokens))
    return digest.digest()


class BlockPool:
    """Blocks 0 .. num_blocks - 1.

    Free blocks that nobody can find are handed out first: what was used last before what was never used,
    whose memory may not exist yet. Then come those that are kept, the one freed longest ago first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = OrderedDict.fromkeys(range(num_blocks))  # in the order they are handed out
        self._ref_counts = [0] * num_blocks
        self._kept: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}  # the inverse of _kept

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Fraction of blocks that somebody holds."""
        return 1 - len(self._free) / self.num_blocks

    def is_free(self, block: int) -> bool:
        return self._ref_counts[block] == 0

    def allocate(self, count: int) -> list[int]:
        """`count` free blocks, one reference each. Raises BlockAccountingError if there are fewer."""
        if count > len(self._free):
            raise BlockAccountingError(
                f"{count} blocks asked for, {len(self._free)} free: check num_free first"
            )
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        self.forget(blocks)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less of each block of a table; those without a holder become free, the last one first,
        so that beginnings, which others may share, stay longest.
        """
        for block in reversed(blocks):
            if self._ref_counts[block] == 0:
                raise BlockAccountingError(f"block {block} was released twice")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if block not in self._hashes:
                    self._free.move_to_end(block, last=False)

    def keep(self, block: int, digest: bytes) -> None:
        """Let `take` find a held, full block. If another block is kept under the hash, that one stays."""
        if digest not in self._kept:
            self._kept[digest] = block
            self._hashes[block] = digest

    def find(self, digest: bytes) -> int | None:
        """The block kept under a hash, held or free."""
        return self._kept.get(digest)

    def take(self, blocks: Iterable[int]) -> None:
        """One holder more of each of these blocks, which `find` gave."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                if block not in self._hashes:
                    raise BlockAccountingError(f"block {block} is free and not kept: it holds nothing")
                del self._free[block]
            self._ref_counts[block] += 1

    def forget(self, blocks: Iterable[int]) -> None:
        """Blocks that must not be found any more: they are about to be written, or hold something broken."""
        for block in blocks:
            digest = self._hashes.pop(block, None)
            if digest is not None:
                del self._kept[digest]

    def forget_all(self) -> None:
        self._kept.clear()
        self._hashes.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare reference counts and the free list with the block tables of all requests.

        Raises BlockAccountingError with the counts if a block is lost, free and held at once, or miscounted.
        """
        held = Counter(block for table in tables for block in table)
        wrong = [block for block, count in enumerate(self._ref_counts) if count != held[block]]
        if wrong:
            block = wrong[0]
            raise BlockAccountingError(
                f"{len(wrong)} of {self.num_blocks} blocks are miscounted: block {block} has "
                f"{self._ref_counts[block]} references and {held[block]} holders"
            )
        both = len(self._free.keys() & held.keys())
        if len(self._free) + len(held) != self.num_blocks or both:
            raise BlockAccountingError(
                f"{len(self._free)} free + {len(held)} held blocks, {both} of them in both, "
                f"out of {self.num_blocks}"
            )
        if {block: digest for digest, block in self._kept.items()} != self._hashes:
            raise BlockAccountingError(
                f"{len(self._kept)} hashes and {len(self._hashes)} kept blocks do not match"
            )
