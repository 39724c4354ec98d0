"""A store as a busy gateway has it after a month, for pages to be measured on.

The rows are made by what makes them in a gateway, added to the totals by what does that there, and written in
bulk.
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

from foveate.cost.caps import accounts_of
from foveate.cost.ledger import Call, Category, Entry
from foveate.cost.money import dollars, picodollars
from foveate.cost.savings import own_call
from foveate.fold.journal import Fold, Outcome
from foveate.session.ids import session_id
from foveate.session.traces import CacheBreak, Trace, TracedEdit, WindowSection
from foveate.store import open_store
from foveate.store.adding import add_asked, add_bills
from foveate.store.ledger_rows import COLUMNS as LEDGER
from foveate.store.ledger_rows import row_of
from foveate.store.retention import MOST_TRACES
from foveate.store.sqlite import SQLiteRows
from foveate.store.traces import COLUMNS as TRACES
from foveate.store.traces import addition_of
from foveate.store.traces import row_of as trace_row
from foveate.values import CacheUsage, Usage
from tests.support.stores import create_tables

DAYS = 30
_DAY_SECONDS = 86_400.0
_TOGETHER = 20_000
_SYSTEM_TOKENS, _FIRST_TOKENS, _GROWS_TOKENS = 10_000, 14_000, 1_450
_WINDOW_TOKENS, _FOLD_AT_TOKENS, _FOLDED_TOKENS = 200_000, 140_000, 31_000
_FOLD_TURN = (_FOLD_AT_TOKENS - _FIRST_TOKENS) // _GROWS_TOKENS
_FOLDED_EVERY = 8
"""Of so many sessions that come to that turn one is folded."""
_PINGED, _BROKEN, _FAILED, _UNPRICED = 0.02, 0.03, 0.01, 0.004
_A_LOST_TOKEN = Decimal("0.0000045")

# Who asks which model, and for how much of all; prices in picodollars: uncached, read, written, output.
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
_BREAKS = (
    ("a timestamp in the system prompt", "system[0]"),
    ("a tool was changed", "tools[4]"),
    ("it was older than its time", ""),
)


@dataclass(frozen=True, slots=True)
class _Session:
    id: str
    agent: str
    model: str
    times: Sequence[float]
    is_folded: bool

    @property
    def tip(self) -> bytes:
        return bytes.fromhex(self.id)


def filled(url: str, sessions: int = 10_000, rows: int = 1_000_000, *, now: float | None = None) -> None:
    """Fill the SQLite store at `url`, which must be new, with so many sessions, whose calls are so many rows.

    They are of the 30 days up to `now`, and with them are traces of the newest 500,000 requests, and folds.
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
    asyncio.run(_fold_all(url, [one for one in made if one.is_folded]))


async def _fold_all(url: str, folded: Iterable[_Session]) -> None:
    async with await open_store(url) as store:
        for fold in map(_fold, folded):
            await store.journal.record(fold, _messages(fold), lease=None)


def _sessions(chance: random.Random, number: int, rows: int, until: float) -> list[_Session]:
    """So many sessions, with as many calls as there are to be rows; some have ten times as many as others."""
    weights = [chance.paretovariate(1.6) for _ in range(number)]
    whole = sum(weights)
    sizes = [max(1, int(rows * weight / whole)) for weight in weights]
    sizes[0] += max(0, rows - sum(sizes))
    found = []
    for at, size in enumerate(sizes):
        ((agent, model, _share),) = chance.choices(_AGENTS, [share for *_, share in _AGENTS])
        gaps = [chance.expovariate(1 / 45.0) for _ in range(size)]
        began = until - chance.random() * DAYS * _DAY_SECONDS
        if began + sum(gaps) > until:  # it is under way
            began = max(until - DAYS * _DAY_SECONDS, until - sum(gaps))
        times = []
        for gap in gaps:
            began = min(began + gap, until)
            times.append(began)
        id_ = session_id("first", agent, str(at))
        found.append(_Session(id_, agent, model, times, at % _FOLDED_EVERY == 0 and size > _FOLD_TURN))
    return found


def _write(connection: sqlite3.Connection, made: Sequence[_Session], chance: random.Random) -> None:
    order = sorted((at, number, turn) for number, one in enumerate(made) for turn, at in enumerate(one.times))
    first_traced = len(order) - MOST_TRACES
    insert_bills = f"INSERT INTO ledger_v1 (day, {LEDGER}) VALUES ({', '.join('?' * (LEDGER.count(',') + 2))})"
    insert_traces = f"INSERT INTO traces_v1 ({TRACES}) VALUES ({', '.join('?' * (TRACES.count(',') + 1))})"
    rows = SQLiteRows(connection)
    spent: Counter[str] = Counter()
    for first in range(0, len(order), _TOGETHER):
        bills, told, additions = [], [], []
        for place, (at, number, turn) in enumerate(order[first : first + _TOGETHER], start=first):
            entry = _entry(made[number], turn, at, chance)
            bills.append(row_of(entry))
            amount = picodollars(entry.dollars or Decimal(0))
            spent.update(dict.fromkeys(accounts_of(entry.call), amount))
            if place >= first_traced and entry.call.category is Category.MAIN:
                trace = _trace(made[number], turn, entry, chance)
                told.append(trace_row(trace))
                additions.append(addition_of(trace, told[-1]))
        connection.executemany(insert_bills, bills)
        connection.executemany(insert_traces, told)
        add_bills(rows, bills)
        add_asked(rows, additions)
    connection.executemany("INSERT INTO accounts_v1 (name, spent, reserved) VALUES (?, ?, 0)", spent.items())
    connection.executemany(
        "INSERT INTO sessions_v1 (id, agent, tip, messages, created_at, seen_at) VALUES (?, ?, ?, ?, ?, ?)",
        ((one.id, one.agent, one.tip, 2 * len(one.times), one.times[0], one.times[-1]) for one in made),
    )


