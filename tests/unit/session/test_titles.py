"""Titles of sessions."""

from typing import Any

import pytest

from foveate import formats
from foveate.session.titles import find_opening_words, find_working_folder, make_session_title


@pytest.mark.parametrize(
    ("system", "first", "folder"),
    [
        (
            "# Environment\n - Primary working directory: /home/ana/garden\n - Platform: linux",
            "hi",
            "/home/ana/garden",
        ),
        ("<env>\nWorking directory: C:\\Users\\ana\n</env>", "hi", "C:\\Users\\ana"),
        ("", "<environment_context>\n  <cwd>/home/zoë</cwd>\n</environment_context>", "/home/zoë"),
        ("", "I'm currently working in the directory: /srv/app\n", "/srv/app"),
        ("You are helpful.", "hi", None),
    ],
)
def test_the_working_directory_is_read_from_the_request(system: str, first: str, folder: str | None) -> None:
    request = formats.parse_request(
        {"model": "m", "max_tokens": 1, "system": system, "messages": [user(first)]}
    )

    assert find_working_folder(request, 0) == folder


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Fix  the\nbug", "Fix the bug"),
        ([{"type": "text", "text": "<system-reminder>x"}, {"type": "text", "text": "Fix it"}], "Fix it"),
        ("word " * 50, ("word " * 50)[:59].rstrip() + "…"),
        ("<context/>", None),
        ([], None),
    ],
)
def test_opening_words_come_from_the_user(content: object, expected: str | None) -> None:
    request = formats.parse_request({"model": "m", "max_tokens": 1, "messages": [user(content)]})

    assert find_opening_words(request.messages) == expected


def test_a_title_contains_the_agent_the_folder_or_the_opening_words_and_the_time() -> None:
    titles = [
        make_session_title("codex", 0.0, "/a/garden/", "words"),
        make_session_title("codex", 60.0, None, "words"),
    ]

    assert titles == ["codex in garden, 1 Jan 00:00", "codex: words, 1 Jan 00:01"]
    assert make_session_title("codex", 0.0) == "codex, 1 Jan 00:00"
