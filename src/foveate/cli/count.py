"""`foveate count`: count the tokens of texts or of a whole request."""

import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import display_for, format_tokens, print_lines
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import MODEL_METAVAR, TOKENIZER_HELP
from foveate.cli.shared.tables import Column, Fit, format_table, style_text
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.tokens import CounterOptions, RequestCount, RequestCounter
    from foveate.tokens.counter import PartCount
    from foveate.tokens.remote.counter import FallbackCounter

STANDARD_INPUT = "-"
DEFAULT_MODEL = "gpt-4o"
MAX_TIMEOUT_SECONDS = 86_400

# Environment variables with API keys; a local server needs none.
_KEY_VARIABLES = {
    "anthropic_api": "ANTHROPIC_API_KEY",
    "openai_api": "OPENAI_API_KEY",
    "gemini_api": "GEMINI_API_KEY",
}
# Parts that are shown only if they are not empty.
_OPTIONAL_PARTS = frozenset(("system", "tools", "images", "overhead"))
_MESSAGE_PART = re.compile(r"messages\[(\d+)\]")


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", help="Text files to count. Default: standard input, also written as -."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar=MODEL_METAVAR,
            help="Model to count for. Default: the model in the request, or gpt-4o for text.",
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request",
            "-r",
            metavar="FILE",
            help="Count this request body (JSON file, or - for standard input) instead of text files.",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Counting method. On this machine: auto or offline (the model's tokenizer, or an estimate),"
            " or estimate (no tokenizer). With the provider's API and its API key in the environment:"
            " anthropic_api, openai_api or gemini_api. With the server at --endpoint: endpoint.",
        ),
    ] = "auto",
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Count with the llama.cpp or vLLM server at this URL."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=TOKENIZER_HELP),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Timeout for each request to a counting API or to --endpoint, in seconds.",
            min=0.01,
        ),
    ] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Count the tokens of text files or of a complete request, including tools and images.

    Example: foveate count --model gpt-4o README.md
    """
    with report_errors(as_json=json):
        options = _parse_options(backend, endpoint, tokenizer, timeout)
        if request is None:
            _count_files(options, files or [STANDARD_INPUT], model or DEFAULT_MODEL, as_json=json)
        elif files:
            raise BadOption("--request counts one request body: remove the other files")
        else:
            _count_request(options, _read(request), model, as_json=json)


def _parse_options(
    backend: str, endpoint: str | None, tokenizer: str | None, timeout_seconds: float
) -> "CounterOptions":
    from foveate.tokens import Backend, CounterOptions

    if not timeout_seconds <= MAX_TIMEOUT_SECONDS:
        raise BadOption(f"--timeout takes a number of seconds, at most {MAX_TIMEOUT_SECONDS}")
    counter_backend = Backend.from_name(backend)
    if endpoint is not None and not endpoint.strip():
        raise BadOption("--endpoint needs the URL of a server")
    if endpoint is not None and counter_backend in (Backend.OFFLINE, Backend.ESTIMATE):
        raise BadOption(f"--backend {counter_backend} uses no server: remove --endpoint")
    if tokenizer is not None and counter_backend is Backend.ESTIMATE:
        raise BadOption("--backend estimate uses no tokenizer: remove --tokenizer")
    variable = _KEY_VARIABLES.get(counter_backend, "")
    if variable and not os.environ.get(variable):
        raise BadOption(f"--backend {counter_backend} needs an API key in {variable}")
    return CounterOptions(
        backend=counter_backend,
        use_endpoint=endpoint is not None,
        endpoint_url=endpoint or "",
        api_key=os.environ.get(variable, ""),
        vocabulary=None if tokenizer is None else Path(tokenizer),
        timeout_ms=round(timeout_seconds * 1000),
    )


def _count_files(options: "CounterOptions", names: list[str], model: str, *, as_json: bool) -> None:
    failures: list[UnreadableInput] = []
    texts = list(_read_texts(names, failures))
    if not texts:
        *others, last = failures
        for failure in others:
            console.print_note(str(failure))
        raise last
    for failure in failures:
        console.print_note(str(failure))
    _count_texts(options, texts, model, as_json=as_json)
    if failures:
        raise typer.Exit(SOME_FAILED)


def _count_request(options: "CounterOptions", body: bytes, model: str | None, *, as_json: bool) -> None:
    from foveate import formats
    from foveate.tokens import with_model

    request = with_model(formats.parse_request(body), model)
    if options.uses_network:
        counted = _count_with_server(options, lambda fallback: fallback.count_request(request))
    else:
        with console.show_progress("counting tokens"):
            counted = _offline_counter(options, request.model).count_request(request)
    if as_json:
        _print_json(counted)
    else:
        roles = [formats.parse_message(request.format, raw).role for raw in request.messages]
        print_count(counted, heading="part", roles=roles)


def _count_texts(options: "CounterOptions", texts: list[tuple[str, str]], model: str, *, as_json: bool) -> None:
    from foveate.tokens import RequestCount, sum_counts

    async def count(fallback: "FallbackCounter") -> "RequestCount":
        return sum_counts(model, [(name, await fallback.count_text(text, model)) for name, text in texts])

    if options.uses_network:
        counted = _count_with_server(options, count)
    else:
        with console.show_progress("counting tokens"):
            counter = _offline_counter(options, model)
            totals = [(name, counter.text(text)) for name, text in texts]
        counts = [
            (name, RequestCount(model=model, backend=counter.backend, total=total)) for name, total in totals
        ]
        counted = sum_counts(model, counts)
    if as_json:
        _print_json(counted)
    else:
        print_count(counted, heading="file")


def _offline_counter(options: "CounterOptions", model: str) -> "RequestCounter":
    from foveate.tokens.offline_counters import offline_counter_factory

    return offline_counter_factory(options)(model)


def _count_with_server(
    options: "CounterOptions", count: Callable[["FallbackCounter"], Coroutine[None, None, "RequestCount"]]
) -> "RequestCount":
    import asyncio

    from foveate.tokens.remote.counter import ConnectedCounter
    from foveate.tokens.remote.endpoints import EndpointRegistry

    endpoints = EndpointRegistry()

    async def run() -> "RequestCount":
        async with ConnectedCounter(options, endpoints) as fallback:
            return await count(fallback)

    with console.show_progress("counting tokens"):
        counted = asyncio.run(run())
    for failure in endpoints.last_errors.values():
        console.print_note(f"{failure}; counted offline instead")
    return counted


def _read_texts(names: list[str], failures: list[UnreadableInput]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield printable_name(name), _decode_text(name, _read(name))
        except UnreadableInput as failure:
            failures.append(failure)


def _read(name: str) -> bytes:
    if name == STANDARD_INPUT:
        return console.read_standard_input()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UnreadableInput(printable_name(name), error.strerror or "cannot be read") from None
    except ValueError as error:  # the name contains a null byte
        raise UnreadableInput(printable_name(name), str(error)) from None


def _decode_text(name: str, data: bytes) -> str:
    if b"\0" in data[:8192]:
        raise UnreadableInput(printable_name(name), "is binary, not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableInput(printable_name(name), f"is not UTF-8 (byte {error.start})") from None


def printable_name(name: str) -> str:
    """Return a file name as it can be printed, with replacement characters for invalid UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _print_json(counted: "RequestCount") -> None:
    result: dict[str, Any] = asdict(counted)
    result["total"]["upper"] = counted.upper
    if not result["unexplained"]:
        del result["unexplained"]
    console.print_object(result)


