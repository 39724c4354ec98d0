"""Sessions, turns and folds to be kept, as short as a test can say them."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from blake3 import blake3

from foveate.cache.reuse import AgentReuse, Rate
from foveate.fold.journal import Fold, Outcome, Use
from foveate.session.requests import KeptRequest
from foveate.session.traces import CacheBreak, Trace, TracedEdit, WindowSection
from foveate.session.turns import Session, Turn
from foveate.tokens.calibration import Calibration
from foveate.values import CacheUsage, Format, Usage

AGENT = "ana"


def hashed(word: object) -> bytes:
    return blake3(str(word).encode()).digest()


def hashes(name: str, first: int, end: int) -> list[bytes]:
    """The hashes of the messages `first` to `end` of the conversation `name`."""
    return [hashed((name, position)) for position in range(first, end)]


def turns(session_id: str, first: int, end: int) -> list[Turn]:
    chain = hashes(session_id, first, end)
    return [Turn(hash=tip, position=first + at, session_id=session_id) for at, tip in enumerate(chain)]


def session(id_: str, messages: int, *, seen_at: float = 100.0, parent: Session | None = None) -> Session:
    return Session(
        id=id_,
        agent=AGENT,
        tip=hashed((id_, messages - 1)),
        messages=messages,
        created_at=100.0,
        seen_at=seen_at,
        parent_id=parent.id if parent else None,
        forked_at=parent.tip if parent else None,
    )


FOLD = Fold(
    id="fold-1",
    agent=AGENT,
    session_id="s",
    boundary=hashed(("s", 3)),
    messages=4,
    seen_messages=9,
    summary="They looked at src/main.py.",
    carried=("src/main.py", "port 8790"),
    tokens_before=9_000,
    tokens_after=700,
    model="claude-opus-5-5",
    cost=Decimal("0.012345678901234567890"),
    duration_seconds=2.5,
    outcome=Outcome.OK,
    compacted_at=200.0,
)
FOLDED = (
    b'{"role": "user", "content": "look"}',
    b'{"role":"assistant","content":"\\ud83d"}',
    b"\xff\x00",
    b"{}",
)

FAILED = replace(
    FOLD,
    id="fold-2",
    boundary=b"",
    messages=0,
    summary="",
    carried=(),
    tokens_after=9_000,
    outcome=Outcome.FAILED,
    compacted_at=300.0,
    reason="529: overloaded\0\ud83d",
)
USE = Use(fold_id=FOLD.id, tip=hashed(("s", 8)), messages=9, is_used=True)
REQUEST = KeptRequest(
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
    sent=b'{"model": "claude-opus-5-5", "messages": [], "max_tokens": 1}',
    came=b'{"model": "claude-opus-5-5", "messages": []}',
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
    fold_id="fold-1",
    broke=CacheBreak(cause="timestamp", where="system[0]", lost_tokens=3_000, lost_dollars=Decimal("0.0123")),
)

REUSE = {"ana": AgentReuse({"system": Rate(3.5, 2.5, 0.5)}, requests=7, balance=1_024.0, largest=4_096.0)}
LESSONS = {
    ("anthropic", "'claude-opus-9' offline 3 aa"): Calibration().observed(1_000, 1_300).observed(100, 120)
}


def fold(id_: str, *, session_id: str = "s", boundary: bytes = FOLD.boundary, at: float = 200.0) -> Fold:
    return replace(FOLD, id=id_, session_id=session_id, boundary=boundary, compacted_at=at)


def ids(found: Sequence[Fold]) -> list[str]:
    return [fold.id for fold in found]
