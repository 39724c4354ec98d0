"""The store as the doctor sees it: read past the store's own code, which would bring its tables up to date."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.cli.doctor_findings import Finding, failed, ok, warning
from foveate.store.migrating import FIND_VERSION, VERSIONS

CHECK, HEALTH = "store", "health"
_FILE = "sqlite:///"
_WAIT_SECONDS = 3
_HOUR, _DAY = 3600.0, 86_400.0
_LEAST_FREE_BYTES, _LITTLE_FREE_BYTES = 50 * 1024**2, 1024**3
_LARGE_WAL_BYTES = 256 * 1024**2
_WAL = b"\x02\x02"  # in the header of a file (https://sqlite.org/fileformat2.html, November 2026)
_STALE_SECONDS = 600.0
# SPEC: above 0.7 is healthy, below 0.3 is flagged; a drift of 20% says that the counter is wrong for a model.
_HEALTHY, _FLAGGED = 0.7, 0.3
_DRIFT_PERCENT, _GOOD_DRIFT_PERCENT = 20, 10
_FEW_CALLS = 5
_SLOWER = 2
_MOST_BILLS = 20_000

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

Rows = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """What the store shows: findings, the models that were called of late, and when the last call was."""

    findings: Sequence[Finding]
    models: Sequence[tuple[str, str]] = ()
    newest_at: float | None = None


def store_seen(url: str, *, now: float) -> StoreSeen:
    """How it stands with the store at `url`; nothing in it is changed, and none is made."""
    if url.startswith(("postgresql:", "postgres:")):
        return _server_seen(url, now)
    if not url.startswith(_FILE) or url == _FILE:
        scheme = url.partition(":")[0]
        advice = "store.url is sqlite:///path or postgresql://user@host/name"
        return StoreSeen(findings=[failed(CHECK, f"{scheme}: is no URL of a database", advice)])
    return _file_seen(Path(url.removeprefix(_FILE)).expanduser(), now)


def _file_seen(path: Path, now: float) -> StoreSeen:
    if not path.exists():
        return StoreSeen(findings=_could_be_made(path))
    found = [*_disk(path)]
    found += _modes(path)
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        advice = f"give the gateway's user write access to {path} and its folder"
        found.append(failed(CHECK, "can be read, and not written", advice))
    wal = path.with_name(f"{path.name}-wal")
    try:
        wal_bytes = wal.stat().st_size if wal.exists() else None
        # Where nobody has it open, SQLite would make files beside it for as long as it is read.
        how = "mode=ro&immutable=1" if wal_bytes is None else "mode=ro"
        uri = f"{path.resolve().as_uri()}?{how}"
        with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as connection:
            seen = _tables_seen(
                lambda said, values: connection.execute(said, values).fetchall(), str(path), now
            )
        with path.open("rb") as file:
            is_wal = file.read(20)[18:20] == _WAL
    except (sqlite3.Error, OSError) as error:
        advice = (
            "see whether it is a database of Foveate's, and of this user; a copy can be looked at with sqlite3"
        )
        return StoreSeen(findings=[*found, failed(CHECK, f"{path} cannot be opened: {error}", advice)])
    if not is_wal:
        advice = "the gateway turns it on at its start; a folder on a network cannot have it: use PostgreSQL"
        found.append(warning(CHECK, "its journal is no WAL", advice))
    elif wal_bytes is not None and wal_bytes > _LARGE_WAL_BYTES:
        advice = "something reads for very long: end it, and `foveate store vacuum`"
        found.append(warning(CHECK, f"its WAL has grown to {wal_bytes // 1024**2:,} MB", advice))
    return StoreSeen(findings=[*seen.findings, *found], models=seen.models, newest_at=seen.newest_at)


def _could_be_made(path: Path) -> list[Finding]:
    """Whether a store could be made there."""
    folder = next((one for one in path.parents if one.exists()), Path("/"))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return [
            failed(
                CHECK, f"there is none, and {folder} cannot be written", "choose another place: FOVEATE_HOME"
            )
        ]
    return [ok(CHECK, f"none yet: the gateway makes {path} at its first start"), *_disk(folder)]


def _disk(path: Path) -> list[Finding]:
    free = shutil.disk_usage(path if path.is_dir() else path.parent).free
    told = f"{free / 1024**3:,.1f} GB are free on its disk"
    if free < _LEAST_FREE_BYTES:
        return [
            failed(
                CHECK, f"{free // 1024**2:,} MB are free on its disk", "free some space: bills cannot be booked"
            )
        ]
    if free < _LITTLE_FREE_BYTES:
        return [warning(CHECK, told, "free some space; `foveate store vacuum` gives back what is not needed")]
    return [ok(CHECK, told)]


def _modes(path: Path) -> list[Finding]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        return [warning(CHECK, f"others of this machine may open it (mode {mode:o})", f"chmod 600 {path}")]
    return []


def _server_seen(url: str, now: float) -> StoreSeen:
    from foveate.store.postgres_urls import server_parts

    try:
        import psycopg

        parts = server_parts(url)
        where = f"postgresql://{parts.get('host') or 'localhost'}/{parts.get('dbname') or ''}"
        with psycopg.connect(url, connect_timeout=_WAIT_SECONDS, options="-c statement_timeout=3000") as server:
            server.read_only = True

            def rows(said: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
                return server.execute(said.replace("?", "%s").encode(), values).fetchall()

            seen = _tables_seen(rows, where, now)
            ((may_write,),) = rows("SELECT NOT pg_is_in_recovery()", ())
    except ImportError:
        return StoreSeen(
            findings=[failed(CHECK, "psycopg is not installed", "pip install 'foveate[postgres]'")]
        )
    except Exception as error:  # noqa: BLE001 - a driver's border: whatever it says is what there is to tell
        return StoreSeen(findings=[_unusable(url, " ".join(str(error).split())[:200])])
    findings = list(seen.findings)
    if not may_write:
        findings.append(
            failed(CHECK, "the server is a copy that cannot be written", "name the primary in store.url")
        )
    return StoreSeen(findings=findings, models=seen.models, newest_at=seen.newest_at)


def _unusable(url: str, said: str) -> Finding:
    """That a server cannot be used, without what may be a piece of its password."""
    rest = url.partition("://")[2]
    if rest.count("@") > 1 or "@" in rest.partition("/")[2]:
        advice = "in a password write @ as %40, / as %2F and : as %3A"
        return failed(
            CHECK, "the server cannot be used: its URL has more than one @, or one behind a /", advice
        )
    return failed(
        CHECK, f"the server cannot be used: {said}", "see that it runs, and store.url's user and name"
    )


def _tables_seen(rows: Rows, where: str, now: float) -> StoreSeen:
    """What the tables say. A version that is not today's is only told: its tables may lack something."""
    has_tables = (
        rows("SELECT 1 FROM pg_tables WHERE tablename = 'foveate_version'", ())
        if (where.startswith("postgresql:"))
        else rows("SELECT 1 FROM sqlite_schema WHERE name = 'foveate_version'", ())
    )
    if not has_tables:
        return StoreSeen(
            findings=[ok(CHECK, f"{where} is empty: the gateway makes its tables at its first start")]
        )
    ((version,),) = rows(FIND_VERSION, ())
    if version not in VERSIONS:
        advice = "update Foveate, or name another store: a newer one has changed its tables"
        return StoreSeen(
            findings=[failed(CHECK, f"{where} is of version {version}, and {VERSIONS[-1]} is known", advice)]
        )
    if version != VERSIONS[-1]:
        told = f"{where} is of version {version}; the gateway brings it to {VERSIONS[-1]} at its next start"
        return StoreSeen(findings=[warning(CHECK, told, "make a copy before, if you might want to go back")])
    ((newest,),) = rows(_NEWEST, ())
    return StoreSeen(
        findings=[
            ok(CHECK, f"{where}, version {version}, can be read"),
            *_reservations(rows, now),
            *_ratios(rows, now),
            *_drifts(rows, now),
            *_folds(rows, now),
        ],
        models=[(str(provider), str(model)) for provider, model in rows(_MODELS, (now - _DAY,))],
        newest_at=newest,
    )


