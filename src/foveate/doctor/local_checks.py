"""Checks of this machine: vocabularies, embedder, watchers, prices, files, port, clock and coding agents."""

import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from foveate.agents.catalog import Agent
from foveate.agents.installation import ConfiguredUrl, find_installed
from foveate.agents.launch import can_replace
from foveate.doctor.findings import Finding, failed_finding, ok_finding, warning_finding
from foveate.errors import CannotListen, FoveateError

if TYPE_CHECKING:
    from foveate.config.price_file import PriceFile
    from foveate.config.settings import Settings
    from foveate.cost.pricing.price_book import PriceBook
    from foveate.gateway.routing import Upstream

_BREAKPOINT_MODEL = "claude-sonnet-4-5"
_BUNDLED_VOCABULARIES = {"o200k": "gpt-5", "cl100k": "gpt-4"}
_TEXT = "def parse(text): return text.split()"
_GLOB = frozenset("*?[")
_WATCH_TIMEOUT_SECONDS = 3.0
# Editors and build tools easily use up smaller limits.
_MIN_WATCHES, _MIN_INSTANCES = 8_192, 128
_INOTIFY_LIMITS = Path("/proc/sys/fs/inotify")
_MOUNTS = Path("/proc/self/mounts")
_FILE_SYSTEMS_WITHOUT_EVENTS = ("nfs", "cifs", "smb", "fuse", "9p", "vboxsf", "prl_fs")
_YEAR_SECONDS = 365.25 * 86_400
_MIN_PLAUSIBLE_TIME = 56.5 * _YEAR_SECONDS  # mid-2026
_MAX_SKEW_SECONDS = 60.0
_MAX_TABLE_AGE_DAYS = 60
AGENTS = "agents"
_API_VERSIONS = ("v1", "v1beta")


def collect_models(
    settings: "Settings", recent_models: Sequence[tuple[str, str]], upstreams: "Mapping[str, Upstream]"
) -> dict[str, str]:
    found = {
        name: upstreams[route.upstream].provider
        for route in settings.routes
        if not _GLOB.intersection(name := route.model or route.models)
    }
    summarizer = settings.context_optimization.compaction.summarizer_model
    if summarizer:
        found.setdefault(summarizer, "")
    return found | {model: provider for provider, model in recent_models if model}


def check_vocabularies(models: Sequence[str], *, is_counted: bool = True) -> list[Finding]:
    from foveate.tokens import counter_for

    findings: list[Finding] = []
    if not is_counted:
        advice = "turn token_counter on: without it context limits are not enforced, and caps reject calls"
        findings.append(warning_finding("vocabularies", "the tokens of requests are not counted", advice))
    for name, model in _BUNDLED_VOCABULARIES.items():
        counted = counter_for(model).text(_TEXT)
        if counted.exact:
            findings.append(ok_finding("vocabularies", "this vocabulary loads and counts exactly", name=name))
        else:
            findings.append(
                failed_finding("vocabularies", "this vocabulary does not load", "reinstall Foveate", name=name)
            )
    for model in models:
        counter = counter_for(model)
        if counter.text(_TEXT).exact:
            findings.append(
                ok_finding("vocabularies", f"its tokens are counted exactly ({counter.backend})", name=model)
            )
        else:
            findings.append(
                ok_finding(
                    "vocabularies",
                    "its tokens are estimated, and reported usage corrects the estimate",
                    name=model,
                )
            )
    return findings


def check_cache_ttl(settings: "Settings", providers: Sequence[str]) -> list[Finding]:
    """Warn if breakpoints live five minutes although the configuration asks for an hour."""
    from foveate.prompt_cache.rules import CachingMode, rules_for

    cache = settings.context_optimization.prompt_cache
    if not cache.enabled or cache.ttl != "1h":
        return []
    message = (
        "its cache entries live 5 minutes although prompt_cache.ttl is 1h: it is not in long_ttl_providers"
    )
    advice = "add it to prompt_cache.long_ttl_providers, or set prompt_cache.ttl to 5m"
    return [
        warning_finding("prompt cache", message, advice, provider)
        for provider in dict.fromkeys(providers)
        if provider not in cache.long_ttl_providers
        and (rules := rules_for(_BREAKPOINT_MODEL, provider)).caching is CachingMode.BREAKPOINTS
        and len(rules.ttls) > 1
    ]


