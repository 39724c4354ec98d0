"""Vocabularies: the ones that come with the engine's wheel, and a user's own files.

Loading takes 30 to 150 ms and the first word that is not in the vocabulary another 200, so each is loaded once
and only when a count needs it.
"""

import base64
import binascii
import re
from pathlib import Path
from threading import Lock
from typing import Any

from foveate.errors import BadVocabulary
from foveate.tokens.bpe import LIKE_ATOMS, Bpe
from foveate.tokens.pieces import AFTER_WORDS, BEFORE_BLANKS, Seam

BUNDLED = (
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

_SEAMS: dict[str, Seam] = {"gemma2": BEFORE_BLANKS, "gemma3": BEFORE_BLANKS}
# The normalizer in Qwen's tokenizer.json is NFC; those of the others are empty.
_COMPOSING = ("qwen3",)
# What merges with nothing in vocabularies without a pattern. Gemma's put no blank before a text and need none.
_LEADS = {"gemma2": "", "gemma3": "", "mistral_v1": "\n"}
# Vocabularies with symbols that are matched before all else, which the engine's careful calls leave out. They
# stand among the first tokens.
_WITH_ATOMS = ("gemma2", "gemma3")
_ATOM_IDS = 512
# Where the engine looks for Gemma's tokens of blanks, the time grows with the square of a run of mixed blanks.
_LONG_BLANK = re.compile(r"(?<!\s)\s{256}")

# How the text is split before the merges, by a word in the name of a rank file. The file itself does not say.
_PATTERNS = {
    "o200k": "O200K_BASE_PATTERN",
    "cl100k": "CL100K_BASE_PATTERN",
    "llama3": "LLAMA3_PATTERN",
    "llama-3": "LLAMA3_PATTERN",
    "qwen": "QWEN2_PATTERN",
    "kimi": "KIMI_PATTERN",
    "tekken": "MISTRAL_V3_PATTERN",
}
# … or by how many ranks there are, for the two that everybody renames.
_PATTERN_BY_RANKS = {199_998: "O200K_BASE_PATTERN", 100_256: "CL100K_BASE_PATTERN"}

# A word in no vocabulary, to have the merge table built while the interpreter's lock is free.
_WARM_UP = ["xqzjvkpwq"]


_loaded: dict[str, Bpe] = {}
_loading = Lock()


def bundled(name: str) -> Bpe:
    """The tokenizer of a vocabulary in `BUNDLED`; whoever asks while it is being read waits for it."""
    found = _loaded.get(name)
    if found is None:
        with _loading:
            found = _loaded[name] = _loaded.get(name) or _read_bundled(name)
    return found


def _read_bundled(name: str) -> Bpe:
    import splintr

    engine = splintr.Tokenizer.from_pretrained(name)
    engine.encode_batch_flat(_WARM_UP)
    is_bpe = engine.family == "BPE"
    return Bpe(
        name,
        engine,
        special_tokens=tuple(engine.special_tokens()),
        seam=_SEAMS.get(name, AFTER_WORDS if is_bpe else None),
        composes=name in _COMPOSING,
        slow_on=None if is_bpe else _LONG_BLANK,
        lead=_LEADS.get(name),
        atoms=_atoms(engine) if name in _WITH_ATOMS else (),
    )


def _atoms(engine: Any) -> list[str]:
    """What a vocabulary takes for one token wherever it stands, such as a tag of HTML or the mark of a turn.

    What the engine spells out where it is told to match no special token, and else does not, is one.
    """
    made_up = set(engine.special_tokens())
    texts = [bytes(engine.decode_token_bytes(number)).decode("utf-8", "replace") for number in range(_ATOM_IDS)]
    return [
        text
        for number, text in enumerate(texts)
        if LIKE_ATOMS.fullmatch(text)
        and text not in made_up
        and engine.encode_flat(text) == number.to_bytes(4, "little")
        and len(engine.encode_ordinary(text)) > 1
    ]


def from_file(path: Path) -> Bpe:
    """The tokenizer in a `tokenizer.json` or `.tiktoken` file.

    Raises:
        BadVocabulary: the file cannot be read, or is neither.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadVocabulary(str(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a name with a zero byte in it
        raise BadVocabulary(str(path), str(error)) from None
    if path.suffix == ".tiktoken":
        return _from_ranks(path, data)
    return _from_json(path, data)


def _from_json(path: Path, data: bytes) -> Bpe:
    import splintr

    if not data.lstrip().startswith(b"{"):
        raise BadVocabulary(str(path), "not a tokenizer.json (no JSON object) and not named *.tiktoken")
    try:
        engine = splintr.from_json_bytes(data)
        engine.encode_batch_flat(_WARM_UP)
    except ValueError as error:
        raise BadVocabulary(str(path), f"not a usable tokenizer.json: {error}") from None
    if not engine.encode_ordinary(_WARM_UP[0]):
        raise BadVocabulary(str(path), "its vocabulary has no token for a plain word")
    return Bpe(path.name, engine, special_tokens=tuple(engine.special_tokens()), seam=_seam_in(data))


def _seam_in(data: bytes) -> Seam | None:
    """Where a tokenizer.json lets texts be cut: it splits by a pattern that is known, and by nothing else."""
    import msgspec
    import splintr

    from foveate.wire.body import value

    says = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    match value(says.get("normalizer")), value(says.get("pre_tokenizer")):
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


def _from_ranks(path: Path, data: bytes) -> Bpe:
    import splintr

    ranks = _checked_ranks(path, data)
    named = (pattern for word, pattern in _PATTERNS.items() if word in path.stem.lower())
    pattern = next(named, _PATTERN_BY_RANKS.get(ranks))
    if pattern is None:
        known = ", ".join(sorted(_PATTERNS))
        raise BadVocabulary(
            str(path), f"ranks do not say how text is split: name the file after one of {known}"
        )
    try:
        engine = splintr.Tokenizer.from_bytes(data, getattr(splintr, pattern), {})
        engine.encode_batch_flat(_WARM_UP)
    except ValueError as error:
        raise BadVocabulary(str(path), f"not a usable rank file: {error}") from None
    return Bpe(path.name, engine)


def _checked_ranks(path: Path, data: bytes) -> int:
    """How many ranks the file has; every line must be a token in base64 and a rank of its own."""
    singles, ranks = set(), set()
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks.add(int(rank))
            if len(token) == 4 and len(byte := base64.b64decode(token, validate=True)) == 1:
                singles.add(byte)
        except (ValueError, binascii.Error):
            raise BadVocabulary(str(path), f"line {number} is not a token in base64 and its rank") from None
        if len(ranks) < number:
            raise BadVocabulary(str(path), f"line {number} repeats the rank of another token")
    if len(singles) < 256:
        raise BadVocabulary(str(path), f"only {len(singles)} of the 256 single bytes have a rank")
    return len(ranks)
