"""A store like that of a busy gateway after a month, to measure pages on.

The gateway's own code creates the rows and adds them to the totals; they are written in bulk.
"""

import asyncio
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from msgspec.structs import replace

from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Call, Category, Charge
from foveate.cost.money import to_dollars, to_picodollars
from foveate.cost.savings import make_own_call_savings
from foveate.model import CacheUsage, Usage
from foveate.session.client_names import derive_session_id
from foveate.session.traces import CacheMiss, Trace, TracedEdit, WindowSection
from foveate.store import open_store
from foveate.store.repositories.ledger_rows import LEDGER_COLUMNS, to_ledger_row
from foveate.store.repositories.rollups import add_charges, add_requests
from foveate.store.repositories.traces import TRACE_COLUMNS, to_totals_delta, to_trace_row
from foveate.store.retention import MAX_TRACES
from foveate.store.sqlite import SQLiteTransaction
from tests.support.stores.templates import create_tables

DAYS = 30
_DAY_SECONDS = 86_400.0
_BATCH_ROWS = 20_000
_SYSTEM_TOKENS, _FIRST_TOKENS, _GROWTH_TOKENS = 10_000, 14_000, 1_450
_WINDOW_TOKENS, _COMPACT_AT_TOKENS, _COMPACTED_TOKENS = 200_000, 140_000, 31_000
_COMPACTION_TURN = (_COMPACT_AT_TOKENS - _FIRST_TOKENS) // _GROWTH_TOKENS
_COMPACTED_EVERY = 8
"""Of so many sessions that come to that turn one is folded."""
_KEEPALIVE_SHARE, _MISS_SHARE, _FAILED_SHARE, _UNPRICED_SHARE = 0.02, 0.03, 0.01, 0.004
_DOLLARS_PER_LOST_TOKEN = Decimal("0.0000045")

# Agents, their models and their shares; prices in picodollars: uncached, read, written, output.
_AGENTS = (
    ("support", "claude-sonnet-5", 30),
    ("coder", "claude-opus-5-5", 24),
    ("review", "claude-opus-5-5", 14),
    ("search", "gpt-5.6-mini", 9),
    ("ana", "claude-sonnet-5", 7),
    ("reports", "gpt-5.6", 5),
    ("translate", "gpt-5.6-mini", 4),
    ("triage", "claude-haiku-5", 3),
    ("data", "claude-sonnet-5", 2),
    ("mail", "claude-haiku-5", 1),
    ("nightly", "gpt-5.6", 1),
)
_PRICES = {
    "claude-opus-5-5": (5_000_000, 500_000, 6_250_000, 25_000_000),
    "claude-sonnet-5": (3_000_000, 300_000, 3_750_000, 15_000_000),
    "claude-haiku-5": (1_000_000, 100_000, 1_250_000, 5_000_000),
    "gpt-5.6": (1_250_000, 125_000, 1_250_000, 10_000_000),
    "gpt-5.6-mini": (250_000, 25_000, 250_000, 2_000_000),
}
_SUMMARISER = "claude-haiku-5"
_RAW = (
    b'{"input_tokens":12,"cache_read_input_tokens":34000,"cache_creation_input_tokens":560,"output_tokens":900}'
)
_EDITS = (
    TracedEdit(step="cache", does="mark 1h", place="tools[11]", reason="read by every request of the agent"),
    TracedEdit(step="cache", does="mark 5m", place="messages[41] block 0", reason="read by the next request"),
    TracedEdit(step="inject", does="insert", place="messages[42]", reason="section time", saved_tokens=-38),
)
_MISS_CAUSES = (
    ("a timestamp in the system prompt", "system[0]"),
    ("a tool was changed", "tools[4]"),
    ("it was older than its time", ""),
)


@dataclass(frozen=True, slots=True)
class _GeneratedSession:
    id: str
    agent: str
    model: str
    times: Sequence[float]
    is_compacted: bool

    @property
    def tip(self) -> bytes:
        return bytes.fromhex(self.id)


def fill_store(url: str, sessions: int = 10_000, rows: int = 1_000_000, *, now: float | None = None) -> None:
    """Fill the new SQLite store at `url` with this many sessions, whose calls are this many rows.

    They cover the 30 days up to `now`, with traces of the newest 500,000 requests, and compactions.
    """
    path = Path(url.removeprefix("sqlite:///"))
    until = time.time() if now is None else now
    chance = random.Random(7)  # the same store each time
    create_tables(url)
    made = _sessions(chance, sessions, rows, until)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("synchronous = OFF", "cache_size = -400000", "journal_mode = OFF"):
            connection.execute(f"PRAGMA {statement}")
        connection.execute("BEGIN")
        _write(connection, made, chance)
        connection.execute("COMMIT")
    asyncio.run(_record_compactions(url, [session for session in made if session.is_compacted]))


