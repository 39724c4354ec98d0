"""Where agents keep their logs, and which files there are logs."""

import os
from pathlib import Path

import pytest

from foveate.replay.local_logs import LogPlace, find_local_logs, list_log_files, list_log_places
from foveate.replay.recording import RecordingSource


def make_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def test_default_folders_of_all_agents_are_found(tmp_path: Path) -> None:
    for name in (
        ".config/claude/projects/-repo/a.jsonl",
        ".claude/projects/-repo/b.jsonl",
        ".codex/sessions/2026/11/01/rollout-1.jsonl",
        ".codex/archived_sessions/rollout-2.jsonl",
        ".gemini/tmp/hash/chats/session-1.json",
        ".qwen/projects/-repo/chats/1.jsonl",
        ".local/share/opencode/opencode.db",
        ".local/share/opencode/opencode-beta.db",
        ".local/share/opencode/storage/message/ses_1/msg_1.json",
        ".pi/agent/sessions/--repo--/1.jsonl",
    ):
        make_file(tmp_path / name)
    found = [
        (place.agent.value, str(place.path.relative_to(tmp_path))) for place in find_local_logs({}, tmp_path)
    ]
    assert found == [
        ("claude-code", ".config/claude/projects"),
        ("claude-code", ".claude/projects"),
        ("codex", ".codex/sessions"),
        ("codex", ".codex/archived_sessions"),
        ("gemini-cli", ".gemini/tmp"),
        ("qwen-code", ".qwen/projects"),
        ("opencode", ".local/share/opencode/opencode.db"),
        ("opencode", ".local/share/opencode/opencode-beta.db"),
        ("opencode", ".local/share/opencode/storage"),
        ("pi", ".pi/agent/sessions"),
    ]


def test_variables_of_the_agents_replace_the_defaults(tmp_path: Path) -> None:
    environ = {
        "CLAUDE_CONFIG_DIR": "/a, ~/b,/c/projects",
        "CODEX_HOME": "/codex",
        "GEMINI_CLI_HOME": "/gemini",
        "QWEN_HOME": "/qwen",
        "XDG_DATA_HOME": "/data",
        "OPENCODE_DB": "/db/mine.db",
        "PI_CODING_AGENT_DIR": "/pi",
    }
    assert [str(place.path) for place in list_log_places(environ, tmp_path)] == [
        "/a/projects",
        f"{tmp_path}/b/projects",
        "/c/projects",
        "/codex/sessions",
        "/codex/archived_sessions",
        "/gemini/.gemini/tmp",
        "/qwen/projects",
        "/qwen/tmp",
        "/db/mine.db",
        "/data/opencode/opencode.db",
        "/data/opencode/storage",
        "/pi/sessions",
    ]


def test_a_place_behind_a_link_is_found_once(tmp_path: Path) -> None:
    make_file(tmp_path / ".claude/projects/-repo/a.jsonl")
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/claude").symlink_to(tmp_path / ".claude")
    assert len(find_local_logs({}, tmp_path)) == 1


def test_nothing_is_found_in_an_empty_home(tmp_path: Path) -> None:
    assert find_local_logs({}, tmp_path) == []


def test_links_are_followed_but_loops_end(tmp_path: Path) -> None:
    inside = make_file(tmp_path / "projects/-repo/a.jsonl")
    make_file(tmp_path / "elsewhere/b.jsonl")
    (tmp_path / "projects/-repo/again").symlink_to(tmp_path / "projects")
    (tmp_path / "projects/linked").symlink_to(tmp_path / "elsewhere")
    place = LogPlace(RecordingSource.CLAUDE_CODE, tmp_path / "projects")
    assert list(list_log_files(place)) == [inside, tmp_path / "projects/linked/b.jsonl"]


def test_only_chats_of_gemini_cli_are_logs(tmp_path: Path) -> None:
    make_file(tmp_path / "hash/logs.json")
    make_file(tmp_path / "hash/checkpoints/1.json")
    chat = make_file(tmp_path / "hash/chats/session-1.json")
    assert list(list_log_files(LogPlace(RecordingSource.GEMINI_CLI, tmp_path))) == [chat]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can list every folder")
def test_a_folder_without_permission_is_reported(tmp_path: Path) -> None:
    secret = make_file(tmp_path / "secret/a.jsonl").parent
    secret.chmod(0)
    unreadable: list[Path] = []
    place = LogPlace(RecordingSource.CLAUDE_CODE, tmp_path)
    assert list(list_log_files(place, unreadable.append)) == []
    secret.chmod(0o700)
    assert unreadable == [secret]
