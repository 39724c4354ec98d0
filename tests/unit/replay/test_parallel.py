"""Sessions give the same in one process and in several, and a failure stops no other session."""

from pathlib import Path

import pytest

from foveate.replay.parallel import SessionResult, make_batches, replay_sessions
from foveate.replay.policies import Policy
from foveate.replay.recording import RecordingSource
from foveate.replay.recording_files import SessionFiles
from foveate.replay.run import ReplayOptions

SESSION = Path(__file__).parents[3] / "examples" / "session.jsonl"
OPTIONS = ReplayOptions(policies=(Policy.RECORDED, Policy.ADAPTIVE))


@pytest.fixture
def sessions(tmp_path: Path) -> list[SessionFiles]:
    """Four sessions, of which the last repeats the calls of the first, and one whose file is missing."""
    found = []
    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        told = SESSION.read_bytes().replace(b"5e55a0de", b"%08d" % number).replace(b"req_", b"r%d_" % number)
        path.write_bytes(told)
        found.append(SessionFiles(files=(path,), source=RecordingSource.CLAUDE_CODE))
    again = tmp_path / "again.jsonl"
    again.write_bytes(found[0].files[0].read_bytes())
    gone = SessionFiles(files=(tmp_path / "gone.jsonl",), source=RecordingSource.CLAUDE_CODE)
    return [*found, gone, SessionFiles(files=(again,), source=RecordingSource.CLAUDE_CODE)]


def told(done: list[SessionResult]) -> list[object]:
    return [
        (one.session, [session.outcomes for session in one.replayed], one.repeated, one.error) for one in done
    ]


@pytest.mark.slow
@pytest.mark.process
def test_several_processes_give_the_same_as_one(sessions: list[SessionFiles]) -> None:
    alone = list(replay_sessions(sessions, OPTIONS, processes=1))
    together = list(replay_sessions(sessions, OPTIONS, processes=2))

    assert told(together) == told(alone)


def test_an_unreadable_session_is_reported_and_stops_no_other(sessions: list[SessionFiles]) -> None:
    done = list(replay_sessions(sessions, OPTIONS, processes=1))

    assert "gone.jsonl" in done[3].error
    assert [len(one.replayed) for one in done] == [1, 1, 1, 0, 1]


def test_calls_that_an_earlier_session_had_are_left_out_of_a_later_one(sessions: list[SessionFiles]) -> None:
    *_, again = replay_sessions(sessions, OPTIONS, processes=1)

    assert again.repeated == 14
    assert again.replayed[0].calls == 0


def test_every_byte_is_reported_as_progress_once(sessions: list[SessionFiles]) -> None:
    heard: list[int] = []
    list(replay_sessions(sessions, OPTIONS, processes=1, on_progress=heard.append))

    assert sum(heard) == sum(path.stat().st_size for one in sessions for path in one.files if path.is_file())


def test_the_longest_go_first_and_short_ones_together() -> None:
    long, longer, short = 300_000, 9_000_000, 100_000

    assert make_batches([short, long, short, longer, short, short]) == [(3,), (1,), (0, 2, 4), (5,)]
    assert make_batches([]) == []


def test_every_session_is_in_one_batch_however_small_they_are() -> None:
    found = make_batches([0] * 100)

    assert sorted(number for batch in found for number in batch) == list(range(100))
    assert max(map(len, found)) <= 32
