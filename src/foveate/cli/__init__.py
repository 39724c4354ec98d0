"""Entry point of the `foveate` command. Each command has a module or package of its own."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from foveate.cli import (
    advise,
    agents,
    assemble,
    config,
    count,
    demo,
    doctor,
    memory,
    prices,
    replay,
    sandbox,
    serve,
    service,
    status,
    store,
    usage,
)
from foveate.cli.chat import command as chat
from foveate.cli.compactions import command as compactions
from foveate.cli.cost import command as cost
from foveate.cli.explain import command as explain
from foveate.cli.run import command as run
from foveate.cli.shared import console
from foveate.cli.shared.errors import exit_code, report_errors, report_missing_extras
from foveate.cli.shared.help import GroupedCommands, PlainUsageCommand
from foveate.errors import MissingExtra, UnwritableOutput

__all__ = ["app", "main"]

_ENV_FILE = ".env"

app = typer.Typer(
    name="foveate",
    cls=GroupedCommands,
    help="Manage the context, prompt caching and cost of language model calls.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich help would load more than all the rest of the command line.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(f"foveate {version('foveate')}")
        raise typer.Exit


@app.callback()
def _load_env_file(
    context: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001 - its callback handles it
        False, "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Manage the context, prompt caching and cost of language model calls."""
    # `foveate run` starts programs with it: they must not use keys that only Foveate was given.
    context.obj = dict(os.environ)
    if Path(_ENV_FILE).is_file():
        from foveate.config.dotenv import load_env_file

        with report_errors(as_json=False):
            os.environ.update(load_env_file(os.environ, Path(_ENV_FILE)))


app.command("run", cls=run.RunCommand, context_settings=run.CONTEXT_SETTINGS)(run.command)
app.command("agents")(agents.command)
app.command("serve")(serve.command)
app.command("chat")(chat.command)
app.command("sandbox")(sandbox.command)
app.command("advise")(advise.command)
app.command("replay")(replay.command)
app.command("status")(status.command)
app.command("usage")(usage.command)
app.add_typer(cost.app)
app.command("explain")(explain.command)
app.add_typer(compactions.app)
app.command("demo")(demo.command)
app.command("count")(count.command)
app.command("assemble")(assemble.command)
app.add_typer(memory.app)
app.add_typer(config.app)
app.command("doctor")(doctor.command)
app.add_typer(service.app)
app.add_typer(store.app)
app.add_typer(prices.app)


def _improve_help(group: typer.Typer) -> None:
    """Show plain usage lines, and the whole first line of each command's help in lists of commands."""
    for command in group.registered_commands:
        if not (command.cls is not None and issubclass(command.cls, PlainUsageCommand)):
            command.cls = PlainUsageCommand
        command.short_help = (getattr(command.callback, "__doc__", None) or "").partition("\n")[0]
    for subgroup in group.registered_groups:
        if subgroup.typer_instance is not None:
            subgroup.short_help = (subgroup.typer_instance.info.help or "").partition("\n")[0]
            _improve_help(subgroup.typer_instance)


_improve_help(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. If help or version cannot be written, report it in one line on standard error.

    The same goes for a missing extra that a command did not report.
    """
    try:
        with report_missing_extras(), console.handle_write_errors():
            app(arguments, prog_name="foveate")
    except (MissingExtra, UnwritableOutput) as error:
        console.print_note(str(error))
        sys.exit(exit_code(error))
