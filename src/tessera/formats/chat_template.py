"""Chat templates: untrusted jinja from a model's files, rendered in jinja's sandbox.

The environment offers what templates written for transformers use (its chat templating guide): trimmed
blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that keeps non-ASCII text, and the
`generation` tag.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tessera.formats.errors import ChatTemplateError


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; the body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=16)
def _compile(text: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(text)


def render(
    text: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
) -> str:
    """The prompt for `messages` by template `text`. `special_tokens` are its bos_token, eos_token, …

    Raises ChatTemplateError with the template's own words where it refuses the messages.
    """
    try:
        template = _compile(text)
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template does not parse (line {error.lineno}: {error.message}); "
            "give a working one with --chat-template FILE",
            param="messages",
        ) from error
    try:
        return template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **special_tokens,
        )
    except Exception as error:  # whatever a template does with messages it did not expect
        raise ChatTemplateError(
            f"the chat template refuses these messages: {error}", param="messages"
        ) from error
