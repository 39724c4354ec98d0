"""Checks of the store. They read it without the store's own code, which would migrate its tables."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.doctor.findings import Finding, failed_finding, ok_finding, warning_finding
from foveate.errors import BadOption
from foveate.extras import install_command
from foveate.paths import SQLITE_PREFIX, sqlite_path
from foveate.store.migrate import FIND_VERSION, VERSIONS

CHECK, HEALTH = "store", "health"
_WAIT_SECONDS = 3
_HOUR, _DAY = 3600.0, 86_400.0
_MIN_FREE_BYTES, _LOW_FREE_BYTES = 50 * 1024**2, 1024**3
_LARGE_WAL_BYTES = 256 * 1024**2
_WAL = b"\x02\x02"  # file header, https://sqlite.org/fileformat2.html (November 2026)
_STALE_SECONDS = 600.0
# SPEC: a hit ratio above 0.7 is healthy, below 0.3 is flagged; a drift of 20% means a wrong counter.
_HEALTHY_HIT_RATIO, _LOW_HIT_RATIO = 0.7, 0.3
_MAX_DRIFT_PERCENT, _GOOD_DRIFT_PERCENT = 20, 10
_MIN_CALLS = 5
_SLOWDOWN_FACTOR = 2
_MAX_CHARGES = 20_000

_RATIOS = """
SELECT agent, count(*), sum(read), sum(uncached + read + written_5m + written_1h) FROM ledger_v1
WHERE category = 'main' AND at >= ? GROUP BY agent ORDER BY agent
"""
_ESTIMATES = """
SELECT provider, model, estimated_input_tokens, uncached + read + written_5m + written_1h FROM ledger_v1
WHERE category = 'main' AND is_partial = 0 AND at >= ? AND estimated_input_tokens > 0
ORDER BY at DESC LIMIT ?
"""
_OUTCOMES = "SELECT outcome, count(*) FROM compactions_v1 WHERE compacted_at >= ? GROUP BY outcome"
_DURATIONS = """
SELECT duration_seconds FROM compactions_v1
WHERE outcome = 'ok' AND compacted_at >= ? AND compacted_at < ?
"""
_OLDEST = "SELECT count(*), min(expires_at) FROM reservations_v1"
_MODELS = """
SELECT DISTINCT provider, model FROM ledger_v1 WHERE at >= ? AND category = 'main' ORDER BY provider, model
"""
_NEWEST = "SELECT max(at) FROM ledger_v1"

QueryRows = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    findings: Sequence[Finding]
    models: Sequence[tuple[str, str]] = ()
    newest_at: float | None = None


def check_store(url: str, *, now: float) -> StoreCheck:
    """Check the store at `url` without creating or changing it."""
    if url.startswith(("postgresql:", "postgres:")):
        return _check_server(url, now)
    if not url.startswith(SQLITE_PREFIX) or url == SQLITE_PREFIX:
        scheme = url.partition(":")[0]
        advice = "set store.url to sqlite:///path or postgresql://user@host/name"
        return StoreCheck(
            findings=[
                failed_finding(
                    CHECK, f"store.url starts with {scheme}:, which is not a supported database", advice
                )
            ]
        )
    try:
        path = sqlite_path(url, os.environ)
    except BadOption as error:
        return StoreCheck(findings=[failed_finding(CHECK, str(error), "correct store.url")])
    return _check_file(path, now)


def _check_file(path: Path, now: float) -> StoreCheck:
    if not path.exists():
        return StoreCheck(findings=_check_creatable(path))
    findings = [*_check_disk(path)]
    findings += _check_file_mode(path)
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        advice = f"give the gateway's user write access to {path} and its folder"
        findings.append(failed_finding(CHECK, "the database can be read but not written", advice))
    wal_path = path.with_name(f"{path.name}-wal")
    try:
        wal_bytes = wal_path.stat().st_size if wal_path.exists() else None
        # If nobody has it open, SQLite would create files next to it while it is read.
        uri_options = "mode=ro&immutable=1" if wal_bytes is None else "mode=ro"
        uri = f"{path.resolve().as_uri()}?{uri_options}"
        with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as connection:
            tables = _check_tables(
                lambda query, values: connection.execute(query, values).fetchall(), str(path), now
            )
        with path.open("rb") as file:
            is_wal = file.read(20)[18:20] == _WAL
    except (sqlite3.Error, OSError) as error:
        advice = "check that the file is a Foveate database, and that this user can read it"
        return StoreCheck(
            findings=[*findings, failed_finding(CHECK, f"{path} cannot be opened: {error}", advice)]
        )
    if not is_wal:
        advice = "the gateway turns it on when it starts; on a network folder it does not work: use PostgreSQL"
        findings.append(warning_finding(CHECK, "the database has no write-ahead log (WAL)", advice))
    elif wal_bytes is not None and wal_bytes > _LARGE_WAL_BYTES:
        advice = "end the program that keeps reading the database, then run `foveate store vacuum`"
        findings.append(
            warning_finding(CHECK, f"the write-ahead log has grown to {wal_bytes // 1024**2:,} MB", advice)
        )
    return StoreCheck(findings=[*tables.findings, *findings], models=tables.models, newest_at=tables.newest_at)


def _check_creatable(path: Path) -> list[Finding]:
    folder = next((parent for parent in path.parents if parent.exists()), Path("/"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return [
            failed_finding(
                CHECK,
                f"there is no database, and {folder} is not writable",
                "set FOVEATE_HOME to a writable folder",
            )
        ]
    return [
        ok_finding(CHECK, f"there is no database yet; the gateway creates {path} when it starts"),
        *_check_disk(folder),
    ]


def _check_disk(path: Path) -> list[Finding]:
    free = shutil.disk_usage(path if path.is_dir() else path.parent).free
    message = f"{free / 1024**3:,.1f} GB of disk space is free"
    if free < _MIN_FREE_BYTES:
        return [
            failed_finding(
                CHECK,
                f"only {free // 1024**2:,} MB of disk space is free",
                "free disk space: without it charges cannot be recorded",
            )
        ]
    if free < _LOW_FREE_BYTES:
        return [warning_finding(CHECK, message, "free disk space; `foveate store vacuum` deletes old data")]
    return [ok_finding(CHECK, message)]


def _check_file_mode(path: Path) -> list[Finding]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        return [
            warning_finding(
                CHECK, f"other users can open the database (mode {mode:o})", f"run: chmod 600 {path}"
            )
        ]
    return []


def _check_server(url: str, now: float) -> StoreCheck:
    from foveate.store.postgres import parse_server_url

    try:
        import psycopg

        parts = parse_server_url(url)
        target = f"postgresql://{parts.get('host') or 'localhost'}/{parts.get('dbname') or ''}"
        with psycopg.connect(url, connect_timeout=_WAIT_SECONDS, options="-c statement_timeout=3000") as server:
            server.read_only = True

            def rows(query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
                return server.execute(query.replace("?", "%s").encode(), values).fetchall()

            tables = _check_tables(rows, target, now)
            ((may_write,),) = rows("SELECT NOT pg_is_in_recovery()", ())
    except ImportError:
        return StoreCheck(
            findings=[
                failed_finding(
                    CHECK, "psycopg is not installed", f"run: {install_command()} 'foveate[gateway]'"
                )
            ]
        )
    except Exception as error:  # noqa: BLE001 - border to the driver: its message is the finding
        return StoreCheck(findings=[_unusable_server(url, " ".join(str(error).split())[:200])])
    findings = list(tables.findings)
    if not may_write:
        findings.append(
            failed_finding(CHECK, "the server is a read-only replica", "set store.url to the primary server")
        )
    return StoreCheck(findings=findings, models=tables.models, newest_at=tables.newest_at)


def _unusable_server(url: str, reason: str) -> Finding:
    """Report an unusable server without parts of its password."""
    rest = url.partition("://")[2]
    if rest.count("@") > 1 or "@" in rest.partition("/")[2]:
        advice = "in the password, write @ as %40, / as %2F and : as %3A"
        return failed_finding(
            CHECK, "the server cannot be used: its URL has more than one @, or an @ after a /", advice
        )
    return failed_finding(
        CHECK,
        f"the server cannot be used: {reason}",
        "check that the server is running, and the user and database name in store.url",
    )


def _check_tables(rows: QueryRows, target: str, now: float) -> StoreCheck:
    """If the version is not the current one, only report the version."""
    has_tables = (
        rows("SELECT 1 FROM pg_tables WHERE tablename = 'foveate_version'", ())
        if (target.startswith("postgresql:"))
        else rows("SELECT 1 FROM sqlite_schema WHERE name = 'foveate_version'", ())
    )
    if not has_tables:
        return StoreCheck(
            findings=[ok_finding(CHECK, f"{target} is empty; the gateway creates its tables when it starts")]
        )
    ((version,),) = rows(FIND_VERSION, ())
    if version not in VERSIONS:
        advice = "upgrade Foveate, or use another store"
        return StoreCheck(
            findings=[
                failed_finding(
                    CHECK,
                    f"{target} has version {version}; this release of Foveate supports {VERSIONS[-1]}",
                    advice,
                )
            ]
        )
    if version != VERSIONS[-1]:
        message = f"{target} has version {version}; the gateway upgrades it to {VERSIONS[-1]} when it starts"
        return StoreCheck(
            findings=[
                warning_finding(
                    CHECK,
                    message,
                    "make a backup first: older releases of Foveate cannot read the upgraded store",
                )
            ]
        )
    ((newest,),) = rows(_NEWEST, ())
    return StoreCheck(
        findings=[
            ok_finding(CHECK, f"{target} (version {version}) can be read"),
            *_check_reservations(rows, now),
            *_check_hit_ratios(rows, now),
            *_check_estimate_drift(rows, now),
            *_check_compactions(rows, now),
        ],
        models=[(str(provider), str(model)) for provider, model in rows(_MODELS, (now - _DAY,))],
        newest_at=newest,
    )


def _check_reservations(rows: QueryRows, now: float) -> list[Finding]:
    ((count, oldest),) = rows(_OLDEST, ())
    if oldest is not None and now - oldest > _STALE_SECONDS:
        message = f"of {count} cost reservations, the oldest expired {(now - oldest) / 60:,.0f} minutes ago"
        return [
            warning_finding(
                CHECK,
                message,
                "nothing to do: a process died during a call; the next call under a cap releases it",
            )
        ]
    if oldest is None:
        return []
    expiry = f"expires in {oldest - now:,.0f} s" if oldest >= now else f"expired {now - oldest:,.0f} s ago"
    return [ok_finding(CHECK, f"cost reservations of running calls: {count}; the oldest {expiry}")]


def _check_hit_ratios(rows: QueryRows, now: float) -> list[Finding]:
    """Check the share of each agent's input that was read from the cache in the last hour."""
    findings: list[Finding] = []
    for agent, calls, read, tokens in rows(_RATIOS, (now - _HOUR,)):
        if calls < _MIN_CALLS or not tokens:
            continue
        ratio = int(read) / int(tokens)
        message = f"cache hit ratio {ratio:.2f} in the last hour ({calls:,} calls)"
        if ratio < _LOW_HIT_RATIO:
            advice = (
                "run `foveate explain SESSION` on its latest sessions to see where and why the cache missed"
            )
            findings.append(warning_finding(HEALTH, message, advice, name=str(agent)))
        else:
            verdict = "healthy" if ratio >= _HEALTHY_HIT_RATIO else f"aim for {_HEALTHY_HIT_RATIO}"
            findings.append(ok_finding(HEALTH, f"{message}: {verdict}", name=str(agent)))
    return findings


