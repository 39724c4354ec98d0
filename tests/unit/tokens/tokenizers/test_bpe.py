"""Offline counts equal those of the models' tokenizers."""

import gzip
import json
import os
import signal
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import splintr
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from foveate.tokens.tokenizers.bpe import BpeVocabulary
from foveate.tokens.tokenizers.tokenizer import split_text
from foveate.tokens.tokenizers.vocabularies import (
    BUNDLED_VOCABULARIES,
    bundled_vocabulary,
    load_vocabulary_file,
)
from tests.support.harness.example_limits import limit_examples
from tests.support.oracles.tiktoken_counts import PATTERNS, tiktoken_encoding
from tests.support.strategies.texts import any_texts, texts

SEPARATOR = "\n__ggml_vocab_test__\n"


def qwen_tokenizer(shared_data: Path) -> Tokenizer:
    folder = shared_data / "tokenizers" / "qwen2"
    lines = gzip.decompress((folder / "merges.txt.gz").read_bytes()).decode().splitlines()
    merges = [(left, right) for left, right in (line.split(" ") for line in lines if " " in line[:-1])]
    merges = [merge for merge in merges if merge[0] != "#version:"]
    vocabulary = json.loads(gzip.decompress((folder / "vocab.json.gz").read_bytes()))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(splintr.QWEN2_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


@pytest.fixture(scope="module")
def qwen_file(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen") / "tokenizer.json"
    qwen_tokenizer(shared_data).save(str(path))
    return path


def read_vectors(shared_data: Path, name: str) -> Iterator[tuple[str, int]]:
    """Texts with their token counts in the tests of llama.cpp."""
    folder = shared_data / "tokenizers" / "vectors"
    vector_texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_text("utf-8").split(SEPARATOR)
    ids = (folder / f"ggml-vocab-{name}.gguf.out").read_text("utf-8").splitlines()
    for text, line in zip(vector_texts, ids, strict=False):
        yield text, len(line.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_random_texts_are_counted_as_tiktoken_counts_them(shared_data: Path, name: str) -> None:
    oracle, tokenizer = tiktoken_encoding(shared_data, name), bundled_vocabulary(name)

    @given(texts.filter(_is_known_to_unicodedata))
    def holds(text: str) -> None:
        assert tokenizer.count(text) == len(oracle.encode_ordinary(text))

    holds()


def _is_known_to_unicodedata(text: str) -> bool:
    """Return whether no character is newer than the Unicode version of the oracle."""
    return all(unicodedata.category(char) != "Cn" for char in text)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_a_rank_file_counts_as_the_bundled_vocabulary(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.tiktoken"
    path.write_bytes(gzip.decompress((shared_data / "tokenizers" / f"{name}.tiktoken.gz").read_bytes()))
    tokenizer = load_vocabulary_file(path)

    @given(texts)
    def holds(text: str) -> None:
        assert tokenizer.count(text) == bundled_vocabulary(name).count(text)

    holds()


@pytest.mark.parametrize(("vector", "name"), [("llama-bpe", "llama3"), ("qwen2", "qwen3")])
def test_test_vectors_of_llama_cpp_pass(shared_data: Path, vector: str, name: str) -> None:
    cases = list(read_vectors(shared_data, vector))

    assert len(cases) > 40
    assert [bundled_vocabulary(name).count(text) for text, _ in cases] == [tokens for _, tokens in cases]


@pytest.mark.slow
def test_a_custom_tokenizer_json_counts_like_the_library_that_wrote_it(
    shared_data: Path, qwen_file: Path
) -> None:
    oracle, tokenizer = qwen_tokenizer(shared_data), load_vocabulary_file(qwen_file)

    assert [tokenizer.count(text) for text, _ in read_vectors(shared_data, "qwen2")] == [
        tokens for _, tokens in read_vectors(shared_data, "qwen2")
    ]

    @given(texts.filter(_is_known_to_unicodedata))
    def holds(text: str) -> None:
        assert tokenizer.count(text) == len(oracle.encode(text).ids)
        assert bundled_vocabulary("qwen3").count(text) == len(oracle.encode(text).ids)

    holds()


@pytest.mark.slow
def test_a_long_text_with_a_special_token_is_split_for_custom_tokenizers_too(
    qwen_file: Path, tmp_path: Path
) -> None:
    """Regression: it was encoded in one call that held the GIL."""
    with_special = Tokenizer.from_file(str(qwen_file))
    with_special.add_special_tokens(["<|im_start|>"])
    with_special.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_vocabulary_file(tmp_path / "tokenizer.json")
    text = "Some words cafe\u0301, <|im_start|>more of 12345 them!\n" * 1000

    assert tokenizer.safe_boundary is not None
    assert max(map(len, tokenizer.encode(text))) < 10_000
    assert tokenizer.count(text) == len(tokenizer._engine.encode_ordinary(text))

    @given(texts)
    def holds(text: str) -> None:
        pieces = split_text(text, 3)
        whole = tokenizer._engine.encode_ordinary(text)
        assert [token for piece in pieces for token in tokenizer._engine.encode_ordinary(piece)] == whole

    holds()


def test_qwen_normalizes_a_letter_and_its_accent() -> None:
    assert bundled_vocabulary("qwen3").count("cafe\u0301") == bundled_vocabulary("qwen3").count("café")
    assert bundled_vocabulary("o200k_base").count("cafe\u0301") > bundled_vocabulary("o200k_base").count("café")


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED_VOCABULARIES)
def test_a_spelled_out_special_token_counts_as_characters(name: str) -> None:
    engine = splintr.Tokenizer.from_pretrained(name)
    special_token = max(engine.special_tokens(), key=len)

    assert bundled_vocabulary(name).count(special_token) > 1
    assert bundled_vocabulary(name).count(f"a {special_token} b") == len(
        engine.encode_ordinary(f"a {special_token} b")
    )


@pytest.mark.parametrize("name", BUNDLED_VOCABULARIES)
def test_an_empty_text_has_no_tokens(name: str) -> None:
    assert bundled_vocabulary(name).count("") == 0


@given(text=any_texts, name=st.sampled_from(BUNDLED_VOCABULARIES))
def test_every_text_can_be_counted(text: str, name: str) -> None:
    count = bundled_vocabulary(name).count(text)

    assert (count == 0) == (text == "")


def test_a_lone_surrogate_counts_as_the_replacement_character() -> None:
    tokenizer = bundled_vocabulary("o200k_base")

    assert tokenizer.count("a\ud800b") == tokenizer.count("a\ufffdb")
    assert tokenizer.count("\ud83d\ude00") == tokenizer.count("😀")
    assert tokenizer.count_many(["a\ud800b"] * 9) == [tokenizer.count("a\ufffdb")] * 9


@settings(max_examples=limit_examples(50))
@given(many_texts=st.lists(any_texts, max_size=20), name=st.sampled_from(("o200k_base", "qwen3", "gemma3")))
def test_many_texts_count_like_each_alone(many_texts: list[str], name: str) -> None:
    assert bundled_vocabulary(name).count_many(many_texts) == [
        bundled_vocabulary(name).count(text) for text in many_texts
    ]


@settings(max_examples=limit_examples(50))
@given(text=texts, name=st.sampled_from(("o200k_base", "qwen3", "gemma3", "mistral_v1")))
def test_the_number_of_ids_equals_the_count(text: str, name: str) -> None:
    assert sum(map(len, bundled_vocabulary(name).encode(text))) == bundled_vocabulary(name).count(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["o200k_base", "gemma3"])
@pytest.mark.parametrize("unit", ["a", " ", "\n", "?", "漢", "\r\n", "\n ", "<"])
def test_counting_takes_linear_time_for_every_character(name: str, unit: str) -> None:
    """Regression: Gemma's engine took quadratic time for line ends, minutes for a megabyte."""
    tokenizer = bundled_vocabulary(name)
    tokenizer.count(unit * 1000)
    small, large = (_measure_seconds(tokenizer, unit * (size // len(unit))) for size in (64_000, 256_000))

    assert large < 10 * max(small, 0.01)


def _measure_seconds(tokenizer: BpeVocabulary, text: str) -> float:
    durations = []
    for _ in range(2):
        started = time.process_time()
        tokenizer.count(text)
        durations.append(time.process_time() - started)
    return min(durations)


@pytest.mark.slow
def test_a_megabyte_of_one_character_is_counted_correctly(shared_data: Path) -> None:
    """In halves, which merge alike, since the oracle is slow on such texts."""
    oracle = tiktoken_encoding(shared_data, "o200k_base")
    tokenizer = bundled_vocabulary("o200k_base")

    for unit in ("a", "\n", "?", "=", "0"):
        assert tokenizer.count(unit * 4096) == len(oracle.encode_ordinary(unit * 4096))
        assert tokenizer.count(unit * 1_000_000) == pytest.approx(
            tokenizer.count(unit * 4096) * 244.14, rel=0.01
        )


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where there is fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_still_counts() -> None:
    """The engine's threads exist only in the parent, so waiting for them would never end."""
    tokenizer = bundled_vocabulary("o200k_base")
    text = "Some words that are long enough to be cut. " * 4000
    expected = tokenizer.count(text)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = tokenizer.count(text) == expected
            status = 0 if same and tokenizer.count_many(["a b"] * 20) == [2] * 20 else 1
        finally:
            os._exit(status)

    assert _wait_for_exit_code(child, timeout_seconds=20) == 0


def _wait_for_exit_code(child: int, *, timeout_seconds: float) -> int | None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        exited_pid, status = os.waitpid(child, os.WNOHANG)
        if exited_pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
