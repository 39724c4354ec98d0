"""Which rules and which ruler count for a model, found by its name and, where known, its host.

The names of models: one spelling for all that are used, and which parts of it may be the model's own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from foveate.caching import DEFAULT_CAPACITY
from foveate.tokens.counter import RequestCounter
from foveate.tokens.rendering.rendering import RenderingRules, Tokenizer
from foveate.tokens.tokenizers.bpe import BpeVocabulary
from foveate.tokens.tokenizers.bpe_tokenizer import BpeTokenizer, bundled_tokenizer
from foveate.tokens.tokenizers.claude import normalize_claude_name
from foveate.tokens.tokenizers.estimate import build_estimator
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary, load_vocabulary_file

_MAX_NAME_CHARS = 128

# What may stand in front of a model's name without making it another one: regions, makers, hosts.
_NAME_PREFIX = re.compile(
    r"((us|eu|apac|au|jp|in|gov|global|regional|ft|azure|databricks|snowflake|fw|ai21|alibaba|amazon|anthropic"
    r"|cohere|deepseek|google|meta|minimax|mistral|mistralai|moonshot|moonshotai|nvidia|openai|qwen|writer|x-?ai"
    r"|z-?ai)-)*+"
)
# And what may stand behind it: a date, a size, how it is tuned, built and served.
_NAME_SUFFIX = re.compile(
    r"(-(\d{4}-\d\d-\d\d|\d\d-\d{4}|\d\d-\d\d|\d{8}|\d{6}|\d{4}|00\d|v\d+(-\d)?|1-0|[ae]?(\d+x)?\d+(-\d+)?[bekmt]"
    r"|base|basic|beta|chat|default|exp|experimental|extended|fast|high|highspeed|instant|instruct|it|latest"
    r"|lightning|low|preview|reasoning|non-reasoning|thinking|turbo|versatile|vision|awq|bf16|dynamic|fp16|fp4|fp8"
    r"|gguf|gptq|int4|int8|lora|mlx|mxfp4|nvfp4|batch|cloud|free|hf|maas|us)(?=-|$))*+"
)
# A version that goes on makes it another model: `gpt-5.9` is not a build of `gpt-5`.
_CONTINUED_VERSION = re.compile(r"-\d{1,2}(-|$)")


def normalize_model_name(model: str) -> str:
    """The name in one spelling, without the path to it: small letters and digits, a hyphen for all else."""
    name = normalize_claude_name(model.rpartition("/")[2][:_MAX_NAME_CHARS])
    name = re.sub(r"(?<=\d)p(?=\d)", "-", name)  # Fireworks writes 3p1 for 3.1
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def candidate_names(name: str) -> tuple[list[str], list[str]]:
    """The parts of a name that may be the model's own: those that are all of it, and the others."""
    exact_names: list[str] = []
    related_names: list[str] = []
    hyphens = [position for position, char in enumerate(name) if char == "-"]
    for end in (*hyphens, len(name)):
        suffix = _NAME_SUFFIX.match(name, end)
        is_complete = suffix is not None and suffix.end() == len(name)
        continues = _CONTINUED_VERSION.match(name, suffix.end() if suffix else end)
        for start in (0, *(position + 1 for position in hyphens if position < end)):
            if is_complete and _NAME_PREFIX.fullmatch(name, 0, start):
                exact_names.append(name[start:end])
            elif not continues:
                related_names.append(name[start:end])
    return exact_names, related_names


_CLAUDE_NAME = re.compile(r"claude|\b(opus|sonnet|haiku|fable|mythos)-\d")
_GEMINI_NAME = re.compile(r"gemini")
# OpenAI's own names, whatever route they come by: `openai/gpt-5`, `us.openai.gpt-5`, an Azure deployment.
_OPENAI_NAME = re.compile(
    r"(^|[/.:])(openai-)?(gpt-(?!oss|2\b|2-|j-|j\b|neo)|chatgpt|o\d(-|$)|codex|davinci|babbage|computer-use|text-embedding-(3|ada))"
)

# What a version that nothing is known of yet may add to the count by its kin.
_UNKNOWN_VERSION_SPREAD = 0.1

# Models that come and go in a long-lived process are forgotten again.
_MAX_CACHED_COUNTERS = 64
_MAX_CACHED_VOCABULARIES = 4


@lru_cache(_MAX_CACHED_COUNTERS)
def counter_for(model: str, host: str = "", capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """The offline counter of a model; an unknown one is counted as its likeliest kin, and not called exact."""
    family = _find_family(model, host)
    tokenizer = family.build_tokenizer()
    backend = "offline" if tokenizer.exact else "estimate"
    return RequestCounter(
        model=model, backend=backend, tokenizer=tokenizer, rules=family.rules, capacity=capacity
    )


@lru_cache(_MAX_CACHED_COUNTERS)
def estimating_counter_for(model: str, capacity: int = DEFAULT_CAPACITY) -> RequestCounter:
    """A counter that loads no vocabulary: the model's rules over an estimate of its texts."""
    family = _find_family(model, "")
    return RequestCounter(
        model=model,
        backend="estimate",
        tokenizer=build_estimator(family.vocabulary),
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
        return _counter_for_vocabulary(
            load_vocabulary_file(vocabulary), model, capacity
        )  # which says what is wrong with it
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
    del modified_ns, size_bytes  # a file that has changed is another one
    return load_vocabulary_file(path)


def find_vocabulary(model: str) -> BpeVocabulary | None:
    """The vocabulary that the texts of a model are cut by, or one that stands in for it.

    None for Claude, whose are not public, and where its engine does not run here.
    """
    if is_claude(model):
        return None
    try:
        return bundled_vocabulary(_find_family(model, "").vocabulary)
    except ImportError:
        return None


def is_claude(model: str) -> bool:
    """Whether Anthropic's counter counts for `model`."""
    return _CLAUDE_NAME.search(model.lower()) is not None


@dataclass(frozen=True, slots=True)
class _ModelFamily:
    """How a model's requests are rendered, what vocabulary its texts are cut by, and the ruler for them."""

    rules: RenderingRules
    vocabulary: str
    build_tokenizer: Callable[[], Tokenizer]


def _find_family(model: str, host: str) -> _ModelFamily:
    name = model.lower().strip()
    if is_claude(name):
        from foveate.tokens.rendering.claude import build_claude_rules
        from foveate.tokens.tokenizers.claude import build_claude_tokenizer, claude_family

        return _ModelFamily(
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
) -> _ModelFamily:
    return _ModelFamily(rules, vocabulary, partial(bundled_tokenizer, vocabulary, exact=exact, spread=spread))
