"""Tokenizers from files and from GGUF metadata: exact text, BOS, streams, agreement with transformers."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf_tiny import metadata_of
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from tessera.formats.errors import CorruptError, TextError, TokenizerError
from tessera.formats.gguf import GGUFCheckpoint
from tessera.formats.tokenizer import Tokenizer
from tessera.formats.tokenizer_gguf import tokenizer_from_gguf
from tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, TINY, byte_tokenizer, write_tokenizer

MESSAGES = [{"role": "user", "content": "the cat\n\n12 grün 日本 🙂"}]
SAMPLES = (
    "",
    " ",
    "the  the\n\n\n x",
    "x\n\n1 12 345, 6.7e-8",
    "  leading and trailing  ",
    "don't I'LL we've",
    "naïve Ünïcödé 日本語 한국어 🙂👩‍👩‍👧 \u0301\u200d",
    "tab\tand\r\nreturn\x00zero",
    "<|im_start|>user\nhi<|im_end|>",
    "def f(x):\n    return x**2  # comment\n",
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return Tokenizer.from_directory(directory)


def sentence_piece(**changes: Any) -> Tokenizer:
    """A SentencePiece vocabulary in GGUF's form: bytes, characters, words by score."""
    words = {"▁t": -1.0, "he": -2.0, "▁the": -3.0, "▁a": -4.0, "in": -5.0, "▁thein": -9.0, "th": -2.5}
    characters = {c: -20.0 - i for i, c in enumerate("▁thein ac")}
    pieces = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0} | {f"<0x{b:02X}>": 0.0 for b in range(256)}
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(characters))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *words, *characters],
        "tokenizer.ggml.scores": [*pieces.values(), *words.values(), *characters.values()],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return tokenizer_from_gguf(metadata | changes, "m.gguf")


def byte_level(**changes: Any) -> Tokenizer:
    return tokenizer_from_gguf(metadata_of(TINY) | changes, "m.gguf")


KINDS = {
    "bytes": byte_level,
    "smollm": lambda: byte_level(**{"tokenizer.ggml.pre": "smollm"}),
    "llama3": lambda: byte_level(**{"tokenizer.ggml.pre": "llama-bpe"}),
    "pieces": sentence_piece,
    "pieces without prefix": lambda: sentence_piece(**{"tokenizer.ggml.add_space_prefix": False}),
}


@pytest.fixture(scope="module", params=KINDS)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


@given(text=TEXTS)
def test_round_trip_is_exact(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text)
    assert any_tokenizer.decode(ids, skip_special_tokens=False) == text
    assert any_tokenizer.decode_bytes(ids, skip_special_tokens=False) == text.encode()


@given(data=st.data())
def test_a_stream_gives_what_decode_gives(any_tokenizer: Tokenizer, data: st.DataObject) -> None:
    """For any ids: broken characters, special tokens, ids beyond the vocabulary."""
    ids = data.draw(st.lists(st.integers(0, any_tokenizer.vocab_size + 3), max_size=30))
    skip = data.draw(st.booleans())
    stream = any_tokenizer.decode_stream(skip)
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.flush() == any_tokenizer.decode(ids, skip)
    raw = any_tokenizer.decode_bytes(ids, skip)
    assert any_tokenizer.decode(ids, skip) == raw.decode(errors="replace")


@given(text=TEXTS)
def test_a_stream_never_shows_half_a_character(any_tokenizer: Tokenizer, text: str) -> None:
    stream = any_tokenizer.decode_stream(skip_special_tokens=False)
    shown = ""
    for token_id in any_tokenizer.encode(text):
        shown += stream.push(token_id)
        assert text.startswith(shown)
    assert shown == text
    assert stream.flush() == ""


def test_special_tokens_are_parsed_and_skipped(any_tokenizer: Tokenizer) -> None:
    name = any_tokenizer.special_tokens["eos_token"]
    ids = any_tokenizer.encode(f"a{name}")
    assert ids[-1] == any_tokenizer.eos_ids[0]
    assert any_tokenizer.decode(ids) == "a"
    assert any_tokenizer.decode(ids, skip_special_tokens=False) == f"a{name}"


