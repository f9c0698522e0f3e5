"""The official client works unmodified."""

import openai
import pytest
from live_server import MODEL, live_server


@pytest.fixture(scope="module")
def client():
    with live_server({"api_keys": frozenset({"sesame"})}) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0) as client:
            yield client


def messages(text):
    return [{"role": "user", "content": text}]


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=messages("hi"), temperature=0)
    assert answer.choices[0].message.content == "user:hi;"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 8 + 9


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages("héllo"),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "user:héllo;"
    assert chunks[-1].usage.prompt_tokens == len("user:héllo;".encode())


def test_stream_helper_assembles_the_answer(client):
    with client.chat.completions.stream(model=MODEL, messages=messages("hi"), temperature=0) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "user:hi;"


def test_completion_and_its_stream(client):
    whole = client.completions.create(model=MODEL, prompt=["ab", "cd"], temperature=0)
    assert [c.text for c in whole.choices] == ["ab", "cd"]
    stream = client.completions.create(model=MODEL, prompt="ab", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "ab"


def test_extensions_through_extra_body(client):
    answer = client.completions.create(
        model=MODEL, prompt="ab", temperature=0, max_tokens=3, extra_body={"ignore_eos": True, "top_k": 1}
    )
    assert answer.choices[0].finish_reason == "length"


def test_models(client):
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_become_the_clients_exceptions(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=messages("hi"), logprobs=True)
    assert bad.value.param == "logprobs"
    with pytest.raises(openai.NotFoundError, match="echo"):
        client.chat.completions.create(model="other", messages=messages("hi"))
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_error_within_a_stream():
    with live_server() as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            server.runner.delay_s = 0.02
            stream = client.completions.create(model=MODEL, prompt="abc" * 20, temperature=0, stream=True)
            assert next(stream).choices[0].text == "a"
            server.runner.fail = ZeroDivisionError("broken kernel")
            with pytest.raises(openai.APIError, match="broken kernel"):
                list(stream)
