"""Vocabularies: bundled with the tokenizer's engine, or in a user's file.

Loading takes 30 to 150 ms (Gemma's 250 ms), and the first unknown word another 200 ms. So each vocabulary is
loaded once, when a count needs it. The engine holds the GIL during the first of these, in any thread.
"""

import base64
import re
from pathlib import Path
from threading import Lock
from typing import Any

from foveate.errors import BadVocabulary
from foveate.tokens.tokenizers.bpe import ATOMIC_TOKEN, BpeVocabulary
from foveate.tokens.tokenizers.tokenizer import AFTER_WORDS, BEFORE_BLANKS, SafeBoundary

BUNDLED_VOCABULARIES = (
    "o200k_base",
    "cl100k_base",
    "llama3",
    "qwen3",
    "deepseek_v3",
    "mistral_v1",
    "mistral_v3",
    "gemma2",
    "gemma3",
    "glm4",
    "gpt_oss",
    "kimi",
)

_SAFE_BOUNDARIES: dict[str, SafeBoundary] = {"gemma2": BEFORE_BLANKS, "gemma3": BEFORE_BLANKS}
# The normalizer in Qwen's tokenizer.json is NFC. The others have none.
_NFC_VOCABULARIES = ("qwen3",)
# A text that merges with nothing, for vocabularies without a pattern. Gemma's put no space before a text and
# need none.
_LEAD_TEXTS = {"gemma2": "", "gemma3": "", "mistral_v1": "\n"}
# Vocabularies with symbols that are matched first, which the engine's careful calls ignore. They are among the
# first tokens.
_VOCABULARIES_WITH_ATOMIC_TOKENS = ("gemma2", "gemma3")
_MAX_ATOMIC_TOKEN_ID = 512
# The engine takes quadratic time to find Gemma's whitespace tokens in a run of mixed whitespace.
_LONG_WHITESPACE = re.compile(r"(?<!\s)\s{256}")

# The split pattern, by a word in the name of a rank file. The file itself does not name it.
_PATTERNS = {
    "o200k": "O200K_BASE_PATTERN",
    "cl100k": "CL100K_BASE_PATTERN",
    "llama3": "LLAMA3_PATTERN",
    "llama-3": "LLAMA3_PATTERN",
    "qwen": "QWEN2_PATTERN",
    "kimi": "KIMI_PATTERN",
    "tekken": "MISTRAL_V3_PATTERN",
}
# For two vocabularies that are often renamed, the number of ranks identifies the pattern.
_PATTERN_BY_RANK_COUNT = {199_998: "O200K_BASE_PATTERN", 100_256: "CL100K_BASE_PATTERN"}

# A word that no vocabulary contains: encoding it builds the merge table without the GIL.
_WARM_UP_TEXTS = ["xqzjvkpwq"]


_vocabularies: dict[str, BpeVocabulary] = {}
_load_lock = Lock()


def bundled_vocabulary(name: str) -> BpeVocabulary:
    """Concurrent callers wait for one load."""
    vocabulary = _vocabularies.get(name)
    if vocabulary is None:
        with _load_lock:
            vocabulary = _vocabularies[name] = _vocabularies.get(name) or _load_bundled(name)
    return vocabulary


def is_loaded(name: str) -> bool:
    return name in _vocabularies


def _load_bundled(name: str) -> BpeVocabulary:
    import splintr

    engine = splintr.Tokenizer.from_pretrained(name)
    engine.encode_batch_flat(_WARM_UP_TEXTS)
    is_bpe = engine.family == "BPE"
    return BpeVocabulary(
        name,
        engine,
        special_tokens=tuple(engine.special_tokens()),
        safe_boundary=_SAFE_BOUNDARIES.get(name, AFTER_WORDS if is_bpe else None),
        normalizes=name in _NFC_VOCABULARIES,
        slow_pattern=None if is_bpe else _LONG_WHITESPACE,
        lead_text=_LEAD_TEXTS.get(name),
        atomic_tokens=_find_atomic_tokens(engine) if name in _VOCABULARIES_WITH_ATOMIC_TOKENS else (),
    )


