"""Offline counters, by the name of a model or by options: which family a model belongs to, its rendering rules
and its tokenizer.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path

from foveate.caching import DEFAULT_CAPACITY
from foveate.errors import BadOption
from foveate.tokens.counter import RequestCounter
from foveate.tokens.rendering.rendering import RenderingRules
from foveate.tokens.tokenizers.bpe import BpeTokenizer, BpeVocabulary
from foveate.tokens.tokenizers.estimate import build_estimator
from foveate.tokens.tokenizers.tokenizer import Tokenizer
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary, is_loaded, load_vocabulary_file

_CLAUDE_NAME = re.compile(r"claude|\b(opus|sonnet|haiku|fable|mythos)-\d")
_GEMINI_NAME = re.compile(r"gemini")
# OpenAI's model names on any host: `openai/gpt-5`, `us.openai.gpt-5`, an Azure deployment.
_OPENAI_NAME = re.compile(
    r"(^|[/.:])(openai-)?(gpt-(?!oss|2\b|2-|j-|j\b|neo)|chatgpt|o\d(-|$)|codex|davinci|babbage|computer-use|text-embedding-(3|ada))"
)
# Additional relative margin for a version that is not known yet, and is counted like a related one.
_UNKNOWN_VERSION_SPREAD = 0.1
# Bounded, since a long-lived process can see any number of model names.
_MAX_CACHED_COUNTERS = 64
_MAX_CACHED_VOCABULARIES = 4


@lru_cache(_MAX_CACHED_COUNTERS)
def counter_for(model: str, host: str = "", capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """An unknown model is counted like its closest relative, never as exact."""
    family = _find_family(model, host)
    tokenizer = family.build_tokenizer()
    backend = "offline" if tokenizer.exact else "estimate"
    return RequestCounter(
        model=model, backend=backend, tokenizer=tokenizer, rules=family.rules, capacity=capacity
    )


@lru_cache(_MAX_CACHED_COUNTERS)
def estimating_counter_for(model: str, capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """Return a counter that loads no vocabulary: the model's rules with estimated texts."""
    family = _find_family(model, "")
    return RequestCounter(
        model=model,
        backend="estimate",
        tokenizer=build_estimator(family.vocabulary),
        rules=family.rules,
        capacity=capacity,
    )


