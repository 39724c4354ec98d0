"""The ASGI app of the web pages: routes, layout, headers and static files."""

import asyncio
import gzip
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from foveate.errors import BadOption, FoveateError, StoreUnavailable
from foveate.status_line import LINE_MEDIA_TYPE, STATUS_PATH, format_line
from foveate.web import formatting
from foveate.web.live_updates import MAX_SUBSCRIBERS, ChangeFeed, WatchTarget
from foveate.web.page import Forbidden, GatewayData, PageNotFound, PageRequest, Viewer, WebPage, get_viewer
from foveate.web.pages import agents, compactions, configuration, memory, overview, sessions
from foveate.web.status import load_status

_LOG = logging.getLogger(__name__)
_FILES = ("foveate.css", "live.js", "charts.js", "chart.js")
_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Asset:
    name: str
    media_type: str
    plain: bytes
    compressed: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.plain).hexdigest()[:16]


@cache
def load_assets() -> Mapping[str, Asset]:
    folder = resources.files("foveate.web").joinpath("files")
    return {name: _build_asset(name, folder.joinpath(name).read_bytes()) for name in _FILES}


@cache
def asset_url(name: str) -> str:
    """Return a URL that changes with the content, so that browsers can cache it forever."""
    return f"/-/assets/{name}?{load_assets()[name].digest}"


def _build_asset(name: str, data: bytes) -> Asset:
    return Asset(name, _MEDIA_TYPES[name.rpartition(".")[2]], data, gzip.compress(data, 6, mtime=0))


ROOT_PATH = "/"

PageLoader = Callable[[GatewayData, PageRequest], Awaitable[WebPage]]

AGENT_PAGES: dict[str, PageLoader] = {
    ROOT_PATH: overview.load_page,
    "/-/sessions": sessions.load_page,
    "/-/sessions/{id:path}": sessions.load_session_page,
    "/-/compactions/{id:path}": compactions.load_page,
    "/-/agents": agents.load_page,
    "/-/agents/{name:path}": agents.load_agent_page,
    "/-/memory": memory.load_page,
}
"""Pages that show only what their viewer may see; an agent's key opens them."""
PAGES: dict[str, PageLoader] = {**AGENT_PAGES, "/-/configuration": configuration.load_page}
"""All pages. Those that are not in `AGENT_PAGES` are for administrators."""
_NAVIGATION = (
    (ROOT_PATH, "Overview"),
    ("/-/sessions", "Sessions"),
    ("/-/agents", "Agents"),
    ("/-/memory", "Memory"),
    ("/-/configuration", "Configuration"),
)
_ADMIN_REMEDY = "Use an admin key; `foveate config key --admin` creates one."
_ADMIN_NEEDED = "This page is for administrators, and your gateway key belongs to one agent."
# Pages that belong to another entry of the navigation.
_NAVIGATION_PARENTS = {"/-/compactions/{id:path}": "/-/sessions"}
# Nothing from other sites, no scripts but our own files, never in a frame.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_PAGES_OFF = Response("the dashboard is disabled: server.page is false\n", 404, media_type="text/plain")
_CACHE_FOREVER = "private, max-age=31536000, immutable"


def create_app(data: GatewayData) -> "WebApp":
    """Create the app for the gateway's root and everything below `/-/`."""
    change_feed = ChangeFeed(
        lambda watched: data.store.totals.get_change_token(watched.session_id, agent=watched.agent),
        data.current_config,
        is_shutting_down=data.is_shutting_down,
    )
    renderer = _PageRenderer(data, change_feed)

    async def events(request: Request) -> Response:
        if change_feed.subscriber_count >= MAX_SUBSCRIBERS:
            return Response("too many open dashboard pages", 503, {"retry-after": "60"}, "text/plain")
        viewer = get_viewer(request.scope)
        session_id = request.query_params.get("session")
        if session_id is not None and not await _can_see_session(data, viewer, session_id):
            return Response("session not found", 404, media_type="text/plain")
        # The last event before a reconnect; at first, the digest of the page.
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":  # the stream never ends, and a HEAD has no body
            return Response(b"", 200, headers, "text/event-stream")
        return StreamingResponse(
            change_feed.events(WatchTarget(session_id, viewer.agent), since), 200, headers, "text/event-stream"
        )

    async def status(request: Request) -> Response:
        parameters = request.query_params
        try:
            content = await load_status(data, get_viewer(request.scope), parameters.get("session", ""))
        except StoreUnavailable as error:
            return JSONResponse({"error": {"code": error.code, "message": str(error)}}, 503)
        headers = {"cache-control": "no-store"}
        if parameters.get("format") == "line":
            return Response(format_line(content, {}, data.clock()), 200, headers, LINE_MEDIA_TYPE)
        return JSONResponse(content, headers=headers)

    routes = [
        Route("/-/events", events),
        Route(STATUS_PATH, status),
        Route("/-/assets/{name}", _serve_asset),
        *(
            Route(
                path,
                renderer.create_endpoint(
                    _NAVIGATION_PARENTS.get(path, path),
                    loader if path in AGENT_PAGES else _require_admin(loader),
                ),
            )
            for path, loader in PAGES.items()
        ),
        Route("/-/{rest:path}", renderer.create_endpoint("", _not_found)),
    ]
    return WebApp(routes, data)


