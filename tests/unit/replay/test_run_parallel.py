"""Sessions give the same in one process and in several, and a failure stops no other session."""

from pathlib import Path

import pytest

from foveate.replay.outcomes import Policy
from foveate.replay.recording import RecordingSource
from foveate.replay.recording_files import SessionFiles
from foveate.replay.run import ReplayOptions, SessionResult, replay_sessions

SESSION = Path(__file__).parents[3] / "examples" / "session.jsonl"
OPTIONS = ReplayOptions(policies=(Policy.RECORDED, Policy.ADAPTIVE))


@pytest.fixture
def sessions(tmp_path: Path) -> list[SessionFiles]:
    """Return four sessions, of which the last repeats the calls of the first, and one whose file is missing."""
    sessions = []
    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        content = SESSION.read_bytes().replace(b"5e55a0de", b"%08d" % number).replace(b"req_", b"r%d_" % number)
        path.write_bytes(content)
        sessions.append(SessionFiles(files=(path,), source=RecordingSource.CLAUDE_CODE))
    copy = tmp_path / "again.jsonl"
    copy.write_bytes(sessions[0].files[0].read_bytes())
    missing = SessionFiles(files=(tmp_path / "gone.jsonl",), source=RecordingSource.CLAUDE_CODE)
    return [*sessions, missing, SessionFiles(files=(copy,), source=RecordingSource.CLAUDE_CODE)]


def summarize_results(results: list[SessionResult]) -> list[object]:
    return [
        (result.session, [session.outcomes for session in result.replayed], result.repeated, result.error)
        for result in results
    ]


@pytest.mark.slow
@pytest.mark.process
def test_several_processes_give_the_same_as_one(sessions: list[SessionFiles]) -> None:
    sequential = list(replay_sessions(sessions, OPTIONS, processes=1))
    parallel = list(replay_sessions(sessions, OPTIONS, processes=2))

    assert summarize_results(parallel) == summarize_results(sequential)


def test_an_unreadable_session_is_reported_and_stops_no_other(sessions: list[SessionFiles]) -> None:
    results = list(replay_sessions(sessions, OPTIONS, processes=1))

    assert "gone.jsonl" in results[3].error
    assert [len(result.replayed) for result in results] == [1, 1, 1, 0, 1]


def test_calls_that_an_earlier_session_had_are_left_out_of_a_later_one(sessions: list[SessionFiles]) -> None:
    *_, repeated = replay_sessions(sessions, OPTIONS, processes=1)

    assert repeated.repeated == 14
    assert repeated.replayed[0].calls == 0


def test_every_byte_is_reported_as_progress_once(sessions: list[SessionFiles]) -> None:
    progress: list[int] = []
    list(replay_sessions(sessions, OPTIONS, processes=1, on_progress=progress.append))

    assert sum(progress) == sum(
        path.stat().st_size for session in sessions for path in session.files if path.is_file()
    )