def _check_estimate_drift(rows: QueryRows, now: float) -> list[Finding]:
    """Check how far reported usage differs from counts, at the 99th percentile."""
    by_model: dict[tuple[str, str], list[float]] = {}
    for provider, model, counted, charged in rows(_ESTIMATES, (now - _DAY, _MAX_CHARGES)):
        if charged:
            by_model.setdefault((provider, model), []).append(100 * abs(charged - counted) / counted)
    findings: list[Finding] = []
    for (provider, model), drifts in by_model.items():
        if len(drifts) < _MIN_CALLS:
            continue
        worst = _p99(drifts)
        message = f"token counts are within {worst:.1f}% of reported usage (p99 of {len(drifts):,} calls)"
        if worst > _MAX_DRIFT_PERCENT:
            advice = (
                "counts are wrong for this model: set token_counter.use_endpoint if its server can count tokens"
            )
            findings.append(warning_finding(HEALTH, message, advice, name=f"{model} at {provider}"))
        elif worst < _GOOD_DRIFT_PERCENT:
            findings.append(ok_finding(HEALTH, message, name=f"{model} at {provider}"))
        else:
            findings.append(
                ok_finding(
                    HEALTH, f"{message}; below {_GOOD_DRIFT_PERCENT}% is good", name=f"{model} at {provider}"
                )
            )
    return findings