class WebApp:
    """Adds headers to every page, and serves none while pages are disabled."""

    def __init__(self, routes: Sequence[Route], data: GatewayData) -> None:
        self.routes = routes
        self._app = Starlette(routes=routes)
        self._data = data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        is_on = self._data.current_config().settings.server.page
        await (self._app if is_on else _PAGES_OFF)(scope, receive, send_with_headers)


async def _can_see_session(data: GatewayData, viewer: Viewer, session_id: str) -> bool:
    if viewer.sees_everything:
        return True
    session = await data.store.totals.get_session(session_id)
    return session is not None and viewer.can_see(session.agent)


def _require_admin(loader: PageLoader) -> PageLoader:
    async def load_as_admin(data: GatewayData, page_request: PageRequest) -> WebPage:
        if not page_request.viewer.sees_everything:
            raise Forbidden(_ADMIN_NEEDED)
        return await loader(data, page_request)

    return load_as_admin


class _PageRenderer:
    """Renders pages in their layout, and error pages if one cannot be shown."""

    def __init__(self, data: GatewayData, change_feed: ChangeFeed) -> None:
        self._data = data
        self._change_feed = change_feed
        self._templates = Environment(
            loader=PackageLoader("foveate.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(formatting.FILTERS)
        template_globals: Any = self._templates.globals
        template_globals.update(address=asset_url, version=data.version)

    def create_endpoint(self, path: str, loader: PageLoader) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            viewer = get_viewer(request.scope)
            page_request = PageRequest(
                viewer=viewer,
                path_parameters=request.path_params,
                query=dict(request.query_params),
                gateway_url=str(request.base_url).rstrip("/"),
            )
            session_id = page_request.path_parameters.get("id")
            digest = await self._change_feed.compute_digest(WatchTarget(session_id, viewer.agent))
            request_path = str(request.url.path)
            try:
                page = await self._load(loader, page_request)
                digest = digest if page.watched_session_id == session_id else ""
                body = await asyncio.to_thread(self._render, viewer, page, path, request_path, digest)
            except Exception:  # noqa: BLE001 - outermost border: show an error page
                _LOG.exception("dashboard page %s failed, sending an error page", request_path)
                page = _INTERNAL_ERROR
                body = await asyncio.to_thread(self._render, viewer, page, path, request_path, "")
            return Response(body, page.status, {"cache-control": "no-store"}, "text/html")

        return show

    async def _load(self, loader: PageLoader, page_request: PageRequest) -> WebPage:
        try:
            return await loader(self._data, page_request)
        except PageNotFound as error:
            return _build_error_page(
                404, "Not found", str(error), "Use the navigation above to find sessions and agents."
            )
        except Forbidden as error:
            return _build_error_page(403, "Access denied", str(error), _ADMIN_REMEDY)
        except BadOption as error:
            return _build_error_page(400, "Invalid request", str(error), "Correct the address, or go back.")
        except StoreUnavailable as error:
            return _build_error_page(
                503,
                "Store unavailable",
                str(error),
                "The gateway keeps serving requests. This page reloads automatically.",
            )
        except FoveateError as error:
            return _build_error_page(500, "Internal error", str(error), "")

    def _render(self, viewer: Viewer, page: WebPage, path: str, request_path: str, digest: str) -> bytes:
        context: dict[str, Any] = {
            "now": self._data.clock(),
            "request_path": request_path,
            "navigation_path": path,
            "navigation": [entry for entry in _NAVIGATION if viewer.sees_everything or entry[0] in AGENT_PAGES],
            "viewer": viewer,
            "web_page": page,
            "digest": digest,
            **page.context,
        }
        return self._templates.get_template(page.template).render(context).encode("utf-8", "replace")


def _build_error_page(status: int, title: str, problem: str, remedy: str) -> WebPage:
    context = {"problem": problem, "remedy": remedy}
    return WebPage(template="error.html", title=title, context=context, status=status)


_INTERNAL_ERROR = _build_error_page(
    500,
    "Internal error",
    "Foveate failed to render this page. See the gateway's log for details.",
    "Requests are not affected. This page reloads automatically when something changes.",
)


async def _not_found(_data: GatewayData, _page_request: PageRequest) -> WebPage:
    raise PageNotFound("This page does not exist.")


async def _serve_asset(request: Request) -> Response:
    asset = load_assets().get(request.path_params["name"])
    if asset is None:
        return Response("file not found", 404, media_type="text/plain")
    headers = {"etag": f'"{asset.digest}"', "vary": "accept-encoding"}
    # Only a URL with the digest of this file may be cached forever.
    headers["cache-control"] = _CACHE_FOREVER if request.url.query == asset.digest else "no-cache"
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(b"", 304, headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, 200, {**headers, "content-encoding": "gzip"}, asset.media_type)
    return Response(asset.plain, 200, headers, asset.media_type)
