"""`foveate explain`: show edits of requests, the use of the context window, and causes of cache misses."""

import re
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.count import STANDARD_INPUT, printable_name
from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import MODEL_METAVAR
from foveate.cli.store import StoreUrl, run_in_store
from foveate.errors import BadOption, MalformedRequest, NothingKept, UnreadableInput

if TYPE_CHECKING:
    from foveate.cli.explain.cache_misses import CacheExplanation
    from foveate.model import Request

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PER_MILLION = 1_000_000
_DEFAULT_LAST = 40
_MAX_LISTED = 1_000_000
_MAX_DOLLARS = 1_000_000

# Fields of responses that requests do not have.
_RESPONSE_FIELDS = frozenset(("choices", "candidates", "usage", "usageMetadata", "stop_reason", "output"))


def command(
    previous: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION|REQUEST",
            help="Id of a session or request, its first characters, or the session id that a client sent. "
            "Default: list the latest sessions. With --cache, this can also be the first of two request "
            "bodies: a JSON file, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    current: Annotated[
        str | None,
        typer.Argument(
            metavar="NEXT",
            help="With --cache, the request body that was sent after the first: a JSON file, or - for standard "
            "input.",
            show_default=False,
        ),
    ] = None,
    request: Annotated[
        int | None,
        typer.Option("--request", metavar="N", help="Show request N of the session. The first request is 1."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            help=f"List only the last N requests of the session, or the last N sessions. Default: "
            f"{_DEFAULT_LAST}; with --json, all requests of a session.",
            min=1,
            max=_MAX_LISTED,
        ),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache",
            help="Explain why a request missed the prompt cache, compared with the request before it.",
        ),
    ] = False,
    gap: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With two request bodies: time between them, as seconds (90) or 90s, 5m, 2h, 1d. Default: 0."
            " Stored requests have their own times.",
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS",
            help="With --cache: price of a million uncached input tokens in dollars. Default: for"
            " stored requests, the model's price; for two request bodies, none: the loss is shown in tokens.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar=MODEL_METAVAR,
            help="With two request bodies: the model they were sent to. Default: the model in each body.",
        ),
    ] = None,
    store: StoreUrl = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show what Foveate changed in a request and why, what that saved, and what fills the context window.

    For a session, list its requests and show the context window of the last one. With --cache, explain why a
    request missed the prompt cache.

    Example: foveate explain 3f2a --request 12
    """
    with report_errors(as_json=json):
        if not cache:
            _check_cache_options(previous, current, gap, price, model)
            _print_traces(previous, request, last, store, as_json=json)
            return
        if request is not None:
            raise BadOption("--request cannot be combined with --cache: give the id of the request instead")
        if previous is None:
            raise BadOption("--cache needs the id of a session or of a request, or two request bodies")
        gap_seconds = None if gap is None else _parse_duration(gap)
        price_per_token = None if price is None else _parse_price(price)
        if current is None:
            explanation = _explain_stored(previous, store, model, gap, price_per_token)
        else:
            requests = _read_requests(previous, current, model)
            with console.show_progress("counting"):
                explanation = _explain_bodies(*requests, gap_seconds, price_per_token)
        if json:
            from foveate.cli.explain.cache_misses import explanation_object

            console.print_object(explanation_object(explanation))
        else:
            from foveate.cli.explain.cache_misses import explanation_lines

            console.print_lines(explanation_lines(explanation, console.display_for(sys.stdout)))


def _check_cache_options(
    prefix: str | None, current: str | None, gap: str | None, price: str | None, model: str | None
) -> None:
    is_file = prefix is not None and (prefix == STANDARD_INPUT or _is_file(prefix))
    if current is not None or is_file:
        raise BadOption("request bodies can only be explained with --cache: add it")
    if gap is not None or price is not None or model is not None:
        raise BadOption("--gap, --price and --model require --cache")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except ValueError:  # the name contains a null byte
        return False


def _print_traces(
    prefix: str | None, request: int | None, last: int | None, store: str | None, *, as_json: bool
) -> None:
    from foveate.cli.explain.traces import (
        SessionHistory,
        TraceFormatter,
        find_traces,
        list_sessions,
        request_object,
        session_object,
        sessions_object,
    )

    formatter = TraceFormatter(console.display_for(sys.stdout))
    if prefix is None:
        if request is not None:
            raise BadOption("--request needs the id of a session")
        try:
            sessions = run_in_store(
                store,
                lambda opened_store: list_sessions(opened_store, limit=last or _DEFAULT_LAST),
                "reading",
            )
        except NothingKept:
            sessions = ()
        if as_json:
            console.print_object(sessions_object(sessions))
        elif sessions:
            console.print_lines(formatter.session_list_lines(sessions))
        else:
            console.print_note(
                "the store has no requests yet: start a gateway with `foveate serve` and send it requests"
            )
        return
    found = run_in_store(store, lambda opened_store: find_traces(opened_store, prefix, request), "reading")
    if isinstance(found, SessionHistory):
        if as_json:
            console.print_object(session_object(found, last=last))
        else:
            console.print_lines(formatter.session_lines(found, last=last or _DEFAULT_LAST))
    elif as_json:
        console.print_object(request_object(found.number, found.charged_trace, found.edits, found.corrections))
    else:
        console.print_lines(formatter.request_lines(found))


def _explain_stored(
    prefix: str, store: str | None, model: str | None, gap: str | None, price_per_token: Decimal | None
) -> "CacheExplanation":
    if prefix == STANDARD_INPUT or Path(prefix).is_file():
        raise BadOption(f"{_input_name(prefix)}: --cache compares two requests: give the next request too")
    if gap is not None or model is not None:
        raise BadOption("--gap and --model apply only to files: the store has both for its requests")
    from foveate.cli.explain.cache_misses import explain_stored

    return run_in_store(
        store, lambda opened_store: explain_stored(opened_store, prefix, price_per_token), "reading"
    )


def _explain_bodies(
    previous: "Request", current: "Request", gap_seconds: float | None, price_per_token: Decimal | None
) -> "CacheExplanation":
    from foveate.cli.explain.cache_misses import CacheExplanation
    from foveate.prompt_cache.misses.explain import explain_miss
    from foveate.prompt_cache.misses.snapshot import take_snapshot
    from foveate.prompt_cache.prompt.build import block_tokens_for
    from foveate.prompt_cache.rules import rules_for
    from foveate.tokens import counter_for

    rules = rules_for(current.model)
    tokens = block_tokens_for(current.model)
    verdict = explain_miss(
        take_snapshot(previous, rules, tokens),
        take_snapshot(current, rules, tokens),
        rules,
        gap_seconds=gap_seconds,
        price_per_token=price_per_token,
    )
    counted = counter_for(current.model).count_request(current)
    return CacheExplanation(verdict=verdict, model=current.model, rules=rules, exact=counted.total.exact)


def _read_requests(previous: str, current: str, model: str | None) -> tuple["Request", "Request"]:
    if previous == current == STANDARD_INPUT:
        raise BadOption("only one of the two requests can be standard input")
    before, after = _read_request(previous, model), _read_request(current, model)
    if before.format != after.format:
        first, second = (
            f"{_input_name(name)} ({request.format})"
            for name, request in ((previous, before), (current, after))
        )
        raise MalformedRequest(f"{first} and {second} have different formats, which never share a cache")
    return before, after


def _read_request(name: str, model: str | None) -> "Request":
    from foveate import formats
    from foveate.tokens import with_model

    body = _read_body(name)
    try:
        return with_model(formats.parse_request(body), model)
    except MalformedRequest as error:
        reason = "this is a response, but a request is expected" if _is_response(body) else str(error)
        raise MalformedRequest(f"{_input_name(name)}: {reason}") from None


def _input_name(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else printable_name(name)


def _is_response(body: bytes) -> bool:
    from foveate.formats.json_text.parse import parse_fields

    try:
        return bool(parse_fields(body).keys() & _RESPONSE_FIELDS)
    except MalformedRequest:
        return body.lstrip().startswith((b"event:", b"data:"))  # a streamed response


def _read_body(name: str) -> bytes:
    if name == STANDARD_INPUT:
        return console.read_standard_input()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UnreadableInput(printable_name(name), error.strerror or "cannot be read") from None
    except ValueError as error:  # the name contains a null byte
        raise UnreadableInput(printable_name(name), str(error)) from None


def _parse_duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadOption(f"--gap takes seconds or a time such as 90s, 5m or 2h, not {text!r}")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def _parse_price(text: str) -> Decimal:
    try:
        dollars = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        raise BadOption(
            f"--price takes dollars per million input tokens, e.g. 3 or 0.25, not {text!r}"
        ) from None
    if not (dollars.is_finite() and 0 <= dollars <= _MAX_DOLLARS):
        raise BadOption(f"--price takes dollars per million input tokens, from 0 to {_MAX_DOLLARS:,}")
    return dollars / _PER_MILLION