def counter_from_file(model: str, vocabulary: Path, capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """Return a counter with the user's vocabulary: texts are exact, requests follow the model's rules.

    The file is read once for all models, and again if it changes.

    Raises:
        BadVocabulary: the file cannot be used.
    """
    try:
        stat = vocabulary.stat()
    except (OSError, ValueError):
        return _counter_for_vocabulary(
            load_vocabulary_file(vocabulary), model, capacity
        )  # raises with the reason
    return _counter_for_vocabulary(
        _load_vocabulary(vocabulary, stat.st_mtime_ns, stat.st_size), model, capacity
    )


@lru_cache(_MAX_CACHED_COUNTERS)
def _counter_for_vocabulary(vocabulary: BpeVocabulary, model: str, capacity: int) -> RequestCounter:
    rules = _find_family(model, "").rules
    tokenizer = BpeTokenizer(vocabulary)
    return RequestCounter(model=model, backend="offline", tokenizer=tokenizer, rules=rules, capacity=capacity)


@lru_cache(_MAX_CACHED_VOCABULARIES)
def _load_vocabulary(path: Path, modified_ns: int, size_bytes: int) -> BpeVocabulary:
    del modified_ns, size_bytes  # part of the cache key
    return load_vocabulary_file(path)


def find_vocabulary(model: str) -> BpeVocabulary | None:
    """Return the vocabulary of a model, or the one that is used in its place.

    None for Claude, whose vocabularies are not public, and if the tokenizer's engine is not available.
    """
    if is_claude(model):
        return None
    try:
        return bundled_vocabulary(_find_family(model, "").vocabulary)
    except ImportError:
        return None


def has_loaded_vocabulary(model: str) -> bool:
    """Return whether `counter_for` need not load a vocabulary."""
    if is_claude(model):
        from foveate.tokens.tokenizers.claude import CLAUDE_VOCABULARY

        return is_loaded(CLAUDE_VOCABULARY)
    return is_loaded(_find_family(model, "").vocabulary)


def is_claude(model: str) -> bool:
    return _CLAUDE_NAME.search(model.lower()) is not None


@dataclass(frozen=True, slots=True)
class _TokenizerFamily:
    rules: RenderingRules
    vocabulary: str
    build_tokenizer: Callable[[], Tokenizer]


def _find_family(model: str, host: str) -> _TokenizerFamily:
    name = model.lower().strip()
    if is_claude(name):
        from foveate.tokens.rendering.claude import build_claude_rules
        from foveate.tokens.tokenizers.claude import build_claude_tokenizer, claude_family

        return _TokenizerFamily(
            build_claude_rules(name), claude_family(name), partial(build_claude_tokenizer, name)
        )
    if _GEMINI_NAME.search(name):
        from foveate.tokens.rendering.gemini import build_gemini_rules

        gemini = build_gemini_rules(name, host)
        spread = 0.0 if gemini.known else _UNKNOWN_VERSION_SPREAD
        return _bundled_family(gemini, gemini.vocabulary, exact=gemini.known, spread=spread)
    if _OPENAI_NAME.search(name):
        from foveate.tokens.rendering.openai import build_openai_rules

        openai = build_openai_rules(name)
        return _bundled_family(openai, openai.vocabulary, exact=openai.known, spread=openai.spread)
    from foveate.tokens.rendering.chat_templates import ChatTemplateRules, find_template

    template = find_template(name, host)
    return _bundled_family(
        ChatTemplateRules(template), template.vocabulary, exact=template.exact, spread=template.spread
    )


def _bundled_family(
    rules: RenderingRules, vocabulary: str, *, exact: bool = True, spread: float = 0.0
) -> _TokenizerFamily:
    return _TokenizerFamily(
        rules, vocabulary, partial(bundled_tokenizer, vocabulary, exact=exact, spread=spread)
    )


def bundled_tokenizer(vocabulary: str, *, exact: bool = True, spread: float = 0.0) -> Tokenizer:
    """Return a tokenizer with a bundled vocabulary, or an estimator if the engine is not available."""
    try:
        return BpeTokenizer(bundled_vocabulary(vocabulary), exact=exact, spread=spread)
    except ImportError:
        return build_estimator(vocabulary)


class Backend(StrEnum):
    """`tiktoken` is accepted for `offline`."""

    AUTO = "auto"
    OFFLINE = "offline"
    ESTIMATE = "estimate"
    ENDPOINT = "endpoint"
    ANTHROPIC_API = "anthropic_api"
    OPENAI_API = "openai_api"
    GEMINI_API = "gemini_api"

    @classmethod
    def from_name(cls, name: str) -> "Backend":
        """Return the backend called `name`.

        Raises:
            BadOption: there is no such backend.
        """
        if name == "tiktoken":
            return cls.OFFLINE
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise BadOption(f"unknown backend {name!r}; use one of {known}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterOptions:
    """Options of counting. With `use_endpoint`, `auto` may ask the server at `endpoint_url`."""

    backend: Backend = Backend.AUTO
    use_endpoint: bool = False
    endpoint_url: str = ""
    api_key: str = ""
    vocabulary: Path | None = None
    timeout_ms: int = 2000
    cache_capacity: int = DEFAULT_CAPACITY

    @property
    def uses_network(self) -> bool:
        match self.backend:
            case Backend.OFFLINE | Backend.ESTIMATE:
                return False
            case Backend.AUTO:
                return self.use_endpoint if self.endpoint_url else bool(self.api_key)
            case _:
                return True


def offline_counter_factory(options: CounterOptions) -> Callable[[str], RequestCounter]:
    """Return the function that gives the offline counter of a model.

    Raises:
        BadVocabulary: at the first count, if the user's vocabulary cannot be used.
    """
    if options.vocabulary is not None:
        return partial(counter_from_file, vocabulary=options.vocabulary, capacity=options.cache_capacity)
    if options.backend is Backend.ESTIMATE:
        return partial(estimating_counter_for, capacity=options.cache_capacity)
    return partial(counter_for, capacity=options.cache_capacity)