async def _record_compactions(url: str, compacted: Iterable[_GeneratedSession]) -> None:
    async with await open_store(url) as store:
        for compaction in map(_make_compaction, compacted):
            await store.compactions.record(compaction, _messages(compaction), lease=None)


def _sessions(chance: random.Random, number: int, rows: int, until: float) -> list[_GeneratedSession]:
    """Return this many sessions with a total of `rows` calls; some have ten times as many as others."""
    weights = [chance.paretovariate(1.6) for _ in range(number)]
    whole = sum(weights)
    sizes = [max(1, int(rows * weight / whole)) for weight in weights]
    sizes[0] += max(0, rows - sum(sizes))
    found = []
    for at, size in enumerate(sizes):
        ((agent, model, _share),) = chance.choices(_AGENTS, [share for *_, share in _AGENTS])
        gaps = [chance.expovariate(1 / 45.0) for _ in range(size)]
        began = until - chance.random() * DAYS * _DAY_SECONDS
        if began + sum(gaps) > until:  # still active
            began = max(until - DAYS * _DAY_SECONDS, until - sum(gaps))
        times = []
        for gap in gaps:
            began = min(began + gap, until)
            times.append(began)
        id_ = derive_session_id("first", agent, str(at))
        found.append(
            _GeneratedSession(id_, agent, model, times, at % _COMPACTED_EVERY == 0 and size > _COMPACTION_TURN)
        )
    return found


def _write(connection: sqlite3.Connection, made: Sequence[_GeneratedSession], chance: random.Random) -> None:
    order = sorted(
        (at, number, turn) for number, session in enumerate(made) for turn, at in enumerate(session.times)
    )
    first_traced = len(order) - MAX_TRACES
    ledger_values = ", ".join("?" * (LEDGER_COLUMNS.count(",") + 2))
    insert_charges = f"INSERT INTO ledger_v1 (day, {LEDGER_COLUMNS}) VALUES ({ledger_values})"
    insert_traces = (
        f"INSERT INTO traces_v1 ({TRACE_COLUMNS}) VALUES ({', '.join('?' * (TRACE_COLUMNS.count(',') + 1))})"
    )
    rows = SQLiteTransaction(connection)
    spent: Counter[str] = Counter()
    for first in range(0, len(order), _BATCH_ROWS):
        charge_rows, trace_rows, additions = [], [], []
        for place, (at, number, turn) in enumerate(order[first : first + _BATCH_ROWS], start=first):
            entry = _make_charge(made[number], turn, at, chance)
            charge_rows.append(to_ledger_row(entry))
            amount = to_picodollars(entry.dollars or Decimal(0))
            spent.update(dict.fromkeys(list_accounts(entry.call), amount))
            if place >= first_traced and entry.call.category is Category.MAIN:
                trace = _make_trace(made[number], turn, entry, chance)
                trace_rows.append(to_trace_row(trace))
                additions.append(to_totals_delta(trace, trace_rows[-1]))
        connection.executemany(insert_charges, charge_rows)
        connection.executemany(insert_traces, trace_rows)
        add_charges(rows, charge_rows)
        add_requests(rows, additions)
    connection.executemany("INSERT INTO accounts_v1 (name, spent, reserved) VALUES (?, ?, 0)", spent.items())
    connection.executemany(
        "INSERT INTO sessions_v1 (id, agent, tip, messages, created_at, seen_at) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (
                session.id,
                session.agent,
                session.tip,
                2 * len(session.times),
                session.times[0],
                session.times[-1],
            )
            for session in made
        ),
    )