def _entry(of: _Session, turn: int, at: float, chance: random.Random) -> Entry:
    category = Category.PING if chance.random() < _PINGED else Category.MAIN
    model = of.model
    if of.is_folded and turn == _FOLD_TURN:
        category, model = Category.COMPACTION, _SUMMARISER
    tokens, before = _tokens(of, turn), _tokens(of, turn - 1) if turn else 0
    if chance.random() < _BROKEN or before > tokens:
        before = min(before, _SYSTEM_TOKENS)
    cache = CacheUsage(uncached=12, read=before, written_5m=max(0, tokens - before - 12))
    output = 1 if category is Category.PING else chance.randrange(40, 1_800)
    uncached, read, written, out = _PRICES[model]
    amount = 12 * uncached + before * read + cache.written_5m * written + output * out
    saved = before * (uncached - read) - cache.written_5m * (written - uncached)
    folded = (_FOLD_AT_TOKENS - _FOLDED_TOKENS) * read if of.is_folded and turn > _FOLD_TURN else 0
    price = None if chance.random() < _UNPRICED else dollars(amount)
    call = Call(
        id=f"{chance.getrandbits(128):032x}",
        agent=of.agent,
        session_id=of.id,
        provider="openai" if model.startswith("gpt") else "anthropic",
        model=model,
        category=category,
        at=at,
    )
    savings = own_call(call, price)
    if category is Category.MAIN and price is not None:
        savings = replace(
            savings,
            without=dollars(amount + saved + folded),
            breakpoints=dollars(saved),
            compaction=dollars(folded),
        )
    return Entry(
        call=call,
        usage=Usage(cache=cache, output_tokens=output, raw=_RAW),
        dollars=price,
        estimated_input_tokens=tokens,
        estimated_dollars=dollars(2 * amount),
        savings=savings,
    )


def _trace(of: _Session, turn: int, entry: Entry, chance: random.Random) -> Trace:
    tokens = _tokens(of, turn)
    summary = 2_400 if of.is_folded and turn > _FOLD_TURN else 0
    said = tokens - _SYSTEM_TOKENS - summary
    sizes = {
        "system": 3_800,
        "tools": _SYSTEM_TOKENS - 3_800,
        "summary": summary,
        "user": said // 9,
        "assistant": said // 4,
        "tool results": said - said // 9 - said // 4,
    }
    has_broken = bool(turn) and entry.usage.cache.read <= _SYSTEM_TOKENS
    return Trace(
        id=entry.call.id,
        agent=of.agent,
        session_id=of.id,
        provider=entry.call.provider,
        model=entry.call.model,
        at=entry.call.at + 0.002,
        status=529 if chance.random() < _FAILED else 200,
        tokens=tokens,
        exact=True,
        window_tokens=_WINDOW_TOKENS,
        reserved_tokens=8_000,
        added_seconds=0.001 + chance.expovariate(1_000),
        sections=tuple(WindowSection(name, size) for name, size in sizes.items() if size),
        edits=_EDITS,
        fold_id=_fold_id(of) if summary else None,
        broke=_break(tokens, chance) if has_broken else None,
    )


def _break(tokens: int, chance: random.Random) -> CacheBreak:
    cause, where = chance.choice(_BREAKS)
    lost = tokens - _SYSTEM_TOKENS
    return CacheBreak(cause=cause, where=where, lost_tokens=lost, lost_dollars=lost * _A_LOST_TOKEN)


def _tokens(of: _Session, turn: int) -> int:
    """How full the window is at a turn: it grows, and where it was folded, from there on anew."""
    if of.is_folded and turn > _FOLD_TURN:
        return min(_FOLDED_TOKENS + (turn - _FOLD_TURN) * _GROWS_TOKENS, _WINDOW_TOKENS - 8_000)
    return min(_FIRST_TOKENS + turn * _GROWS_TOKENS, _WINDOW_TOKENS - 8_000)


def _fold_id(of: _Session) -> str:
    return session_id("fold", of.id)


def _fold(of: _Session) -> Fold:
    return Fold(
        id=_fold_id(of),
        agent=of.agent,
        session_id=of.id,
        boundary=of.tip,
        messages=2 * _FOLD_TURN - 20,
        seen_messages=2 * _FOLD_TURN,
        summary="They moved the parser into a room of its own, and src/parse.py passes its tests. " * 9,
        carried=("src/parse.py", "tests/test_parse.py", "port 8790"),
        tokens_before=_FOLD_AT_TOKENS,
        tokens_after=_FOLDED_TOKENS,
        model=_SUMMARISER,
        cost=Decimal("0.0167"),
        duration_seconds=6.5,
        outcome=Outcome.OK,
        compacted_at=of.times[_FOLD_TURN],
    )


def _messages(fold: Fold) -> list[bytes]:
    said = {"role": "user", "content": [{"type": "text", "text": "And what does the next test say? " * 40}]}
    return [json.dumps(said).encode()] * fold.messages