def print_count(counted: "RequestCount", *, heading: str, roles: Sequence[str] = ()) -> None:
    display = display_for(sys.stdout)
    rows = [
        (_part_label(part, roles), format_tokens(part.tokens, part.exact))
        for part in counted.parts
        if part.tokens or part.name not in _OPTIONAL_PARTS or not roles
    ]
    total = ("total", format_tokens(counted.total.tokens, counted.total.exact))
    columns = (Column(heading=heading, fit=Fit.SHORTEN), Column(heading="tokens", align="right"))
    lines = format_table(columns, rows, display, total=total)
    print_lines([*lines, *(style_text(line, "dim", display) for line in _describe_accuracy(counted))])


def _part_label(part: "PartCount", roles: Sequence[str]) -> str:
    match = _MESSAGE_PART.fullmatch(part.name) if roles else None
    return f"{part.name} {roles[int(match[1])]}".rstrip() if match else part.name


def _describe_accuracy(counted: "RequestCount") -> Iterator[str]:
    total = counted.total
    accuracy = "exact" if total.exact else "estimated"
    if counted.upper is None:
        accuracy += ", upper bound unknown"
    elif counted.upper != total.tokens:
        accuracy += f", at most {counted.upper:,}"
    yield f"{counted.model}, {counted.backend}: {accuracy}"
    if counted.unexplained:
        yield f"not included: input that the provider adds for {', '.join(counted.unexplained)}"