def _find_atomic_tokens(engine: Any) -> list[str]:
    """Find texts that a vocabulary always encodes as one token, such as HTML tags or turn markers.

    Those are what the engine encodes as one token only if it matches special tokens, though they are not
    special tokens.
    """
    special_tokens = set(engine.special_tokens())
    texts = [
        bytes(engine.decode_token_bytes(number)).decode("utf-8", "replace")
        for number in range(_MAX_ATOMIC_TOKEN_ID)
    ]
    return [
        text
        for number, text in enumerate(texts)
        if ATOMIC_TOKEN.fullmatch(text)
        and text not in special_tokens
        and engine.encode_flat(text) == number.to_bytes(4, "little")
        and len(engine.encode_ordinary(text)) > 1
    ]


def load_vocabulary_file(path: Path) -> BpeVocabulary:
    """Load a `tokenizer.json` or `.tiktoken` file.

    Raises:
        BadVocabulary: the file cannot be read, or is neither.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadVocabulary(str(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a path with a zero byte
        raise BadVocabulary(str(path), str(error)) from None
    if path.suffix == ".tiktoken":
        return _load_rank_file(path, data)
    return _load_tokenizer_json(path, data)


def _load_tokenizer_json(path: Path, data: bytes) -> BpeVocabulary:
    import splintr

    if not data.lstrip().startswith(b"{"):
        raise BadVocabulary(str(path), "is neither a tokenizer.json (a JSON object) nor named *.tiktoken")
    try:
        engine = splintr.from_json_bytes(data)
        engine.encode_batch_flat(_WARM_UP_TEXTS)
    except ValueError as error:
        raise BadVocabulary(str(path), f"invalid tokenizer.json: {error}") from None
    if not engine.encode_ordinary(_WARM_UP_TEXTS[0]):
        raise BadVocabulary(str(path), "the vocabulary has no token for a plain word")
    return BpeVocabulary(
        path.name,
        engine,
        special_tokens=tuple(engine.special_tokens()),
        safe_boundary=_find_safe_boundary(data),
    )


def _find_safe_boundary(data: bytes) -> SafeBoundary | None:
    """Return where texts can be split, if a tokenizer.json splits only by a known pattern."""
    import msgspec
    import splintr

    from foveate.formats.json_text.parse import parse_json

    document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    match parse_json(document.get("normalizer")), parse_json(document.get("pre_tokenizer")):
        case (
            None | {"type": "NFC"},
            {
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Split",
                        "pattern": {"Regex": str(pattern)},
                        "behavior": "Isolated",
                        "invert": False,
                    },
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                ],
            },
        ) if pattern in {getattr(splintr, name) for name in _PATTERNS.values()}:
            return AFTER_WORDS
        case _:
            return None


def _load_rank_file(path: Path, data: bytes) -> BpeVocabulary:
    import splintr

    ranks = _count_ranks(path, data)
    patterns = (pattern for word, pattern in _PATTERNS.items() if word in path.stem.lower())
    pattern = next(patterns, _PATTERN_BY_RANK_COUNT.get(ranks))
    if pattern is None:
        known = ", ".join(sorted(_PATTERNS))
        raise BadVocabulary(
            str(path), f"a rank file does not define how text is split: name it after one of {known}"
        )
    try:
        engine = splintr.Tokenizer.from_bytes(data, getattr(splintr, pattern), {})
        engine.encode_batch_flat(_WARM_UP_TEXTS)
    except ValueError as error:
        raise BadVocabulary(str(path), f"invalid rank file: {error}") from None
    return BpeVocabulary(path.name, engine)


def _count_ranks(path: Path, data: bytes) -> int:
    """Check that every line is a base64 token with its own rank, and return the number of ranks."""
    single_bytes, ranks = set(), set()
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks.add(int(rank))
            if len(token) == 4 and len(byte := base64.b64decode(token, validate=True)) == 1:
                single_bytes.add(byte)
        except ValueError:
            raise BadVocabulary(str(path), f"line {number} is not a base64 token and its rank") from None
        if len(ranks) < number:
            raise BadVocabulary(str(path), f"line {number} repeats the rank of another token")
    if len(single_bytes) < 256:
        raise BadVocabulary(str(path), f"only {len(single_bytes)} of the 256 single bytes have a rank")
    return len(ranks)
