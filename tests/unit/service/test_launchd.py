"""The agent of launchd, and how launchctl is called."""

import os
import plistlib
import time
from dataclasses import replace
from pathlib import Path

import pytest

from foveate.config.settings import Settings
from foveate.errors import NoServiceManager
from foveate.service.launchd import Launchd
from foveate.service.plan import ServicePlan
from tests.support.processes.service_managers import RecordedPrograms

pytestmark = pytest.mark.process

PLAN = ServicePlan(
    program=("/opt/my tools/foveate",),
    config=Path("/Users/ana/<work> & play/foveate.yaml"),
    settings=Settings(),
    folder=Path("/Users/ana/<work> & play"),
    data=Path("/Users/ana/data"),
    variables={"FOVEATE_HOME": "/Users/ana/data"},
)
DOMAIN = f"gui/{os.getuid()}"
SERVICE = f"{DOMAIN}/dev.foveate.gateway"
# An excerpt of what launchctl prints.
PRINTED = """\
{service} = {{
\tactive count = 1
\ttype = LaunchAgent
\tstate = {state}

\targuments = {{
\t\tserve
\t}}
{rest}
}}
"""


@pytest.fixture
def launchd(programs: RecordedPrograms, tmp_path: Path) -> Launchd:  # noqa: ARG001 - on PATH
    return Launchd(tmp_path / "home")


def printed(state: str, *lines: str) -> str:
    return PRINTED.format(service=SERVICE, state=state, rest="\n".join(f"\t{line}" for line in lines))


def test_the_agent_runs_the_gateway_and_restarts_it_after_failures(launchd: Launchd, tmp_path: Path) -> None:
    agent = plistlib.loads(launchd.render(PLAN))

    assert launchd.path == tmp_path / "home/Library/LaunchAgents/dev.foveate.gateway.plist"
    assert agent["Label"] == launchd.path.stem
    assert agent["ProgramArguments"] == [
        "/opt/my tools/foveate",
        "serve",
        "--config",
        "/Users/ana/<work> & play/foveate.yaml",
    ]
    assert agent["WorkingDirectory"] == "/Users/ana/<work> & play"
    assert agent["EnvironmentVariables"] == {"FOVEATE_HOME": "/Users/ana/data"}
    assert (agent["RunAtLoad"], agent["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert agent["ExitTimeOut"] == 60
    assert agent["StandardErrorPath"] == agent["StandardOutPath"] == launchd.log


def test_the_configuration_is_read_back_from_the_agent(launchd: Launchd) -> None:
    launchd.path.parent.mkdir(parents=True)
    for config in (PLAN.config, None):
        launchd.path.write_bytes(launchd.render(replace(PLAN, config=config)))

        assert launchd.read_config() == config
    launchd.path.write_text("edited by hand")
    assert launchd.read_config() is None


def test_starting_replaces_an_agent_that_is_loaded(launchd: Launchd, programs: RecordedPrograms) -> None:
    programs.fail("launchctl bootout", "Boot-out failed: 3: No such process\n")

    launchd.start()

    assert programs.calls == [
        f"launchctl bootout {SERVICE}",
        f"launchctl enable {SERVICE}",
        f"launchctl bootstrap {DOMAIN} {launchd.path}",
    ]


def test_stopping_unloads_the_agent(launchd: Launchd, programs: RecordedPrograms) -> None:
    launchd.stop()
    launchd.forget()

    assert programs.calls == [f"launchctl bootout {SERVICE}"]


def test_a_user_without_a_session_is_an_error_that_says_what_to_do(
    launchd: Launchd, programs: RecordedPrograms
) -> None:
    launchd.check_available()
    programs.fail(f"launchctl print {DOMAIN}", "Could not print domain: 125\n")

    with pytest.raises(NoServiceManager, match=r"125.*desktop.*foveate serve"):
        launchd.check_available()


def test_a_running_agent_has_the_start_time_of_its_process(
    launchd: Launchd, programs: RecordedPrograms
) -> None:
    programs.print_from(
        "launchctl", printed("running", f"pid = {os.getpid()}", "last exit code = (never exited)")
    )

    state = launchd.state()

    assert (state.is_running, state.description, state.has_failed) == (True, "running", False)
    assert state.since is not None
    assert time.time() - 86_400 < state.since <= time.time()


@pytest.mark.parametrize(
    ("age", "seconds"), [("00:07", 7), ("12:34", 754), ("01:00:00", 3600), ("2-03:04:05", 183_845)]
)
def test_the_age_of_a_process_is_read_in_all_its_forms(
    launchd: Launchd, programs: RecordedPrograms, age: str, seconds: int
) -> None:
    ps = programs.folder / "bin" / "ps"
    ps.write_text(f"#!/bin/sh\necho '  {age}'\n")
    ps.chmod(0o755)
    programs.print_from("launchctl", printed("running", "pid = 1"))

    state = launchd.state()

    assert state.since == pytest.approx(time.time() - seconds, abs=60)


@pytest.mark.parametrize(
    ("lines", "description", "has_failed"),
    [
        (["last exit code = 2"], "spawn scheduled, exit code 2", True),
        (["last exit code = 0"], "spawn scheduled", False),
        (["last exit code = (never exited)"], "spawn scheduled", False),
    ],
)
def test_an_agent_without_a_process_has_failed_if_its_last_exit_code_says_so(
    launchd: Launchd, programs: RecordedPrograms, lines: list[str], description: str, has_failed: bool
) -> None:
    programs.print_from("launchctl", printed("spawn scheduled", *lines))

    state = launchd.state()

    assert (state.is_running, state.since) == (False, None)
    assert (state.description, state.has_failed) == (description, has_failed)


def test_an_agent_that_is_not_loaded_does_not_run(launchd: Launchd, programs: RecordedPrograms) -> None:
    programs.fail(f"launchctl print {SERVICE}", "Could not find service\n")

    assert launchd.state().description == "not loaded"
    assert not launchd.survives_logout()
