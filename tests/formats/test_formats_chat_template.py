"""Chat templates: what transformers' environment offers, the sandbox, errors in the caller's terms."""

import re
from typing import Any

import pytest
from gguf_tiny import metadata_of

from tessera.formats.chat_template import render
from tessera.formats.errors import ChatTemplateError
from tessera.formats.tokenizer_gguf import tokenizer_from_gguf
from tiny import TINY

MESSAGES = [{"role": "user", "content": "grün"}, {"role": "assistant", "content": "<b>"}]


def rendered(text: str, messages: Any = MESSAGES, generation: bool = True) -> str:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return render(text, messages, add_generation_prompt=generation, special_tokens=tokens)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>grün</s>"),
        ("{% for m in messages %}\n  {% if loop.first %}{% continue %}{% endif %}\n{{ m.role }}\n"
         "{% endfor %}", "assistant\n"),
        ("{{ messages | tojson }}",
         '[{"role": "user", "content": "grün"}, {"role": "assistant", "content": "<b>"}]'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "<b>!"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
         "{{ ns.n }}", "2"),
        ("{{ messages[0]['content'].strip().upper()[:2] }}", "GR"),
    ],
)  # fmt: skip
def test_what_templates_use(template: str, expected: str) -> None:
    assert rendered(template) == expected


def test_the_date() -> None:
    assert re.fullmatch(r"\d\d \w+ \d{4}", rendered("{{ strftime_now('%d %b %Y') }}"))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ messages[9].content.strip() }}", "refuses these messages"),
        ("{% for i in range(10**9) %}x{% endfor %}", "refuses these messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses these messages"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{% for m in messages %}", "does not parse.*--chat-template"),
    ],
)
def test_failures_are_the_callers_to_see(template: str, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says) as caught:
        rendered(template)
    assert caught.value.param == "messages"


def test_base_models_say_what_to_do() -> None:
    metadata = metadata_of(TINY)
    del metadata["tokenizer.chat_template"]
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    with pytest.raises(ChatTemplateError, match="--chat-template"):
        tokenizer.apply_chat_template(MESSAGES)
    tokenizer.chat_template = "{{ messages[0].role }}"
    assert tokenizer.apply_chat_template(MESSAGES) == "user"
