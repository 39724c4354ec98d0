"""Models of a conversation: which can be used, in which format, and which is the default."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from foveate.chat.models import LOCAL_WINDOW_TOKENS, ChatConfig
from foveate.config.load import LocalModel, ServeFlags
from foveate.errors import BadOption
from foveate.gateway.server.serve import load_live_config
from foveate.model import Format

LOCAL = LocalModel(base_url="http://127.0.0.1:1", model="SmolLM2-135M-Instruct")
OWN = "upstreams: {mine: {base_url: 'http://127.0.0.1:2/v1', api: openai}}\n"


def make_config(
    tmp_path: Path, keys: Mapping[str, str], text: str = "", *, local: LocalModel | None = None
) -> ChatConfig:
    path = tmp_path / "foveate.yaml"
    path.write_text(text or "# all by default\n")
    live = load_live_config(path, keys, ServeFlags(local=local))
    return ChatConfig(lambda: live.current().value)


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        ({}, "", "local"),
        ({"OPENAI_API_KEY": "k"}, "", "gpt-5.4"),
        ({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "", "claude-sonnet-5-5"),
        ({"DEEPSEEK_API_KEY": "k"}, "", "deepseek-chat"),
        (
            {"OPENAI_API_KEY": "k"},
            f"{OWN}routes: [{{models: 'q*', upstream: mine}}, {{models: q, upstream: mine}}]",
            "q",
        ),
    ],
)
def test_the_default_model_comes_from_a_route_or_a_key_or_is_local(
    tmp_path: Path, keys: dict[str, str], text: str, expected: str
) -> None:
    assert make_config(tmp_path, keys, text).default_model() == expected


@pytest.mark.parametrize(
    ("keys", "text", "message"),
    [
        ({"OPENROUTER_API_KEY": "k"}, "", "--model openrouter/NAME"),
        ({}, f"{OWN}routes: [{{models: '*', upstream: mine}}]", "--model NAME"),
    ],
)
def test_without_an_obvious_model_the_user_must_name_one(
    tmp_path: Path, keys: dict[str, str], text: str, message: str
) -> None:
    with pytest.raises(BadOption, match=message):
        make_config(tmp_path, keys, text).default_model()


def test_a_model_is_used_in_the_format_of_its_upstream(tmp_path: Path) -> None:
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "DEEPSEEK_API_KEY": "d"}
    config = make_config(tmp_path, keys, OWN, local=LOCAL)
    upstream_and_format_by_model = {
        name: (config.select_model(name).upstream.name, config.select_model(name).api_format)
        for name in ("claude-opus-5-5", "gpt-4o", "deepseek-chat", "mine/x/y", "local", "mine/[odd]*")
    }

    assert upstream_and_format_by_model == {
        "claude-opus-5-5": ("anthropic", Format.ANTHROPIC),
        "gpt-4o": ("openai", Format.CHAT),
        "deepseek-chat": ("deepseek", Format.CHAT),
        "mine/x/y": ("mine", Format.CHAT),
        "local": ("local", Format.CHAT),
        "mine/[odd]*": ("mine", Format.CHAT),
    }


def test_a_conversations_route_matches_only_its_model(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"OPENAI_API_KEY": "o"}, OWN)
    config.select_model("mine/x*")
    routes = config.current_config().gateway.routing.routes
    config.select_model("gpt-4o")

    assert [(route.models, route.model) for route in routes] == [("mine/x[*]", "x*")]
    assert config.current_config().gateway.routing.routes == []


def test_the_local_model_has_its_own_window(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"OPENAI_API_KEY": "o"}, local=LOCAL)
    config.select_model("local")
    local = config.current_config().agents("default").window_tokens
    config.select_model("gpt-4o")

    assert local == LOCAL_WINDOW_TOKENS
    assert config.current_config().agents("default").window_tokens is None
    assert config.has_local
    assert config.list_models() == ["local", LOCAL.model, "gpt-5.4"]


def test_compaction_applies_once_it_is_requested(tmp_path: Path) -> None:
    config = make_config(tmp_path, {})
    before = config.current_config().agents("default").compaction
    config.enable_compaction()

    assert (before, config.current_config().agents("default").compaction) == (False, True)


def test_selecting_an_unavailable_model_changes_nothing(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"OPENAI_API_KEY": "o"})
    config.select_model("gpt-4o")
    errors = {
        "claude-opus-5-5": "ANTHROPIC_API_KEY",
        "opnerouter/x": "there is no upstream 'opnerouter'",
        "": "needs a name",
        "a\x1b": "needs a name",
    }
    for name, message in errors.items():
        with pytest.raises(BadOption, match=message):
            config.select_model(name)

    assert config.current_config().gateway.routing.routes == []


def test_models_of_a_custom_server_may_contain_slashes(tmp_path: Path) -> None:
    config = make_config(tmp_path, {}, "upstreams: {openai: {base_url: 'http://127.0.0.1:3/v1'}}\n")

    assert config.select_model("meta-llama/Llama-3").upstream.name == "openai"
