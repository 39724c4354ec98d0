"""The tables after the last migration.

Migrations create them; a test compares the result with this module. There are no foreign keys: they would cost
time on every request, and only `retention.py` deletes rows. Times are seconds since 1970, as floats. Money is
exact: whole picodollars (1e-12 dollars) where it is summed, text elsewhere. Conversation texts are bytes
(UTF-8), because PostgreSQL's text type accepts neither NUL nor lone surrogates, and tools print both.
"""

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, MetaData, Table, Text, text

from foveate.store.repositories.rollups import LEGACY_SUMS, SUMS

tables = MetaData()

sessions = Table(
    "sessions_v1",
    tables,
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("tip", LargeBinary, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("parent_id", Text),
    Column("forked_at", LargeBinary),
    Column("caller", Text),
    Column("setting", LargeBinary),
    Column("first_messages", BigInteger, nullable=False, server_default="0"),
    Column("folder", LargeBinary),
    Column("opening", LargeBinary),
    Index("sessions_v1_tip", "agent", "tip"),
    Index("sessions_v1_parent", "parent_id"),
)

session_parents = Table(
    "session_parents_v1",
    tables,
    Column("session_id", Text, primary_key=True),
    Column("parent_id", Text, primary_key=True),
    Index("session_parents_v1_parent", "parent_id"),
    sqlite_with_rowid=False,
)

turns = Table(
    "turns_v1",
    tables,
    Column("agent", Text, primary_key=True),
    Column("hash", LargeBinary, primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("session_id", Text, nullable=False),
    Index("turns_v1_session", "session_id"),
    sqlite_with_rowid=False,
)

answers = Table(
    "answers_v1",
    tables,
    Column("mark", LargeBinary, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("tip", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    Index("answers_v1_session", "session_id"),
    sqlite_with_rowid=False,
)

turn_counts = Table(
    "turn_counts_v1",
    tables,
    Column("agent", Text, primary_key=True),
    Column("hash", LargeBinary, primary_key=True),
    Column("counter", Text, primary_key=True),
    Column("counted", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

compactions = Table(
    "compactions_v1",
    tables,
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("boundary", LargeBinary, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("seen_messages", BigInteger, nullable=False),
    Column("summary", LargeBinary, nullable=False),
    Column("carried", Text, nullable=False),
    Column("tokens_before", BigInteger, nullable=False),
    Column("tokens_after", BigInteger, nullable=False),
    Column("model", Text, nullable=False),
    Column("cost", Text),
    Column("duration_seconds", Double, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("compacted_at", Double, nullable=False),
    Column("undone_at", Double),
    Column("earlier_id", Text),
    Column("limit_tokens", BigInteger),
    Column("reason", LargeBinary),
    Column("decision", Text),
    Column("cleared", LargeBinary),
    Index("compactions_v1_boundary", "agent", "boundary"),
    Index("compactions_v1_session", "session_id"),
    Index("compactions_v1_time", "compacted_at"),
    Index("compactions_v1_earlier", "earlier_id"),
)

folded_turns = Table(
    "folded_turns_v1",
    tables,
    Column("compaction_id", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("message", LargeBinary, nullable=False),
)

fold_uses = Table(
    "fold_uses_v1",
    tables,
    Column("compaction_id", Text, primary_key=True),
    Column("tip", LargeBinary, primary_key=True),
    Column("messages", BigInteger, nullable=False),
    Column("is_used", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

compaction_locks = Table(
    "compaction_locks_v1",
    tables,
    Column("session_id", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
)

ledger = Table(
    "ledger_v1",
    tables,
    Column("call_id", Text, primary_key=True),
    Column("at", Double, nullable=False),
    Column("day", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("uncached", BigInteger, nullable=False),
    Column("read", BigInteger, nullable=False),
    Column("written_5m", BigInteger, nullable=False),
    Column("written_1h", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("picodollars", BigInteger),
    Column("said_dollars", Text),
    Column("tier", Text, nullable=False),
    Column("estimated_input_tokens", BigInteger),
    Column("estimated_picodollars", BigInteger),
    Column("saved_by_cache", BigInteger),
    Column("saved_by_folds", BigInteger),
    Column("saved_by_cuts", BigInteger),
    Column("comparison", Text, nullable=False, server_default="earlier"),
    Column("without_picodollars", BigInteger),
    Column("saved_by_compaction", BigInteger),
    Column("saved_by_context", BigInteger),
    Column("saved_by_breakpoints", BigInteger),
    Column("saved_by_keep_alive", BigInteger),
    Column("simulation_error", BigInteger),
    Column("is_partial", BigInteger, nullable=False),
    Column("usage", LargeBinary, nullable=False),
    Column("is_inherited", BigInteger, nullable=False, server_default="0"),
    Column("is_subscription", BigInteger, nullable=False, server_default="0"),
    Column("is_possibly_charged", BigInteger, nullable=False, server_default="0"),
    Column("charged_picodollars", BigInteger),
    Index("ledger_v1_time", "at", "call_id"),
    Index("ledger_v1_session", "session_id", "at"),
)

corrections = Table(
    "corrections_v1",
    tables,
    Column("id", Text, primary_key=True),
    Column("at", Double, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("before_picodollars", BigInteger),
    Column("charged_picodollars", BigInteger),
    Column("after_picodollars", BigInteger, nullable=False),
    Column("reason", LargeBinary, nullable=False),
    Index("corrections_v1_time", "at", "id"),
    Index("corrections_v1_call", "call_id"),
)

accounts = Table(
    "accounts_v1",
    tables,
    Column("name", Text, primary_key=True),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

reservations = Table(
    "reservations_v1",
    tables,
    Column("call_id", Text, primary_key=True),
    Column("accounts", Text, nullable=False),
    Column("picodollars", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("reservations_v1_time", "expires_at"),
    sqlite_with_rowid=False,
)

requests = Table(
    "requests_v1",
    tables,
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("status", BigInteger, nullable=False),
    Column("usage", LargeBinary),
    Column("sent", LargeBinary, nullable=False),
    Column("came", LargeBinary),
    Column("size_bytes", BigInteger, nullable=False),
    Index("requests_v1_time", "at", "id", "size_bytes"),
    Index("requests_v1_session", "session_id", "at"),
)

_HAS_CACHE_MISS = text("broke IS NOT NULL")

traces = Table(
    "traces_v1",
    tables,
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("status", BigInteger, nullable=False),
    Column("tokens", BigInteger),
    Column("window_tokens", BigInteger),
    Column("fold_id", Text),
    Column("told", LargeBinary, nullable=False),
    Column("broke", LargeBinary),
    Index("traces_v1_time", "at", "id"),
    Index("traces_v1_session", "session_id", "at"),
    Index(
        "traces_v1_broke", "at", "id", "agent", sqlite_where=_HAS_CACHE_MISS, postgresql_where=_HAS_CACHE_MISS
    ),
)


def _sum_columns() -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False, server_default="0") for name in (*SUMS, *LEGACY_SUMS)]


totals = Table(
    "totals_v1",
    tables,
    Column("span", Text, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("category", Text, primary_key=True),
    *_sum_columns(),
    sqlite_with_rowid=False,
)

session_totals = Table(
    "session_totals_v1",
    tables,
    Column("session_id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("model_at", Double, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("window_at", Double, nullable=False, server_default="0"),
    Column("tokens", BigInteger),
    Column("window_tokens", BigInteger),
    *_sum_columns(),
    Index("session_totals_v1_time", "last_at", "session_id"),
    Index("session_totals_v1_agent", "agent", "last_at", "session_id"),
    # No index by cost, which every charge would update: the most expensive of 10,000 take 4 ms without one.
)

lessons = Table(
    "lessons_v1",
    tables,
    Column("upstream", Text, primary_key=True),
    Column("counter", Text, primary_key=True),
    Column("responses", BigInteger, nullable=False),
    Column("learnt", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    Index("lessons_v1_time", "at"),
)

prefix_reuse = Table(
    "prefix_reuse_v1",
    tables,
    Column("agent", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("learnt", LargeBinary, nullable=False),
    Column("at", Double, nullable=False),
    Index("prefix_reuse_v1_time", "at"),
)

rate_limits = Table(
    "rate_limits_v1",
    tables,
    Column("agent", Text, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("used", Double),
    Column("resets_at", Double),
    Column("status", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("rate_limits_v1_time", "at"),
)