def check_embedder() -> list[Finding]:
    from foveate.memory.search.embeddings import default_embedder

    try:
        default = default_embedder()
        (vector,) = default.embed([_TEXT])
    except FoveateError as error:
        return [
            failed_finding(
                "embedder",
                str(error),
                "reinstall Foveate; without the embedder, memory search compares only words",
            )
        ]
    return [ok_finding("embedder", f"{default.name} works ({len(vector)} dimensions)")]


def check_watchers(settings: "Settings") -> list[Finding]:
    findings = [*_check_inotify_limits(), _check_change_event()]
    for agent in settings.agents:
        sections = agent.sections
        if sections is None:
            continue
        if sections.workspace is not None:
            age = settings.context_optimization.workspace_cache.max_age_seconds
            findings.append(_check_workspace(agent.id, _expand_path(sections.workspace.root), age))
        if sections.memory is not None:
            findings.append(
                _check_notes(agent.id, "memory", [_expand_path(path) for path in sections.memory.paths])
            )
        if sections.skills is not None:
            findings.append(_check_notes(agent.id, "skills", [_expand_path(sections.skills)]))
    return findings


def _expand_path(path: str) -> Path:
    from foveate.paths import expand_path

    return Path(expand_path(path, os.environ))


def _check_change_event() -> Finding:
    from watchfiles._rust_notify import RustNotify

    try:
        with TemporaryDirectory(prefix="foveate-doctor-") as folder:
            notify = RustNotify([folder], False, False, 0, False, False)
            try:
                started = time.monotonic()
                Path(folder, "change.md").write_text("changed", encoding="utf-8")
                events = notify.watch(10, 10, round(1000 * _WATCH_TIMEOUT_SECONDS), None)
                elapsed = time.monotonic() - started
            finally:
                notify.close()
    except OSError as error:
        return failed_finding("watchers", f"no folder can be watched: {error}", _raise_limits_advice())
    if isinstance(events, str):
        advice = "set workspace_cache.max_age_seconds, so that files are reread even without change events"
        return failed_finding(
            "watchers", f"a changed file was not noticed within {_WATCH_TIMEOUT_SECONDS:g} s", advice
        )
    return ok_finding("watchers", f"a changed file was noticed after {1000 * elapsed:.0f} ms")


def _check_inotify_limits() -> list[Finding]:
    findings: list[Finding] = []
    for name, minimum in (("max_user_watches", _MIN_WATCHES), ("max_user_instances", _MIN_INSTANCES)):
        try:
            limit = int((_INOTIFY_LIMITS / name).read_text())
        except (OSError, ValueError):  # not Linux
            continue
        if limit < minimum:
            findings.append(
                warning_finding(
                    "watchers", f"fs.inotify.{name} is only {limit:,}", _raise_limits_advice(name, minimum)
                )
            )
    return findings


def _raise_limits_advice(name: str = "max_user_instances", minimum: int = _MIN_INSTANCES) -> str:
    return (
        f"raise it: sudo sysctl fs.inotify.{name}={minimum * 8}"
        if sys.platform == "linux"
        else "close programs that watch files"
    )


def _check_workspace(agent: str, root: Path, max_age_seconds: float) -> Finding:
    if not root.is_dir() or not os.access(root, os.R_OK | os.X_OK):
        return failed_finding(
            "watchers",
            f"its workspace {root} is not a readable folder",
            "correct sections.workspace.root",
            agent,
        )
    kind = _file_system_type(root)
    if kind.startswith(_FILE_SYSTEMS_WITHOUT_EVENTS) and not max_age_seconds:
        advice = "set workspace_cache.max_age_seconds, so that files are reread even without change events"
        return warning_finding(
            "watchers", f"its workspace {root} is on {kind}, which may not report changed files", advice, agent
        )
    return ok_finding("watchers", f"its workspace {root} can be watched", agent)


