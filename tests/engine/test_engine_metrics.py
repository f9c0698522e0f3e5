import pytest

from tessera.engine.metrics import Histogram


def test_buckets_are_inclusive_and_cumulative():
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 3), (5.0, 4), (float("inf"), 5)]
    assert (histogram.count, histogram.sum) == (5, pytest.approx(17.0))