@pytest.mark.parametrize(("kind", "count"), [("bytes", 0), ("smollm", 0), ("llama3", 1), ("pieces", 1)])
def test_one_bos_at_most(kind: str, count: int) -> None:
    """Families that begin with BOS get one, also where the text (a rendered template) has its own."""
    tokenizer = KINDS[kind]()
    bos = tokenizer.special_tokens["bos_token"]
    assert tokenizer.encode("the", add_special_tokens=True).count(tokenizer.bos_id) == count
    assert tokenizer.encode("the").count(tokenizer.bos_id) == 0
    for frame in (True, False):
        assert tokenizer.encode(f"{bos}the", add_special_tokens=frame).count(tokenizer.bos_id) == 1
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    assert tokenizer.encode(tokenizer.apply_chat_template(MESSAGES)).count(tokenizer.bos_id) == 1


def test_the_files_setting_decides_about_bos() -> None:
    added = byte_level(**{"tokenizer.ggml.add_bos_token": True})
    assert added.encode("the", add_special_tokens=True)[0] == added.bos_id
    left = sentence_piece(**{"tokenizer.ggml.add_bos_token": False})
    assert left.encode("the", add_special_tokens=True) == left.encode("the")


def test_end_of_turn_ends_a_generation() -> None:
    assert byte_level(**{"tokenizer.ggml.eot_token_id": 0}).eos_ids == (2, 0)


def test_digits_are_split_before_merging() -> None:
    """smollm's rule: a digit does not join the run of newlines before it (research: 4 tokens without it)."""
    merges = [*metadata_of(TINY)["tokenizer.ggml.merges"], "Ċ Ċ"]
    tokens = [*metadata_of(TINY)["tokenizer.ggml.tokens"], "ĊĊ"]
    changes = {
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
    }
    split = byte_level(**changes, **{"tokenizer.ggml.pre": "smollm"})
    assert [split.decode([i]) for i in split.encode("x\n\n1")] == ["x", "\n\n", "1"]
    plain = byte_level(**changes)
    assert [plain.decode([i]) for i in plain.encode("x\n\n1")] == ["x", "\n", "\n", "1"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["we", "'ve", " 12345", " items", "!", "\n\n", " ok"]),
        ("smollm", ["we", "'ve", " ", "1", "2", "3", "4", "5", " items", "!", "\n\n", " ok"]),
        ("llama-bpe", ["we", "'ve", " ", "123", "45", " items", "!\n\n", " ok"]),
        ("qwen2", ["we", "'ve", " ", "1", "2", "3", "4", "5", " items", "!\n\n", " ok"]),
    ],
)
def test_how_text_is_split_before_merging(name: str, expected: list[str]) -> None:
    text = "we've 12345 items!\n\n ok"
    backend = byte_level(**{"tokenizer.ggml.pre": name}).backend
    spans = [span for _, span in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:stop] for start, stop in spans] == expected


def test_qwen_composes_characters() -> None:
    tokenizer = byte_level(**{"tokenizer.ggml.pre": "qwen2"})
    assert tokenizer.decode(tokenizer.encode("u\u0308")) == "ü"


