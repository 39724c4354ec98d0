"""Cache keys, by which automatic caches recognise the requests of a session."""

import json

import pytest

from foveate import formats
from foveate.engine.steps.cache import cache_key_headers, derive_cache_key, set_cache_key
from foveate.model import Format
from foveate.prompt_cache.rules import rules_for


def make_body(**fields: object) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def test_a_request_gets_the_key_of_its_session() -> None:
    request = formats.parse_request(make_body())
    edit = set_cache_key(request, rules_for("gpt-4o"), "ana/1")
    assert edit is not None
    assert json.loads(formats.apply_edits(request, [edit]))["prompt_cache_key"] == derive_cache_key("ana/1")


def test_sessions_have_keys_of_their_own_that_do_not_reveal_their_names() -> None:
    assert derive_cache_key("ana/1") == derive_cache_key("ana/1") != derive_cache_key("ana/2")
    assert "ana" not in derive_cache_key("ana/1")


@pytest.mark.parametrize("key", ["mine", "", None])
def test_a_key_set_by_the_client_is_kept(key: str | None) -> None:
    assert (
        set_cache_key(formats.parse_request(make_body(prompt_cache_key=key)), rules_for("gpt-4o"), "ana/1")
        is None
    )


def test_only_providers_that_accept_a_key_get_one() -> None:
    assert set_cache_key(formats.parse_request(make_body()), rules_for("claude-sonnet-4-5"), "ana/1") is None
    assert cache_key_headers(rules_for("claude-sonnet-4-5"), "ana/1") == {}
    assert cache_key_headers(rules_for("grok-4"), "ana/1") == {"x-grok-conv-id": derive_cache_key("ana/1")}
    assert (
        set_cache_key(formats.parse_request(make_body()), rules_for("mistral-large-latest"), "ana/1")
        is not None
    )


@pytest.mark.parametrize("model", ["gpt-4o", "azure_ai/claude-opus-4-6", "claude-opus-4-6"])
@pytest.mark.parametrize("provider", [None, "openai", "azure"])
def test_a_body_of_another_format_gets_no_key(model: str, provider: str | None) -> None:
    anthropic = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    gemini = {"model": model, "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}

    for api_format, body in ((Format.ANTHROPIC, anthropic), (Format.GEMINI, gemini)):
        assert (
            set_cache_key(formats.parse_request(body, api_format), rules_for(model, provider), "ana/1") is None
        )


def test_azure_accepts_the_keys_of_openai_and_gets_no_others() -> None:
    assert set_cache_key(formats.parse_request(make_body()), rules_for("azure/gpt-4o"), "ana/1") is not None
    assert (
        set_cache_key(formats.parse_request(make_body()), rules_for("azure_ai/mistral-large-latest"), "ana/1")
        is None
    )
    assert (
        set_cache_key(formats.parse_request(make_body()), rules_for("azure_ai/claude-opus-4-6"), "ana/1")
        is None
    )
    assert cache_key_headers(rules_for("azure_ai/grok-4"), "ana/1") == {}
