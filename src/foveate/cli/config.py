"""`foveate config`: write, check and show the configuration, and create gateway keys."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import BAD_INPUT, report_errors
from foveate.cli.shared.options import CONFIG_HELP, find_config_file
from foveate.errors import BadOption, BadSetting, FoveateError, UnwritableFile

if TYPE_CHECKING:
    from foveate.config.effective_settings import EffectiveSetting

app = typer.Typer(
    name="config",
    help="Create, check and show the configuration, and create gateway keys.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FILE_NAME = "foveate.yaml"
_DEFAULT_AGENT = "default"
_MIN_KEY_CELLS, _MIN_VALUE_CELLS = 40, 14

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        help=CONFIG_HELP,
    ),
]


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write.")] = Path(_FILE_NAME),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: AsJson = False,
) -> None:
    """Write a configuration file with every setting, its default value and an explanation.

    Example: foveate config init foveate.yaml
    """
    with report_errors(as_json=json):
        from foveate.config.files import display_path, replace_file

        if file.exists() and not force:
            raise UnwritableFile(display_path(file), "already exists; use --force to overwrite it")
        replace_file(file, read_example())
        if json:
            console.print_object({"file": str(file)})
        else:
            console.print_text(
                f"wrote {console.escape_control_chars(display_path(file))}: "
                "every setting is explained and has its default"
            )


def read_example() -> bytes:
    from importlib.resources import files

    return (files("foveate.config") / "example.yaml").read_bytes()


@app.command("check")
def check(file: File = None, json: AsJson = False) -> None:
    """Check a configuration file, and list each error with its line, the setting and how to fix it.

    Example: foveate config check foveate.yaml
    """
    with report_errors(as_json=json):
        path = find_config_file(file)
        if path is None:
            raise BadOption(
                f"no {_FILE_NAME} in this folder or in the data folder: name a file, or create one with "
                "`foveate config init`"
            )
        problems = _find_problems(path)
        if json:
            errors = [_problem_object(problem) for problem in problems]
            console.print_object({"file": str(path), "ok": not problems, "errors": errors})
        else:
            for problem in problems:
                console.print_text(_problem_line(problem))
            if not problems:
                console.print_text(f"{console.escape_control_chars(str(path))}: no errors found")
        if problems:
            raise typer.Exit(BAD_INPUT)


def _find_problems(path: Path) -> list[FoveateError]:
    """Return all errors of a file.

    If it has none, return what is wrong in this environment, e.g. a missing key.
    """
    from foveate.config.document import MAX_SETTINGS_BYTES
    from foveate.config.files import display_path, read_bytes
    from foveate.config.load import find_problems
    from foveate.gateway.server.serve import load_live_config

    problems = find_problems(read_bytes(path, limit_bytes=MAX_SETTINGS_BYTES), display_path(path))
    if problems:
        return [*problems]
    try:
        load_live_config(path, dict(os.environ))
    except FoveateError as error:
        return [error]
    return []


def _problem_object(problem: FoveateError) -> dict[str, object]:
    if not isinstance(problem, BadSetting):
        return {"message": str(problem), "line": None, "key": ""}
    return {"message": problem.reason, "line": problem.line, "key": problem.key}


def _problem_line(problem: FoveateError) -> str:
    """Format an error as `file:line: key: what to do`."""
    if not isinstance(problem, BadSetting) or not problem.key:
        return console.escape_control_chars(str(problem))
    where = problem.source if problem.line is None else f"{problem.source}:{problem.line}"
    return console.escape_control_chars(f"{where}: {problem.key}: {problem.reason}")


@app.command("show")
def show(file: File = None, json: AsJson = False) -> None:
    """Show the settings in effect, and whether each comes from the defaults, the file or the environment.

    Example: foveate config show --json
    """
    with report_errors(as_json=json):
        path = find_config_file(file)
        with console.show_progress("reading the configuration"):
            rows = _effective_settings(path)
        if json:
            settings = {
                row.key: {name: field_value for name, field_value in asdict(row).items() if name != "key"}
                for row in rows
            }
            console.print_object({"file": None if path is None else str(path), "settings": settings})
            return
        display = console.display_for(sys.stdout)
        console.print_text(f"file: {display.escape(str(path)) if path else 'none, defaults apply'}")
        from foveate.cli.shared.tables import Column, Fit, format_table

        columns = (
            Column(heading="setting", fit=Fit.SHORTEN, min_cells=_MIN_KEY_CELLS),
            Column(heading="value", fit=Fit.WRAP, min_cells=_MIN_VALUE_CELLS),
            Column(heading="source", fit=Fit.SHORTEN),
        )
        cells = [
            (row.key, row.value_text, row.origin(path) if row.line is None else f"line {row.line}")
            for row in rows
        ]
        console.print_lines(format_table(columns, cells, display))


def _effective_settings(path: Path | None) -> "list[EffectiveSetting]":
    from foveate.gateway.config import describe_current_settings
    from foveate.gateway.server.serve import load_live_config

    environment = dict(os.environ)
    return describe_current_settings(load_live_config(path, environment), environment)


@dataclass(frozen=True, slots=True)
class _GatewayKey:
    agent: str | None
    key: str
    hash: str
    admin: bool


@app.command("key")
def key(
    agent: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the agent that uses the key. Default: the agent named default.",
            show_default=False,
        ),
    ] = _DEFAULT_AGENT,
    admin: Annotated[
        bool,
        typer.Option(
            "--admin",
            help="Create an admin key. It gives access to /metrics and to the dashboard of all agents, but "
            "cannot send requests.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Create a gateway key, and print it once, with the lines to add to the configuration.

    Those lines contain only a hash of the key. The command does not change any file.

    Example: foveate config key --agent ana
    """
    with report_errors(as_json=json):
        if admin and agent != _DEFAULT_AGENT:
            raise BadOption("an admin key does not belong to an agent: use --admin without --agent")
        if not agent.strip():
            raise BadOption("--agent must not be empty")
        from foveate.gateway.auth.callers import generate_key, hash_key

        secret = generate_key()
        owner = None if admin else agent
        gateway_key = _GatewayKey(agent=owner, key=secret, hash=hash_key(secret), admin=admin)
        if json:
            console.print_object(asdict(gateway_key))
            return
        import json as encoding

        if admin:
            usage_note = "It opens the dashboard and /metrics, but cannot send requests."
            lines = f'server:\n  admin_keys: ["{gateway_key.hash}"]'
        else:
            usage_note = "Clients send it instead of a provider's API key."
            name = encoding.dumps(owner, ensure_ascii=False)  # quoted, since YAML accepts any name so
            lines = f'agents:\n  - id: {console.escape_control_chars(name)}\n    keys: ["{gateway_key.hash}"]'
        console.print_text(
            f"{gateway_key.key}\n\nCopy this key now: it is not shown again. {usage_note}\n"
            f"Add its hash to foveate.yaml:\n\n{lines}"
        )