def _check_compactions(rows: QueryRows, now: float) -> list[Finding]:
    outcomes = {str(outcome): int(count) for outcome, count in rows(_OUTCOMES, (now - _DAY,))}
    succeeded, failures, lock_held = (outcomes.get(name, 0) for name in ("ok", "failed", "lock_held"))
    findings: list[Finding] = []
    if failures and failures * 4 > succeeded:
        advice = "`foveate compactions list` shows the reasons; check the model and key of the summarizer"
        findings.append(
            warning_finding(
                HEALTH, f"{failures:,} of {succeeded + failures:,} compactions failed in the last day", advice
            )
        )
    elif succeeded:
        findings.append(
            ok_finding(HEALTH, f"compactions in the last day: {succeeded:,} succeeded, {failures:,} failed")
        )
    if lock_held > max(succeeded, _MIN_CALLS):
        advice = "several gateways compact the same sessions: raise compaction.lock_ttl_seconds"
        findings.append(
            warning_finding(
                HEALTH,
                f"{lock_held:,} compactions were skipped in the last day because their lock was held",
                advice,
            )
        )
    today, before = _load_durations(rows, now - _DAY, now), _load_durations(rows, now - 8 * _DAY, now - _DAY)
    if min(len(today), len(before)) >= _MIN_CALLS and _p99(today) > _SLOWDOWN_FACTOR * _p99(before):
        slowest_today, slowest_before = (f"{_p99(durations):,.0f} s" for durations in (today, before))
        message = (
            f"compactions take up to {slowest_today} today, and took up to {slowest_before} in the week before"
        )
        findings.append(warning_finding(HEALTH, message, "check whether the model of the summarizer is slow"))
    return findings


def _load_durations(rows: QueryRows, since: float, until: float) -> list[float]:
    return [float(seconds) for (seconds,) in rows(_DURATIONS, (since, until))]


def _p99(numbers: Sequence[float]) -> float:
    return sorted(numbers)[min(len(numbers) - 1, int(0.99 * len(numbers)))]
