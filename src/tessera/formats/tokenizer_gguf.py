"""The tokenizer that GGUF metadata describe, rebuilt for the `tokenizers` library.

Kinds: byte-level BPE (`gpt2`) with the splitting rules of llama.cpp's `tokenizer.ggml.pre` names below, and
SentencePiece BPE (`llama`). Others are refused by name: a wrong split gives plausible and worse text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from tessera.formats.errors import CorruptError, TokenizerError
from tessera.formats.tokenizer import Tokenizer

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_SPACE: Final = "\u2581"

_CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""OpenAI's cl100k_base pattern; Llama 3 takes up to three digits at once, Qwen 2 one."""


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is split before merging, and what else the name implies."""

    make: Callable[[], Any]
    adds_bos: bool = False
    ignore_merges: bool = False
    nfc: bool = False


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_then_bytes() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _pattern(digits: str) -> Callable[[], Any]:
    pattern = _CL100K.format(digits=digits)
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITS: Final = {
    "gpt-2": _Split(_byte_level),
    "smollm": _Split(_digits_then_bytes),
    "llama-bpe": _Split(_pattern("{1,3}"), adds_bos=True, ignore_merges=True),
    "qwen2": _Split(_pattern(""), nfc=True),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Raises TokenizerError for kinds that are not supported, CorruptError for metadata that do not fit."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise TokenizerError(f"{source} holds no tokenizer (tokenizer.ggml.model is missing)")
    if kind not in _MODELS:
        raise TokenizerError(f"{source}: tokenizer model {kind!r} is not supported: {', '.join(_MODELS)} are")
    try:
        backend, adds_bos = _MODELS[kind](metadata, source)
        tokens = list(metadata["tokenizer.ggml.tokens"])
        special = {
            f"{name}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if f"tokenizer.ggml.{key}_token_id" in metadata
        }
        kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        added = [(t, int(k)) for t, k in zip(tokens, kinds, strict=True) if k in (_CONTROL, _USER_DEFINED)]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise CorruptError(f"{source}: the tokenizer's metadata do not fit together: {error!r}") from error
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in added if k == _CONTROL]
    )
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in added if k != _CONTROL])
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) and "bos_token" in special:
        backend.post_processor = _with_bos(special["bos_token"], metadata["tokenizer.ggml.bos_token_id"])
    end_of_turn = metadata.get("tokenizer.ggml.eot_token_id")
    return Tokenizer(
        backend,
        special,
        metadata.get("tokenizer.chat_template"),
        [] if end_of_turn is None else [end_of_turn],
    )


def _byte_level_bpe(metadata: Mapping[str, Any], source: str) -> tuple[Backend, bool]:
    name = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if name not in _SPLITS:
        raise TokenizerError(f"{source}: pre-tokenizer {name!r} is not supported: {', '.join(_SPLITS)} are")
    split = _SPLITS[name]
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    backend = _bpe(source, vocabulary, merges, ignore_merges=split.ignore_merges)
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.make()
    backend.decoder = decoders.ByteLevel()
    return backend, split.adds_bos


def _sentence_piece(metadata: Mapping[str, Any], source: str) -> tuple[Backend, bool]:
    """SentencePiece joins the neighbours whose union scores best: BPE with merges in order of score."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = _merges_by_score(vocabulary, [float(s) for s in scores])
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    backend = _bpe(source, vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    prepend = [normalizers.Prepend(_SPACE)] if prefixed else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, True


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not right:
        raise ValueError(f"merge {merge!r} is not a pair")
    return left, right


def _bpe(source: str, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Backend:
    try:
        return Backend(models.BPE(vocabulary, merges, **options))
    except Exception as error:  # the library raises plain Exception
        raise CorruptError(f"{source}: vocabulary and merges do not fit together: {error}") from error


def _merges_by_score(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best piece first."""
    found = [
        (-scores[i], vocabulary[left], vocabulary[right], left, right)
        for piece, i in vocabulary.items()
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(found)]


_MODELS: Final[Mapping[str, Callable[[Mapping[str, Any], str], tuple[Backend, bool]]]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentence_piece,
}


def _with_bos(token: str, token_id: int) -> Any:
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)]
    )
