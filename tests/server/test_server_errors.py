"""Bad requests get an OpenAI error body naming what is wrong, and harm nobody."""

import json

import pytest
from live_server import MODEL, live_server

CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
TEXT = {"prompt": "abc", "temperature": 0}


def refused(response, status=400, param=None):
    """The error's message, after checking the shape of the body."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param
    return error["message"]


@pytest.fixture(autouse=True)
def lives_on(live):
    """Whatever a test did, the server still answers."""
    yield
    answer = live.http.post("/v1/completions", json=TEXT)
    assert answer.json()["choices"][0]["text"] == "abc"
    assert not live.server.service.running


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 2),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("best_of", 2),
        ("reasoning_effort", "low"),
        ("service_tier", "priority"),
        ("store", True),
        ("min_p", 0.1),
        ("presence_penalty", False),
    ],
)
def test_unsupported_parameter_is_named(live, name, value):
    message = refused(live.http.post("/v1/chat/completions", json=CHAT | {name: value}), param=name)
    assert f"{name} is not supported" in message


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("echo", True), ("logprobs", 0)])
def test_unsupported_completion_parameter_is_named(live, name, value):
    assert name in refused(live.http.post("/v1/completions", json=TEXT | {name: value}), param=name)


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False, "tools": [], "response_format": {"type": "text"}, "logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "tool_choice": None, "store": False},
        {"service_tier": "auto", "best_of": 1, "user": "someone"},
    ],
)
def test_what_asks_for_nothing_is_let_through(live, fields):
    assert live.http.post("/v1/chat/completions", json=CHAT | fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "lucky"}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 300]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stop": [7]}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids.0"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge"),
        ({"teperature": 1}, "teperature"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "messages"),
    ],
)
def test_wrong_value_is_named(live, fields, param):
    refused(live.http.post("/v1/chat/completions", json=CHAT | fields), param=param)


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], ["a", ""], 7, [1.5], None, [True], {"a": 1}, [[1], "a"]]
)
def test_bad_prompt(live, prompt):
    refused(live.http.post("/v1/completions", json=TEXT | {"prompt": prompt}), param="prompt")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": NaN}',
        b'{"prompt": 1e999}',
        b'{"prompt": "abc", "temperature": 1e999}',
        b'{"prompt": "abc", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_body_that_is_no_request(live, body):
    response = live.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        '"prompt": "\\ud800"',
        '"prompt": "a", "stop": "\\udfff"',
        '"prompt": "a", "user": "\\ud800"',
        '"prompt": "a", "\\ud800": 1',
        '"prompt": "a", "model": "\\ud83d"',
    ],
)
def test_lone_surrogates(live, fields):
    response = live.http.post(
        "/v1/completions", content="{" + fields + "}", headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["\x00\x01", "\u202e\u2066x", "e\u0301" * 20, "🏳️‍🌈", "\ufffd\ufeff"])
def test_any_unicode_passes(live, text):
    answer = live.http.post("/v1/completions", json=TEXT | {"prompt": text, "max_tokens": 400}).json()
    assert answer["choices"][0]["text"] == text


def test_long_lists_of_nonsense_are_refused_at_once(live):
    """An error for each element would take seconds and gigabytes."""
    mixed = refused(
        live.http.post("/v1/completions", json=TEXT | {"prompt": ["a"] * 100_000 + [1]}), param="prompt"
    )
    assert "mixes kinds" in mixed or "prompt must be" in mixed
    fields = {f"field{i}": i for i in range(30_000)}
    message = refused(live.http.post("/v1/completions", json=TEXT | fields), param="field0")
    assert "not a parameter" in message


def test_prompt_longer_than_the_context(live):
    message = refused(live.http.post("/v1/completions", json=TEXT | {"prompt": "x" * 600}), param="prompt")
    assert "601 tokens" in message
    assert "512" in message
    long = [{"role": "user", "content": "x" * 600}]
    refused(live.http.post("/v1/chat/completions", json=CHAT | {"messages": long}), param="messages")


def test_more_tokens_than_the_context_is_not_cut_silently(live):
    message = refused(live.http.post("/v1/completions", json=TEXT | {"max_tokens": 509}), param="max_tokens")
    assert "at most 508" in message
    assert live.http.post("/v1/completions", json=TEXT | {"max_tokens": 508}).status_code == 200


def test_token_id_outside_the_vocabulary(live):
    for ids in ([5, 258], [-1]):
        assert "vocabulary" in refused(
            live.http.post("/v1/completions", json=TEXT | {"prompt": ids}), param="prompt"
        )
    refused(live.http.post("/detokenize", json={"tokens": [1 << 70]}), param="tokens")


def test_tokenize_takes_one_of_two(live):
    refused(live.http.post("/tokenize", json={}), param="prompt")
    refused(live.http.post("/tokenize", json={"prompt": "a", "messages": CHAT["messages"]}), param="prompt")


def test_other_model(live):
    message = refused(live.http.post("/v1/completions", json=TEXT | {"model": "gpt-5"}), status=404)
    assert MODEL in message


def test_unknown_route_and_method(live):
    assert "Not Found" in refused(live.http.get("/v1/nothing"), status=404)
    refused(live.http.get("/v1/completions"), status=405)


def test_too_many_sequences_for_one_request(live):
    refused(live.http.post("/v1/completions", json=TEXT | {"prompt": ["a"] * 1000}), param="n")


def test_body_limit():
    with live_server({"max_body_bytes": 1000}) as small:
        refused(small.http.post("/v1/completions", json=TEXT | {"prompt": "x" * 2000}), status=413)
        chunked = (json.dumps({"prompt": "x" * 400}).encode() for _ in range(5))
        refused(small.http.post("/v1/completions", content=chunked), status=413)
        assert small.http.post("/v1/completions", json=TEXT).status_code == 200


def test_api_key():
    with live_server({"api_keys": frozenset({"sesame", "schlüssel"})}) as locked:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
            message = refused(locked.http.post("/v1/completions", json=TEXT, headers=headers), status=401)
            assert "API key" in message
        good = {"Authorization": "Bearer sesame"}
        assert locked.http.post("/v1/completions", json=TEXT, headers=good).status_code == 200
        assert locked.http.get("/v1/models", headers=good).status_code == 200
        assert locked.http.get("/v1/models").status_code == 401
        for probe in ("/health", "/ready", "/version", "/metrics"):
            assert locked.http.get(probe).status_code == 200
