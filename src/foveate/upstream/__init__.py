"""The one HTTP client: everything that Foveate says to another server goes through here."""

from foveate.upstream.client import JsonClient, JsonReply

__all__ = ["JsonClient", "JsonReply"]
