"""The one HTTP client: everything that Foveate says to another server goes through here."""

from foveate.http.client import JsonClient, JsonReply

__all__ = ["JsonClient", "JsonReply"]
