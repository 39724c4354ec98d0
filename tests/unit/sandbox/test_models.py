"""Known models: those of the providers' client libraries, newer versions of them, and no others."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from foveate.model import Format
from foveate.sandbox.models import find_model


def literal_names(kind: Any) -> Iterator[str]:
    for argument in get_args(kind):
        yield from (argument,) if isinstance(argument, str) else literal_names(argument)


@pytest.mark.slow  # importing both clients takes seconds
def test_every_model_of_the_client_libraries_is_known() -> None:
    from anthropic.types.model import Model as AnthropicModel
    from openai.types.shared.all_models import AllModels as OpenAIModel

    anthropic_names, openai_names = set(literal_names(AnthropicModel)), set(literal_names(OpenAIModel))

    assert len(anthropic_names) > 15
    assert len(openai_names) > 50
    assert {name for name in anthropic_names if find_model(Format.ANTHROPIC, name) is None} == set()
    assert {name for name in openai_names if find_model(Format.CHAT, name) is None} == set()


@pytest.mark.parametrize(
    "name",
    ["claude-nope-9", "claude-sonet-4-5", "claude-sonnet", "claude-opus-4-5-x", "claude-opus-1", "claude-"],
)
def test_unknown_anthropic_models_are_not_found(name: str) -> None:
    assert find_model(Format.ANTHROPIC, name) is None


@pytest.mark.parametrize(
    "name", ["gpt-banana", "gpt-4oo", "o9", "gpt-5-banana", "gpt-", "o3-", "ft:gpt-banana:a::b"]
)
def test_unknown_openai_models_are_not_found(name: str) -> None:
    assert find_model(Format.CHAT, name) is None
    assert find_model(Format.RESPONSES, name) is None


@pytest.mark.parametrize(
    ("api_format", "name"),
    [
        (Format.ANTHROPIC, "claude-opus-7"),
        (Format.ANTHROPIC, "claude-haiku-6-2-20270101"),
        (Format.CHAT, "gpt-8.2-mini"),
        (Format.CHAT, "ft:gpt-4o-mini-2024-07-18:acme::abc"),
    ],
)
def test_a_newer_version_of_a_known_family_is_accepted(api_format: Format, name: str) -> None:
    assert find_model(api_format, name) is not None


@pytest.mark.parametrize(
    ("name", "accepts_temperature"),
    [
        ("o3", False),
        ("gpt-5", False),
        ("gpt-5-mini-2025-08-07", False),
        ("gpt-5.1", True),
        ("gpt-5-chat-latest", True),
    ],
)
def test_only_some_models_accept_a_temperature(name: str, accepts_temperature: bool) -> None:
    model = find_model(Format.CHAT, name)

    assert model is not None
    assert model.samples is accepts_temperature
