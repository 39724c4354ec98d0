"""`foveate replay` as a user calls it, on recordings that agents have left."""

import gzip
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli import app
from foveate.replay.parallel import replay_sessions
from foveate.replay.policies import Policy
from foveate.replay.recording_files import find_files, group_sessions
from foveate.replay.run import ReplayOptions
from tests.e2e.command import ESCAPE, Outcome, on_terminal, spawn

ROOT = Path(__file__).parents[2]
SESSION = ROOT / "examples" / "session.jsonl"
LINES = SESSION.read_bytes().splitlines()


def asked(*arguments: str | Path, columns: int = 80) -> Outcome:
    """What the command leaves behind, called in this process: loading prices takes a second in each."""
    result = CliRunner().invoke(
        app, [*map(str, arguments)], env={"COLUMNS": str(columns), "NO_COLOR": ""}, catch_exceptions=False
    )
    return Outcome(result.exit_code, result.stdout, result.stderr)


def told(*arguments: str | Path) -> dict[str, Any]:
    """What the command prints for programs."""
    outcome = asked("replay", "--json", *arguments)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> dict[str, Any]:
    """Everything that was recorded, replayed once."""
    return told(shared_data / "sessions")


def test_every_recorded_session_is_replayed(recorded: dict[str, Any]) -> None:
    assert not recorded["unread"]
    assert sum(session["calls"] for session in recorded["sessions"]) >= 900


def test_the_bill_of_what_was_done_is_within_three_percent_of_the_logged_one(recorded: dict[str, Any]) -> None:
    errors = {session["name"]: session["check"]["off"] for session in recorded["sessions"] if session["check"]}

    assert len(errors) >= 15
    assert {name: off for name, off in errors.items() if abs(off) > 0.03} == {}


def test_the_same_holds_for_each_file_alone_and_for_what_it_says_itself(shared_data: Path) -> None:
    options = ReplayOptions(policies=(Policy.RECORDED,))
    off, said = {}, {}
    for file in sorted((shared_data / "sessions").rglob("*.jsonl.gz")):
        read, _ = group_sessions(find_files([file]).files)
        for done in replay_sessions(read, options, processes=1):
            for one in done.replayed:
                off[file.name] = one.check.off or 0.0
                if one.check.said is not None:
                    said[file.name] = float(one.check.said / one.check.logged) - 1

    assert len(off) >= 20
    assert {name: error for name, error in off.items() if abs(error) > 0.03} == {}
    assert said
    assert {name: error for name, error in said.items() if abs(error) > 0.03} == {}


def test_a_session_is_a_table_of_policies_and_a_check(run: Any) -> None:
    outcome = run("replay", SESSION)

    assert outcome.code == 0
    assert not outcome.err
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[2:10]] == [
        "recorded", "gateway", "gateway-compaction", "none", "markers", "markers-1h", "adaptive", "fold"
    ]  # fmt: skip
    assert "With Foveate's defaults: the same cost." in lines
    assert lines[-1].strip() == "client_breakpoints: replace"
    assert "logged $0.3498, simulated $0.3498" in outcome.out
    assert "taken from the first" in outcome.out
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_has_it_in_short_lines() -> None:
    outcome = asked("replay", SESSION, columns=40)

    assert max(map(len, outcome.out.splitlines())) <= 84  # names of sessions and models stay whole
    assert "hit 76%" in outcome.out


@pytest.mark.process
def test_a_terminal_has_colours_unless_they_are_not_wanted() -> None:
    assert ESCAPE + "[2m" in on_terminal("replay", str(SESSION))
    assert ESCAPE not in on_terminal("replay", str(SESSION), env={"NO_COLOR": "1"})


def test_only_the_policies_that_are_asked_for_are_shown() -> None:
    found = told(SESSION, "--policy", "fold,adaptive")

    assert [one["policy"] for one in found["total"]] == ["adaptive", "fold"]
    assert float(found["total"][0]["saved_dollars"]) > 0.1


