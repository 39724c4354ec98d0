"""What the doctor looks at on this machine: vocabularies, embedder, watchers, prices, files, port, clock."""

import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from foveate.cli.doctor_findings import Finding, failed, ok, warning
from foveate.errors import CannotListen, FoveateError

if TYPE_CHECKING:
    from foveate.config.price_file import PriceFile
    from foveate.config.settings import Settings
    from foveate.cost.price_book import PriceBook
    from foveate.gateway.routing import Upstream

_MARKED_MODEL = "claude-sonnet-4-5"
_BUNDLED = {"o200k": "gpt-5", "cl100k": "gpt-4"}
_TEXT = "def parse(text): return text.split()"
_GLOB = frozenset("*?[")
_SEEN_SECONDS = 3.0
# Below these, many editors and build tools use up what there is.
_FEW_WATCHES, _FEW_INSTANCES = 8_192, 128
_LIMITS = Path("/proc/sys/fs/inotify")
_MOUNTS = Path("/proc/self/mounts")
_WITHOUT_EVENTS = ("nfs", "cifs", "smb", "fuse", "9p", "vboxsf", "prl_fs")
_YEAR_SECONDS = 365.25 * 86_400
_LEAST_NOW = 56.5 * _YEAR_SECONDS  # the middle of 2026
_SKEW_SECONDS = 60.0
_OLD_TABLE_DAYS = 60


def models_of(
    settings: "Settings", used: Sequence[tuple[str, str]], upstreams: "Mapping[str, Upstream]"
) -> dict[str, str]:
    """The models that are named in the configuration, or were called of late, and who runs each."""
    found = {
        name: upstreams[route.upstream].provider
        for route in settings.routes
        if not _GLOB.intersection(name := route.model or route.models)
    }
    summarizer = settings.context_optimization.compaction.summarizer_model
    if summarizer:
        found.setdefault(summarizer, "")
    return found | {model: provider for provider, model in used if model}


def vocabularies(models: Sequence[str], *, is_counted: bool = True) -> list[Finding]:
    """Whether the bundled vocabularies load, which models are counted exactly, and whether any is."""
    from foveate.tokens import counter_for

    found: list[Finding] = []
    if not is_counted:
        advice = "turn token_counter on: nothing is kept within a window without it, and caps refuse"
        found.append(warning("vocabularies", "requests are not counted", advice))
    for name, model in _BUNDLED.items():
        counted = counter_for(model).text(_TEXT)
        if counted.exact:
            found.append(ok("vocabularies", "loads, and counts exactly", name=name))
        else:
            found.append(failed("vocabularies", "does not load", "install Foveate anew", name=name))
    for model in models:
        counter = counter_for(model)
        if counter.text(_TEXT).exact:
            found.append(ok("vocabularies", f"counted exactly ({counter.backend})", name=model))
        else:
            found.append(
                ok("vocabularies", "counted by an estimate, which is corrected by each bill", name=model)
            )
    return found


def cache_ttl(settings: "Settings", providers: Sequence[str]) -> list[Finding]:
    """Say why breakpoints live five minutes although the configuration asks for an hour."""
    from foveate.cache.rules import Caching, rules_for

    cache = settings.context_optimization.prompt_cache
    if not cache.enabled or cache.ttl != "1h":
        return []
    said = "prompt_cache.ttl is 1h, but breakpoints live 5 minutes: it is not one of long_ttl_providers"
    advice = "add it to prompt_cache.long_ttl_providers, or set prompt_cache.ttl to 5m"
    return [
        warning("prompt cache", said, advice, provider)
        for provider in dict.fromkeys(providers)
        if provider not in cache.long_ttl_providers
        and (rules := rules_for(_MARKED_MODEL, provider)).caching is Caching.MARKS
        and len(rules.ttls) > 1
    ]


def embedder() -> list[Finding]:
    """Whether texts can be compared by what they are about."""
    from foveate.memory.embedding import default_embedder

    try:
        made = default_embedder()
        (vector,) = made.embed([_TEXT])
    except FoveateError as error:
        return [
            failed("embedder", str(error), "install Foveate anew: memory is ranked by words alone without it")
        ]
    return [ok("embedder", f"{made.name}, {len(vector)} numbers a text")]


