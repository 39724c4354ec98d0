"""The one HTTP client: everything that Foveate says to another server goes through here."""

from foveate.upstream.client import Client, Reply

__all__ = ["Client", "Reply"]
