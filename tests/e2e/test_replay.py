"""`foveate replay` as a user calls it, on recordings of agents."""

import gzip
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli import app
from foveate.replay.outcomes import Policy
from foveate.replay.recording_files import find_files, group_sessions
from foveate.replay.run import ReplayOptions, replay_sessions
from tests.support.processes.commands import ESCAPE, Outcome, on_terminal, spawn

ROOT = Path(__file__).parents[2]
SESSION = ROOT / "examples" / "session.jsonl"
LINES = SESSION.read_bytes().splitlines()


def run_replay(*arguments: str | Path, columns: int = 80) -> Outcome:
    """Run the command in this process, since loading prices takes a second in each new one."""
    result = CliRunner().invoke(
        app, [*map(str, arguments)], env={"COLUMNS": str(columns), "NO_COLOR": ""}, catch_exceptions=False
    )
    return Outcome(result.exit_code, result.stdout, result.stderr)


def replay_json(*arguments: str | Path) -> dict[str, Any]:
    """Return the JSON output of the command."""
    outcome = run_replay("replay", "--json", *arguments)
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert isinstance(report, dict)
    return report


@pytest.fixture(scope="module")
def replayed_recordings(shared_data: Path) -> dict[str, Any]:
    """All recordings, replayed once."""
    return replay_json(shared_data / "sessions")


def test_every_recorded_session_is_replayed(replayed_recordings: dict[str, Any]) -> None:
    assert not replayed_recordings["unread"]
    assert sum(session["calls"] for session in replayed_recordings["sessions"]) >= 900


def test_the_replayed_cost_is_within_three_percent_of_the_logged_cost(
    replayed_recordings: dict[str, Any],
) -> None:
    errors = {
        session["name"]: session["check"]["off"]
        for session in replayed_recordings["sessions"]
        if session["check"]
    }

    assert len(errors) >= 15
    assert {name: error for name, error in errors.items() if abs(error) > 0.03} == {}


def test_each_file_alone_matches_the_cost_in_its_own_log(shared_data: Path) -> None:
    options = ReplayOptions(policies=(Policy.RECORDED,))
    errors, logged_errors = {}, {}
    for file in sorted((shared_data / "sessions").rglob("*.jsonl.gz")):
        sessions, _ = group_sessions(find_files([file]).files)
        for session in replay_sessions(sessions, options, processes=1):
            for recording in session.replayed:
                errors[file.name] = recording.check.relative_error or 0.0
                if recording.check.reported is not None:
                    logged_errors[file.name] = float(recording.check.reported / recording.check.logged) - 1

    assert len(errors) >= 20
    assert {name: error for name, error in errors.items() if abs(error) > 0.03} == {}
    assert logged_errors
    assert {name: error for name, error in logged_errors.items() if abs(error) > 0.03} == {}


def test_a_session_is_shown_as_a_table_of_policies_and_a_check(run: Any) -> None:
    outcome = run("replay", SESSION)

    assert outcome.code == 0
    assert not outcome.err
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[2:11]] == [
        "recorded", "gateway", "gateway-compaction", "gateway-cost", "none", "markers", "markers-1h",
        "adaptive", "fold",
    ]  # fmt: skip
    assert "Through the gateway with its default configuration, this session would have cost" in outcome.out
    assert lines[-1].strip() == "client_breakpoints: replace"
    assert "check: $0.3498 by the recorded usage of 14 calls, $0.3498 simulated" in outcome.out
    assert "usage of the first call" in outcome.out
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_gets_short_lines() -> None:
    outcome = run_replay("replay", SESSION, columns=40)

    lines = outcome.out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "adaptive            $0.19  $0.1561   91%" in lines


@pytest.mark.process
def test_a_terminal_gets_colours_unless_they_are_disabled() -> None:
    assert ESCAPE + "[2m" in on_terminal("replay", str(SESSION))
    assert ESCAPE not in on_terminal("replay", str(SESSION), env={"NO_COLOR": "1"})


def test_only_the_requested_policies_are_shown() -> None:
    report = replay_json(SESSION, "--policy", "fold,adaptive")

    assert [total["policy"] for total in report["total"]] == ["adaptive", "fold"]
    assert float(report["total"][0]["saved_dollars"]) > 0.1


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(SESSION.read_bytes().replace(b"5e55a0de", b"77777777").replace(b"req_", b"reqq_"))

    assert replay_json(SESSION, other) == replay_json(other, SESSION)