def watchers(settings: "Settings") -> list[Finding]:
    """Whether a change of a file is seen, and whether it would be in the folders that are to be watched."""
    found = [*_inotify(), _change_seen()]
    for agent in settings.agents:
        sections = agent.sections
        if sections is None:
            continue
        if sections.workspace is not None:
            age = settings.context_optimization.workspace_cache.max_age_seconds
            found.append(_workspace(agent.id, _meant(sections.workspace.root), age))
        if sections.memory is not None:
            found.append(_notes(agent.id, "memory", [_meant(path) for path in sections.memory.paths]))
        if sections.skills is not None:
            found.append(_notes(agent.id, "skills", [_meant(sections.skills)]))
    return found


def _meant(path: str) -> Path:
    from foveate.memory.paths import expanded

    return Path(expanded(path, os.environ))


def _change_seen() -> Finding:
    from watchfiles._rust_notify import RustNotify

    try:
        with TemporaryDirectory(prefix="foveate-doctor-") as folder:
            notify = RustNotify([folder], False, False, 0, False, False)
            try:
                began = time.monotonic()
                Path(folder, "change.md").write_text("changed", encoding="utf-8")
                happened = notify.watch(10, 10, round(1000 * _SEEN_SECONDS), None)
                took = time.monotonic() - began
            finally:
                notify.close()
    except OSError as error:
        return failed("watchers", f"no folder can be watched: {error}", _raise_limits())
    if isinstance(happened, str):
        advice = "set workspace_cache.max_age_seconds, so that files are read again without an event"
        return failed("watchers", f"a change of a file was not seen within {_SEEN_SECONDS:g} s", advice)
    return ok("watchers", f"a change of a file is seen, after {1000 * took:.0f} ms")


def _inotify() -> list[Finding]:
    found: list[Finding] = []
    for name, least in (("max_user_watches", _FEW_WATCHES), ("max_user_instances", _FEW_INSTANCES)):
        try:
            limit = int((_LIMITS / name).read_text())
        except (OSError, ValueError):  # not Linux
            continue
        if limit < least:
            found.append(warning("watchers", f"{name} is {limit:,}", _raise_limits(name, least)))
    return found


def _raise_limits(name: str = "max_user_instances", least: int = _FEW_INSTANCES) -> str:
    return (
        f"sudo sysctl fs.inotify.{name}={least * 8}"
        if sys.platform == "linux"
        else "close programs that watch files"
    )


def _workspace(agent: str, root: Path, max_age_seconds: float) -> Finding:
    if not root.is_dir() or not os.access(root, os.R_OK | os.X_OK):
        return failed(
            "watchers",
            f"its workspace {root} is no folder that can be read",
            "mend sections.workspace.root",
            agent,
        )
    kind = _mount_of(root)
    if kind.startswith(_WITHOUT_EVENTS) and not max_age_seconds:
        advice = "set workspace_cache.max_age_seconds: there may be no events there"
        return warning("watchers", f"its workspace {root} is on {kind}", advice, agent)
    return ok("watchers", f"its workspace {root} can be watched", agent)


def _notes(agent: str, what: str, paths: Sequence[Path]) -> Finding:
    """Whether an agent's memory, or its skills, are there."""
    gone = [str(path) for path in paths if not os.access(path, os.R_OK)]
    if gone:
        said = f"its {what} {', '.join(gone)} cannot be read"
        return warning("watchers", said, f"mend sections.{what}: prompts go out without it", agent)
    return ok("watchers", f"its {what} can be read: {', '.join(map(str, paths))}", agent)


