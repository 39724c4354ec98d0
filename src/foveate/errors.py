"""Every error that Foveate raises, in one tree.

    FoveateError
    ├── InputError             input that cannot be used
    │   ├── UnreadableInput    a file that is missing, not text, or not UTF-8
    │   ├── MalformedRequest   a request body that is not JSON or has none of the known formats
    │   │   └── DuplicateKey   a JSON object in it has the same key twice
    │   ├── RequestLimitExceeded  a request with too many messages, tools or levels of nesting
    │   ├── BadEdit            an edit that cannot be written into a request, or contradicts another
    │   ├── ThreadRefused      a message thread that cannot be continued, or not here
    │   ├── WrongApi           a model whose upstream does not have the API of the request
    │   ├── NoUpstream         an API that no configured upstream has
    │   ├── KeyRefused         a gateway key that is unknown or missing
    │   ├── WebSocketRefused   a client opens a WebSocket
    │   ├── MethodRefused      an HTTP method that no provider's API uses
    │   ├── BadPath            a path that could leave a base URL
    │   ├── OperationRefused   an operation that the gateway's credentials must not be used for
    │   ├── BadVocabulary      a tokenizer file that cannot be read or used
    │   ├── BadOption          an option with an impossible value
    │   ├── MissingExtra       packages of an extra that are not installed
    │   ├── CannotListen       an address that a server cannot listen on
    │   ├── NoServiceManager   a machine or session without systemd and launchd
    │   ├── CannotStart        a program that `foveate run` cannot start
    │   ├── GatewayNotStarted  the gateway of a run ended before it served
    │   └── BadSetting         an invalid setting in a file; has file, line and key
    ├── BudgetExceeded         required sections do not fit; has the size of every section
    ├── DoesNotFit             a request that exceeds the context window and must not be shortened
    ├── CallRefused            a call that a cap prevents; nothing is reserved for it
    │   ├── CapExceeded        it may cost more than is left; has all amounts
    │   └── CapUncheckable     its price, or the amount spent so far, is unknown
    ├── WorkersFailed          gateway processes that exit right after their start
    ├── ServiceFailed          a service that does not start, or a service manager that refuses
    ├── UnwritableOutput       standard output that is closed or full
    ├── UnwritableFile         a file that cannot be written; its previous content is untouched
    ├── StoreUnavailable       a database that cannot be reached, read or written; nothing is half done
    │   ├── StoreTooNew        a database that a newer Foveate has migrated
    │   └── NothingKept        a database that does not exist yet
    └── UpstreamError          a response of another server that cannot be used
        ├── UpstreamUnreachable  no connection, or closed without a response
        │   └── UpstreamBroken   closed during the response, or long after the request
        ├── UpstreamTimeout      no response in time
        ├── UpstreamStatus       an HTTP status other than success
        └── UpstreamGarbled      a success with an unexpected body

Each class has a stable `code`, for logs and `--json`; the numbers that explain an error are its attributes.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_QUERY = re.compile(r"[?#].*", re.DOTALL)
_CREDENTIALS = re.compile(r"(?<=://)[^/]*@")


class FoveateError(Exception):
    """Base class of all errors that Foveate raises. The message is one line that says what to do."""

    code = "error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an error with its attributes, so that it reaches the parent process."""
        return _rebuild_error, (type(self), self.args, self.__dict__)


