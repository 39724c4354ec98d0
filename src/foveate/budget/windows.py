"""The context windows of models, found by name in a dated table (`budget/windows.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.tokens.claude import spelled

_TABLE = Path(__file__).with_name("windows.toml")
_LONGEST_NAME_CHARS = 128
# Models that come and go in a long-lived process are forgotten again.
_KEPT_WINDOWS = 256

# What may stand in front of a model's name without making it another one: regions, makers, hosts.
_BEFORE = re.compile(
    r"((us|eu|apac|au|jp|in|gov|global|regional|ft|azure|databricks|snowflake|fw|ai21|alibaba|amazon|anthropic"
    r"|cohere|deepseek|google|meta|minimax|mistral|mistralai|moonshot|moonshotai|nvidia|openai|qwen|writer|x-?ai"
    r"|z-?ai)-)*+"
)
# And what may stand behind it: a date, a size, how it is tuned, built and served.
_BEHIND = re.compile(
    r"(-(\d{4}-\d\d-\d\d|\d\d-\d{4}|\d\d-\d\d|\d{8}|\d{6}|\d{4}|00\d|v\d+(-\d)?|1-0|[ae]?(\d+x)?\d+(-\d+)?[bekmt]"
    r"|base|basic|beta|chat|default|exp|experimental|extended|fast|high|highspeed|instant|instruct|it|latest"
    r"|lightning|low|preview|reasoning|non-reasoning|thinking|turbo|versatile|vision|awq|bf16|dynamic|fp16|fp4|fp8"
    r"|gguf|gptq|int4|int8|lora|mlx|mxfp4|nvfp4|batch|cloud|free|hf|maas|us)(?=-|$))*+"
)
# A version that goes on makes it another model: `gpt-5.9` is not a build of `gpt-5`.
_MORE_VERSION = re.compile(r"-\d{1,2}(-|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How many tokens prompt and answer may have together; the prompt alone, where its provider bounds that.

    `source` says who says so and `as_of` when. `inherited`: nothing is known of this very model, and the number
    is that of its kin.
    """

    tokens: int
    source: str
    as_of: str
    inherited: bool


@lru_cache(_KEPT_WINDOWS)
def window_of(model: str) -> Window | None:
    """The context window of a model, or None where neither it nor its family is known."""
    name = _name(model)
    table = _table()
    if not table.other_kinds.isdisjoint(name.split("-")):
        return None
    family = next((family for family in table.families if re.search(family.match, name)), None)
    return None if family is None else _window(family, name)


def _name(model: str) -> str:
    """The name in one spelling, without the path to it: small letters and digits, a hyphen for all else."""
    name = spelled(model.rpartition("/")[2][:_LONGEST_NAME_CHARS])
    name = re.sub(r"(?<=\d)p(?=\d)", "-", name)  # Fireworks writes 3p1 for 3.1
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Some maker's models: patterns of names and their windows, and what a model that fits none has."""

    match: str
    as_of: str
    source: str
    windows: Mapping[str, int]
    newer_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    other_kinds: frozenset[str]
    families: tuple[_Family, ...]


@cache
def _table() -> _Table:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return _Table(frozenset(table["other_kinds"]), tuple(_Family(**family) for family in table["family"]))


def _window(family: _Family, name: str) -> Window | None:
    known, kin = _stretches(name)
    tokens = _tokens(family, known)
    inherited = tokens is None
    if tokens is None:
        tokens = _tokens(family, kin) or family.newer_tokens
    if tokens is None:
        return None
    return Window(tokens=tokens, source=family.source, as_of=family.as_of, inherited=inherited)


def _stretches(name: str) -> tuple[list[str], list[str]]:
    """The parts of a name that may be the model's own: those that are all of it, and the others."""
    known: list[str] = []
    kin: list[str] = []
    hyphens = [at for at, char in enumerate(name) if char == "-"]
    for end in (*hyphens, len(name)):
        behind = _BEHIND.match(name, end)
        whole = behind is not None and behind.end() == len(name)
        reads_on = _MORE_VERSION.match(name, behind.end() if behind else end)
        for start in (0, *(at + 1 for at in hyphens if at < end)):
            if whole and _BEFORE.fullmatch(name, 0, start):
                known.append(name[start:end])
            elif not reads_on:
                kin.append(name[start:end])
    return known, kin


def _tokens(family: _Family, stretches: list[str]) -> int | None:
    """The window of the first row that is one of `stretches`."""
    # `re` compiles a pattern when it is first used and keeps it; most families never are.
    for pattern, tokens in family.windows.items():
        if any(re.fullmatch(pattern, stretch) for stretch in stretches):
            return tokens
    return None
