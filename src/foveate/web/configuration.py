"""The page of configuration."""

from foveate.web.asking import Asked, Shown
from foveate.web.inside import Inside


async def look(_inside: Inside, _asked: Asked) -> Shown:
    """What it shows."""
    return Shown(template="configuration.html", title="Configuration", given={})
