"""What requests and bills add up to: by the hour, by the day, ever, and by the session.

What is kept is added up. SQLite's sums end with an error beyond 64 bits, so the high bits of numbers are added
apart from the low ones, and what is more than can be kept becomes the most that can.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_ASKED = ("requests", "failed", "added_microseconds", "breaks", "lost_tokens", "lost_picodollars")
_TOKENS_AND_MONEY = (
    *("uncached", "read", "written_5m", "written_1h", "output_tokens"),
    *("picodollars", "saved_by_cache", "saved_by_folds", "saved_by_cuts"),
)
_BILLED = ("calls", "unpriced", *_TOKENS_AND_MONEY)
_SUMS = (*_ASKED, *_BILLED)
_KEY = "span, start, agent, model, category"

_LONGEST_NAME = 250
_BITS = 32
_LOW = 2**_BITS - 1
_MOST = 2**62 - 1
_MOST_HIGH = 2 ** (62 - _BITS)

# The hour, and what a trace says only in JSON: what was taken before it was sent, and what it lost.
_SQLITE = {
    "hour": "CAST(min(max(at, 0.0) / 3600, 70389527) AS INTEGER)",
    "added": "CAST(round(json_extract(CAST(told AS TEXT), '$[2]') * 1e6) AS INTEGER)",
    "lost_tokens": "CAST(json_extract(CAST(broke AS TEXT), '$[2]') AS INTEGER)",
    "lost_money": "CAST(round(CAST(json_extract(CAST(broke AS TEXT), '$[3]') AS REAL) * 1e12) AS INTEGER)",
}
# A NUL in any of the texts is more than PostgreSQL can read; a blank is as good, also behind another backslash.
_TOLD = r"CAST(CAST(replace(convert_from({}, 'UTF8'), '\u0000', '\u0020') AS JSON) -> {} AS TEXT)"
_LOST = f"""nullif(trim(both '"' from {_TOLD.format("broke", 3)}), 'null')"""
_POSTGRES = {
    "hour": "CAST(floor(least(greatest(at, 0.0) / 3600, 70389527)) AS BIGINT)",
    "added": f"CAST(round(CAST({_TOLD.format('told', 2)} AS DOUBLE PRECISION) * 1e6) AS BIGINT)",
    "lost_tokens": f"CAST({_TOLD.format('broke', 2)} AS BIGINT)",
    "lost_money": f"CAST(round(CAST({_LOST} AS NUMERIC) * 1000000000000) AS BIGINT)",
}


def upgrade() -> None:
    """From 0006 to 0007."""
    op.create_table(
        "totals_v1",
        sa.Column("span", sa.Text, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("category", sa.Text, primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in _SUMS),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "session_totals_v1",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("model_at", sa.Double, nullable=False),
        sa.Column("first_at", sa.Double, nullable=False),
        sa.Column("last_at", sa.Double, nullable=False),
        sa.Column("window_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("window_tokens", sa.BigInteger),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in _SUMS),
    )
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:
        # However much is kept, it is added up to its end, and without a compiler for what is run once.
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL jit = off")
    for statement in _filling(_SQLITE if is_sqlite else _POSTGRES):
        connection.exec_driver_sql(statement)
    op.create_index("session_totals_v1_time", "session_totals_v1", ["last_at", "session_id"])
    op.create_index("session_totals_v1_agent", "session_totals_v1", ["agent", "last_at", "session_id"])


def _filling(said: dict[str, str]) -> Iterable[str]:
    bills = ("count(*) AS calls", "count(*) - count(picodollars) AS unpriced", *_parts(_TOKENS_AND_MONEY))
    # Once, since that is what takes longest: each of them is JSON.
    yield f"""
        CREATE TEMPORARY TABLE told AS
        SELECT {said["hour"]} AS start, {_cut("agent")}, {_cut("model")}, session_id, at,
        CASE WHEN status >= 400 THEN 1 ELSE 0 END AS has_failed, {said["added"]} AS added_microseconds,
        CASE WHEN broke IS NULL THEN 0 ELSE 1 END AS has_broken,
        CASE WHEN broke IS NOT NULL THEN {said["lost_tokens"]} END AS lost_tokens,
        CASE WHEN broke IS NOT NULL THEN {said["lost_money"]} END AS lost_picodollars FROM traces_v1
    """
    requests = (
        *("count(*) AS requests", "sum(has_failed) AS failed", "sum(has_broken) AS breaks"),
        *_parts(("added_microseconds", "lost_tokens", "lost_picodollars")),
    )
    yield f"""
        INSERT INTO totals_v1 ({_KEY}, {", ".join(_BILLED)})
        SELECT 'hour', start, agent, model, category, calls, unpriced, {_whole(_TOKENS_AND_MONEY)} FROM (
            SELECT start, agent, model, category, {", ".join(bills)}
            FROM (
                SELECT {said["hour"]} AS start, {_cut("agent")}, {_cut("model")}, category,
                {", ".join(_TOKENS_AND_MONEY)} FROM ledger_v1
            ) AS hourly GROUP BY start, agent, model, category
        ) AS added
    """
    yield f"""
        INSERT INTO totals_v1 ({_KEY}, {", ".join(_ASKED)})
        SELECT 'hour', start, agent, model, 'main', {_all_asked()} FROM (
            SELECT start, agent, model, {", ".join(requests)} FROM told GROUP BY start, agent, model
        ) AS added WHERE 1 = 1
        ON CONFLICT ({_KEY}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _ASKED)}
    """
    for span, start, of in (("day", "start / 24 * 24", "hour"), ("ever", "0", "day")):
        yield f"""
            INSERT INTO totals_v1 ({_KEY}, {", ".join(_SUMS)})
            SELECT '{span}', start, agent, model, category, {_whole(_SUMS)} FROM (
                SELECT {start} AS start, agent, model, category, {", ".join(_parts(_SUMS))}
                FROM totals_v1 WHERE span = '{of}' GROUP BY 1, 2, 3, 4
            ) AS added
        """
    is_session = f"session_id <> '' AND length(session_id) <= {_LONGEST_NAME}"
    times = "min(at) AS first_at, max(at) AS last_at"
    yield f"""
        INSERT INTO session_totals_v1
        (session_id, agent, model, model_at, first_at, last_at, {", ".join(_BILLED)})
        SELECT session_id, agent, (
            SELECT model FROM ledger_v1 AS own WHERE own.session_id = added.session_id
            ORDER BY CASE WHEN category = 'main' THEN 0 ELSE 1 END, at DESC LIMIT 1
        ), model_at, first_at, last_at, calls, unpriced, {_whole(_TOKENS_AND_MONEY)} FROM (
            SELECT session_id, max(substr(agent, 1, {_LONGEST_NAME})) AS agent, {times},
            max(CASE WHEN category = 'main' THEN at ELSE 0 END) AS model_at, {", ".join(bills)}
            FROM ledger_v1 WHERE {is_session} GROUP BY session_id
        ) AS added
    """
    newest = "FROM traces_v1 AS own WHERE own.session_id = added.session_id ORDER BY at DESC LIMIT 1"
    window = {"tokens": "window_at", "window_tokens": "window_at", "window_at": "window_at"}
    replaced = {"agent": "model_at", "model": "model_at", "model_at": "model_at", **window}
    table = "session_totals_v1"
    yield f"""
        INSERT INTO {table}
        (session_id, agent, model, model_at, first_at, last_at, window_at, tokens, window_tokens,
        {", ".join(_ASKED)})
        SELECT session_id, agent, (SELECT model {newest}), last_at, first_at, last_at, last_at,
        (SELECT tokens {newest}), (SELECT window_tokens {newest}), {_all_asked()} FROM (
            SELECT session_id, max(agent) AS agent, {times}, {", ".join(requests)}
            FROM told WHERE {is_session} GROUP BY session_id
        ) AS added WHERE 1 = 1
        ON CONFLICT (session_id) DO UPDATE SET
        {", ".join(_newer(table, name, at, ">", at) for name, at in replaced.items())},
        {_newer(table, "first_at", "first_at", "<", "first_at")},
        {_newer(table, "last_at", "last_at", ">", "last_at")},
        {", ".join(f"{name} = excluded.{name}" for name in _ASKED)}
    """
    yield "DROP TABLE told"


def _cut(name: str) -> str:
    return f"substr({name}, 1, {_LONGEST_NAME}) AS {name}"


def _newer(table: str, name: str, at: str, is_beyond: str, than: str) -> str:
    is_newer = f"excluded.{at} {is_beyond} {table}.{than}"
    return f"{name} = CASE WHEN {is_newer} THEN excluded.{name} ELSE {table}.{name} END"


def _all_asked() -> str:
    """What requests add up to, in the order of its columns."""
    plain = {"requests", "failed", "breaks"}
    return ", ".join(name if name in plain else _whole([name]) for name in _ASKED)


def _parts(names: Iterable[str]) -> Iterable[str]:
    """The sums of high and of low bits."""
    for name in names:
        yield f"coalesce(CAST(sum({name} >> {_BITS}) AS BIGINT), 0) AS high_{name}"
        yield f"coalesce(CAST(sum({name} & {_LOW}) AS BIGINT), 0) AS low_{name}"


def _whole(names: Iterable[str]) -> str:
    """The sums that such are of."""
    found = []
    for name in names:
        high = f"(high_{name} + (low_{name} >> {_BITS}))"
        found.append(
            f"CASE WHEN {high} >= {_MOST_HIGH} THEN {_MOST} WHEN {high} < -{_MOST_HIGH} THEN -{_MOST}"
            f" ELSE ({high} << {_BITS}) + (low_{name} & {_LOW}) END"
        )
    return ", ".join(found)