def test_order_of_files_does_not_matter(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(SESSION.read_bytes().replace(b"5e55a0de", b"77777777").replace(b"req_", b"reqq_"))

    assert told(SESSION, other) == told(other, SESSION)


def test_a_call_that_two_files_hold_is_counted_once(tmp_path: Path) -> None:
    """A session that is resumed has the calls of the older one in its log too."""
    resumed = tmp_path / "resumed.jsonl"
    resumed.write_bytes(SESSION.read_bytes().replace(b'"sessionId": "5e55a0de', b'"sessionId": "77777777'))
    shutil.copy(SESSION, tmp_path / "a.jsonl")

    found = told(tmp_path)

    assert sum(session["calls"] for session in found["sessions"]) == 14
    assert found["repeated_calls"] == 14


def test_a_folder_is_read_whole_and_what_is_no_recording_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with gzip.open(tmp_path / "deep" / "er" / "session.jsonl.gz", "wb") as file:
        file.write(SESSION.read_bytes())
    (tmp_path / "settings.json").write_text('{"theme": "dark"}')
    (tmp_path / "notes.txt").write_text("not a recording")

    outcome = asked("replay", tmp_path)

    assert outcome.code == 0, outcome.err
    assert "14 calls" in outcome.out
    assert "skipped: not recordings" in outcome.err


def test_a_broken_line_is_told_with_its_number_and_the_rest_goes_on(tmp_path: Path) -> None:
    broken = tmp_path / "session.jsonl"
    broken.write_bytes(b"\n".join([*LINES[:5], b'{"type": "user", "mess', *LINES[5:], b"\xff\xfe"]) + b"\n")

    outcome = asked("replay", broken)

    assert outcome.code == 0
    assert "14 calls" in outcome.out
    assert f"{broken}:6:" in outcome.err
    assert f"{broken}:{len(LINES) + 2}:" in outcome.err


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}\n", b"no json at all", b"\x00\x01\x02", b"[1, 2, 3]"])
def test_a_file_with_nothing_to_replay_is_an_error_that_says_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(content)

    outcome = asked("replay", file)

    assert outcome.code == 2
    assert outcome.err.startswith("foveate: ")
    assert str(file) in outcome.err
    assert not outcome.out


def test_a_file_that_is_not_there_is_an_error() -> None:
    outcome = asked("replay", "no-such-file.jsonl", "--json")

    assert outcome.code == 2
    assert "no-such-file.jsonl" in outcome.err
    assert json.loads(outcome.out)["error"]["code"] == "unreadable_input"


def test_a_named_file_that_is_no_recording_does_not_stop_the_others(tmp_path: Path) -> None:
    strange = tmp_path / "strange.json"
    strange.write_text('{"theme": "dark"}')

    outcome = asked("replay", SESSION, strange)

    assert outcome.code == 1
    assert "14 calls" in outcome.out
    assert "strange.json" in outcome.err


@pytest.mark.process
def test_a_recording_may_come_through_a_pipe(tmp_path: Path) -> None:
    for arguments in (["-"], ["/dev/stdin"], ["-", "-"]):
        outcome = spawn("replay", *arguments, "--json", "--policy", "recorded", stdin=SESSION.read_bytes())

        assert outcome.code == 0, outcome.err
        found = json.loads(outcome.out)
        assert [session["calls"] for session in found["sessions"]] == [14]
        assert found["repeated_calls"] == 0

    outcome = spawn("replay", "-", env={"TMPDIR": str(tmp_path)})
    assert outcome.code == 2
    assert "is empty" in outcome.err
    assert not list(tmp_path.iterdir())  # what was kept of it is gone


@pytest.mark.process
def test_what_comes_in_and_cannot_be_read_is_told_by_the_name_that_was_given(tmp_path: Path) -> None:
    """Defect: it was told by that of a file in a folder of Foveate's own, which was gone by then."""
    for name, said in (("-", "standard input"), ("/dev/stdin", "/dev/stdin")):
        outcome = spawn("replay", name, stdin=b'{"a": 1}', env={"TMPDIR": str(tmp_path)})

        assert outcome.err.startswith(f"foveate: {said}: is not a recording of a known format")
        assert str(tmp_path) not in outcome.err


def test_a_file_is_known_as_one_that_was_named_however_its_name_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "empty.jsonl").write_bytes(b"")

    outcome = asked("replay", f"{tmp_path}/./sub/../empty.jsonl")

    assert "is empty" in outcome.err


