"""Text to token ids and back, and chat messages to text."""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer as Backend

from tessera.formats.chat_template import render
from tessera.formats.errors import ChatTemplateError, CorruptError, TextError, TokenizerError
from tessera.formats.hf_config import read_json
from tessera.formats.token_bytes import TokenBytes, token_bytes

SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""What a directory may hold beside the weights; copied byte for byte."""


class Tokenizer:
    """`special_tokens` maps bos_token, eos_token, … to their text; `chat_template` may be replaced.

    `eos_ids` are the ids that end a generation: the tokenizer's end of sequence and those of
    generation_config.json.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str],
        chat_template: str | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self.bos_id = self._id_of("bos_token")
        own = self._id_of("eos_token")
        self.eos_ids = tuple(dict.fromkeys([*([] if own is None else [own]), *eos_ids]))
        self._bytes = token_bytes(backend)

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """From tokenizer.json and the files beside it. Raises TokenizerError or CorruptError."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"{directory} has no tokenizer.json; load the model's tokenizer once with transformers "
                "(AutoTokenizer.from_pretrained) and save_pretrained it there"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CorruptError(f"{path} cannot be read: {error}") from error
        settings = _optional_json(directory / "tokenizer_config.json")
        tokens = _special_tokens({**_optional_json(directory / "special_tokens_map.json"), **settings})
        eos = _optional_json(directory / "generation_config.json").get("eos_token_id")
        eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else eos
        return cls(backend, tokens, _template(directory, settings), eos_ids)

    @property
    def vocab_size(self) -> int:
        """Tokens, the added ones included. A model's output may be padded beyond it."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids. Special tokens spelled out in the text become those tokens.

        With `add_special_tokens` the model's own frame is added (a BOS, for most families), but no second BOS
        to a text that begins with one, as rendered chat templates do. Raises TextError for lone surrogates.
        """
        try:
            ids = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise TextError("the text holds a lone surrogate, which is not valid Unicode") from error
        if add_special_tokens and self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids. Bytes that are not UTF-8 become U+FFFD; ids without a token give nothing."""
        stream = self.decode_stream(skip_special_tokens)
        return "".join([stream.push(i) for i in ids]) + stream.flush()

    def decode_bytes(self, ids: Sequence[int], skip_special_tokens: bool = True) -> bytes:
        """The exact bytes, whether or not they are UTF-8."""
        skipped = self._bytes.special if skip_special_tokens else frozenset()
        raw = b"".join(self._bytes[i] for i in ids if i not in skipped)
        return raw.removeprefix(b" ") if self._bytes.strips_space else raw

    def decode_stream(self, skip_special_tokens: bool = True) -> "DecodeStream":
        return DecodeStream(self._bytes, skip_special_tokens)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt text for a chat, special tokens spelled out: encode it with add_special_tokens=False.

        Raises ChatTemplateError where there is no template or it refuses the messages.
        """
        if self.chat_template is None:
            raise ChatTemplateError(
                "this model has no chat template (a base model?): give one with --chat-template FILE, "
                "or use plain completions",
                param="messages",
            )
        return render(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self.special_tokens,
        )

    def files(self) -> dict[str, bytes]:
        """As transformers saves a tokenizer; `from_directory` reads it back."""
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.special_tokens,
        }
        files = {
            "tokenizer.json": self.backend.to_str().encode(),
            "tokenizer_config.json": _dump(settings),
            "generation_config.json": _dump({"bos_token_id": self.bos_id, "eos_token_id": [*self.eos_ids]}),
        }
        if self.chat_template is not None:
            files["chat_template.jinja"] = self.chat_template.encode()
        return files

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            (directory / name).write_bytes(content)


class DecodeStream:
    """Text of ids that come one at a time: `push` each, then `flush`. Never half a character.

    All pieces joined are what `Tokenizer.decode` gives for all ids.
    """

    def __init__(self, table: TokenBytes, skip_special_tokens: bool) -> None:
        self._table = table
        self._skipped = table.special if skip_special_tokens else frozenset()
        self._strip = table.strips_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that this id completes; empty while a character lacks bytes."""
        if token_id in self._skipped:
            return ""
        raw = self._table[token_id]
        if self._strip and raw:
            raw, self._strip = raw.removeprefix(b" "), False
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """U+FFFD if the ids ended within a character, else nothing."""
        return self._decoder.decode(b"", final=True)


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Tokens are given as their text, or as an object with a `content`."""
    found = {name: settings.get(name) for name in SPECIAL_TOKENS}
    texts = {name: raw.get("content") if isinstance(raw, dict) else raw for name, raw in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json: a text, or a list of named ones."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    match settings.get("chat_template"):
        case str(text):
            return text
        case [*named]:
            return {t["name"]: t["template"] for t in named}.get("default")
        case _:
            return None


def _dump(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
