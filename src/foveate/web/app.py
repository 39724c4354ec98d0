"""The page as an ASGI app: which path shows what, in which frame, and with which headers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from foveate.errors import BadOption, FoveateError, StoreUnavailable
from foveate.web import agents, configuration, folds, memory, overview, session, sessions, words
from foveate.web.asking import Asked, NoSuchPage, Shown
from foveate.web.assets import address, assets
from foveate.web.inside import Inside
from foveate.web.live import MOST_LOOKING, Live, Watched
from foveate.web.viewer import Forbidden, Viewer, viewer_in

_LOG = logging.getLogger(__name__)

ROOT = "/"

Look = Callable[[Inside, Asked], Awaitable[Shown]]

AGENT_PAGES: dict[str, Look] = {
    ROOT: overview.look,
    "/-/sessions": sessions.look,
    "/-/sessions/{id:path}": session.look,
    "/-/folds/{id:path}": folds.look,
    "/-/agents": agents.look,
    "/-/agents/{name:path}": agents.look_at_one,
    "/-/memory": memory.look,
}
"""Pages that show only what their viewer may see: the key of an agent opens them."""
PAGES: dict[str, Look] = {**AGENT_PAGES, "/-/configuration": configuration.look}
"""All pages. Those that are not in `AGENT_PAGES` are for administrators."""
_NAVIGATION = (
    (ROOT, "Overview"),
    ("/-/sessions", "Sessions"),
    ("/-/agents", "Agents"),
    ("/-/memory", "Memory"),
    ("/-/configuration", "Configuration"),
)
# What stands under another page's name in the navigation.
_ADMIN_REMEDY = "An admin key sees everything: `foveate config key --admin` makes one."
_ADMIN_NEEDED = "This page shows the whole gateway, and your key is that of one agent."
_BELONGS = {"/-/folds/{id:path}": "/-/sessions"}
# Nothing from elsewhere, no script but our own files, in nobody's frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_OFF = Response("this gateway has no page: server.page is off\n", 404, media_type="text/plain")
_FOR_EVER = "private, max-age=31536000, immutable"


def page(inside: Inside) -> "Site":
    """The app for the gateway's root, and for all that is below `/-/`."""
    live = Live(
        lambda watched: inside.store.totals.pulse(watched.session_id, agent=watched.agent),
        inside.configured,
        is_ending=inside.is_ending,
    )
    frame = _Frame(inside, live)

    async def events(request: Request) -> Response:
        if live.looking >= MOST_LOOKING:
            return Response("too many are looking already", 503, {"retry-after": "60"}, "text/plain")
        viewer = viewer_in(request.scope)
        session_id = request.query_params.get("session")
        if session_id is not None and not await _sees_session(inside, viewer, session_id):
            return Response("there is no such session", 404, media_type="text/plain")
        # What a browser that was cut off heard last; at first, what its page was made of.
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":  # it has no end, and a HEAD has nothing else
            return Response(b"", 200, headers, "text/event-stream")
        return StreamingResponse(
            live.events(Watched(session_id, viewer.agent), since), 200, headers, "text/event-stream"
        )

    routes = [
        Route("/-/events", events),
        Route("/-/assets/{name}", _asset),
        *(
            Route(
                path,
                frame.showing(_BELONGS.get(path, path), look if path in AGENT_PAGES else _for_admins(look)),
            )
            for path, look in PAGES.items()
        ),
        Route("/-/{rest:path}", frame.showing("", _nothing)),
    ]
    return Site(routes, inside)


class Site:
    """The app of all pages: it adds the headers of every page, and shows none while pages are off."""

    def __init__(self, routes: Sequence[Route], inside: Inside) -> None:
        self.routes = routes
        self._app = Starlette(routes=routes)
        self._inside = inside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        is_on = self._inside.configured().settings.server.page
        await (self._app if is_on else _OFF)(scope, receive, sent)


