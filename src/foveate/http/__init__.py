"""HTTP client for all requests to other servers."""

from foveate.http.client import JsonClient, JsonReply

__all__ = ["JsonClient", "JsonReply"]