def _reservations(rows: Rows, now: float) -> list[Finding]:
    ((count, oldest),) = rows(_OLDEST, ())
    if oldest is not None and now - oldest > _STALE_SECONDS:
        told = f"of {count} reservations under caps the oldest ran out {(now - oldest) / 60:,.0f} minutes ago"
        return [warning(CHECK, told, "a process died in a call; the next call under a cap frees what ran out")]
    if oldest is None:
        return []
    when = f"ends in {oldest - now:,.0f} s" if oldest >= now else f"ended {now - oldest:,.0f} s ago"
    return [ok(CHECK, f"{count} calls have dollars reserved under caps; the oldest lease {when}")]


def _ratios(rows: Rows, now: float) -> list[Finding]:
    """How much of each agent's input was read from the cache, over the last hour."""
    found: list[Finding] = []
    for agent, calls, read, tokens in rows(_RATIOS, (now - _HOUR,)):
        if calls < _FEW_CALLS or not tokens:
            continue
        ratio = int(read) / int(tokens)
        told = f"hit ratio {ratio:.2f} in the last hour, of {calls:,} calls"
        if ratio < _FLAGGED:
            advice = "`foveate explain` says of its last sessions where the cache broke, and why"
            found.append(warning(HEALTH, told, advice, name=str(agent)))
        else:
            word = "healthy" if ratio >= _HEALTHY else f"{_HEALTHY} is the aim"
            found.append(ok(HEALTH, f"{told}: {word}", name=str(agent)))
    return found


