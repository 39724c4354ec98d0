"""The gateway as a service of the user: systemd on Linux, launchd on macOS."""

from collections.abc import Mapping
from pathlib import Path

from foveate.errors import NoServiceManager
from foveate.service.launchd import Launchd
from foveate.service.manager import ServiceManager
from foveate.service.systemd import Systemd


def find_manager(environ: Mapping[str, str], platform: str) -> ServiceManager:
    """Return the service manager of a platform.

    Raises:
        NoServiceManager: the platform is neither Linux nor macOS.
    """
    match platform:
        case "linux":
            return Systemd(environ)
        case "darwin":
            return Launchd(Path.home())
        case _:
            raise NoServiceManager(f"{platform} has neither systemd nor launchd")