def test_a_call_in_two_files_is_counted_once(tmp_path: Path) -> None:
    """A session that is resumed has the calls of the older one in its log too."""
    resumed = tmp_path / "resumed.jsonl"
    resumed.write_bytes(SESSION.read_bytes().replace(b'"sessionId": "5e55a0de', b'"sessionId": "77777777'))
    shutil.copy(SESSION, tmp_path / "a.jsonl")

    report = replay_json(tmp_path)

    assert sum(session["calls"] for session in report["sessions"]) == 14
    assert report["repeated_calls"] == 14


def test_all_recordings_in_a_folder_are_read_and_other_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with gzip.open(tmp_path / "deep" / "er" / "session.jsonl.gz", "wb") as file:
        file.write(SESSION.read_bytes())
    (tmp_path / "settings.json").write_text('{"theme": "dark"}')
    (tmp_path / "notes.txt").write_text("not a recording")

    outcome = run_replay("replay", tmp_path)

    assert outcome.code == 0, outcome.err
    assert "14 calls" in outcome.out
    assert "skipped 1 file: not recordings" in outcome.err


def test_an_invalid_line_is_reported_with_its_number_and_the_rest_is_replayed(tmp_path: Path) -> None:
    broken = tmp_path / "session.jsonl"
    broken.write_bytes(b"\n".join([*LINES[:5], b'{"type": "user", "mess', *LINES[5:], b"\xff\xfe"]) + b"\n")

    outcome = run_replay("replay", broken)

    assert outcome.code == 0
    assert "14 calls" in outcome.out
    assert f"{broken}:6:" in outcome.err
    assert f"{broken}:{len(LINES) + 2}:" in outcome.err


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}\n", b"no json at all", b"\x00\x01\x02", b"[1, 2, 3]"])
def test_a_file_with_nothing_to_replay_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(content)

    outcome = run_replay("replay", file)

    assert outcome.code == 2
    assert outcome.err.startswith("foveate: ")
    assert str(file) in outcome.err
    assert not outcome.out


def test_a_missing_file_is_an_error() -> None:
    outcome = run_replay("replay", "no-such-file.jsonl", "--json")

    assert outcome.code == 2
    assert "no-such-file.jsonl" in outcome.err
    assert json.loads(outcome.out)["error"]["code"] == "unreadable_input"


def test_a_named_file_that_is_not_a_recording_does_not_stop_the_others(tmp_path: Path) -> None:
    strange = tmp_path / "strange.json"
    strange.write_text('{"theme": "dark"}')

    outcome = run_replay("replay", SESSION, strange)

    assert outcome.code == 1
    assert "14 calls" in outcome.out
    assert "strange.json" in outcome.err


@pytest.mark.process
def test_a_recording_can_be_read_from_a_pipe(tmp_path: Path) -> None:
    for arguments in (["-"], ["/dev/stdin"], ["-", "-"]):
        outcome = spawn("replay", *arguments, "--json", "--policy", "recorded", stdin=SESSION.read_bytes())

        assert outcome.code == 0, outcome.err
        report = json.loads(outcome.out)
        assert [session["calls"] for session in report["sessions"]] == [14]
        assert report["repeated_calls"] == 0

    outcome = spawn("replay", "-", env={"TMPDIR": str(tmp_path)})
    assert outcome.code == 2
    assert "is empty" in outcome.err
    assert not list(tmp_path.iterdir())  # the temporary copy is deleted


@pytest.mark.process
def test_unreadable_input_is_reported_by_the_name_the_user_gave(tmp_path: Path) -> None:
    """Regression: it was reported by the name of a temporary file that no longer existed."""
    for name, expected in (("-", "standard input"), ("/dev/stdin", "/dev/stdin")):
        outcome = spawn("replay", name, stdin=b'{"a": 1}', env={"TMPDIR": str(tmp_path)})

        assert outcome.err.startswith(f"foveate: {expected}: is not a recording of a known format")
        assert str(tmp_path) not in outcome.err


def test_a_named_file_is_recognised_however_its_path_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "empty.jsonl").write_bytes(b"")

    outcome = run_replay("replay", f"{tmp_path}/./sub/../empty.jsonl")

    assert "is empty" in outcome.err


