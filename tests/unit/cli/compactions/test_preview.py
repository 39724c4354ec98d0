import json
import re

import pytest

from foveate.cli.compactions.preview import load_preview, preview_lines, preview_object
from foveate.cli.shared.console import Display
from foveate.compaction.boundary import compaction_threshold_tokens
from foveate.errors import BadOption
from foveate.model import Format
from foveate.session.store import ArchivedRequest
from foveate.session.traces import Trace
from foveate.store import Store

TURNS = [
    ("user", "Please set up the staging server for the team. RULE: never open port 22. The port is 8081."),
    ("assistant", "Done, the server is up and I wrote the notes about it for you."),
    ("user", "The port is 8090 now."),
    ("assistant", "Changed."),
    ("user", "And what is next?"),
]


async def save_request(store: Store) -> None:
    body = {
        "model": "gpt-4o",
        "max_tokens": 1_000,
        "messages": [{"role": role, "content": text} for role, text in TURNS],
    }
    request = ArchivedRequest(
        id="call-1",
        agent="ana",
        session_id="session-1",
        format=Format.CHAT,
        provider="openai",
        model="gpt-4o",
        at=1.0,
        status=200,
        request_body=json.dumps(body).encode(),
    )
    await store.request_archive.save(request)


@pytest.mark.parametrize("prefix", ["session-1", "sess", "call-1"])
async def test_the_newest_request_of_a_session_is_previewed(store: Store, prefix: str) -> None:
    await save_request(store)

    lines = list(preview_lines(await load_preview(store, prefix, 1), Display(columns=200)))

    assert lines[0] == "session session-1 of agent ana, gpt-4o"
    assert re.search(r"Messages 1 to 4 would be replaced: \d+ tokens by a summary of at most \d+\.", lines[2])
    assert lines[2].endswith("The other 1 message stays.")
    assert "  - RULE: never open port 22. (message 1, user)" in lines
    assert "  - The port is 8090 now. (message 3, user)" in lines
    assert lines[-2:] == [
        "No longer true, not carried",
        "  - The port is 8081. (message 1, user) Now: The port is 8090 now. (message 3, user)",
    ]


async def test_the_window_of_the_agent_counts(store: Store) -> None:
    await save_request(store)
    trace = Trace(
        id="call-1",
        agent="ana",
        session_id="session-1",
        provider="openai",
        model="gpt-4o",
        at=1.0,
        status=200,
        window_tokens=8_000,
        reserved_tokens=1_000,
    )
    without_trace = await load_preview(store, "session-1", 1)
    await store.traces.save([trace])

    found = await load_preview(store, "session-1", 1)

    assert without_trace.threshold_tokens == compaction_threshold_tokens(128_000, 1_000)
    assert found.threshold_tokens == compaction_threshold_tokens(8_000, 1_000)


async def test_a_short_session_says_that_nothing_would_be_replaced(store: Store) -> None:
    await save_request(store)

    found = await load_preview(store, "session-1", 20_000)

    assert any("Nothing would be replaced now" in line for line in preview_lines(found, Display(columns=200)))
    assert preview_object(found)["replaced_messages"] == []


async def test_an_unknown_session_names_the_setting_that_stores_requests(store: Store) -> None:
    with pytest.raises(BadOption, match="keep_requests"):
        await load_preview(store, "unknown", 0)
    with pytest.raises(BadOption, match="is missing"):
        await load_preview(store, "", 0)
