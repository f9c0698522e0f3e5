"""Stop strings found in streamed text, holding back no more than necessary.

One Knuth-Morris-Pratt automaton for each stop string runs over the text character by character. Its state is
the length of the longest suffix of the text that begins the stop string, so the longest of these suffixes is
exactly what cannot be shown yet. The string completed first ends the text; of several completed by the same
character, the longest. The result does not depend on how the text was cut into pieces.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """Text that may be shown now, and the stop string that ended it (None: go on)."""

    text: str
    stop: str | None


class StopChecker:
    """Feed text with `push`; after a match, or at the end (`flush`), it must not be used again."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _failure_table(stop)) for stop in stops]
        self._states = [0] * len(stops)
        self._held = ""

    def push(self, text: str) -> StopMatch:
        """Add `text`; return what of the text so far may be shown for the first time."""
        if not self._stops:
            return StopMatch(text, None)
        known = self._held + text
        for index in range(len(self._held), len(known)):
            stop = self._advance(known[index])
            if stop is not None:
                self._held = ""
                return StopMatch(known[: index + 1 - len(stop)], stop)
        keep = len(known) - max(self._states)
        self._held = known[keep:]
        return StopMatch(known[:keep], None)

    def flush(self) -> str:
        """The text held back, when generation ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Move every automaton by one character; the longest stop string it completes, if any."""
        completed: str | None = None
        for index, (stop, failure) in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != character:
                state = failure[state - 1]
            if stop[state] == character:
                state += 1
            self._states[index] = state
            if state == len(stop) and (completed is None or len(stop) > len(completed)):
                completed = stop
        return completed


def _failure_table(pattern: str) -> list[int]:
    """table[i]: length of the longest proper prefix of pattern[: i + 1] that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return table