def greedy_pieces(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's own rule, literally: join the neighbours whose union scores best, leftmost first."""
    pieces = list(text)
    while True:
        pairs = [(scores.get(a + b, -1e9), -i) for i, (a, b) in enumerate(pairwise(pieces))]
        best, place = max(pairs, default=(-1e9, 0))
        if best == -1e9:
            return pieces
        pieces[-place : -place + 2] = ["".join(pieces[-place : -place + 2])]


@given(text=st.text("thein ac", min_size=1, max_size=25))
def test_pieces_are_joined_by_score(text: str) -> None:
    tokenizer = sentence_piece()
    vocabulary = tokenizer.backend.get_vocab()
    words = ["▁t", "he", "▁the", "▁a", "in", "▁thein", "th"]
    scores = dict(zip(words, [-1.0, -2.0, -3.0, -4.0, -5.0, -9.0, -2.5], strict=True))
    expected = greedy_pieces("▁" + text.replace(" ", "▁"), scores)
    assert tokenizer.encode(text) == [vocabulary[piece] for piece in expected]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"tokenizer.ggml.model": "bert"}, TokenizerError, "'bert' is not supported: gpt2, llama"),
        ({"tokenizer.ggml.pre": "tekken"}, TokenizerError, "'tekken' is not supported: gpt-2, smollm"),
        ({"tokenizer.ggml.model": None}, TokenizerError, "holds no tokenizer"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, CorruptError, "do not fit together"),
        ({"tokenizer.ggml.token_type": [1]}, CorruptError, "do not fit together"),
        ({"tokenizer.ggml.merges": ["x"]}, CorruptError, "do not fit together"),
        ({"tokenizer.ggml.merges": ["q zzz"]}, CorruptError, "do not fit together"),
    ],
)
def test_unusable_metadata_are_named(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        byte_level(**changes)


def test_lone_surrogates_are_refused(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(TextError, match="surrogate"):
        tiny_tokenizer.encode("a\ud800")


def test_settings_come_from_the_files_beside(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    bos = {"bos_token": {"content": "<|im_start|>", "lstrip": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(bos))
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    settings = {"eos_token": "<|im_end|>", "chat_template": templates, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2, 0))
    assert tokenizer.apply_chat_template(MESSAGES) == "yes"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.from_directory(tmp_path).apply_chat_template(MESSAGES) == "file"


def test_directories_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="save_pretrained"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CorruptError, match="cannot be read"):
        Tokenizer.from_directory(tmp_path)
    word_pieces = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    word_pieces.decoder = decoders.WordPiece()
    with pytest.raises(TokenizerError, match="decode by WordPiece"):
        Tokenizer(word_pieces, {})


@pytest.mark.parametrize("kind", KINDS)
def test_saved_tokenizers_come_back(tmp_path: Path, kind: str) -> None:
    original = KINDS[kind]()
    original.chat_template = CHAT_TEMPLATE
    original.save(tmp_path / "saved")
    again = Tokenizer.from_directory(tmp_path / "saved")
    assert (again.bos_id, again.eos_ids, again.vocab_size) == (
        original.bos_id,
        original.eos_ids,
        original.vocab_size,
    )
    assert again.chat_template == CHAT_TEMPLATE
    for text in SAMPLES:
        for frame in (True, False):
            assert again.encode(text, frame) == original.encode(text, frame)


def test_transformers_reads_saved_tokenizers_the_same(tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    tiny_tokenizer.save(tmp_path)
    assert_agrees(tiny_tokenizer, AutoTokenizer.from_pretrained(tmp_path))


def assert_agrees(ours: Tokenizer, theirs: Any) -> None:
    """Ids, texts and rendered templates equal those of a transformers tokenizer."""
    for text in SAMPLES:
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids
        for skip in (True, False):
            assert theirs.decode(ids, skip_special_tokens=skip) == ours.decode(ids, skip)
    for generation in (True, False):
        expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=generation)
        assert ours.apply_chat_template(MESSAGES, generation) == expected
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.bos_id, ours.eos_ids[0])


@pytest.mark.model
def test_smollm2(smollm2_gguf: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = GGUFCheckpoint(smollm2_gguf).tokenizer()
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, (2,))
    assert len(tokenizer.encode("x\n\n1")) == 3  # digits split first, as llama.cpp does
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert tokenizer.encode(prompt)[:2] == [1, 9690]
    assert all(name in tokenizer.backend.get_vocab() for name in SPECIAL_TOKENS)
    tokenizer.save(tmp_path)
    assert_agrees(tokenizer, AutoTokenizer.from_pretrained(tmp_path))
