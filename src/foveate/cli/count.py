"""`foveate count`: how many tokens texts or a whole request are."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import BAD_INPUT, SOME_FAILED
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.tokens import RequestCount
    from foveate.tokens.backends import CounterOptions

STANDARD_INPUT = "-"
DEFAULT_MODEL = "gpt-4o"

# Where a provider's key is looked for; a server of one's own needs none.
_KEYS = {
    "anthropic_api": "ANTHROPIC_API_KEY",
    "openai_api": "OPENAI_API_KEY",
    "gemini_api": "GEMINI_API_KEY",
}


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Texts to count; none or - is standard input."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The model to count for; default gpt-4o, or the request's own."),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request", "-r", metavar="FILE", help="A whole request body (JSON); - is standard input."
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="Who counts: auto, offline, estimate; or over the network, anthropic_api, openai_api, "
            "gemini_api (with their usual key variables), endpoint (the server at --endpoint)."
        ),
    ] = "auto",
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A llama.cpp or vLLM server that counts for its own model."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A tokenizer.json or .tiktoken file to count with."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a server may take to answer.", min=0.01)
    ] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the tokens of texts, or of a whole request with its system prompt, tools, messages and images."""
    options = _options(backend, endpoint, tokenizer, timeout)
    if request is not None:
        if files:
            raise BadOption("--request counts one request body: leave out the other files")
        counted = asyncio.run(_count_request(options, _read(request), model))
        _show(counted, heading="part", as_json=json)
        return
    failures: list[UnreadableInput] = []
    texts = dict(_readable(files or [STANDARD_INPUT], failures))
    for failure in failures:
        screen.print_error(failure)
    if texts:
        counted = asyncio.run(_count_texts(options, texts, model or DEFAULT_MODEL))
        _show(counted, heading="file", as_json=json)
    if failures:
        raise typer.Exit(SOME_FAILED if texts else BAD_INPUT)


def _options(
    backend: str, endpoint: str | None, tokenizer: Path | None, timeout_seconds: float
) -> "CounterOptions":
    from foveate.tokens.backends import Backend, CounterOptions

    chosen = Backend.named(backend)
    variable = _KEYS.get(chosen, "")
    if variable and not os.environ.get(variable):
        raise BadOption(f"--backend {chosen} needs an API key in {variable}")
    return CounterOptions(
        backend=chosen,
        use_endpoint=endpoint is not None,
        endpoint_url=endpoint or "",
        api_key=os.environ.get(variable, ""),
        vocabulary=tokenizer,
        timeout_ms=round(timeout_seconds * 1000),
    )


async def _count_request(options: "CounterOptions", body: bytes, model: str | None) -> "RequestCount":
    from foveate import wire
    from foveate.tokens import with_model
    from foveate.tokens.backends import Counting

    request = with_model(wire.read(body), model)
    async with Counting(options) as cascade:
        return await cascade.request(request)


async def _count_texts(options: "CounterOptions", texts: dict[str, str], model: str) -> "RequestCount":
    from foveate.tokens import summed
    from foveate.tokens.backends import Counting

    async with Counting(options) as cascade:
        return summed(model, {name: await cascade.text(text, model) for name, text in texts.items()})


def _show(counted: "RequestCount", *, heading: str, as_json: bool) -> None:
    if as_json:
        screen.print_json(counted)
    else:
        screen.print_count(counted, heading=heading)


def _readable(names: list[str], failures: list[UnreadableInput]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, _text(name, _read(name))
        except UnreadableInput as failure:
            failures.append(failure)


def _read(name: str) -> bytes:
    if name == STANDARD_INPUT:
        if sys.stdin.isatty():
            screen.print_hint("reading from standard input; end with Ctrl-D")
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UnreadableInput(name, error.strerror or "cannot be read") from None


def _text(name: str, data: bytes) -> str:
    if b"\0" in data[:8192]:
        raise UnreadableInput(name, "is binary, not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableInput(name, f"is not UTF-8 (byte {error.start})") from None
