import pytest

from tessera.engine.sampling_params import SamplingParams
from tessera.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", True), ("max_tokens", "4"),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", "hot"), ("temperature", True), ("temperature", None),
        ("top_k", -1), ("top_k", 2.0), ("top_p", 0), ("top_p", 1.01), ("top_p", float("nan")),
        ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 0.5),
        ("stop", 7), ("stop", [7]), ("stop", [""]), ("stop", ["x" * 257]), ("stop", ["x"] * 17),
        ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]), ("stop_token_ids", list(range(65))),
        ("stop_token_ids", "12"), ("ignore_eos", 1),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(param, value):
    with pytest.raises(InvalidRequestError, match=param) as caught:
        SamplingParams(**{param: value})
    assert caught.value.param == param


def test_limits_are_stated():
    with pytest.raises(InvalidRequestError, match="17 strings: at most 16"):
        SamplingParams(stop=["x"] * 17)
    with pytest.raises(InvalidRequestError, match="257 characters: 1 to 256"):
        SamplingParams(stop=["x" * 257])


def test_lists_become_tuples_and_a_string_is_one_stop():
    params = SamplingParams(stop="end", stop_token_ids=[3, 4])
    assert params.stop == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert hash(params) == hash(SamplingParams(stop=["end"], stop_token_ids=(3, 4)))


def test_limits_themselves_are_allowed():
    params = SamplingParams(
        max_tokens=1, temperature=0, top_k=0, top_p=1, seed=-(2**63), stop=["x" * 256] * 16,
        stop_token_ids=[0] * 64,
    )  # fmt: skip
    assert params.greedy
    assert not SamplingParams(seed=2**64 - 1, max_tokens=None).greedy