def _make_charge(session: _GeneratedSession, turn: int, at: float, chance: random.Random) -> Charge:
    category = Category.PING if chance.random() < _KEEPALIVE_SHARE else Category.MAIN
    model = session.model
    if session.is_compacted and turn == _COMPACTION_TURN:
        category, model = Category.COMPACTION, _SUMMARISER
    tokens, before = _tokens(session, turn), _tokens(session, turn - 1) if turn else 0
    if chance.random() < _MISS_SHARE or before > tokens:
        before = min(before, _SYSTEM_TOKENS)
    cache = CacheUsage(uncached=12, read=before, written_5m=max(0, tokens - before - 12))
    output = 1 if category is Category.PING else chance.randrange(40, 1_800)
    uncached, read, written, out = _PRICES[model]
    amount = 12 * uncached + before * read + cache.written_5m * written + output * out
    saved = before * (uncached - read) - cache.written_5m * (written - uncached)
    compaction_savings = (
        (_COMPACT_AT_TOKENS - _COMPACTED_TOKENS) * read
        if session.is_compacted and turn > _COMPACTION_TURN
        else 0
    )
    price = None if chance.random() < _UNPRICED_SHARE else to_dollars(amount)
    call = Call(
        id=f"{chance.getrandbits(128):032x}",
        agent=session.agent,
        session_id=session.id,
        provider="openai" if model.startswith("gpt") else "anthropic",
        model=model,
        category=category,
        at=at,
    )
    savings = make_own_call_savings(call, price)
    if category is Category.MAIN and price is not None:
        savings = replace(
            savings,
            without=to_dollars(amount + saved + compaction_savings),
            breakpoints=to_dollars(saved),
            compaction=to_dollars(compaction_savings),
        )
    return Charge(
        call=call,
        usage=Usage(cache=cache, output_tokens=output, raw=_RAW),
        dollars=price,
        estimated_input_tokens=tokens,
        estimated_dollars=to_dollars(2 * amount),
        savings=savings,
    )


def _make_trace(session: _GeneratedSession, turn: int, entry: Charge, chance: random.Random) -> Trace:
    tokens = _tokens(session, turn)
    summary = 2_400 if session.is_compacted and turn > _COMPACTION_TURN else 0
    message_tokens = tokens - _SYSTEM_TOKENS - summary
    sizes = {
        "system": 3_800,
        "tools": _SYSTEM_TOKENS - 3_800,
        "summary": summary,
        "user": message_tokens // 9,
        "assistant": message_tokens // 4,
        "tool results": message_tokens - message_tokens // 9 - message_tokens // 4,
    }
    has_broken = bool(turn) and entry.usage.cache.read <= _SYSTEM_TOKENS
    return Trace(
        id=entry.call.id,
        agent=session.agent,
        session_id=session.id,
        provider=entry.call.provider,
        model=entry.call.model,
        at=entry.call.at + 0.002,
        status=529 if chance.random() < _FAILED_SHARE else 200,
        tokens=tokens,
        exact=True,
        window_tokens=_WINDOW_TOKENS,
        reserved_tokens=8_000,
        added_seconds=0.001 + chance.expovariate(1_000),
        sections=tuple(WindowSection(name, size) for name, size in sizes.items() if size),
        edits=_EDITS,
        compaction_id=_compaction_id(session) if summary else None,
        cache_miss=_make_cache_miss(tokens, chance) if has_broken else None,
    )


def _make_cache_miss(tokens: int, chance: random.Random) -> CacheMiss:
    cause, where = chance.choice(_MISS_CAUSES)
    lost = tokens - _SYSTEM_TOKENS
    return CacheMiss(cause=cause, where=where, lost_tokens=lost, lost_dollars=lost * _DOLLARS_PER_LOST_TOKEN)


def _tokens(session: _GeneratedSession, turn: int) -> int:
    """Return the tokens in the window at a turn: they grow, and start over after a compaction."""
    if session.is_compacted and turn > _COMPACTION_TURN:
        return min(_COMPACTED_TOKENS + (turn - _COMPACTION_TURN) * _GROWTH_TOKENS, _WINDOW_TOKENS - 8_000)
    return min(_FIRST_TOKENS + turn * _GROWTH_TOKENS, _WINDOW_TOKENS - 8_000)


def _compaction_id(session: _GeneratedSession) -> str:
    return derive_session_id("fold", session.id)


def _make_compaction(session: _GeneratedSession) -> Compaction:
    return Compaction(
        id=_compaction_id(session),
        agent=session.agent,
        session_id=session.id,
        boundary=session.tip,
        messages=2 * _COMPACTION_TURN - 20,
        seen_messages=2 * _COMPACTION_TURN,
        summary="They moved the parser into a room of its own, and src/parse.py passes its tests. " * 9,
        carried=("src/parse.py", "tests/test_parse.py", "port 8790"),
        tokens_before=_COMPACT_AT_TOKENS,
        tokens_after=_COMPACTED_TOKENS,
        model=_SUMMARISER,
        cost=Decimal("0.0167"),
        duration_seconds=6.5,
        outcome=CompactionOutcome.OK,
        compacted_at=session.times[_COMPACTION_TURN],
    )


def _messages(compaction: Compaction) -> list[bytes]:
    message = {"role": "user", "content": [{"type": "text", "text": "And what does the next test say? " * 40}]}
    return [json.dumps(message).encode()] * compaction.messages
