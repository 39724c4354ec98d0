"""Sending a recorded session through a gateway to the sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest

from foveate.demo.recording import load_session
from foveate.demo.run import MovableClock, make_agent_options, run_session, temporary_folder
from foveate.errors import UnwritableFile

TOOL_CALL = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}


TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a line\n" * 2400}


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "AAAA"}


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "What is it? " * 200},
    {"role": "assistant", "content": [THINKING, TOOL_CALL]},
    {"role": "user", "content": [TOOL_RESULT]},
    {"role": "assistant", "content": "A file."},
    {"role": "user", "content": "And then? 🙂"},
    {"role": "assistant", "content": [THINKING]},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "It ends."},
]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "system": "Be brief.", "messages": MESSAGES}))
    return path


@pytest.mark.slow
async def test_the_provider_rejects_requests_that_foveate_makes_fit(recording: Path) -> None:
    """Real gateways and a real sandbox, with a session as short as possible."""
    session, progress = load_session(recording), list[int]()
    without_foveate = await run_session(
        session, is_on=False, window_tokens=6_000, report_progress=progress.append
    )
    with_foveate = await run_session(session, is_on=True, window_tokens=6_000)

    assert progress == [1, 2, 3, 4]
    assert (without_foveate.requests, without_foveate.failed, with_foveate.failed) == (4, 0, 0)
    assert without_foveate.refused > with_foveate.refused == 0
    assert without_foveate.answered + without_foveate.refused == 4
    assert (without_foveate.folds, without_foveate.edits, without_foveate.read) == (0, 0, 0)
    assert with_foveate.dollars is not None
    assert with_foveate.largest_context <= 6_000


def test_all_features_are_off_in_the_baseline() -> None:
    options = make_agent_options(is_on=False, window_tokens=9)

    assert (options.prompt_cache, options.compaction, options.token_counter) == (False, False, False)
    assert make_agent_options(is_on=True, window_tokens=8_000).compaction_options.tail_keep_tokens == 2_000


def test_a_moved_clock_keeps_running() -> None:
    clock = MovableClock()
    before = clock()
    clock.advance(900.0)

    assert 900.0 <= clock() - before < 960.0


def test_a_missing_temporary_folder_is_reported(tmp_path: Path) -> None:
    """Defect: standard output was blamed."""
    with pytest.raises(UnwritableFile, match=r"none.*TMPDIR"):
        temporary_folder(tmp_path / "none")
