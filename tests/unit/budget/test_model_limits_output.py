"""Output limits by model name. Unknown models have none."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from foveate.budget import model_limits
from foveate.budget.model_limits import find_context_window, find_output_limit

KNOWN = {
    "claude-opus-5-5": 128_000,
    "bedrock/us.anthropic.claude-opus-4-6-v1": 128_000,
    "claude-sonnet-4-5-20250929": 64_000,
    "anthropic/claude-4.5-haiku": 64_000,
    "claude-opus-4-1-20250805": 32_000,
    "gpt-5": 128_000,
    "gpt-5-pro-2025-10-06": 272_000,
    "openai/gpt-5.4-mini": 128_000,
    "gpt-5.1-codex-max": 128_000,
    "gpt-6.1-sol": 131_072,
    "azure/gpt-4.1-nano-2025-04-14": 32_768,
    "gpt-4o-mini-2024-07-18": 16_384,
    "o4-mini": 100_000,
    "gemini/gemini-2.5-pro": 65_536,
    "gemini-3.8-flash": 65_536,
    "gemini-4-argon": 1_048_576,
}
# Open models have different limits on each host, and those of new models are unknown.
UNKNOWN = (
    "",
    "my-deployment",
    "gpt-9",
    "claude-opus-7",
    "deepseek-v4",
    "kimi-k3",
    "llama-4-scout",
    "gpt-4",
    "grok-4.5",
)


@pytest.mark.parametrize(("model", "tokens"), KNOWN.items())
def test_a_model_is_known_in_every_spelling_of_its_providers(model: str, tokens: int) -> None:
    limit = find_output_limit(model)

    assert limit is not None
    assert limit.tokens == tokens
    assert re.fullmatch(r"20\d\d-\d\d", limit.as_of)
    assert limit.source


@pytest.mark.parametrize("model", UNKNOWN)
def test_unknown_models_have_no_limit(model: str) -> None:
    assert find_output_limit(model) is None


def rows() -> list[tuple[str, int]]:
    table = tomllib.loads(Path(model_limits.__file__).with_name("answers.toml").read_text(encoding="utf-8"))
    return [row for family in table["family"] for row in family["answers"].items()]


@pytest.mark.parametrize(("pattern", "tokens"), rows())
def test_every_row_is_reachable_and_within_the_context_window(pattern: str, tokens: int) -> None:
    def has_limit(name: str) -> bool:
        limit = find_output_limit(name)
        return limit is not None and limit.tokens == tokens

    name = find(
        st.from_regex(pattern, fullmatch=True),
        has_limit,
        settings=settings(database=None, phases=[Phase.generate]),
    )
    window = find_context_window(name)
    assert window is not None
    assert tokens <= window.tokens


@given(st.text(max_size=200) | st.from_regex(r"(gpt|claude|gemini|o)[-.0-9a-z:/]{0,40}", fullmatch=True))
def test_any_name_can_be_looked_up_for_its_output_limit(model: str) -> None:
    limit = find_output_limit(model)

    assert limit is None or limit.tokens > 0
