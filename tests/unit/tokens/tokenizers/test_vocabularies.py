"""A tokenizer file works, or has an error of one line."""

import base64
import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from foveate.errors import BadVocabulary
from foveate.tokens.tokenizers.vocabularies import (
    BUNDLED_VOCABULARIES,
    bundled_vocabulary,
    load_vocabulary_file,
)

BYTES = [bytes([number]) for number in range(256)]


def make_rank_file(tokens: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def make_byte_level_tokenizer(**vocabulary: int) -> Tokenizer:
    alphabet = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merged = {token: len(alphabet) + number for token, number in vocabulary.items()}
    merges = [(token[0], token[1]) for token in merged if len(token) == 2]
    tokenizer = Tokenizer(models.BPE(vocab=alphabet | merged, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("name", BUNDLED_VOCABULARIES)
def test_every_bundled_vocabulary_loads_and_counts(name: str) -> None:
    assert bundled_vocabulary(name) is bundled_vocabulary(name)
    assert 4 <= bundled_vocabulary(name).count("How many tokens is this?") <= 12


def test_a_rank_file_uses_the_pattern_in_its_name(tmp_path: Path) -> None:
    for name, tokens in (("my-qwen2.tiktoken", 3), ("llama3.tiktoken", 1)):
        path = tmp_path / name
        path.write_bytes(make_rank_file([*BYTES, b"12", b"123"]))

        assert load_vocabulary_file(path).count("123") == tokens


def test_a_tokenizer_json_is_counted_by_its_own_rules(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    make_byte_level_tokenizer(ab=0).save(str(path))

    assert load_vocabulary_file(path).count("abab") == 2
    assert load_vocabulary_file(path).count("ba") == 2


def test_tokens_added_around_every_text_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = make_byte_level_tokenizer()
    tokenizer.add_special_tokens(["<s>"])
    token = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", token)])
    tokenizer.save(str(path))

    vocabulary = load_vocabulary_file(path)

    assert vocabulary.count("") == 0
    assert vocabulary.count("abc") == 3
    assert vocabulary.count("<s>") == 3
    assert vocabulary.count("a" * 40_000) == 40_000
    assert vocabulary.count_many(["abc"] * 10) == [3] * 10


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"   "),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"null"),
        ("tokenizer.json", b'{"model": null}'),
        ("tokenizer.json", b'{"model": 3}'),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}'),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}'),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}}'),
        ("tokenizer.json", b'{"model": {"type": "Unheard", "vocab": {}}}'),
        ("tokenizer.json", b'{"hello": "world"}'),
        ("tokenizer.json", b"{" * 200_000),
        ("tokenizer.json", b'{"a":' * 200_000),
        ("tokenizer.json", b"\x00\x01\x02\xff" * 1000),
        ("tokenizer.json", b'{"model": "\xff\xfe"}'),
        ("model.bin", b"GGUF\x03\x00\x00\x00"),
        ("o200k.tiktoken", b""),
        ("o200k.tiktoken", b"\n\n"),
        ("o200k.tiktoken", b"not base64 at all\n"),
        ("o200k.tiktoken", b"YQ== x\n"),
        ("o200k.tiktoken", b"YQ==\n"),
        ("o200k.tiktoken", b"\x00\x01\xff\xfe"),
        ("o200k.tiktoken", make_rank_file(BYTES[:100])),
        ("o200k.tiktoken", make_rank_file(BYTES)[:-3]),
        ("o200k.tiktoken", make_rank_file(BYTES) + b"Y!!= 256\n"),
        ("o200k.tiktoken", make_rank_file(BYTES) + b"YWI= -5\n"),
        ("o200k.tiktoken", make_rank_file(BYTES) + b"YWI= 99999999999999999999\n"),
        ("o200k.tiktoken", make_rank_file(BYTES) + b"YWI= 7\n"),
        ("o200k.tiktoken", json.dumps({"model": {}}).encode()),
        ("unnamed.tiktoken", make_rank_file(BYTES)),
    ],
)
def test_a_broken_file_has_a_clear_error_of_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(BadVocabulary) as raised:
        load_vocabulary_file(path)

    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert 10 < len(message) - len(str(path)) < 300
    assert raised.value.code == "bad_vocabulary"


def test_a_truncated_tokenizer_json_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    make_byte_level_tokenizer(ab=0).save(str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(BadVocabulary, match=r"tokenizer\.json"):
        load_vocabulary_file(path)


def test_a_missing_file_or_a_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadVocabulary, match=r"nowhere\.json: No such file"):
        load_vocabulary_file(tmp_path / "nowhere.json")
    with pytest.raises(BadVocabulary, match="directory"):
        load_vocabulary_file(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{}")
    path.chmod(0)

    with pytest.raises(BadVocabulary, match="Permission denied"):
        load_vocabulary_file(path)


def test_a_path_with_a_zero_byte_is_rejected() -> None:
    """Regression: a ValueError."""
    with pytest.raises(BadVocabulary, match="embedded null byte"):
        load_vocabulary_file(Path("a\0b.json"))
