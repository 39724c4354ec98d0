"""Errors for request bodies that the gateway does not accept, with their error responses."""

from foveate.formats.response.errors import ErrorResponse, make_body_too_large_error, make_status_error
from foveate.model import Format

_RETRY_AFTER_SECONDS = 5


class BodyRejected(Exception):
    """A body that is not read completely. `code` names the reason in logs and metrics."""

    code = ""
    may_retry = True
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def response(self, api_format: Format) -> ErrorResponse:
        raise NotImplementedError


class TooLarge(BodyRejected):
    code = "too_large"
    may_retry = False

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"more than {limit_bytes:,} bytes")
        self._limit_bytes = limit_bytes

    def response(self, api_format: Format) -> ErrorResponse:
        return make_body_too_large_error(api_format, self._limit_bytes)


class Stalled(BodyRejected):
    """A body of which nothing arrived for `idle_seconds`."""

    code = "stalled"

    def __init__(self, idle_seconds: float) -> None:
        super().__init__("the client stopped sending the body")
        self._idle_seconds = idle_seconds

    def response(self, api_format: Format) -> ErrorResponse:
        return make_status_error(
            api_format, 408, f"no more of the request body arrived for {self._idle_seconds:g} seconds"
        )


class TooSlow(BodyRejected):
    """A body that was not complete after `limit_seconds`."""

    code = "body_timeout"

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(f"the body was not complete after {limit_seconds:g} seconds")
        self._limit_seconds = limit_seconds

    def response(self, api_format: Format) -> ErrorResponse:
        message = f"the request body was not complete after {self._limit_seconds:g} seconds"
        return make_status_error(api_format, 408, message)


class NoRoom(BodyRejected):
    code = "no_memory"
    headers = ((b"retry-after", b"%d" % _RETRY_AFTER_SECONDS),)

    def __init__(self) -> None:
        super().__init__("no memory left for the body")

    def response(self, api_format: Format) -> ErrorResponse:
        message = "the gateway is handling too many large requests; try again in a few seconds"
        return make_status_error(api_format, 503, message)
