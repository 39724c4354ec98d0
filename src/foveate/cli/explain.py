"""`foveate explain`: what was done to requests, what fills a window, and why the cache was not read."""

import re
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.count import STANDARD_INPUT, printable
from foveate.cli.exits import telling
from foveate.cli.store import StoreUrl, in_store
from foveate.errors import BadOption, MalformedRequest, NothingKept, UnreadableInput

if TYPE_CHECKING:
    from foveate.cli.explain_lines import Explained
    from foveate.values import Request

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PER_MILLION = 1_000_000
_LAST = 40
_MOST_LISTED = 1_000_000
_MOST_DOLLARS = 1_000_000

# Fields that answers have, and requests do not.
_ANSWER_FIELDS = frozenset(("choices", "candidates", "usage", "usageMetadata", "stop_reason", "output"))


def command(
    previous: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION|REQUEST",
            help="The id of a session or request, how it begins, or the name that a client gives its session;"
            " default: lists the last sessions. With --cache also a request body (JSON), - for standard input.",
            show_default=False,
        ),
    ] = None,
    current: Annotated[
        str | None,
        typer.Argument(
            metavar="CURRENT", help="With --cache, the body that came after it; or -.", show_default=False
        ),
    ] = None,
    request: Annotated[
        int | None,
        typer.Option("--request", metavar="N", help="Show this one of a session's requests; the first is 1."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            help=f"List so many of a session's requests, or sessions; default: {_LAST}, and with --json every"
            " request.",
            min=1,
            max=_MOST_LISTED,
        ),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Explain what the provider's prompt cache makes of the two.")
    ] = False,
    gap: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long after the previous one the current came: 90, 90s, 5m, 2h."),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(metavar="DOLLARS", help="What a million uncached input tokens cost."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model of both; default: what each body says.")
    ] = None,
    store: StoreUrl = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every edit of a request with its reason, tokens and dollars, and what fills its window.

    Of a session: its requests, one a line, and the window of the last. With --cache: why a request could not
    read what the one before it left in the provider's prompt cache.

    Example: foveate explain 3f2a --request 12
    """
    with telling(as_json=json):
        if not cache:
            _check_is_id(previous, current, gap, price, model)
            _tell_traced(previous, request, last, store, as_json=json)
            return
        if request is not None:
            raise BadOption("--request is not for --cache: give the request's own id")
        if previous is None:
            raise BadOption("--cache needs the id of a session or of a request, or two request bodies")
        gap_seconds = None if gap is None else _seconds(gap)
        price_per_token = None if price is None else _price_per_token(price)
        if current is None:
            explained = _of_kept(previous, store, model, gap, price_per_token)
        else:
            requests = _requests(previous, current, model)
            with screen.patience("counting"):
                explained = _explained(*requests, gap_seconds, price_per_token)
        if json:
            from foveate.cli.explain_lines import as_object

            screen.print_object(as_object(explained))
        else:
            from foveate.cli.explain_lines import lines

            screen.print_lines(lines(explained, screen.look(sys.stdout)))


def _check_is_id(
    beginning: str | None, current: str | None, gap: str | None, price: str | None, model: str | None
) -> None:
    """See that nothing is asked for that only --cache explains."""
    is_file = beginning is not None and (beginning == STANDARD_INPUT or _is_file(beginning))
    if current is not None or is_file:
        raise BadOption("of request bodies only the cache can be explained: add --cache")
    if gap is not None or price is not None or model is not None:
        raise BadOption("--gap, --price and --model go with --cache")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except ValueError:  # a name with a zero byte in it
        return False


def _tell_traced(
    beginning: str | None, request: int | None, last: int | None, store: str | None, *, as_json: bool
) -> None:
    """Show what was done to a session's requests, to one of them, or which sessions there are."""
    from foveate.cli import explain_traced, explain_traced_lines
    from foveate.cli.explain_traced import SessionStory

    writing = explain_traced_lines.TraceWriting(screen.look(sys.stdout))
    if beginning is None:
        if request is not None:
            raise BadOption("--request needs the id of a session")
        try:
            sessions = in_store(
                store, lambda opened: explain_traced.sessions_of(opened, limit=last or _LAST), "reading"
            )
        except NothingKept:
            sessions = ()
        if as_json:
            screen.print_object(explain_traced_lines.sessions_object(sessions))
        elif sessions:
            screen.print_lines(writing.sessions(sessions))
        else:
            screen.print_note(
                "no request has gone through a gateway with this store yet: `foveate serve` starts one"
            )
        return
    told = in_store(store, lambda opened: explain_traced.told_of(opened, beginning, request), "reading")
    if isinstance(told, SessionStory):
        if as_json:
            screen.print_object(explain_traced_lines.session_object(told, last=last))
        else:
            screen.print_lines(writing.session(told, last=last or _LAST))
    elif as_json:
        screen.print_object(
            explain_traced_lines.request_object(told.number, told.traced, told.edits, told.corrections)
        )
    else:
        screen.print_lines(writing.request(told))