def _check_notes(agent: str, kind: str, paths: Sequence[Path]) -> Finding:
    unreadable = [str(path) for path in paths if not os.access(path, os.R_OK)]
    if unreadable:
        message = f"its {kind} cannot be read, and prompts are sent without: {', '.join(unreadable)}"
        return warning_finding("watchers", message, f"correct sections.{kind}", agent)
    return ok_finding("watchers", f"its {kind} can be read: {', '.join(map(str, paths))}", agent)


def _file_system_type(folder: Path) -> str:
    try:
        mounts = [
            line.split()[1:3] for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
    except OSError:
        return ""
    full_path = f"{folder.resolve()}/"
    matching = [(len(place), kind) for place, kind in mounts if full_path.startswith(f"{place.rstrip('/')}/")]
    return max(matching, default=(0, ""))[1]


def check_price_tables(file: "PriceFile | None", *, now: float) -> list[Finding]:
    from foveate.cost.pricing.price_facts import load_price_facts

    update = None if file is None else file.current_prices()
    newest = max(load_price_facts().as_of, load_price_facts().as_of if update is None else update.day)
    age_days = (datetime.fromtimestamp(now, UTC).date() - newest).days
    advice = "import a newer price file (foveate prices update FILE), or upgrade Foveate"
    findings: list[Finding] = []
    if file is not None and file.problem is not None:
        reread_advice = "import it again: foveate prices update FILE"
        findings.append(warning_finding("prices", f"the price file is not used: {file.problem}", reread_advice))
    if age_days > _MAX_TABLE_AGE_DAYS:
        findings.append(
            warning_finding("prices", f"the newest price table is from {newest}, {age_days} days old", advice)
        )
    return findings


def check_prices(book: "PriceBook", models: Mapping[str, str], *, now: float) -> list[Finding]:
    findings: list[Finding] = []
    for model, provider in models.items():
        rates = book.rates(model, provider=provider, at=now)
        if rates is None:
            advice = "set it under cost.prices; caps reject calls without a known price"
            findings.append(
                warning_finding(
                    "prices", f"its price at {provider or 'its provider'} is unknown", advice, model
                )
            )
        elif rates.inherited_from:
            message = f"it has no price of its own, and is charged as {rates.origin} (marked as inherited)"
            advice = "import a newer price file (foveate prices update FILE), or set it under cost.prices"
            findings.append(warning_finding("prices", message, advice, model))
        else:
            findings.append(ok_finding("prices", f"its price at {provider or 'its provider'} is known", model))
    if not models:
        known = book.rates("claude-sonnet-4-5", provider="anthropic", at=now)
        message = "the price tables load; the configuration names no models"
        findings.append(
            ok_finding("prices", message)
            if known
            else failed_finding("prices", "the price tables cannot be read", "reinstall Foveate")
        )
    return findings


def check_local_model() -> list[Finding]:
    from foveate.gateway.local_model import find_weights

    try:
        file = find_weights()
    except FoveateError as error:
        return [
            ok_finding(
                "local model",
                f"not installed; only --local needs it ({str(error).removeprefix('--local: ')})",
            )
        ]
    return [ok_finding("local model", f"{file.stem} is installed ({file.stat().st_size / 1024**2:,.0f} MB)")]


def check_file_modes(config: Path | None) -> list[Finding]:
    """Check that others cannot write the configuration or read the key file."""
    findings: list[Finding] = []
    if os.name != "posix":
        return findings
    if config is not None and config.exists() and stat.S_IMODE(config.stat().st_mode) & 0o022:
        mode = stat.S_IMODE(config.stat().st_mode)
        findings.append(
            warning_finding(
                "config", f"other users can change {config} (mode {mode:o})", f"run: chmod go-w {config}"
            )
        )
    env = Path(".env")
    if env.is_file() and stat.S_IMODE(env.stat().st_mode) & 0o077:
        mode = stat.S_IMODE(env.stat().st_mode)
        findings.append(
            warning_finding("config", f"other users can read .env (mode {mode:o})", "run: chmod 600 .env")
        )
    return findings


def is_port_free(host: str, port: int) -> bool:
    """Check whether the gateway could listen on a port.

    Raises:
        CannotListen: for another reason than a port in use.
    """
    from foveate.http.listening_sockets import open_listening_socket

    try:
        open_listening_socket(host, port).close()
    except CannotListen as error:
        if "in use" in error.reason:
            return False
        raise
    return True


def check_gateway_health(health: object, address: str, url: str, store_url: str) -> Finding | None:
    if not isinstance(health, dict) or health.get("status") not in ("ok", "degraded"):
        return None
    message = f"a gateway is running on {address}"
    if "version" in health:  # only shown to callers who may see its pages
        message += f", version {health['version']}"
    from foveate.store import is_same_store, is_server

    store = health.get("store")
    where = store.get("where") if isinstance(store, dict) else None
    # The folder of a relative path is unknown.
    has_name = isinstance(where, str) and (is_server(where) or Path(where).is_absolute())
    if has_name and not is_same_store(str(where), store_url):
        return warning_finding(
            "port",
            f"{message}, with another store than this configuration: {where}",
            "its calls are recorded there; name that store with --store, or set another server.port",
        )
    if health["status"] == "ok":
        return ok_finding("port", f"{message}, and is healthy")
    parts = {name: part for name, part in health.items() if isinstance(part, dict) and part.get("problem")}
    problems = "".join(f"; {name}: {part['problem']}" for name, part in parts.items())
    return warning_finding(
        "port", f"{message}, and is {health['status']}{problems}", f"see {url} and the log of the gateway"
    )


def check_clock(*, now: float, newest_at: float | None, upstream_times: Sequence[float]) -> list[Finding]:
    advice = "set the clock (timedatectl): daily caps and cache lifetimes depend on it"
    if upstream_times:
        skew = min((now - at for at in upstream_times), key=abs)
        if abs(skew) > _MAX_SKEW_SECONDS:
            direction = "ahead of" if skew > 0 else "behind"
            return [
                warning_finding(
                    "clock", f"the clock is {abs(skew):,.0f} s {direction} the clocks of the upstreams", advice
                )
            ]
        return [ok_finding("clock", "the clock agrees with the clocks of the upstreams")]
    shown_time = time.strftime("%Y-%m-%d %H:%M", time.gmtime(now))
    if now < _MIN_PLAUSIBLE_TIME or (newest_at is not None and newest_at - now > _MAX_SKEW_SECONDS):
        return [warning_finding("clock", f"the clock is wrong: it shows {shown_time} UTC", advice)]
    return [ok_finding("clock", f"the clock shows {shown_time} UTC (not compared with upstreams)")]


def check_agents(environment: Mapping[str, str], folder: Path, gateway_url: str) -> list[Finding]:
    findings: list[Finding] = []
    for found in find_installed(environment, folder, gateway_url):
        agent, start = found.agent, f"foveate run {found.agent.word}"
        findings += [
            warning_finding(
                AGENTS,
                f"{setting.source} sets {setting.key} to {setting.url}, so its requests bypass the gateway",
                _advise_agent(agent, setting, gateway_url),
                agent.word,
            )
            for setting in found.bypasses
        ]
        findings += [
            warning_finding(
                AGENTS,
                f"{reason}, so its requests bypass the gateway",
                "use an API key of the provider instead",
                agent.word,
            )
            for reason in found.direct_access
        ]
        if found.pointed and not found.bypasses:
            setting = found.pointed[0]
            findings.append(ok_finding(AGENTS, f"{setting.key} in {setting.source} is the gateway", agent.word))
        elif not found.bypasses and not found.direct_access:
            message = f"calls its provider directly; to use the gateway, start it with: {start}"
            findings.append(ok_finding(AGENTS, message, agent.word))
    return findings


def _advise_agent(agent: Agent, setting: ConfiguredUrl, gateway_url: str) -> str:
    if agent.needs_lines:
        return f"`foveate run --print {agent.word}` shows what to set instead"
    version = urlsplit(setting.url).path.rstrip("/").rpartition("/")[2]
    address = f"{gateway_url}/{version}" if version in _API_VERSIONS else gateway_url
    start = f"start the agent with: foveate run {agent.word}"
    remedy = start if can_replace(agent, setting) else f"remove it and {start}"
    return (
        f"set it to {address}, or {remedy}. If requests must still go to its server, make that the base_url of"
        " an upstream in foveate.yaml"
    )
