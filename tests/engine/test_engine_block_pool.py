import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.block_pool import BlockPool, block_hash, blocks_for
from tessera.engine.errors import BlockAccountingError


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens) == blocks


@settings(deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.sampled_from("arktf"), st.integers(0, 6)), max_size=80))
def test_every_block_is_free_or_counted_whatever_happens(num_blocks, operations):
    """Tables that allocate, release, keep, take what is kept, forget; nothing found is stale."""
    pool = BlockPool(num_blocks)
    tables: list[list[int]] = []
    written: dict[int, int] = {}  # block -> what was written to it last
    kept: dict[int, bytes] = {}  # content -> its hash
    count = 0
    for operation, number in operations:
        table = tables[number % len(tables)] if tables else []
        if operation == "a" and number <= pool.num_free:
            tables.append(pool.allocate(number))
            for block in tables[-1]:
                count += 1
                written[block] = count
        elif operation == "r" and tables:
            pool.release(tables.pop(number % len(tables)))
        elif operation == "k" and table:
            content = written[table[0]]
            kept[content] = bytes([content])
            pool.keep(table[0], kept[content])
        elif operation == "t":
            found = [block for digest in kept.values() if (block := pool.find(digest)) is not None][:number]
            pool.take(found)
            tables.append(found)
        elif operation == "f" and table:
            pool.forget(table)
        for content, digest in kept.items():
            block = pool.find(digest)
            assert block is None or written[block] == content
        pool.check_integrity(tables)
        held = {block for table in tables for block in table}
        assert pool.num_free == num_blocks - len(held)
        assert pool.usage == pytest.approx(len(held) / num_blocks)
        assert all(pool.is_free(block) == (block not in held) for block in range(num_blocks))
    for table in tables:
        pool.release(table)
    assert pool.num_free == num_blocks


def test_allocating_more_than_is_free_changes_nothing():
    pool = BlockPool(3)
    with pytest.raises(BlockAccountingError, match="4 blocks asked for, 3 free"):
        pool.allocate(4)
    pool.check_integrity([])


def test_blocks_nobody_can_find_are_handed_out_first_and_then_those_freed_longest_ago():
    pool = BlockPool(6)
    first, second, third, fourth = pool.allocate(4)
    for block in (first, second, third):
        pool.keep(block, bytes([block]))
    pool.release([second])
    pool.release([first, third])  # the end of a table goes before its beginning
    pool.release([fourth])
    assert pool.allocate(6) == [fourth, 4, 5, second, third, first]


def test_a_kept_block_is_found_until_it_is_handed_out_again():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.keep(block, b"hash")
    pool.release([block])
    assert pool.find(b"hash") == block
    pool.take([block])
    pool.take([block])
    pool.check_integrity([[block], [block]])
    pool.release([block])
    pool.release([block])
    assert pool.allocate(2)[1] == block
    assert pool.find(b"hash") is None


def test_the_first_block_kept_under_a_hash_stays():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.keep(first, b"hash")
    pool.keep(second, b"hash")
    assert pool.find(b"hash") == first
    pool.forget([second])
    assert pool.find(b"hash") == first
    pool.forget_all()
    assert pool.find(b"hash") is None


def test_hashes_depend_on_everything_before():
    tokens = list(range(64))
    assert block_hash(b"", tokens) == block_hash(b"", list(range(64)))
    assert block_hash(b"", tokens) != block_hash(b"", tokens[::-1])
    assert block_hash(block_hash(b"", tokens), tokens) != block_hash(block_hash(b"", tokens[::-1]), tokens)
    assert block_hash(b"", [256]) != block_hash(b"", [0, 1])


def test_releasing_twice_and_taking_an_empty_block_are_refused():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(BlockAccountingError, match="block 0 was released twice"):
        pool.release(blocks)
    with pytest.raises(BlockAccountingError, match="block 0 is free and not kept"):
        pool.take([0])


def test_integrity_reports_lost_and_miscounted_blocks():
    pool = BlockPool(4)
    table = pool.allocate(2)
    with pytest.raises(BlockAccountingError, match="2 of 4 blocks are miscounted: block 0 has 1 references"):
        pool.check_integrity([])
    with pytest.raises(BlockAccountingError, match="block 1 has 1 references and 2 holders"):
        pool.check_integrity([table, table[1:]])
    pool._free[0] = None
    with pytest.raises(BlockAccountingError, match=r"3 free \+ 2 held blocks, 1 of them in both, out of 4"):
        pool.check_integrity([table])
    del pool._free[0]
    pool._kept[b"hash"] = 0
    with pytest.raises(BlockAccountingError, match="1 hashes and 0 kept blocks do not match"):
        pool.check_integrity([table])
