"""The service as a user unit of systemd."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from foveate.errors import NoServiceManager
from foveate.service.manager import ProcessState, parse_pairs, run_or_fail, run_program
from foveate.service.plan import ServicePlan

_UNIT = "foveate.service"
_CONFIG_KEY = "X-Config="
_PROPERTIES = "ActiveState,SubState,ActiveEnterTimestamp,Result,ExecMainStatus"

# Only options that work for services of a user: those that need namespaces fail if users may not create them.
# Exit code 2 means an invalid configuration or a port in use, which a restart does not repair.
_TEMPLATE = """\
# Written by `foveate service install`, which overwrites it. Add your own settings with
# `systemctl --user edit foveate`, and API keys to {env_file} (chmod 600).

[Unit]
Description=Foveate, a gateway for language model APIs
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{environment}
WorkingDirectory={folder}
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2
# Longer than server.grace_seconds, so that running requests can finish.
TimeoutStopSec={stop_seconds}
# Send SIGTERM to the main process only. It stops its workers.
KillMode=mixed
LimitNOFILE=65536

UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Read by `foveate service status`. systemd ignores names that start with X-.
{config}

[Install]
WantedBy=default.target
"""


class Systemd:
    """systemd's manager of the user who runs this."""

    log = f"journalctl --user --unit {_UNIT}"

    def __init__(self, environ: Mapping[str, str]) -> None:
        folder = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
        self.path = folder / "systemd" / "user" / _UNIT

    def check_available(self) -> None:
        answer = run_program("systemctl", "--user", "show", "--property=Version")
        if answer.returncode:
            reason = " ".join(answer.stderr.split()) or f"exit code {answer.returncode}"
            raise NoServiceManager(
                f"systemd does not manage services of this user ({reason}); if you used su or sudo, log in as "
                "the user directly"
            )

    def render(self, plan: ServicePlan) -> bytes:
        return _TEMPLATE.format(
            env_file=plan.env_file,
            command=" ".join(_quote(word).replace("$", "$$") for word in plan.command),
            environment="\n".join(
                f"Environment={_quote(f'{name}={value}')}" for name, value in plan.variables.items()
            ),
            folder=str(plan.folder).replace("%", "%%"),
            stop_seconds=plan.stop_seconds,
            config=f"{_CONFIG_KEY}{plan.config or ''}",
        ).encode()

    def read_config(self) -> Path | None:
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if line.startswith(_CONFIG_KEY) and line != _CONFIG_KEY:
                return Path(line.removeprefix(_CONFIG_KEY))
        return None

    def start(self) -> None:
        self.forget()
        run_or_fail("systemctl", "--user", "enable", _UNIT)
        run_or_fail("systemctl", "--user", "restart", _UNIT)

    def stop(self) -> None:
        run_or_fail("systemctl", "--user", "disable", "--now", _UNIT)

    def forget(self) -> None:
        run_or_fail("systemctl", "--user", "daemon-reload")

    def state(self) -> ProcessState:
        shown = run_or_fail(
            "systemctl", "--user", "show", _UNIT, "--timestamp=unix", f"--property={_PROPERTIES}"
        )
        values = parse_pairs(shown, "=")
        active, detail = values.get("ActiveState", "unknown"), values.get("SubState", "unknown")
        is_running = active == "active"
        has_failed = active == "failed" or detail == "auto-restart"
        description = f"{active} ({detail})"
        if has_failed:
            description += f", exit code {values.get('ExecMainStatus', '?')}"
        since = values.get("ActiveEnterTimestamp", "").removeprefix("@")
        return ProcessState(
            is_running=is_running,
            description=description,
            since=float(since) if is_running and since.isdecimal() else None,
            has_failed=has_failed,
        )

    def survives_logout(self) -> bool:
        with suppress(NoServiceManager):
            answer = run_program("loginctl", "show-user", str(os.getuid()), "--property=Linger")
            return answer.stdout.strip() == "Linger=yes"
        return False


def _quote(word: str) -> str:
    """Quote a word of a command or an assignment, so that systemd reads it as it is."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
