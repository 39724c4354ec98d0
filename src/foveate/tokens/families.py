"""Which rules and which ruler count for a model, found by its name and, where known, its host."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from foveate.tokens.bpe import Bpe
from foveate.tokens.counter import RequestCounter
from foveate.tokens.estimate import estimate_for
from foveate.tokens.memo import DEFAULT_CAPACITY
from foveate.tokens.rendering import Rules, Yardstick
from foveate.tokens.rulers import BpeRuler, bundled_ruler
from foveate.tokens.vocabulary import bundled, from_file

_CLAUDE = re.compile(r"claude|\b(opus|sonnet|haiku|fable|mythos)-\d")
_GEMINI = re.compile(r"gemini")
# OpenAI's own names, whatever route they come by: `openai/gpt-5`, `us.openai.gpt-5`, an Azure deployment.
_OPENAI = re.compile(
    r"(^|[/.:])(openai-)?(gpt-(?!oss|2\b|2-|j-|j\b|neo)|chatgpt|o\d(-|$)|codex|davinci|babbage|computer-use|text-embedding-(3|ada))"
)

# What a version that nothing is known of yet may add to the count by its kin.
_INHERITED_SPREAD = 0.1

# Models that come and go in a long-lived process are forgotten again.
_KEPT_COUNTERS = 64
_KEPT_VOCABULARIES = 4


@lru_cache(_KEPT_COUNTERS)
def counter_for(model: str, host: str = "", capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """The offline counter of a model; an unknown one is counted as its likeliest kin, and not called exact."""
    family = _family(model, host)
    ruler = family.ruler()
    backend = "offline" if ruler.exact else "estimate"
    return RequestCounter(model=model, backend=backend, ruler=ruler, rules=family.rules, capacity=capacity)


@lru_cache(_KEPT_COUNTERS)
def estimating_counter_for(model: str, capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """A counter that loads no vocabulary: the model's rules over an estimate of its texts."""
    family = _family(model, "")
    return RequestCounter(
        model=model,
        backend="estimate",
        ruler=estimate_for(family.vocabulary),
        rules=family.rules,
        capacity=capacity,
    )


def counter_from_file(model: str, vocabulary: Path, capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """A counter with the user's own vocabulary: texts are exact, a request follows the model's rules.

    The file is read once for all models, and again when it has changed.

    Raises:
        BadVocabulary: the file cannot be used.
    """
    try:
        stat = vocabulary.stat()
    except (OSError, ValueError):
        return _counter_with(from_file(vocabulary), model, capacity)  # which says what is wrong with it
    return _counter_with(_read(vocabulary, stat.st_mtime_ns, stat.st_size), model, capacity)


@lru_cache(_KEPT_COUNTERS)
def _counter_with(vocabulary: Bpe, model: str, capacity: int) -> RequestCounter:
    rules = _family(model, "").rules
    ruler = BpeRuler(vocabulary)
    return RequestCounter(model=model, backend="offline", ruler=ruler, rules=rules, capacity=capacity)


@lru_cache(_KEPT_VOCABULARIES)
def _read(path: Path, changed_ns: int, size_bytes: int) -> Bpe:
    del changed_ns, size_bytes  # a file that has changed is another one
    return from_file(path)


def vocabulary_of(model: str) -> Bpe | None:
    """The vocabulary that the texts of a model are cut by, or one that stands in for it.

    None for Claude, whose are not public, and where its engine does not run here.
    """
    if is_claude(model):
        return None
    try:
        return bundled(_family(model, "").vocabulary)
    except ImportError:
        return None


def is_claude(model: str) -> bool:
    """Whether Anthropic's counter counts for `model`."""
    return _CLAUDE.search(model.lower()) is not None


@dataclass(frozen=True, slots=True)
class _Family:
    """How a model's requests are rendered, what vocabulary its texts are cut by, and the ruler for them."""

    rules: Rules
    vocabulary: str
    ruler: Callable[[], Yardstick]


def _family(model: str, host: str) -> _Family:
    name = model.lower().strip()
    if is_claude(name):
        from foveate.tokens.claude import claude_ruler, family_of
        from foveate.tokens.rules.claude import claude_rules

        return _Family(claude_rules(name), family_of(name), partial(claude_ruler, name))
    if _GEMINI.search(name):
        from foveate.tokens.rules.gemini import gemini_rules

        gemini = gemini_rules(name, host)
        spread = 0.0 if gemini.known else _INHERITED_SPREAD
        return _bundled(gemini, gemini.vocabulary, exact=gemini.known, spread=spread)
    if _OPENAI.search(name):
        from foveate.tokens.rules.openai import openai_rules

        openai = openai_rules(name)
        return _bundled(openai, openai.vocabulary, exact=openai.known, spread=openai.spread)
    from foveate.tokens.rules.template import TemplateRules, template_for

    template = template_for(name, host)
    return _bundled(TemplateRules(template), template.vocabulary, exact=template.exact, spread=template.spread)


def _bundled(rules: Rules, vocabulary: str, *, exact: bool = True, spread: float = 0.0) -> _Family:
    return _Family(rules, vocabulary, partial(bundled_ruler, vocabulary, exact=exact, spread=spread))
