"""Short sample records of sessions, turns, compactions, requests and traces."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from blake3 import blake3

from foveate.compaction.store import (
    ApplicationChange,
    ClearedBlock,
    Compaction,
    CompactionOutcome,
    EditDecision,
)
from foveate.model import CacheUsage, Format, Usage
from foveate.prompt_cache.placement.prefix_reuse import AgentReuse, ReuseRate
from foveate.session.store import ArchivedRequest, Session, Turn
from foveate.session.traces import CacheMiss, Trace, TracedEdit, WindowSection
from foveate.tokens.calibration import Calibration

AGENT = "ana"


def hash_word(word: object) -> bytes:
    return blake3(str(word).encode()).digest()


def message_hashes(name: str, first: int, end: int) -> list[bytes]:
    """Return the hashes of messages `first` to `end` of the conversation `name`."""
    return [hash_word((name, position)) for position in range(first, end)]


def make_turns(session_id: str, first: int, end: int) -> list[Turn]:
    chain = message_hashes(session_id, first, end)
    return [Turn(hash=tip, position=first + at, session_id=session_id) for at, tip in enumerate(chain)]


def make_session(id_: str, messages: int, *, seen_at: float = 100.0, parent: Session | None = None) -> Session:
    return Session(
        id=id_,
        agent=AGENT,
        tip=hash_word((id_, messages - 1)),
        messages=messages,
        created_at=100.0,
        seen_at=seen_at,
        parent_id=parent.id if parent else None,
        forked_at=parent.tip if parent else None,
    )


COMPACTION = Compaction(
    id="fold-1",
    agent=AGENT,
    session_id="s",
    boundary=hash_word(("s", 3)),
    messages=4,
    seen_messages=9,
    summary="They looked at src/main.py.",
    carried=("src/main.py", "port 8790"),
    tokens_before=9_000,
    tokens_after=700,
    model="claude-opus-5-5",
    cost=Decimal("0.012345678901234567890"),
    duration_seconds=2.5,
    outcome=CompactionOutcome.OK,
    compacted_at=200.0,
)
CLEARED_COMPACTION = replace(
    COMPACTION,
    id="fold-3",
    boundary=hash_word(("cleared", 3)),
    summary="",
    carried=(),
    cost=Decimal(0),
    outcome=CompactionOutcome.RESULTS_CLEARED,
    compacted_at=350.0,
    decision=EditDecision(
        moment="arrival",
        gain_dollars=0.5,
        cost_dollars=0.125,
        expected_requests=12.5,
        growth_tokens=800.0,
    ),
    cleared=(
        ClearedBlock(message=1, block=0, text="[cleared: \ud83d]", tokens=900, saved_tokens=880),
        ClearedBlock(message=3, block=2, text="[cleared: \x00]", tokens=400, saved_tokens=380),
    ),
)
MOVED_SECTIONS = replace(
    COMPACTION,
    id="move-1",
    boundary=hash_word(("moved", 8)),
    messages=9,
    summary="",
    carried=(),
    tokens_before=9_000,
    tokens_after=9_000,
    cost=Decimal(0),
    duration_seconds=0.0,
    outcome=CompactionOutcome.SECTIONS_MOVED,
    compacted_at=360.0,
    reason="4,000 tokens were added to workspace/MEMORY.md",
    decision=EditDecision(
        moment="arrival",
        gain_dollars=0.25,
        cost_dollars=0.03125,
        expected_requests=20.0,
        growth_tokens=800.0,
        saved_per_request_dollars=0.0108,
    ),
)
COMPACTED_MESSAGES = (
    b'{"role": "user", "content": "look"}',
    b'{"role":"assistant","content":"\\ud83d"}',
    b"\xff\x00",
    b"{}",
)

FAILED_COMPACTION = replace(
    COMPACTION,
    id="fold-2",
    boundary=b"",
    messages=0,
    summary="",
    carried=(),
    tokens_after=9_000,
    outcome=CompactionOutcome.FAILED,
    compacted_at=300.0,
    reason="529: overloaded\0\ud83d",
)
COMPACTION_USE = ApplicationChange(
    compaction_id=COMPACTION.id, last_hash=hash_word(("s", 8)), messages=9, is_applied=True
)
STORED_REQUEST = ArchivedRequest(
    id="req-1",
    agent=AGENT,
    session_id="s",
    format=Format.ANTHROPIC,
    provider="anthropic",
    model="claude-opus-5-5",
    at=400.0,
    status=200,
    usage=Usage(
        cache=CacheUsage(uncached=5, read=9_000, written_5m=40, written_1h=2),
        output_tokens=77,
        reasoning_tokens=7,
        tier="standard",
    ),
    request_body=b'{"model": "claude-opus-5-5", "messages": [], "max_tokens": 1}',
    original_body=b'{"model": "claude-opus-5-5", "messages": []}',
)

TRACE = Trace(
    id="call-1",
    agent=AGENT,
    session_id="s",
    provider="anthropic",
    model="claude-opus-5-5",
    at=400.0,
    status=200,
    tokens=34_650,
    exact=True,
    window_tokens=200_000,
    reserved_tokens=8_000,
    added_seconds=0.0021,
    sections=(WindowSection("system", 4_000), WindowSection("tool results", 30_650)),
    edits=(
        TracedEdit(step="cache", does="mark 1h", place="system[0]", reason="saves most", saved_tokens=3_600),
        TracedEdit(step="inject", does="insert", place="messages[9]", reason="section time", saved_tokens=-40),
    ),
    edits_left_out=3,
    problems=(("memory", "\N{SNOWMAN}: gone"),),
    compaction_id="fold-1",
    cache_miss=CacheMiss(
        cause="timestamp", where="system[0]", lost_tokens=3_000, lost_dollars=Decimal("0.0123")
    ),
)

REUSE = {"ana": AgentReuse({"system": ReuseRate(3.5, 2.5, 0.5)}, requests=7, balance=1_024.0, largest=4_096.0)}
CALIBRATIONS = {
    ("anthropic", "'claude-opus-9' offline 3 aa"): Calibration().observe(1_000, 1_300).observe(100, 120)
}


def make_compaction(
    id_: str, *, session_id: str = "s", boundary: bytes = COMPACTION.boundary, at: float = 200.0
) -> Compaction:
    return replace(COMPACTION, id=id_, session_id=session_id, boundary=boundary, compacted_at=at)


def compaction_ids(found: Sequence[Compaction]) -> list[str]:
    return [compaction.id for compaction in found]