def _rebuild_error(
    error_class: type[FoveateError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> FoveateError:
    error = error_class.__new__(error_class, *args)
    error.__dict__.update(attributes)
    return error


class InputError(FoveateError):
    code = "bad_input"


class UnreadableInput(InputError):
    """A file that is missing, not text, or not UTF-8."""

    code = "unreadable_input"

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


class MalformedRequest(InputError):
    """A request body that is not JSON or has none of the known formats."""

    code = "malformed_request"


class DuplicateKey(MalformedRequest):
    """A JSON object in a request has the same key twice; `path` leads to the second one.

    `other` is the first one if it is spelled differently.
    """

    code = "duplicate_key"

    def __init__(self, path: tuple[str | int, ...], *, other: str = "") -> None:
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
        place = "".join(steps).removeprefix(".")
        problem = (
            f"the keys `{other}` and `{place}` differ only in case"
            if other
            else f"the key `{place}` occurs twice"
        )
        super().__init__(f"{problem}: send only one of them, because servers differ in which one they use")
        self.path = path
        self.other = other


class RequestLimitExceeded(InputError):
    """A request exceeds a limit; `setting` is the name of the limit under `server`."""

    code = "request_limit"

    def __init__(self, items: str, number: int, limit: int, *, setting: str = "") -> None:
        where = f" (server.{setting})" if setting else ""
        super().__init__(f"the request has {number:,} {items}; the limit is {limit:,}{where}")
        self.number = number
        self.limit = limit


class BadEdit(InputError):
    """An edit that cannot be written into a request, or contradicts another; `path` is the place."""

    code = "bad_edit"

    def __init__(self, reason: str, *, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"{'.'.join(map(str, path))}: {reason}" if path else reason)
        self.path = path


class ThreadRefused(InputError):
    """A request with a message thread that is rejected; `thread_code` is the provider's error code.

    Clients react to `thread_code`: the official SDKs send the whole conversation again.
    """

    code = "thread_refused"

    def __init__(self, thread_code: str, message: str) -> None:
        super().__init__(message)
        self.thread_code = thread_code


class WrongApi(InputError):
    """A request for a `model` whose route leads to an `upstream` without the `api` of the request."""

    code = "wrong_api"

    def __init__(self, model: str, upstream: str, *, api: str) -> None:
        requested = f"the model {model!r}" if model else "requests without a model"
        super().__init__(
            f"the route for {requested} leads to the upstream {upstream}, which does not have the {api} API: "
            "use a client of the other API, or route it to an upstream that has this API (set `api: both` if "
            f"{upstream} has both)"
        )
        self.model = model
        self.upstream = upstream
        self.api = api


class NoUpstream(InputError):
    """A request in an `api` that no configured upstream has."""

    code = "no_upstream"

    def __init__(self, api: str) -> None:
        super().__init__(
            f"no upstream is configured for the {api} API of this request. Nothing was"
            f" sent. Add an upstream with its base_url and `api: {api}` to `upstreams` in foveate.yaml"
        )
        self.api = api


class KeyRefused(InputError):
    """A request with an unknown gateway key, or without a required one.

    `public` is the message for callers without a key, if the full one reveals configuration.
    """

    code = "bad_key"

    def __init__(self, message: str, *, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class WebSocketRefused(InputError):
    """A WebSocket request, which the gateway does not proxy."""

    code = "websocket"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the gateway does not support WebSockets, and {path} requests one: use the API over plain HTTP,"
            " where responses stream as server-sent events"
        )
        self.path = path


class MethodRefused(InputError):
    """A request with a `method` that no provider's API uses."""

    code = "method_not_allowed"

    def __init__(self, method: str) -> None:
        super().__init__(f"the gateway does not forward {method} requests: no provider's API uses this method")
        self.method = method


class BadPath(InputError):
    """A request for a `path` that could leave an upstream's base URL."""

    code = "bad_path"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} contains `.` or `..` segments. Nothing was sent. Use the resolved path")
        self.path = path


class OperationRefused(InputError):
    """A request for an `operation` that the gateway does not forward with its own credentials."""

    code = "operation_not_allowed"

    def __init__(self, operation: str, upstream: str) -> None:
        super().__init__(
            f"{operation} is not one of the operations that may use the gateway's own credentials for"
            f" {upstream}. Nothing was sent. Use a provider key, or add the operation to"
            f" `upstreams.{upstream}.allow` in foveate.yaml"
        )
        self.operation = operation
        self.upstream = upstream


class BadVocabulary(InputError):
    """A tokenizer file that cannot be read or used."""

    code = "bad_vocabulary"

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


class BadOption(InputError):
    """An option or setting with an impossible value; `path` leads to it inside a nested value."""

    code = "bad_option"

    def __init__(self, reason: str, *, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(reason)
        self.path = path


class MissingExtra(InputError):
    """A part of Foveate that is not installed: the `extra` that contains it, and its missing `package`."""

    code = "missing_extra"

    def __init__(self, extra: str, package: str, install_command: str) -> None:
        super().__init__(f"{package} is not installed: {install_command} 'foveate[{extra}]'")
        self.extra = extra
        self.package = package


class CannotListen(InputError):
    """An address that a server cannot listen on: in use, not permitted, or not on this machine."""

    code = "cannot_listen"

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}")
        self.host = host
        self.port = port
        self.reason = reason


class NoServiceManager(InputError):
    """A machine or session without a service manager that could run the gateway."""

    code = "no_service_manager"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"cannot manage a service: {reason}; to run the gateway without one, start `foveate serve` in a "
            "terminal multiplexer, in a container, or from the system's own init"
        )
        self.reason = reason