def test_a_forced_format_that_finds_nothing_says_that_it_was_forced() -> None:
    outcome = asked("replay", SESSION, "--format", "pi")

    assert outcome.code == 2
    assert "as pi; without --format" in outcome.err


def test_a_model_of_unknown_price_is_named_and_another_can_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(SESSION.read_bytes().replace(b"claude-sonnet-4-6", b"nobody-knows-1"))

    outcome = asked("replay", file)

    assert outcome.code == 2
    assert "nobody-knows-1" in outcome.err
    assert "--model" in outcome.err
    assert asked("replay", file, "--model", "claude-sonnet-4-6").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "best"), "adaptive"),
        (("--window", "0"), "--window"),
        (("--window", "-5"), "--window"),
        (("--model", " "), "--model"),
        (("--format", "word"), "claude-code"),
        (("--plot", "picture.gif"), ".html"),
    ],
)
def test_an_impossible_option_is_refused_before_any_work(arguments: tuple[str, str], said: str) -> None:
    outcome = asked("replay", SESSION, *arguments)

    assert outcome.code == 2
    assert said in outcome.err
    assert not outcome.out


def test_a_picture_is_drawn_as_what_its_name_says(tmp_path: Path) -> None:
    for name, begins in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype html>")):
        outcome = asked("replay", SESSION, "--window", "22000", "--plot", tmp_path / name)
        assert outcome.code == 0, outcome.err
        assert (tmp_path / name).read_bytes().startswith(begins)

    page = (tmp_path / "a.html").read_text()
    assert '<svg role="img" aria-label=' in page
    assert "<table>" in page
    assert "http" not in page.split("</style>")[1].split("<svg")[0]
    assert "src=" not in page


def test_a_picture_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = asked("replay", SESSION, "--plot", tmp_path / "no" / "such" / "folder.png")

    assert outcome.code == 1
    assert "folder.png" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_many_sessions_are_a_total_the_dearest_and_what_each_model_comes_to(tmp_path: Path) -> None:
    for number in range(5):
        text = SESSION.read_bytes().replace(b"5e55a0de", b"%08d" % number).replace(b"req_", b"r%d_" % number)
        (tmp_path / f"{number}.jsonl").write_bytes(
            text.replace(b"claude-sonnet-4-6", b"claude-opus-4-5") if number == 3 else text
        )

    outcome = asked("replay", tmp_path)

    assert "5 sessions, 70 calls" in outcome.out
    assert "by model" in outcome.out
    assert outcome.out.count("logged") == 1
    assert asked("replay", tmp_path, "--each").out.count("logged") == 6


def test_an_archive_is_read_and_its_files_have_their_names_in_it(tmp_path: Path) -> None:
    archive = tmp_path / "sessions.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("claude/session.jsonl", SESSION.read_bytes() + b'{"type": "user", "uu\n')
        made.writestr("notes.txt", "not a recording")
        made.writestr("../up.jsonl", SESSION.read_bytes())

    outcome = asked("replay", archive)

    assert outcome.code == 1
    assert "14 calls" in outcome.out
    assert f"skipped in archives: {archive}:notes.txt" in outcome.err
    assert f"{archive}:../up.jsonl: leads out of the archive" in outcome.err
    assert f"{archive}:claude/session.jsonl:{len(LINES) + 1}: is cut off" in outcome.err


def test_the_gateway_is_replayed_as_it_is_configured(tmp_path: Path) -> None:
    """The client marks all that it can, so that only a smaller share of the window makes a difference."""
    config = tmp_path / "foveate.yaml"
    config.write_text("context_optimization:\n  compaction: {enabled: true, tail_keep_tokens: 1000}\n")

    found = told(SESSION, "--config", config, "--window", "24000", "--policy", "recorded,gateway")

    assert found["configuration"] == str(config)
    assert [one["folds"] > 0 for one in found["total"]] == [False, True]
    assert found["conclusion"]["policy"] == "gateway"
    assert asked("replay", SESSION, "--config", tmp_path / "gone.yaml").code == 2
