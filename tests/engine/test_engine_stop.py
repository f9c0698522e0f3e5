from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.stop import StopChecker

# Two letters make overlaps and false starts frequent.
TEXT = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=2, max_size=6), max_size=3)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(start, stop string): the one that ends first, of those the longest. By trying everything."""
    ends = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    return min(ends)[1:] if ends else None


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]


@settings(deadline=None, max_examples=400)
@given(TEXT, STOPS, st.lists(st.integers(0, 40), max_size=10))
def test_any_split_gives_the_text_before_the_first_match(text, stops, cuts):
    checker, shown, stop = StopChecker(stops), "", None
    for piece in pieces(text, cuts):
        new, stop = checker.push(piece)
        shown += new
        if stop is not None:
            break
    else:
        shown += checker.flush()
    expected = first_match(text, stops)
    if expected is None:
        assert (shown, stop) == (text, None)
    else:
        assert (shown, stop) == (text[: expected[0]], expected[1])


@settings(deadline=None, max_examples=400)
@given(TEXT, STOPS, st.lists(st.integers(0, 40), max_size=10))
def test_only_what_can_still_become_a_stop_string_is_held_back(text, stops, cuts):
    checker, seen, shown = StopChecker(stops), "", ""
    for piece in pieces(text, cuts):
        new, stop = checker.push(piece)
        if stop is not None:
            return
        seen, shown = seen + piece, shown + new
        begun = [n for s in stops for n in range(1, len(s)) if seen.endswith(s[:n])]
        assert len(seen) - len(shown) == max(begun, default=0)


def test_first_chunks_come_at_once():
    checker = StopChecker(["a very long stop string"])
    assert checker.push("Hello") == ("Hello", None)
    assert checker.push(" a") == (" ", None)
    assert checker.push(" cat") == ("a cat", None)


@pytest.mark.parametrize(
    ("stops", "text", "shown", "stop"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["c", "bc", "abc"], "xabc", "x", "abc"),
        (["aab"], "xaaab", "xa", "aab"),
        (["ababc"], "abababc", "ab", "ababc"),
        (["\n\n"], "one\n\ntwo", "one", "\n\n"),
        (["é", "🙂"], "caf🙂é", "caf", "🙂"),
    ],
)
def test_which_stop_string_wins(stops, text, shown, stop):
    assert StopChecker(stops).push(text) == (shown, stop)