class CannotStart(InputError):
    """A program that `foveate run` cannot start."""

    code = "cannot_start"

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"cannot start {program}: {reason}")
        self.program = program
        self.reason = reason


class GatewayNotStarted(InputError):
    """The gateway of a run ended before it served; `log` is the path of its log."""

    code = "gateway_not_started"

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"the gateway did not start: {reason} (its log is {log})")
        self.reason = reason
        self.log = log


class BadSetting(InputError):
    """An invalid setting in a file: `line` counts from 1, `key` is `a.b.c`."""

    code = "bad_setting"

    def __init__(self, source: str, reason: str, *, line: int | None = None, key: str = "") -> None:
        where = f"{source}:{line}" if line is not None else source
        super().__init__(f"{where}: {reason}")
        self.source = source
        self.line = line
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SectionSize:
    """Tokens of a section: before any cut, and after all permitted cuts."""

    name: str
    priority: str
    before: int
    after: int


class BudgetExceeded(FoveateError):
    """Required sections do not fit the budget; has the size of every section.

    The message consists of `problem`, the sizes and `remedy`.
    """

    code = "budget_exceeded"

    def __init__(
        self, problem: str, remedy: str, *, limit_tokens: int, tokens: int, sections: tuple[SectionSize, ...]
    ) -> None:
        sizes = ", ".join(f"{size.name} ({size.priority}) {size.after:,}" for size in sections)
        super().__init__(f"{problem}: {sizes}; {remedy}" if sizes else f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.limit_tokens = limit_tokens
        self.tokens = tokens
        self.sections = sections


class DoesNotFit(FoveateError):
    """A request with at least `tokens`, more than the context window leaves for input."""

    code = "does_not_fit"

    def __init__(self, reason: str, *, tokens: int, limit_tokens: int, window_tokens: int) -> None:
        super().__init__(reason)
        self.tokens = tokens
        self.limit_tokens = limit_tokens
        self.window_tokens = window_tokens


class CallRefused(FoveateError):
    """A call that a cap prevents: `cap` describes it, `limit` is its dollars.

    The message consists of `problem` and `remedy`. `is_shared`: all agents share the cap.
    """

    code = "call_refused"

    def __init__(self, problem: str, remedy: str, *, cap: str, limit: Decimal, is_shared: bool = False) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.is_shared = is_shared
        self.problem = problem
        self.remedy = remedy
        self.cap = cap
        self.limit = limit


class CapExceeded(CallRefused):
    """A call that may cost more than is left: its `ceiling`, and the dollars `spent` and `reserved`.

    `ceiling` is None if it is unknown and nothing is left.
    """

    code = "cap_exceeded"

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        cap: str,
        limit: Decimal,
        spent: Decimal,
        reserved: Decimal,
        ceiling: Decimal | None,
        is_shared: bool = False,
    ) -> None:
        super().__init__(problem, remedy, cap=cap, limit=limit, is_shared=is_shared)
        self.spent = spent
        self.reserved = reserved
        self.ceiling = ceiling

    @property
    def room(self) -> Decimal:
        """Dollars left under the cap."""
        return self.limit - self.spent - self.reserved


