"""The page of sessions."""

from foveate.web.asking import Asked, Shown
from foveate.web.inside import Inside


async def look(_inside: Inside, _asked: Asked) -> Shown:
    """What it shows."""
    return Shown(template="sessions.html", title="Sessions", given={})


async def look_at_one(_inside: Inside, asked: Asked) -> Shown:
    """One session."""
    return Shown(template="sessions.html", title="Session", given={}, watches=asked.names["id"])