def _of_kept(
    beginning: str, store: str | None, model: str | None, gap: str | None, price_per_token: Decimal | None
) -> "Explained":
    """The last break of a kept session, or what became of one kept request."""
    if beginning == STANDARD_INPUT or Path(beginning).is_file():
        raise BadOption(f"{_shown(beginning)}: two requests are compared: give the one after it too")
    if gap is not None or model is not None:
        raise BadOption("--gap and --model are for files: of what is kept both are known")
    from foveate.cli.explain_kept import explained_of

    return in_store(store, lambda opened: explained_of(opened, beginning, price_per_token), "reading")


def _explained(
    previous: "Request", current: "Request", gap_seconds: float | None, price_per_token: Decimal | None
) -> "Explained":
    from foveate.cache.explain import explain
    from foveate.cache.remembered import remember
    from foveate.cache.requests import block_tokens_for
    from foveate.cache.rules import rules_for
    from foveate.cli.explain_lines import Explained
    from foveate.tokens import counter_for

    rules = rules_for(current.model)
    tokens = block_tokens_for(current.model)
    verdict = explain(
        remember(previous, rules, tokens),
        remember(current, rules, tokens),
        rules,
        gap_seconds=gap_seconds,
        price_per_token=price_per_token,
    )
    counted = counter_for(current.model).request(current)
    return Explained(verdict=verdict, model=current.model, rules=rules, exact=counted.total.exact)


def _requests(previous: str, current: str, model: str | None) -> tuple["Request", "Request"]:
    if previous == current == STANDARD_INPUT:
        raise BadOption("only one of the two can be standard input")
    before, after = _request(previous, model), _request(current, model)
    if before.format != after.format:
        one, other = (
            f"{_shown(name)} ({found.format})" for name, found in ((previous, before), (current, after))
        )
        raise MalformedRequest(f"{one} and {other} are of two formats, which share no cache")
    return before, after


def _request(name: str, model: str | None) -> "Request":
    from foveate import wire
    from foveate.tokens import with_model

    body = _read(name)
    try:
        return with_model(wire.read(body), model)
    except MalformedRequest as error:
        reason = "this is an answer, and a request is expected" if _is_answer(body) else str(error)
        raise MalformedRequest(f"{_shown(name)}: {reason}") from None


def _shown(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else printable(name)


def _is_answer(body: bytes) -> bool:
    from foveate.wire.body import fields

    try:
        return bool(fields(body).keys() & _ANSWER_FIELDS)
    except MalformedRequest:
        return body.lstrip().startswith((b"event:", b"data:"))  # one that was streamed


def _read(name: str) -> bytes:
    if name == STANDARD_INPUT:
        return screen.standard_input()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UnreadableInput(printable(name), error.strerror or "cannot be read") from None
    except ValueError as error:  # a name with a zero byte in it
        raise UnreadableInput(printable(name), str(error)) from None


def _seconds(said: str) -> float:
    found = _DURATION.fullmatch(said.strip())
    if found is None:
        raise BadOption(f"--gap takes seconds or a time such as 90s, 5m or 2h, and not {said!r}")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def _price_per_token(said: str) -> Decimal:
    try:
        dollars = Decimal(said.strip().removeprefix("$"))
    except InvalidOperation:
        raise BadOption(
            f"--price takes dollars for a million input tokens, such as 3 or 0.25, not {said!r}"
        ) from None
    if not (dollars.is_finite() and 0 <= dollars <= _MOST_DOLLARS):
        raise BadOption(f"--price takes dollars for a million input tokens, from 0 to {_MOST_DOLLARS:,}")
    return dollars / _PER_MILLION
