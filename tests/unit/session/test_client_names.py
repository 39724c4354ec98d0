"""Names that clients give their conversations."""

import json
from typing import Any

import pytest

from foveate.session.client_names import (
    MAX_ID_CHARS,
    NAME_SOURCES,
    ClientName,
    is_retry,
    read_client_name,
    user_agent_family,
)

UUID = "69247677-d38f-483f-bfd0-64031bf6f175"
OTHER = "01a1e839-98fd-7ae2-a076-f9193877cf5b"
THIRD = "c6fb3f7c-f341-47e8-b573-d93f2f39ec0d"


def read_name(headers: dict[str, str] | None = None, **body: Any) -> ClientName | None:
    return read_client_name(headers or {}, {name: json.dumps(value).encode() for name, value in body.items()})


CLAUDE = ClientName(source="claude-code", name=(UUID,))
CODEX = ClientName(source="codex", name=(UUID,), parent=(UUID,))
TURN = json.dumps({"session_id": UUID, "thread_id": UUID, "agent_name": "/root"})


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-claude-code-session-id": UUID}, {}, CLAUDE),
        ({}, {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": UUID})}}, CLAUDE),
        ({}, {"metadata": {"user_id": f"user_abc_account__session_{UUID}"}}, CLAUDE),
        (
            {"x-claude-code-session-id": UUID, "x-claude-code-agent-id": "a"},
            {},
            ClientName(source="claude-code", name=(UUID, "a"), parent=(UUID,)),
        ),
        (
            {
                "x-claude-code-session-id": UUID,
                "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "a",
            },
            {},
            ClientName(source="claude-code", name=(UUID, "b"), parent=(UUID, "a")),
        ),
        ({"session-id": UUID, "thread-id": UUID}, {}, CODEX),
        ({"x-codex-turn-metadata": TURN}, {}, CODEX),
        ({}, {"client_metadata": {"x-codex-turn-metadata": TURN}}, CODEX),
        ({}, {"client_metadata": {"session_id": UUID, "thread_id": UUID}}, CODEX),
        (
            {"session-id": UUID, "thread-id": OTHER},
            {},
            ClientName(source="codex", name=(OTHER,), parent=(UUID,)),
        ),
        (
            {"session-id": UUID, "thread-id": OTHER, "x-codex-parent-thread-id": THIRD},
            {},
            ClientName(source="codex", name=(OTHER,), parent=(THIRD,)),
        ),
        ({"x-session-id": "ses_1"}, {}, ClientName(source="session", name=("ses_1",))),
        ({"x-opencode-session": "ses_1"}, {}, ClientName(source="session", name=("ses_1",))),
        (
            {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"},
            {},
            ClientName(source="session", name=("ses_2",), parent=("ses_1",)),
        ),
        ({"session_id": "pi"}, {}, ClientName(source="session", name=("pi",))),
        ({}, {"conversation": "conv_1"}, ClientName(source="conversation", name=("conv_1",))),
        ({}, {"conversation": {"id": "conv_1"}}, ClientName(source="conversation", name=("conv_1",))),
    ],
)
def test_the_client_name_is_read_from_headers_and_body(
    headers: dict[str, str], body: dict[str, Any], expected: ClientName
) -> None:
    assert read_name(headers, **body) == expected


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {}),
        ({"x-session-id": ""}, {}),
        ({"x-session-id": "x" * (MAX_ID_CHARS + 1)}, {}),
        ({"x-codex-turn-metadata": "{" * 10_000}, {}),
        ({"x-codex-turn-metadata": '{"thread_id": 7}'}, {}),
        ({}, {"metadata": {"user_id": "somebody"}}),
        ({}, {"metadata": {"user_id": "{not json"}}),
        ({}, {"metadata": ["user_id"]}),
        ({}, {"conversation": 7}),
        ({}, {"client_metadata": "text"}),
    ],
)
def test_invalid_names_are_ignored(headers: dict[str, str], body: dict[str, Any]) -> None:
    assert read_name(headers, **body) is None


def test_session_ids_differ_by_agent_source_and_name() -> None:
    ids = [
        ClientName(source=source, name=("x",)).session_id(agent)
        for source in NAME_SOURCES
        for agent in ("a", "b")
    ]

    assert len(set(ids)) == len(ids)
    assert ClientName(source="codex", name=("a", "b")).session_id("x") != ClientName(
        source="codex", name=("ab",)
    ).session_id("x")


def test_a_session_is_not_its_own_parent() -> None:
    assert CODEX.parent_session_id("agent") is None


@pytest.mark.parametrize(
    ("user_agent", "family"),
    [
        ("claude-cli/2.1.197 (external, sdk-cli)", "claude-cli"),
        ("OpenAI/Python 3.3.0", "openai/python"),
        ("OpenAI/JS 6.1", "openai/js"),
        ("codex_exec/0.166.0 (Debian 12.0.0; aarch64) xterm", "codex_exec"),
        ("", ""),
        ("  ", ""),
        ("x" * 1_000, "x" * 128),
    ],
)
def test_a_program_is_identified_by_its_user_agent_without_version(user_agent: str, family: str) -> None:
    assert user_agent_family(user_agent) == family


def test_a_retry_is_recognized_by_the_retry_count() -> None:
    results = [
        is_retry(headers)
        for headers in ({}, {"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "2"})
    ]

    assert results == [False, False, True]
