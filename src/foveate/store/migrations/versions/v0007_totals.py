"""Create totals per hour, day, session and for all time, and compute them from existing rows.

SQLite's sums overflow at 64 bits, so high and low bits are summed separately. Sums are clamped to the
largest value.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_REQUEST_SUMS = ("requests", "failed", "added_microseconds", "breaks", "lost_tokens", "lost_picodollars")
_TOKENS_AND_MONEY = (
    *("uncached", "read", "written_5m", "written_1h", "output_tokens"),
    *("picodollars", "saved_by_cache", "saved_by_folds", "saved_by_cuts"),
)
_CHARGE_SUMS = ("calls", "unpriced", *_TOKENS_AND_MONEY)
_SUMS = (*_REQUEST_SUMS, *_CHARGE_SUMS)
_KEY = "span, start, agent, model, category"

_MAX_NAME_CHARS = 250
_LOW_BITS = 32
_LOW_MASK = 2**_LOW_BITS - 1
_MAX_SUM = 2**62 - 1
_MAX_HIGH = 2 ** (62 - _LOW_BITS)

# The hour, and values that traces have only in JSON: the added time, and what a cache miss lost.
_SQLITE = {
    "hour": "CAST(min(max(at, 0.0) / 3600, 70389527) AS INTEGER)",
    "added": "CAST(round(json_extract(CAST(told AS TEXT), '$[2]') * 1e6) AS INTEGER)",
    "lost_tokens": "CAST(json_extract(CAST(broke AS TEXT), '$[2]') AS INTEGER)",
    "lost_money": "CAST(round(CAST(json_extract(CAST(broke AS TEXT), '$[3]') AS REAL) * 1e12) AS INTEGER)",
}
# PostgreSQL cannot read NUL in JSON texts; a space does as well, even after another backslash.
_JSON_ITEM = r"CAST(CAST(replace(convert_from({}, 'UTF8'), '\u0000', '\u0020') AS JSON) -> {} AS TEXT)"
_LOST_DOLLARS = f"""nullif(trim(both '"' from {_JSON_ITEM.format("broke", 3)}), 'null')"""
_POSTGRES = {
    "hour": "CAST(floor(least(greatest(at, 0.0) / 3600, 70389527)) AS BIGINT)",
    "added": f"CAST(round(CAST({_JSON_ITEM.format('told', 2)} AS DOUBLE PRECISION) * 1e6) AS BIGINT)",
    "lost_tokens": f"CAST({_JSON_ITEM.format('broke', 2)} AS BIGINT)",
    "lost_money": f"CAST(round(CAST({_LOST_DOLLARS} AS NUMERIC) * 1000000000000) AS BIGINT)",
}


def upgrade() -> None:
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
        # No timeout, however many rows there are, and no JIT for statements that run once.
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL jit = off")
    for statement in _fill_statements(_SQLITE if is_sqlite else _POSTGRES):
        connection.exec_driver_sql(statement)
    op.create_index("session_totals_v1_time", "session_totals_v1", ["last_at", "session_id"])
    op.create_index("session_totals_v1_agent", "session_totals_v1", ["agent", "last_at", "session_id"])


def _fill_statements(expressions: dict[str, str]) -> Iterable[str]:
    charges = (
        "count(*) AS calls",
        "count(*) - count(picodollars) AS unpriced",
        *_partial_sums(_TOKENS_AND_MONEY),
    )
    # Parse the JSON once, since that takes longest.
    yield f"""
        CREATE TEMPORARY TABLE told AS
        SELECT {expressions["hour"]} AS start, {_truncated("agent")}, {_truncated("model")}, session_id, at,
        CASE WHEN status >= 400 THEN 1 ELSE 0 END AS has_failed, {expressions["added"]} AS added_microseconds,
        CASE WHEN broke IS NULL THEN 0 ELSE 1 END AS has_broken,
        CASE WHEN broke IS NOT NULL THEN {expressions["lost_tokens"]} END AS lost_tokens,
        CASE WHEN broke IS NOT NULL THEN {expressions["lost_money"]} END AS lost_picodollars FROM traces_v1
    """
    requests = (
        *("count(*) AS requests", "sum(has_failed) AS failed", "sum(has_broken) AS breaks"),
        *_partial_sums(("added_microseconds", "lost_tokens", "lost_picodollars")),
    )
    yield f"""
        INSERT INTO totals_v1 ({_KEY}, {", ".join(_CHARGE_SUMS)})
        SELECT 'hour', start, agent, model, category, calls, unpriced, {_joined_sums(_TOKENS_AND_MONEY)} FROM (
            SELECT start, agent, model, category, {", ".join(charges)}
            FROM (
                SELECT {expressions["hour"]} AS start, {_truncated("agent")}, {_truncated("model")}, category,
                {", ".join(_TOKENS_AND_MONEY)} FROM ledger_v1
            ) AS hourly GROUP BY start, agent, model, category
        ) AS added
    """
    yield f"""
        INSERT INTO totals_v1 ({_KEY}, {", ".join(_REQUEST_SUMS)})
        SELECT 'hour', start, agent, model, 'main', {_request_sum_columns()} FROM (
            SELECT start, agent, model, {", ".join(requests)} FROM told GROUP BY start, agent, model
        ) AS added WHERE 1 = 1
        ON CONFLICT ({_KEY}) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _REQUEST_SUMS)}
    """
    for span, start, of in (("day", "start / 24 * 24", "hour"), ("ever", "0", "day")):
        yield f"""
            INSERT INTO totals_v1 ({_KEY}, {", ".join(_SUMS)})
            SELECT '{span}', start, agent, model, category, {_joined_sums(_SUMS)} FROM (
                SELECT {start} AS start, agent, model, category, {", ".join(_partial_sums(_SUMS))}
                FROM totals_v1 WHERE span = '{of}' GROUP BY 1, 2, 3, 4
            ) AS added
        """
    is_session = f"session_id <> '' AND length(session_id) <= {_MAX_NAME_CHARS}"
    times = "min(at) AS first_at, max(at) AS last_at"
    yield f"""
        INSERT INTO session_totals_v1
        (session_id, agent, model, model_at, first_at, last_at, {", ".join(_CHARGE_SUMS)})
        SELECT session_id, agent, (
            SELECT model FROM ledger_v1 AS own WHERE own.session_id = added.session_id
            ORDER BY CASE WHEN category = 'main' THEN 0 ELSE 1 END, at DESC LIMIT 1
        ), model_at, first_at, last_at, calls, unpriced, {_joined_sums(_TOKENS_AND_MONEY)} FROM (
            SELECT session_id, max(substr(agent, 1, {_MAX_NAME_CHARS})) AS agent, {times},
            max(CASE WHEN category = 'main' THEN at ELSE 0 END) AS model_at, {", ".join(charges)}
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
        {", ".join(_REQUEST_SUMS)})
        SELECT session_id, agent, (SELECT model {newest}), last_at, first_at, last_at, last_at,
        (SELECT tokens {newest}), (SELECT window_tokens {newest}), {_request_sum_columns()} FROM (
            SELECT session_id, max(agent) AS agent, {times}, {", ".join(requests)}
            FROM told WHERE {is_session} GROUP BY session_id
        ) AS added WHERE 1 = 1
        ON CONFLICT (session_id) DO UPDATE SET
        {", ".join(_replace_if_newer(table, name, at, ">", at) for name, at in replaced.items())},
        {_replace_if_newer(table, "first_at", "first_at", "<", "first_at")},
        {_replace_if_newer(table, "last_at", "last_at", ">", "last_at")},
        {", ".join(f"{name} = excluded.{name}" for name in _REQUEST_SUMS)}
    """
    yield "DROP TABLE told"


def _truncated(name: str) -> str:
    return f"substr({name}, 1, {_MAX_NAME_CHARS}) AS {name}"


def _replace_if_newer(table: str, name: str, at: str, is_beyond: str, than: str) -> str:
    is_newer = f"excluded.{at} {is_beyond} {table}.{than}"
    return f"{name} = CASE WHEN {is_newer} THEN excluded.{name} ELSE {table}.{name} END"


def _request_sum_columns() -> str:
    plain = {"requests", "failed", "breaks"}
    return ", ".join(name if name in plain else _joined_sums([name]) for name in _REQUEST_SUMS)


def _partial_sums(names: Iterable[str]) -> Iterable[str]:
    """Yield the sums of high and low bits."""
    for name in names:
        yield f"coalesce(CAST(sum({name} >> {_LOW_BITS}) AS BIGINT), 0) AS high_{name}"
        yield f"coalesce(CAST(sum({name} & {_LOW_MASK}) AS BIGINT), 0) AS low_{name}"


def _joined_sums(names: Iterable[str]) -> str:
    """Join the sums of high and low bits."""
    found = []
    for name in names:
        high = f"(high_{name} + (low_{name} >> {_LOW_BITS}))"
        found.append(
            f"CASE WHEN {high} >= {_MAX_HIGH} THEN {_MAX_SUM} WHEN {high} < -{_MAX_HIGH} THEN -{_MAX_SUM}"
            f" ELSE ({high} << {_LOW_BITS}) + (low_{name} & {_LOW_MASK}) END"
        )
    return ", ".join(found)
