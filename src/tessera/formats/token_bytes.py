"""From token ids to bytes, exactly, for the two ways vocabularies write bytes.

Byte-level BPE (GPT-2, `bytes_to_unicode` in its encoder.py) writes each byte as one printable character.
SentencePiece writes a space as U+2581 and, with byte fallback, bytes that have no piece as `<0xNN>`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from tokenizers import Tokenizer as Backend

from tessera.formats.errors import TokenizerError

_SPACE: Final = "\u2581"
_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=1)
def byte_of_character() -> dict[str, int]:
    """Printable Latin-1 characters stand for their own byte, the other bytes for U+0100 onwards, in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(own)]
    return {chr(b): b for b in own} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def _byte_level(piece: str) -> bytes:
    table = byte_of_character()
    if all(c in table for c in piece):
        return bytes(table[c] for c in piece)
    return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(_SPACE, " ").encode()


@dataclass(slots=True)
class TokenBytes:
    """Bytes of each token. `strips_space`: a text's first space belongs to the encoding and is dropped.

    Added tokens stand for their own text. Ids without a token (a model's padded vocabulary) give nothing.
    """

    backend: Backend
    convert: Callable[[str], bytes]
    strips_space: bool
    added: Mapping[int, bytes]
    special: frozenset[int]
    _known: dict[int, bytes] = field(default_factory=dict)

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self.added:
            return self.added[token_id]
        piece = self.backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if piece is None else self.convert(piece)


def token_bytes(backend: Backend) -> TokenBytes:
    """Reads the backend's decoder. Raises TokenizerError where it is of neither kind."""
    added = backend.get_added_tokens_decoder()
    convert, strips_space = _conversion(json.loads(backend.decoder.__getstate__()) if backend.decoder else {})
    return TokenBytes(
        backend,
        convert,
        strips_space,
        {i: token.content.encode() for i, token in added.items()},
        frozenset(i for i, token in added.items() if token.special),
    )


def _conversion(decoder: dict[str, Any]) -> tuple[Callable[[str], bytes], bool]:
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, False
    if kinds == ["Metaspace"]:
        return _sentence_piece, steps[0].get("prepend_scheme", "always") != "never"
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "ByteFallback" in kinds:
        return _sentence_piece, "Strip" in kinds
    raise TokenizerError(
        f"tokenizers that decode by {' then '.join(map(str, kinds))} are not supported: byte-level BPE and "
        "SentencePiece with byte fallback are"
    )