class CapUncheckable(CallRefused):
    """A call that cannot be checked against a cap; `reason` says why.

    `is_outage`: the ledger cannot be reached or failed, so the call itself is not the reason.
    """

    code = "cap_uncheckable"

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        cap: str,
        limit: Decimal,
        reason: str,
        is_outage: bool = False,
        is_shared: bool = False,
    ) -> None:
        super().__init__(problem, remedy, cap=cap, limit=limit, is_shared=is_shared)
        self.reason = reason
        self.is_outage = is_outage


class WorkersFailed(FoveateError):
    """Gateway processes that exited right after their start, the last with `exit_code`."""

    code = "workers_failed"

    def __init__(self, deaths: int, exit_code: int) -> None:
        ending = f"by signal {-exit_code}" if exit_code < 0 else f"with code {exit_code}"
        super().__init__(
            f"{deaths} worker{'s' * (deaths != 1)} in a row exited right after the start, the last {ending}; "
            "their error messages are above"
        )
        self.deaths = deaths
        self.exit_code = exit_code


class ServiceFailed(FoveateError):
    """The service of the gateway does not start, or the service manager refuses."""

    code = "service_failed"


class UnwritableOutput(FoveateError):
    """Standard output that is closed or full."""

    code = "unwritable_output"

    def __init__(self, reason: str) -> None:
        super().__init__(f"standard output: {reason}")
        self.reason = reason


class UnwritableFile(FoveateError):
    """A file that cannot be written; its previous content is untouched."""

    code = "unwritable_file"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreUnavailable(FoveateError):
    """A database that cannot be reached, read or written; the operation is not half done."""

    code = "store_unavailable"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class StoreTooNew(StoreUnavailable):
    """A database that a newer Foveate has migrated to `version`; the newest known version is `known`."""

    code = "store_too_new"

    def __init__(self, where: str, *, version: str, known: str) -> None:
        super().__init__(
            where,
            f"was migrated by a newer Foveate (schema {version}, supported: {known}): update Foveate",
        )
        self.version = version
        self.known = known


class NothingKept(StoreUnavailable):
    """A database that does not exist yet, opened for reading."""

    code = "nothing_kept"

    def __init__(self, where: str) -> None:
        super().__init__(where, "no data has been stored here yet")


class UpstreamError(FoveateError):
    """A response of another server that cannot be used.

    `url` has no query and no password: both can contain keys, and errors are logged and stored.
    """

    code = "upstream"

    def __init__(self, url: str, reason: str) -> None:
        self.url = _CREDENTIALS.sub("", _QUERY.sub("", url))
        self.reason = reason
        super().__init__(f"{self.url}: {reason}")


class UpstreamUnreachable(UpstreamError):
    """No connection, or one that was closed without a response."""

    code = "upstream_unreachable"


class UpstreamBroken(UpstreamUnreachable):
    """A response that was cut off, is not valid HTTP, or never started: the provider may charge for it."""

    code = "upstream_broken"


class UpstreamTimeout(UpstreamError):
    """No response in time."""

    code = "upstream_timeout"

    def __init__(self, url: str, timeout_seconds: float, *, proxy_url: str = "") -> None:
        """`proxy_url` is that of the proxy on the way, without credentials."""
        way = f" through the proxy {proxy_url}" if proxy_url else ""
        super().__init__(url, f"no response within {timeout_seconds:g} s{way}")
        self.timeout_seconds = timeout_seconds


class UpstreamStatus(UpstreamError):
    """An HTTP status other than success."""

    code = "upstream_status"

    def __init__(self, url: str, status: int, detail: str = "") -> None:
        super().__init__(url, f"responded with status {status}" + (f": {detail}" if detail else ""))
        self.status = status
        self.detail = detail


class UpstreamGarbled(UpstreamError):
    """A success with an unexpected body."""

    code = "upstream_garbled"
