"""Contracts that the code itself declares, read by introspection and without starting a process."""

import asyncio
import inspect
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeVar

import typer.main

import foveate
from benchmarks.harness import discover
from foveate import errors
from foveate.chat.responses import FailureKind
from foveate.cli import app
from foveate.cli.chat.non_interactive import _EXIT_CODES
from foveate.cli.shared import errors as exit_codes
from foveate.gateway.request_body import BodyRejected
from foveate.gateway.response import build_error_response, may_retry
from foveate.model import Format
from tests.golden.observability import log_keys, metrics, telemetry
from tests.golden.settings import settings
from tests.golden.signatures import signatures
from tests.golden.source_names import environment_variables, headers
from tests.golden.tables import tables
from tests.golden.vocabularies import vocabularies

Failure = TypeVar("Failure", bound=Exception)


def contracts() -> dict[str, dict[str, str]]:
    """Derive every section that needs no process."""
    return {
        "benchmarks": dict(benchmarks()),
        "commands": dict(commands(typer.main.get_command(app))),
        "environment variables": environment_variables(),
        "errors": {**dict(error_codes()), **dict(body_error_codes())},
        "exit codes": list_exit_codes(),
        "headers": headers(),
        "library": dict(signatures(foveate)),
        "log keys": log_keys(),
        "metrics": metrics(),
        "names": vocabularies(),
        "settings": dict(settings()),
        "tables": tables(),
        "telemetry": asyncio.run(telemetry()),
    }


# Commands


def commands(command: Any, parent: Any = None, name: str = "foveate") -> Iterator[tuple[str, str]]:
    """List every command with its arguments and options, recursively."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    kind = "group of commands" if subcommands else "command"
    yield name, f"{kind}, help by {', '.join(sorted(command.get_help_option_names(context)))}"
    position = 0
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            position += 1
            yield f"{name} (argument {position})", f"{parameter.name}: {_parameter(parameter)}"
        else:
            spellings = ", ".join([*parameter.opts, *parameter.secondary_opts])
            yield f"{name} {spellings}", _parameter(parameter)
    for subcommand, inner in subcommands.items():
        yield from commands(inner, context, f"{name} {subcommand}")


def _parameter(parameter: Any) -> str:
    kind = parameter.type
    attributes: list[str] = [kind.name]
    attributes += [
        f"{bound} {limit}" for bound in ("min", "max") if (limit := getattr(kind, bound, None)) is not None
    ]
    if choices := getattr(kind, "choices", None):
        attributes.append(f"one of {', '.join(choices)}")
    if getattr(parameter, "is_flag", False):
        attributes.append("flag")
    if parameter.multiple or parameter.nargs != 1:
        attributes.append("several")
    if parameter.required:
        attributes.append("required")
    elif parameter.default is not None:
        attributes.append(f"default {parameter.default}")
    if parameter.envvar:
        attributes.append(f"variable {parameter.envvar}")
    if getattr(parameter, "hidden", False):
        attributes.append("hidden")
    return ", ".join(attributes)


# Errors and exit codes


def error_codes() -> Iterator[tuple[str, str]]:
    """List every error code: its class, its parent, its exit code and its HTTP status."""
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.FoveateError):
            error = _make_error(kind)
            responses = [
                build_error_response(error, api_format) for api_format in (Format.ANTHROPIC, Format.CHAT)
            ]
            (status,) = {response.status for response in responses}
            kinds = " and ".join(dict.fromkeys(response.kind for response in responses))
            retry = "may be retried" if may_retry(error) else "not retried"
            attributes = ", ".join(sorted(vars(error))) or "none"
            yield (
                kind.code,
                f"{name}, subclass of {kind.__mro__[1].__name__}, exit {exit_codes.exit_code(error)}, "
                f"HTTP {status} {kinds}, {retry}, attributes {attributes}",
            )


def body_error_codes() -> Iterator[tuple[str, str]]:
    """List the errors of bodies that are not read to their end, by their codes in logs and metrics."""
    for kind in BodyRejected.__subclasses__():
        error = _make_error(kind)
        retry = "may be retried" if error.may_retry else "not retried"
        headers = ", ".join(name.decode() for name, _ in error.headers) or "none"
        status = error.response(Format.CHAT).status
        yield kind.code, f"{kind.__name__}, HTTP {status}, {retry}, headers {headers}"


_SAMPLES: Mapping[object, object] = {
    str: "x",
    int: 1,
    float: 1.0,
    Decimal: Decimal(1),
    Decimal | None: Decimal(1),
    tuple[errors.SectionSize, ...]: (),
    tuple[str | int, ...]: ("x",),
}


def _make_error(kind: type[Failure]) -> Failure:
    """Create an error with any arguments that fit its constructor."""
    if kind.__init__ is Exception.__init__:
        return kind("x")
    required = [
        parameter
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    keywords = {
        parameter.name: _SAMPLES[parameter.annotation]
        for parameter in required
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    positional = [_SAMPLES[parameter.annotation] for parameter in required if parameter.name not in keywords]
    return kind(*positional, **keywords)


def list_exit_codes() -> dict[str, str]:
    """List the exit codes of commands, and those of failed answers of `foveate chat`."""
    constants = {name: code for name, code in vars(exit_codes).items() if re.fullmatch("[A-Z][A-Z_]*", name)}
    commands = {str(code): name.lower().replace("_", " ") for name, code in constants.items()}
    chat = {
        f"chat, {failure}": str(_EXIT_CODES.get(failure, exit_codes.UPSTREAM_FAILED)) for failure in FailureKind
    }
    return commands | chat


# Benchmarks


def benchmarks() -> Iterator[tuple[str, str]]:
    """List every benchmark with its options and the names of its figures."""
    for name, benchmark in discover().items():
        yield name, f"benchmark, options {', '.join(benchmark.options) or 'none'}"
        yield from ((f"{name}: {figure}", "figure") for figure in benchmark.figures)
