"""The user unit of systemd, and how systemd is called."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from foveate.config.settings import Settings
from foveate.errors import NoServiceManager, ServiceFailed
from foveate.service.plan import ServicePlan
from foveate.service.systemd import Systemd
from tests.support.processes.service_managers import RecordedPrograms

pytestmark = pytest.mark.process

PLAN = ServicePlan(
    program=("/opt/my tools/foveate",),
    config=Path('/home/ana/100% "$mine"/foveate.yaml'),
    settings=Settings(),
    folder=Path('/home/ana/100% "$mine"'),
    data=Path("/home/ana/data"),
    variables={"FOVEATE_HOME": "/home/ana/data", "NO_PROXY": 'a b\\c "d" $e %f'},
)


@pytest.fixture
def systemd(programs: RecordedPrograms) -> Systemd:  # noqa: ARG001 - on PATH
    return Systemd({})


def render_lines(systemd: Systemd, plan: ServicePlan = PLAN) -> list[str]:
    return systemd.render(plan).decode().splitlines()


def test_words_are_quoted_as_systemd_reads_them(systemd: Systemd) -> None:
    lines = render_lines(systemd)

    assert (
        r'ExecStart="/opt/my tools/foveate" "serve" "--config" "/home/ana/100%% \"$$mine\"/foveate.yaml"'
        in lines
    )
    assert 'Environment="FOVEATE_HOME=/home/ana/data"' in lines
    assert r'Environment="NO_PROXY=a b\\c \"d\" $e %%f"' in lines
    assert 'WorkingDirectory=/home/ana/100%% "$mine"' in lines


def test_the_service_restarts_after_failures_but_not_with_an_invalid_configuration(systemd: Systemd) -> None:
    lines = render_lines(systemd)

    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "WantedBy=default.target"} <= set(lines)
    assert "TimeoutStopSec=60" in lines
    assert "NoNewPrivileges=yes" in lines


def test_the_configuration_is_read_back_from_the_unit(systemd: Systemd) -> None:
    systemd.path.parent.mkdir(parents=True)
    for config in (PLAN.config, None):
        systemd.path.write_bytes(systemd.render(replace(PLAN, config=config)))

        assert systemd.read_config() == config


def test_systemd_accepts_the_unit(systemd: Systemd, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze to ask")
    unit = tmp_path / "foveate.service"
    unit.write_bytes(systemd.render(replace(PLAN, program=("/bin/true",), folder=tmp_path)))

    result = subprocess.run(
        [analyze, "--user", "verify", unit],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": "/tmp", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    assert (result.returncode, result.stderr) == (0, "")


def test_the_unit_is_in_the_configuration_folder_of_the_user(tmp_path: Path, systemd: Systemd) -> None:
    assert systemd.path == tmp_path / "home" / ".config" / "systemd" / "user" / "foveate.service"
    assert Systemd({"XDG_CONFIG_HOME": "/etc/ana"}).path == Path("/etc/ana/systemd/user/foveate.service")


def test_starting_reloads_enables_and_restarts(systemd: Systemd, programs: RecordedPrograms) -> None:
    systemd.start()

    assert programs.calls == [
        "systemctl --user daemon-reload",
        "systemctl --user enable foveate.service",
        "systemctl --user restart foveate.service",
    ]


def test_stopping_disables_the_unit(systemd: Systemd, programs: RecordedPrograms) -> None:
    systemd.stop()
    systemd.forget()

    assert programs.calls == [
        "systemctl --user disable --now foveate.service",
        "systemctl --user daemon-reload",
    ]


def test_the_reason_of_systemd_is_reported(systemd: Systemd, programs: RecordedPrograms) -> None:
    programs.fail("systemctl --user enable foveate.service", "Failed to enable unit: File is\n  a symlink\n")

    with pytest.raises(
        ServiceFailed, match=r"`systemctl --user enable foveate\.service` failed: .* a symlink$"
    ):
        systemd.start()


def test_a_session_without_a_manager_is_an_error_that_says_what_to_do(
    systemd: Systemd, programs: RecordedPrograms
) -> None:
    systemd.check_available()
    programs.fail("systemctl --user show --property=Version", "Failed to connect to bus: No medium found\n")

    with pytest.raises(NoServiceManager, match=r"No medium found.*su or sudo.*foveate serve"):
        systemd.check_available()


def test_a_machine_without_systemd_is_an_error_that_says_what_to_do(
    systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NoServiceManager, match=r"systemctl was not found.*foveate serve"):
        systemd.check_available()
    assert not systemd.survives_logout()


RUNNING = "ActiveState=active\nSubState=running\nActiveEnterTimestamp=@1794978013\nExecMainStatus=0\n"


def test_a_running_service_has_a_start_time(systemd: Systemd, programs: RecordedPrograms) -> None:
    programs.print_from("systemctl", RUNNING)

    state = systemd.state()

    assert (state.is_running, state.since, state.description) == (True, 1794978013.0, "active (running)")


@pytest.mark.parametrize(
    ("output", "description", "has_failed"),
    [
        ("ActiveState=failed\nSubState=failed\nExecMainStatus=2\n", "failed (failed), exit code 2", True),
        (
            "ActiveState=activating\nSubState=auto-restart\nExecMainStatus=1\n",
            "activating (auto-restart), exit code 1",
            True,
        ),
        ("ActiveState=inactive\nSubState=dead\nActiveEnterTimestamp=@17\n", "inactive (dead)", False),
        ("", "unknown (unknown)", False),
    ],
)
def test_a_service_that_does_not_run_has_no_start_time(
    systemd: Systemd, programs: RecordedPrograms, output: str, description: str, has_failed: bool
) -> None:
    programs.print_from("systemctl", output)

    state = systemd.state()

    assert (state.is_running, state.since) == (False, None)
    assert (state.description, state.has_failed) == (description, has_failed)


def test_a_lingering_user_keeps_services_after_logout(systemd: Systemd, programs: RecordedPrograms) -> None:
    programs.print_from("loginctl", "Linger=no\n")
    assert not systemd.survives_logout()

    programs.print_from("loginctl", "Linger=yes\n")
    assert systemd.survives_logout()
