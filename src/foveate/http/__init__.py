"""HTTP client for all requests to other servers."""

from foveate.http.json_client import JsonClient, JsonReply

__all__ = ["JsonClient", "JsonReply"]