def _mount_of(folder: Path) -> str:
    """The kind of file system that a folder is on; nothing where nobody says."""
    try:
        mounts = [
            line.split()[1:3] for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
    except OSError:
        return ""
    whole = f"{folder.resolve()}/"
    inside = [(len(place), kind) for place, kind in mounts if whole.startswith(f"{place.rstrip('/')}/")]
    return max(inside, default=(0, ""))[1]


def price_tables(file: "PriceFile | None", *, now: float) -> list[Finding]:
    """Whether the newest price table is recent, and the price file in the data folder can be used."""
    from foveate.cost.price_facts import facts

    update = None if file is None else file.now()
    newest = max(facts().as_of, facts().as_of if update is None else update.day)
    age_days = (datetime.fromtimestamp(now, UTC).date() - newest).days
    advice = "bring a newer one: foveate prices update FILE (docs/cost.md), or upgrade Foveate"
    found: list[Finding] = []
    if file is not None and file.problem is not None:
        again = "read it again: foveate prices update FILE"
        found.append(warning("prices", f"the price file is not used: {file.problem}", again))
    if age_days > _OLD_TABLE_DAYS:
        found.append(warning("prices", f"the newest price table is of {newest}, {age_days} days old", advice))
    return found


def prices(book: "PriceBook", models: Mapping[str, str], *, now: float) -> list[Finding]:
    """Whether calls of these models can be priced."""
    found: list[Finding] = []
    for model, provider in models.items():
        rates = book.rates(model, provider=provider, at=now)
        if rates is None:
            advice = "write it under cost.prices; under a cap such calls are refused"
            found.append(
                warning("prices", f"nobody knows its price at {provider or 'its provider'}", advice, model)
            )
        elif rates.inherited_from:
            said = f"it has no price of its own: charged as {rates.origin}, marked inherited"
            advice = "bring a newer price file (foveate prices update FILE), or write it under cost.prices"
            found.append(warning("prices", said, advice, model))
        else:
            found.append(ok("prices", f"known at {provider or 'its provider'}", model))
    if not models:
        known = book.rates("claude-sonnet-4-5", provider="anthropic", at=now)
        said = "the tables load; the configuration names no models"
        found.append(
            ok("prices", said)
            if known
            else failed("prices", "the tables cannot be read", "install Foveate anew")
        )
    return found


def local_model() -> list[Finding]:
    """Whether there is a small model on this machine."""
    from foveate.gateway.local import weights

    try:
        file = weights()
    except FoveateError as error:
        return [
            ok(
                "local model",
                f"none, which is only needed for --local ({str(error).removeprefix('--local: ')})",
            )
        ]
    return [ok("local model", f"{file.stem}, {file.stat().st_size / 1024**2:,.0f} MB")]


def file_modes(config: Path | None) -> list[Finding]:
    """Whether files that decide, or hold keys, are for their owner alone."""
    found: list[Finding] = []
    if os.name != "posix":
        return found
    if config is not None and config.exists() and stat.S_IMODE(config.stat().st_mode) & 0o022:
        mode = stat.S_IMODE(config.stat().st_mode)
        found.append(warning("config", f"others may write {config} (mode {mode:o})", f"chmod go-w {config}"))
    env = Path(".env")
    if env.is_file() and stat.S_IMODE(env.stat().st_mode) & 0o077:
        mode = stat.S_IMODE(env.stat().st_mode)
        found.append(warning("config", f"others may read .env (mode {mode:o})", "chmod 600 .env"))
    return found


def port_is_free(host: str, port: int) -> bool:
    """Whether the gateway could listen there.

    Raises:
        CannotListen: not for being in use.
    """
    from foveate.upstream.sockets import listening

    try:
        listening(host, port).close()
    except CannotListen as error:
        if "in use" in error.reason:
            return False
        raise
    return True


def gateway_seen(said: object, where: str, url: str) -> Finding | None:
    """How a gateway is by what its `/health` says, with what is wrong; None where none said it."""
    if not isinstance(said, dict) or said.get("status") not in ("ok", "degraded"):
        return None
    told = f"a gateway listens on {where}"
    if "version" in said:  # it tells only those who may see its pages
        told += f", version {said['version']}"
    if said["status"] == "ok":
        return ok("port", f"{told}, and is well")
    parts = {name: part for name, part in said.items() if isinstance(part, dict) and part.get("problem")}
    why = "".join(f"; {name}: {part['problem']}" for name, part in parts.items())
    return warning("port", f"{told}, and is {said['status']}{why}", f"see {url}, and its log")


def clock(*, now: float, newest_at: float | None, others_at: Sequence[float]) -> list[Finding]:
    """Whether this machine's clock is right, by what others say and by what was booked last."""
    advice = "set the clock (timedatectl): caps by day and times to live go by it"
    if others_at:
        skew = min((now - at for at in others_at), key=abs)
        if abs(skew) > _SKEW_SECONDS:
            word = "ahead of" if skew > 0 else "behind"
            return [warning("clock", f"{abs(skew):,.0f} s {word} what upstreams say", advice)]
        return [ok("clock", "agrees with what upstreams say")]
    if now < _LEAST_NOW or (newest_at is not None and newest_at - now > _SKEW_SECONDS):
        return [warning("clock", f"says {time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC", advice)]
    return [
        ok("clock", f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC, which nobody was asked about")
    ]
