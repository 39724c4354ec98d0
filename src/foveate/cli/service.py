"""`foveate service`: run the gateway as a service of the user."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.cli.store import AsJson

if TYPE_CHECKING:
    from foveate.service.manager import ServiceManager, ServiceStatus
    from foveate.service.plan import ServicePlan

app = typer.Typer(
    name="service",
    help="Run the gateway in the background, started at login and restarted after failures.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("install")
def install(
    config: ConfigFile = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the file of the service, and install nothing.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Install and start a service that runs `foveate serve` for your user, with systemd or launchd.

    The service uses the configuration file that `foveate serve` would use now. It does not see the variables of
    this terminal: it reads API keys from the file .env in the folder of the configuration file, or in the data
    folder if there is none. Install again to update the service.

    Example: foveate service install --config foveate.yaml
    """
    with report_errors(as_json=json):
        from foveate.service import find_manager
        from foveate.service import manager as service_manager
        from foveate.service.plan import check_plan, list_warnings, plan_service

        environ = dict(os.environ)
        plan = plan_service(
            find_config_file(config), environ, sys.platform, executable=Path(sys.executable).absolute()
        )
        manager = find_manager(environ, sys.platform)
        if not only_print:
            manager.check_available()
        for warning in list_warnings(plan, environ):
            console.print_note(warning)
        with console.show_progress("checking the configuration"):
            check_plan(plan, environ)
        if only_print:
            _print_file(manager, plan, as_json=json)
            return
        with console.show_progress("starting the service"):
            service_manager.install(manager, plan)
        status = service_manager.fetch_status(manager)
        if json:
            console.print_object(asdict(status))
            return
        console.print_text(f"installed {console.escape_control_chars(str(manager.path))}")
        _print_status(status)
        console.print_text(f"{'keys':<9}{console.escape_control_chars(str(plan.env_file))}")
        if not status.survives_logout and sys.platform == "linux":
            console.print_note("the service stops when you log out; to keep it running: loginctl enable-linger")


def _print_file(manager: "ServiceManager", plan: "ServicePlan", *, as_json: bool) -> None:
    text = manager.render(plan).decode()
    if as_json:
        console.print_object({"file": str(manager.path), "text": text})
    else:
        console.print_text(text.rstrip("\n"))


@app.command("status")
def status(json: AsJson = False) -> None:
    """Show whether the service is installed and running, and whether the gateway answers.

    The exit code is 1 if the gateway does not answer as a service.

    Example: foveate service status --json
    """
    with report_errors(as_json=json):
        from foveate.service import find_manager
        from foveate.service.manager import fetch_status

        with console.show_progress("asking the service"):
            found = fetch_status(find_manager(os.environ, sys.platform))
        if json:
            console.print_object(asdict(found))
        elif found.installed:
            _print_status(found)
        else:
            console.print_text("not installed; install it with `foveate service install`")
        if not found.running or (found.url is not None and found.health is None):
            raise typer.Exit(SOME_FAILED)


def _print_status(status: "ServiceStatus") -> None:
    from foveate.cli.shared.tables import Column, Fit, format_table

    state = status.state
    if status.since is not None:
        from datetime import datetime

        state += f" since {datetime.fromtimestamp(status.since).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    health = "/health does not answer" if status.health is None else f"/health answers: {status.health}"
    rows = [
        ("state", state),
        ("address", f"{status.url}, {health}" if status.url else "unknown: server.port is 0, or invalid"),
        ("config", status.config or "none, defaults apply"),
        ("log", status.log),
    ]
    console.print_lines(format_table((Column(), Column(fit=Fit.WRAP)), rows, console.display_for(sys.stdout)))


@app.command("remove")
def remove(json: AsJson = False) -> None:
    """Stop the service and delete its file. The configuration, API keys and recorded costs stay.

    Example: foveate service remove
    """
    with report_errors(as_json=json):
        from foveate.paths import data_folder
        from foveate.service import find_manager
        from foveate.service import manager as service_manager

        manager = find_manager(os.environ, sys.platform)
        with console.show_progress("stopping the service"):
            is_removed = service_manager.remove(manager)
        data = data_folder(os.environ, sys.platform)
        if json:
            console.print_object({"removed": is_removed, "file": str(manager.path), "data": str(data)})
            return
        if is_removed:
            console.print_text(f"removed {console.escape_control_chars(str(manager.path))}")
        else:
            console.print_text("not installed; nothing was removed")
        console.print_text(f"your data stays in {console.escape_control_chars(str(data))}")
