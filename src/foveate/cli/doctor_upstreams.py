"""Upstreams as the doctor sees them: whether they are reached, take the key, and what they can do.

Only what costs nothing is asked: the list of models; of a server without one, an empty request, which every API
rejects; and of servers that may tokenise, one letter.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from foveate.cli.doctor_findings import Finding, failed, ok, warning
from foveate.errors import UpstreamError, UpstreamStatus

if TYPE_CHECKING:
    from foveate.config.settings import Settings
    from foveate.gateway.routing import Upstream

CHECK = "upstream"
LIMIT_SECONDS, _TOKENIZE_SECONDS = 3.0, 1.0
_MOST_BYTES = 16 * 1024 * 1024
# Their lists of models are open to everybody, so they say nothing of a key (November 2026).
_OPEN_LISTS = frozenset(("openrouter", "nvidia"))
# Who has no route that tokenises; everybody else may be a server of one's own.
_HOSTED = frozenset(
    ("anthropic", "openai", "openrouter", "deepseek", "google", "azure", "bedrock", "vertex", "nvidia")
)
# Where an API answers; a server that speaks both has the one of OpenAI.
_ANSWERS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
_COUNTS = {"anthropic": "counts whole requests", "openai": "counts Responses"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What an upstream said, and when it is by its own clock (None: it did not say)."""

    findings: Sequence[Finding]
    at: float | None = None


def wanted(settings: "Settings", upstreams: "Mapping[str, Upstream]") -> "list[tuple[Upstream, bool]]":
    """The upstreams to look at, and whether somebody has named them: in the file, or by a key that is set."""
    named = {*settings.upstreams, *(route.upstream for route in settings.routes)}
    named |= {name for name, upstream in upstreams.items() if upstream.key is not None}
    usual = () if named else ("anthropic", "openai")
    return [(upstreams[name], name in named) for name in upstreams if name in named or name in usual]


async def asked(upstream: "Upstream", *, is_named: bool, models: Sequence[str]) -> Asked:
    """How it stands with one upstream."""
    from foveate.gateway.doors import Family

    headers = [(b"accept", b"application/json")]
    if upstream.key is not None:
        headers.append((b"authorization", f"Bearer {upstream.key}".encode("latin-1")))
    if upstream.family is Family.ANTHROPIC:
        headers.append((b"anthropic-version", b"2023-06-01"))
        if upstream.key is not None:
            headers[1] = (b"x-api-key", upstream.key.encode("latin-1"))
    path = "/v1/models"
    own = {
        Family.GEMINI: ("/v1beta/models", b"x-goog-api-key"),
        Family.AZURE: ("/openai/v1/models", b"api-key"),
    }.get(upstream.family)
    if own is not None:
        path, name = own
        if upstream.key is not None:
            headers[1] = (name, upstream.key.encode("latin-1"))
    began = time.monotonic()
    try:
        status, at = await _status("GET", upstream.url(path), headers)
    except (UpstreamError, TimeoutError) as error:
        reason = str(error) or f"no answer within {LIMIT_SECONDS:g} s"
        return Asked([_unreached(upstream, reason, is_named=is_named)])
    took = f"{1000 * (time.monotonic() - began):,.0f} ms"
    missing = await _missing_api(upstream, headers) if status in (404, 405) else None
    found = [missing or _spoke(upstream, status, took)]
    can = await _abilities(upstream, models)
    if can:
        found.append(ok(CHECK, f"it {'; '.join(can)}", upstream.name))
    return Asked(found, at)


async def _missing_api(upstream: "Upstream", headers: list[tuple[bytes, bytes]]) -> Finding | None:
    """Find that there is no API at an address, which does not even reject an empty request."""
    path = _ANSWERS.get(upstream.family.value)
    if path is None:
        return None
    url = upstream.url(path)
    try:
        status, _ = await _status("POST", url, [*headers, (b"content-type", b"application/json")], b"{}")
    except (UpstreamError, TimeoutError):
        return None  # it was just reached, so that this says nothing of the address
    if status not in (404, 405):
        return None
    said = f"there is no API at its base_url: POST {url} answers {status}"
    return failed(CHECK, said, "mend its base_url: it is what clients of its API are given", upstream.name)