async def _sees_session(inside: Inside, viewer: Viewer, session_id: str) -> bool:
    if viewer.sees_everything:
        return True
    found = await inside.store.totals.session(session_id)
    return found is not None and viewer.can_see(found.agent)


def _for_admins(look: Look) -> Look:
    async def checked(inside: Inside, asked: Asked) -> Shown:
        if not asked.viewer.sees_everything:
            raise Forbidden(_ADMIN_NEEDED)
        return await look(inside, asked)

    return checked


class _Frame:
    """What is around every page, and what is shown where one cannot be."""

    def __init__(self, inside: Inside, live: Live) -> None:
        self._inside = inside
        self._live = live
        self._templates = Environment(
            loader=PackageLoader("foveate.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(words.FILTERS)
        self._templates.globals.update(address=address, version=inside.version)

    def showing(self, path: str, look: Look) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            viewer = viewer_in(request.scope)
            asked = Asked(
                viewer=viewer,
                names=request.path_params,
                query=dict(request.query_params),
                address=str(request.base_url).rstrip("/"),
            )
            watched = asked.names.get("id")
            pulse = await self._live.pulse(Watched(watched, viewer.agent))
            here = str(request.url.path)
            try:
                shown = await self._looked(look, asked)
                pulse = pulse if shown.watches == watched else ""
                body = await asyncio.to_thread(self._rendered, viewer, shown, path, here, pulse)
            except Exception:  # noqa: BLE001 - a fault of ours: whoever looks is told, and the page can be shown again
                _LOG.exception("%s could not be shown", here)
                shown = _FAULT
                body = await asyncio.to_thread(self._rendered, viewer, shown, path, here, "")
            return Response(body, shown.status, {"cache-control": "no-store"}, "text/html")

        return show

    async def _looked(self, look: Look, asked: Asked) -> Shown:
        try:
            return await look(self._inside, asked)
        except NoSuchPage as error:
            return _instead(404, "Not found", str(error), "Look in the list of sessions, or at the overview.")
        except Forbidden as error:
            return _instead(403, "Not allowed", str(error), _ADMIN_REMEDY)
        except BadOption as error:
            return _instead(400, "This cannot be shown", str(error), "Change the address, or go back.")
        except StoreUnavailable as error:
            return _instead(
                503,
                "The store is away",
                str(error),
                "Requests go on without it. This page tries again by itself.",
            )
        except FoveateError as error:
            return _instead(500, "This could not be shown", str(error), "")

    def _rendered(self, viewer: Viewer, shown: Shown, path: str, here: str, pulse: str) -> bytes:
        given: dict[str, Any] = {
            "now": self._inside.clock(),
            "here": here,
            "section": path,
            "navigation": [one for one in _NAVIGATION if viewer.sees_everything or one[0] in AGENT_PAGES],
            "viewer": viewer,
            "shown": shown,
            "pulse": pulse,
            **shown.given,
        }
        return self._templates.get_template(shown.template).render(given).encode("utf-8", "replace")


def _instead(status: int, title: str, problem: str, remedy: str) -> Shown:
    given = {"problem": problem, "remedy": remedy}
    return Shown(template="instead.html", title=title, given=given, status=status)


_FAULT = _instead(
    500,
    "This could not be shown",
    "This is a fault of Foveate's own, and the gateway's log has it.",
    "Requests are not affected. The page is tried again as soon as something changes.",
)


async def _nothing(_inside: Inside, _asked: Asked) -> Shown:
    raise NoSuchPage("there is no such page")


async def _asset(request: Request) -> Response:
    asset = assets().get(request.path_params["name"])
    if asset is None:
        return Response("there is no such file", 404, media_type="text/plain")
    headers = {"etag": f'"{asset.stamp}"', "vary": "accept-encoding"}
    # Only an address that names this very file may be kept for ever.
    headers["cache-control"] = _FOR_EVER if request.url.query == asset.stamp else "no-cache"
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(b"", 304, headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.zipped, 200, {**headers, "content-encoding": "gzip"}, asset.kind)
    return Response(asset.plain, 200, headers, asset.kind)