def test_an_error_for_a_forced_format_says_that_it_was_forced() -> None:
    outcome = run_replay("replay", SESSION, "--format", "pi")

    assert outcome.code == 2
    assert "in the format pi: leave out --format" in outcome.err


def test_a_model_of_unknown_price_is_named_and_can_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(SESSION.read_bytes().replace(b"claude-sonnet-4-6", b"nobody-knows-1"))

    outcome = run_replay("replay", file)

    assert outcome.code == 2
    assert "nobody-knows-1" in outcome.err
    assert "--model" in outcome.err
    assert run_replay("replay", file, "--model", "claude-sonnet-4-6").code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--policy", "best"), "adaptive"),
        (("--window", "0"), "--window"),
        (("--window", "-5"), "--window"),
        (("--model", " "), "--model"),
        (("--format", "word"), "claude-code"),
        (("--plot", "picture.gif"), ".html"),
    ],
)
def test_an_invalid_option_is_rejected_before_any_work(arguments: tuple[str, str], expected: str) -> None:
    outcome = run_replay("replay", SESSION, *arguments)

    assert outcome.code == 2
    assert expected in outcome.err
    assert not outcome.out


@pytest.mark.process  # Matplotlib lists the fonts of a new machine
def test_the_format_of_a_chart_follows_its_file_name(tmp_path: Path) -> None:
    for name, signature in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype html>")):
        outcome = run_replay("replay", SESSION, "--window", "22000", "--plot", tmp_path / name)
        assert outcome.code == 0, outcome.err
        assert (tmp_path / name).read_bytes().startswith(signature)

    page = (tmp_path / "a.html").read_text()
    assert '<svg role="img" aria-label=' in page
    assert "<table>" in page
    assert "http" not in page.split("</style>")[1].split("<svg")[0]
    assert "src=" not in page


def test_a_chart_that_cannot_be_written_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    outcome = run_replay("replay", SESSION, "--plot", tmp_path / "no" / "such" / "folder.png")

    assert outcome.code == 1
    assert "folder.png" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_many_sessions_are_shown_as_a_total_the_most_expensive_and_a_sum_per_model(tmp_path: Path) -> None:
    for number in range(5):
        text = SESSION.read_bytes().replace(b"5e55a0de", b"%08d" % number).replace(b"req_", b"r%d_" % number)
        (tmp_path / f"{number}.jsonl").write_bytes(
            text.replace(b"claude-sonnet-4-6", b"claude-opus-4-5") if number == 3 else text
        )

    outcome = run_replay("replay", tmp_path)

    assert "5 sessions, 70 calls" in outcome.out
    assert "model " in outcome.out
    assert outcome.out.count("check: ") == 1
    assert run_replay("replay", tmp_path, "--each").out.count("check: ") == 6


def test_an_archive_is_read_and_its_files_are_shown_by_their_names_in_it(tmp_path: Path) -> None:
    archive = tmp_path / "sessions.zip"
    with zipfile.ZipFile(archive, "w") as zip_file:
        zip_file.writestr("claude/session.jsonl", SESSION.read_bytes() + b'{"type": "user", "uu\n')
        zip_file.writestr("notes.txt", "not a recording")
        zip_file.writestr("../up.jsonl", SESSION.read_bytes())

    outcome = run_replay("replay", archive)

    assert outcome.code == 1
    assert "14 calls" in outcome.out
    assert f"skipped these files in archives: {archive}:notes.txt" in outcome.err
    assert f"{archive}:../up.jsonl: points outside the archive" in outcome.err
    assert f"{archive}:claude/session.jsonl:{len(LINES) + 1}: is truncated" in outcome.err


def test_the_gateway_is_replayed_with_its_configuration(tmp_path: Path) -> None:
    """The client sets all breakpoints it can, so only a smaller share of the window makes a difference."""
    config = tmp_path / "foveate.yaml"
    config.write_text("context_optimization:\n  compaction: {enabled: true, tail_keep_tokens: 1000}\n")

    report = replay_json(SESSION, "--config", config, "--window", "24000", "--policy", "recorded,gateway")

    assert report["configuration"] == str(config)
    assert [total["folds"] > 0 for total in report["total"]] == [False, True]
    assert report["conclusion"]["policy"] == "gateway"
    assert run_replay("replay", SESSION, "--config", tmp_path / "gone.yaml").code == 2