def _drifts(rows: Rows, now: float) -> list[Finding]:
    """By how much bills differ from what was counted before, at the 99th percentile."""
    by_model: dict[tuple[str, str], list[float]] = {}
    for provider, model, counted, billed in rows(_ESTIMATES, (now - _DAY, _MOST_BILLS)):
        if billed:
            by_model.setdefault((provider, model), []).append(100 * abs(billed - counted) / counted)
    found: list[Finding] = []
    for (provider, model), drifts in by_model.items():
        if len(drifts) < _FEW_CALLS:
            continue
        worst = _p99(drifts)
        told = f"counts are within {worst:.1f}% of bills (99 of 100, of {len(drifts):,} calls)"
        if worst > _DRIFT_PERCENT:
            advice = "the counter is wrong for it: set token_counter.use_endpoint where its server can count"
            found.append(warning(HEALTH, told, advice, name=f"{model} at {provider}"))
        elif worst < _GOOD_DRIFT_PERCENT:
            found.append(ok(HEALTH, told, name=f"{model} at {provider}"))
        else:
            found.append(
                ok(HEALTH, f"{told}; below {_GOOD_DRIFT_PERCENT}% is good", name=f"{model} at {provider}")
            )
    return found


def _folds(rows: Rows, now: float) -> list[Finding]:
    outcomes = {str(outcome): int(count) for outcome, count in rows(_OUTCOMES, (now - _DAY,))}
    good, bad, held = (outcomes.get(name, 0) for name in ("ok", "failed", "lock_held"))
    found: list[Finding] = []
    if bad and bad * 4 > good:
        advice = "`foveate compactions list` says why; see the summariser's model and key"
        found.append(warning(HEALTH, f"of {good + bad:,} folds of the last day {bad:,} failed", advice))
    elif good:
        found.append(ok(HEALTH, f"{good:,} folds in the last day, {bad:,} failed"))
    if held > max(good, _FEW_CALLS):
        advice = "several gateways fold the same sessions: raise compaction.lock_ttl_seconds, or one hangs"
        found.append(warning(HEALTH, f"{held:,} folds of the last day found the lock held", advice))
    today, before = _durations(rows, now - _DAY, now), _durations(rows, now - 8 * _DAY, now - _DAY)
    if min(len(today), len(before)) >= _FEW_CALLS and _p99(today) > _SLOWER * _p99(before):
        longest, usual = (f"{_p99(durations):,.0f} s" for durations in (today, before))
        told = f"folds take up to {longest} today, and took up to {usual} in the week before"
        found.append(warning(HEALTH, told, "see how the summariser's model is doing"))
    return found


def _durations(rows: Rows, since: float, until: float) -> list[float]:
    return [float(seconds) for (seconds,) in rows(_DURATIONS, (since, until))]


def _p99(numbers: Sequence[float]) -> float:
    return sorted(numbers)[min(len(numbers) - 1, int(0.99 * len(numbers)))]
