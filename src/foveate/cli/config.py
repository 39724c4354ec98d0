"""`foveate config`: the configuration written, checked and shown, and keys of the gateway made."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import BAD_INPUT, telling
from foveate.cli.usual import usual_config
from foveate.errors import BadOption, BadSetting, FoveateError, UnwritableFile

if TYPE_CHECKING:
    from foveate.config.showing import Held

app = typer.Typer(
    name="config",
    help="Writes, checks and shows the configuration, and makes keys of the gateway.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FILE_NAME = "foveate.yaml"
_USUAL_AGENT = "default"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
File = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Default: foveate.yaml here, else in the data folder."),
]


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Default: foveate.yaml.")] = Path(_FILE_NAME),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: AsJson = False,
) -> None:
    """Write a configuration with every setting explained, at its default.

    Example: foveate config init foveate.yaml
    """
    with telling(as_json=json):
        from foveate.config.files import replace_file, shown

        if file.exists() and not force:
            raise UnwritableFile(shown(file), "is there already; nothing was changed: --force replaces it")
        replace_file(file, example())
        if json:
            screen.print_object({"file": str(file)})
        else:
            screen.print_text(f"wrote {screen.plain(shown(file))}: all by default, every setting explained")


def example() -> bytes:
    """The documented example."""
    from importlib.resources import files

    return (files("foveate.config") / "example.yaml").read_bytes()


@app.command("check")
def check(file: File = None, json: AsJson = False) -> None:
    """Say everything that is wrong with a configuration, each with its line, its key and what to do.

    Example: foveate config check foveate.yaml
    """
    with telling(as_json=json):
        path = usual_config(file)
        if path is None:
            raise BadOption(
                f"there is no {_FILE_NAME} here or in the data folder: name a file, or write one with "
                "`foveate config init`"
            )
        problems = _problems(path)
        if json:
            told = [_told(problem) for problem in problems]
            screen.print_object({"file": str(path), "ok": not problems, "errors": told})
        else:
            for problem in problems:
                screen.print_text(_line(problem))
            if not problems:
                screen.print_text(f"{screen.plain(str(path))}: all of it can be used")
        if problems:
            raise typer.Exit(BAD_INPUT)


def _problems(path: Path) -> list[FoveateError]:
    """All that is wrong with the file, else what is wrong with it here: a key that is not set."""
    from foveate.config.checking import problems_in
    from foveate.config.documents import SETTINGS_LIMIT_BYTES
    from foveate.config.files import read_bytes, shown
    from foveate.gateway.serving import live_choices

    problems = problems_in(read_bytes(path, limit_bytes=SETTINGS_LIMIT_BYTES), shown(path))
    if problems:
        return [*problems]
    try:
        live_choices(path, dict(os.environ))
    except FoveateError as error:
        return [error]
    return []


def _told(problem: FoveateError) -> dict[str, object]:
    if not isinstance(problem, BadSetting):
        return {"message": str(problem), "line": None, "key": ""}
    return {"message": problem.reason, "line": problem.line, "key": problem.key}


def _line(problem: FoveateError) -> str:
    """`file:line: key: what to do`."""
    if not isinstance(problem, BadSetting) or not problem.key:
        return screen.plain(str(problem))
    where = problem.source if problem.line is None else f"{problem.source}:{problem.line}"
    return screen.plain(f"{where}: {problem.key}: {problem.reason}")


@app.command("show")
def show(file: File = None, json: AsJson = False) -> None:
    """Show what holds in the end, and where each value is from: a default, the file, the environment.

    Example: foveate config show --json
    """
    with telling(as_json=json):
        path = usual_config(file)
        with screen.patience("reading"):
            rows = _held(path)
        if json:
            settings = {
                row.key: {name: said for name, said in asdict(row).items() if name != "key"} for row in rows
            }
            screen.print_object({"file": None if path is None else str(path), "settings": settings})
            return
        look = screen.look(sys.stdout)
        screen.print_text(f"file: {look.plain(str(path)) if path else 'none: all by default'}")
        keys = max(len(row.key) for row in rows)
        values = [row.in_words for row in rows]
        width = min(max(map(len, values)), 40)
        screen.print_lines(
            f"{look.plain(row.key):<{keys}}  {look.plain(value):<{width}}  {look.plain(row.origin(path))}"
            for row, value in zip(rows, values, strict=True)
        )


def _held(path: Path | None) -> "list[Held]":
    from foveate.gateway.held import held_now
    from foveate.gateway.serving import live_choices

    environment = dict(os.environ)
    return held_now(live_choices(path, environment), environment)


@dataclass(frozen=True, slots=True)
class _Key:
    agent: str | None
    key: str
    hash: str
    admin: bool


@app.command("key")
def key(
    agent: Annotated[str, typer.Option(metavar="NAME", help="Whose key it is.")] = _USUAL_AGENT,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="Make a key that sees the pages of all agents and sends no requests."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Make a key of the gateway: it is shown once, and the file only gets its hash.

    Example: foveate config key --agent ana
    """
    with telling(as_json=json):
        if admin and agent != _USUAL_AGENT:
            raise BadOption("--admin makes a key of no agent: leave out --agent")
        if not agent.strip():
            raise BadOption("--agent needs the name of an agent")
        from foveate.gateway.keys import hash_of, new_key

        made = new_key()
        owner = None if admin else agent
        found = _Key(agent=owner, key=made, hash=hash_of(made), admin=admin)
        if json:
            screen.print_object(asdict(found))
            return
        import json as encoding

        if admin:
            used = "It opens the gateway's pages and /metrics, and sends no requests."
            lines = f'server:\n  admin_keys: ["{found.hash}"]'
        else:
            used = "A client sends it in the place of its provider's."
            name = encoding.dumps(owner, ensure_ascii=False)  # as YAML takes any name
            lines = f'agents:\n  - id: {screen.plain(name)}\n    keys: ["{found.hash}"]'
        screen.print_text(
            f"{found.key}\n\nThis is the key, and it is not shown again. {used}\nIn foveate.yaml:\n\n{lines}"
        )
