"""Counts of requests whose input the provider decides have no bound."""

from typing import Any

import pytest

import foveate


def chat(**fields: Any) -> foveate.RequestCount:
    messages = [{"role": "user", "content": "What is the weather?"}]
    return foveate.count_request({"model": "gpt-4o", "messages": messages, **fields})


@pytest.mark.parametrize(
    "model",
    [
        "groq/compound", "groq/compound-mini", "compound-beta", "@preset/support", "openai/gpt-4o:online",
        "openai/gpt-4o@preset/support",
    ],
)  # fmt: skip
def test_a_model_name_that_selects_a_provider_system_has_no_bound(model: str) -> None:
    count = chat(model=model)

    assert count.upper is None
    assert count.unexplained
    assert not count.total.exact


@pytest.mark.parametrize("model", ["openai/gpt-4o", "gpt-4o-online", "acme/compounder", "preset-1"])
def test_other_models_have_a_bound(model: str) -> None:
    assert chat(model=model).upper is not None


def test_a_preset_has_no_bound() -> None:
    assert chat(preset="support").upper is None
