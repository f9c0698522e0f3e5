"""/v1/chat/completions and /v1/completions over HTTP."""

import json

import pytest
from live_server import MODEL


def chat(live, **fields):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hé 🎈"}], "temperature": 0} | fields
    return live.http.post("/v1/chat/completions", json=body)


def complete(live, **fields):
    return live.http.post("/v1/completions", json={"prompt": "abc", "temperature": 0} | fields)


def events(response):
    lines = [line for line in response.text.splitlines() if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_chat_answers_whole(live):
    answer = chat(live).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "user:hé 🎈;"}
    assert choice["finish_reason"] == "stop"
    prompt = len("user:hé 🎈;".encode())
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": prompt + 1,  # and EOS
        "total_tokens": 2 * prompt + 1,
    }


def test_streamed_text_equals_whole(live):
    chunks = events(chat(live, stream=True, stream_options={"include_usage": True}))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == "user:hé 🎈;"
    reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert [r for r in reasons if r] == ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == chat(live).json()["usage"]
    assert len({c["id"] for c in chunks}) == 1


def test_usage_only_where_asked_for(live):
    assert all(c["usage"] is None for c in events(chat(live, stream=True)))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length_limit(live, name):
    choice = chat(live, **{name: 4}).json()["choices"][0]
    assert choice["message"]["content"] == "user"
    assert choice["finish_reason"] == "length"


def test_stop_string_is_left_out(live):
    choice = chat(live, stop=["é", "er"]).json()["choices"][0]
    assert choice["message"]["content"] == "us"
    assert choice["finish_reason"] == "stop"
    assert chat(live, stop="é").json()["choices"][0]["message"]["content"] == "user:h"


def test_text_parts_and_developer_role(live):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    assert chat(live, messages=messages).json()["choices"][0]["message"]["content"] == "system:x;user:ab;"


def test_completion_default_length_is_the_apis(live):
    answer = complete(live, prompt="0123456789abcdefghij").json()
    assert answer["choices"][0]["text"] == "0123456789abcdef"
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "xy"], ["abc", "xy"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
def test_prompt_forms(live, prompt, texts):
    whole = complete(live, prompt=prompt).json()
    assert [c["text"] for c in whole["choices"]] == texts
    assert [c["index"] for c in whole["choices"]] == list(range(len(texts)))
    streamed = [""] * len(texts)
    for chunk in events(complete(live, prompt=prompt, stream=True)):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == texts


def test_choices_have_their_own_seeds(live):
    """Choice i equals the only choice of a request with seed + i."""
    many = complete(live, prompt=["abc", "de"], n=3, seed=5, temperature=1, max_tokens=6).json()
    texts = [c["text"] for c in many["choices"]]
    alone = [
        complete(live, seed=5 + i, temperature=1, max_tokens=6).json()["choices"][0]["text"] for i in range(3)
    ]
    assert texts == alone + alone
    assert len(set(alone)) == 3
    bos = 1
    assert many["usage"]["prompt_tokens"] == 3 + bos + 2 + bos
    assert many["usage"]["completion_tokens"] == 6 * 6


def test_largest_seed_has_choices(live):
    seed = 2**64 - 1
    answer = complete(live, n=2, seed=seed, temperature=1, max_tokens=6).json()
    wrapped = complete(live, seed=0, temperature=1, max_tokens=6).json()
    assert answer["choices"][1]["text"] == wrapped["choices"][0]["text"]


def test_ignore_eos_and_stop_token_ids(live):
    assert complete(live, ignore_eos=True, max_tokens=5).json()["choices"][0]["finish_reason"] == "length"
    stopped = complete(live, stop_token_ids=[ord("b")]).json()["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == ("a", "stop")


def test_models(live):
    card = live.http.get("/v1/models").json()["data"][0]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 512)
    assert live.http.get(f"/v1/models/{MODEL}").json() == card
    missing = live.http.get("/v1/models/other/name")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_tokenize_and_back(live):
    tokens = live.http.post("/tokenize", json={"prompt": "é", "add_special_tokens": True}).json()
    assert tokens == {"tokens": [257, 0xC3, 0xA9], "count": 3, "max_model_len": 512}
    chat_tokens = live.http.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]}).json()
    assert bytes(chat_tokens["tokens"]) == b"user:a;"
    text = live.http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text == {"prompt": "<bos>é"}