async def _status(
    method: str, url: str, headers: list[tuple[bytes, bytes]], body: bytes = b""
) -> tuple[int, float | None]:
    """The status of a response, and when it is by the server's clock."""
    from foveate.upstream.pool import Pool, Timeouts, target, whole

    waits = Timeouts(connect_seconds=LIMIT_SECONDS, idle_seconds=LIMIT_SECONDS, total_seconds=LIMIT_SECONDS)
    async with (
        asyncio.timeout(LIMIT_SECONDS),
        Pool(timeouts=waits) as pool,
        pool.asked(method, target(url), headers, body) as answer,
    ):
        await whole(answer, most_bytes=_MOST_BYTES, url=url)
        return answer.status, _date(answer.header(b"date"))


def _date(said: bytes | None) -> float | None:
    try:
        return None if said is None else parsedate_to_datetime(said.decode("latin-1")).timestamp()
    except (ValueError, OverflowError):
        return None


def _unreached(upstream: "Upstream", reason: str, *, is_named: bool) -> Finding:
    if "certificate" in reason:
        advice = "install its certificate's authority on this machine, or see who stands between (a proxy?)"
        return failed(CHECK, reason, advice, upstream.name)
    if not is_named:
        return warning(CHECK, reason, "nothing needs it yet; --offline leaves it out", upstream.name)
    return failed(CHECK, reason, "see its base_url, whether it runs, and the network", upstream.name)


def _spoke(upstream: "Upstream", status: int, took: str) -> Finding:
    """What its answer to a list of models means."""
    where = f"reached within {took}" + (", over TLS" if upstream.base_url.startswith("https:") else "")
    if status in (401, 403):
        if upstream.key is None:
            return ok(CHECK, f"{where}; there is no key here: clients bring their own", upstream.name)
        return failed(
            CHECK, f"{where}, and refuses the key ({status})", "see the variable that holds it", upstream.name
        )
    if status >= 500:
        return warning(CHECK, f"{where}, and answers {status}", "see how its provider is doing", upstream.name)
    if status in (404, 405) or upstream.provider in _OPEN_LISTS:
        said = (
            "whether it takes the key shows at the first call" if upstream.key is not None else "no key is set"
        )
        return ok(CHECK, f"{where}; {said}", upstream.name)
    if not 200 <= status < 300:
        return warning(CHECK, f"{where}, and answers {status}", "see its base_url", upstream.name)
    return ok(
        CHECK, f"{where}; {'takes the key' if upstream.key is not None else 'asks for no key'}", upstream.name
    )


async def _abilities(upstream: "Upstream", models: Sequence[str]) -> list[str]:
    """What it can do: tokenise, count, and keep prompts."""
    can = []
    if upstream.provider not in _HOSTED:
        can.append(await _tokenises(upstream))
    else:
        can.append(_COUNTS.get(upstream.provider, "does not count: counts are made here"))
    can.append(await asyncio.to_thread(_caches, upstream, models))
    return can


async def _tokenises(upstream: "Upstream") -> str:
    """Whether it answers `/tokenize`, which costs nothing: one letter is sent."""
    from foveate.tokens.endpoints import is_definite_no
    from foveate.tokens.tokenize import TokenizeCounter
    from foveate.upstream import Client

    headers = {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
    async with Client(timeout_seconds=_TOKENIZE_SECONDS) as client:
        try:
            dialect = await TokenizeCounter(client, upstream.base_url, headers).dialect()
        except UpstreamError as error:
            if is_definite_no(error):
                return "does not tokenise: counts are made here"
            if isinstance(error, UpstreamStatus):
                return f"answers {error.status} where it is asked to tokenise"
            return f"did not say within {_TOKENIZE_SECONDS:g} s whether it tokenises"
    return f"tokenises ({dialect}), which token_counter.use_endpoint would use"


def _caches(upstream: "Upstream", models: Sequence[str]) -> str:
    from foveate.cache.rules import Caching, rules_for

    usual = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-5"}.get(upstream.provider, "")
    kinds = {rules_for(model, upstream.provider).caching for model in (models or [usual])}
    words = {
        Caching.MARKS: "caches what is marked",
        Caching.AUTOMATIC: "caches unasked",
        Caching.BOTH: "caches unasked, and what is marked",
        Caching.NONE: "promises no cache",
    }
    return " or ".join(words[kind] for kind in sorted(kinds))
