import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.block_pool import BlockPool, blocks_for
from tessera.engine.errors import BlockAccountingError


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens) == blocks


@settings(deadline=None)
@given(st.integers(1, 20), st.lists(st.tuples(st.sampled_from("ars"), st.integers(0, 6)), max_size=60))
def test_every_block_is_free_or_counted_whatever_happens(num_blocks, operations):
    pool = BlockPool(num_blocks)
    tables: list[list[int]] = []
    for operation, number in operations:
        if operation == "a" and number <= pool.num_free:
            tables.append(pool.allocate(number))
        elif operation == "r" and tables:
            pool.release(tables.pop(number % len(tables)))
        elif operation == "s" and tables:
            shared = tables[number % len(tables)]
            for block in shared:
                pool.share(block)
            tables.append(list(shared))
        pool.check_integrity(tables)
        held = {block for table in tables for block in table}
        assert pool.num_free == num_blocks - len(held)
        assert pool.usage == pytest.approx(len(held) / num_blocks)
    for table in tables:
        pool.release(table)
    assert pool.num_free == num_blocks


def test_allocating_more_than_is_free_changes_nothing():
    pool = BlockPool(3)
    with pytest.raises(BlockAccountingError, match="4 blocks asked for, 3 free"):
        pool.allocate(4)
    pool.check_integrity([])


def test_the_block_freed_longest_ago_comes_first():
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    pool.release([second])
    pool.release([third, first])
    assert pool.allocate(3) == [second, third, first]


def test_releasing_twice_and_sharing_a_free_block_are_refused():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(BlockAccountingError, match="block 0 was released twice"):
        pool.release(blocks)
    with pytest.raises(BlockAccountingError, match="block 0 is free"):
        pool.share(0)


def test_integrity_reports_lost_and_miscounted_blocks():
    pool = BlockPool(4)
    table = pool.allocate(2)
    with pytest.raises(BlockAccountingError, match="2 of 4 blocks are miscounted: block 0 has 1 references"):
        pool.check_integrity([])
    with pytest.raises(BlockAccountingError, match="block 1 has 1 references and 2 holders"):
        pool.check_integrity([table, table[1:]])
    pool._free.append(0)
    with pytest.raises(BlockAccountingError, match="3 free \\+ 2 held blocks, 1 of them in both, out of 4"):
        pool.check_integrity([table])
    pool._free.append(0)
    with pytest.raises(BlockAccountingError, match="1 blocks are in the free list twice"):
        pool.check_integrity([table])
