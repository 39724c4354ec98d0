"""`foveate explain`: why a request did not find what the one before it left in the provider's cache."""

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
from foveate.errors import BadOption, MalformedRequest, UnreadableInput

if TYPE_CHECKING:
    from foveate.cli.explain_lines import Explained
    from foveate.values import Request

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PER_MILLION = 1_000_000
_MOST_DOLLARS = 1_000_000

# Fields that answers have, and requests do not.
_ANSWER_FIELDS = frozenset(("choices", "candidates", "usage", "usageMetadata", "stop_reason", "output"))


def command(
    previous: Annotated[
        str,
        typer.Argument(
            metavar="PREVIOUS",
            help="A request body (JSON), - for standard input; or alone, the id of a kept session or request.",
        ),
    ],
    current: Annotated[
        str | None,
        typer.Argument(metavar="CURRENT", help="The one that came after it; or -.", show_default=False),
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
    """Say why a request could not read what the one before it left in the provider's prompt cache.

    Example: foveate explain --cache first.json second.json
    """
    with telling(as_json=json):
        if not cache:
            raise BadOption("say what is to be explained: --cache")
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
