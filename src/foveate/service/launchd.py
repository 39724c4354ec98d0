"""The service as an agent of launchd on macOS, after launchd.plist(5) and launchctl(1). Not tried on a Mac."""

import os
import plistlib
import time
from pathlib import Path

from foveate.errors import NoServiceManager, ServiceFailed
from foveate.service.manager import ProcessState, parse_pairs, run_or_fail, run_program
from foveate.service.plan import ServicePlan

_LABEL = "dev.foveate.gateway"
_CONFIG_KEY = "FoveateConfig"
_DESCRIPTORS = 65_536
# launchd unloads a service in the background, and refuses to load it again until it has ended.
_LOAD_ATTEMPTS, _LOAD_PAUSE_SECONDS = 20, 0.5
_UNITS_SECONDS = (1, 60, 3600, 86_400)


class Launchd:
    """launchd's domain of the logged-in user."""

    def __init__(self, home: Path) -> None:
        self.path = home / "Library" / "LaunchAgents" / f"{_LABEL}.plist"
        self.log = str(home / "Library" / "Logs" / "foveate.log")
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{_LABEL}"

    def check_available(self) -> None:
        answer = run_program("launchctl", "print", self._domain)
        if answer.returncode:
            reason = " ".join(answer.stderr.split()) or f"exit code {answer.returncode}"
            raise NoServiceManager(
                f"launchd has no session of this user ({reason}); log in at the desktop of this Mac first"
            )

    def render(self, plan: ServicePlan) -> bytes:
        return plistlib.dumps(
            {
                "Label": _LABEL,
                "ProgramArguments": list(plan.command),
                "EnvironmentVariables": dict(plan.variables),
                "WorkingDirectory": str(plan.folder),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ExitTimeOut": plan.stop_seconds,
                "ProcessType": "Interactive",  # not slowed down: an agent waits for each answer
                "SoftResourceLimits": {"NumberOfFiles": _DESCRIPTORS},
                "StandardOutPath": self.log,
                "StandardErrorPath": self.log,
                "Umask": 0o077,
                _CONFIG_KEY: "" if plan.config is None else str(plan.config),  # launchd ignores unknown keys
            },
            sort_keys=False,
        )

    def read_config(self) -> Path | None:
        try:
            config = plistlib.loads(self.path.read_bytes()).get(_CONFIG_KEY)
        except plistlib.InvalidFileException:
            return None
        return Path(config) if config else None

    def start(self) -> None:
        run_program("launchctl", "bootout", self._service)
        run_or_fail("launchctl", "enable", self._service)
        for attempt in range(_LOAD_ATTEMPTS):
            try:
                run_or_fail("launchctl", "bootstrap", self._domain, str(self.path))
            except ServiceFailed:
                if attempt == _LOAD_ATTEMPTS - 1:
                    raise
                time.sleep(_LOAD_PAUSE_SECONDS)
            else:
                return

    def stop(self) -> None:
        run_program("launchctl", "bootout", self._service)

    def forget(self) -> None:
        """Do nothing: launchd has already unloaded the service."""

    def state(self) -> ProcessState:
        answer = run_program("launchctl", "print", self._service)
        if answer.returncode:
            return ProcessState(is_running=False, description="not loaded")
        values = parse_pairs(answer.stdout, " = ")
        state, exit_code = values.get("state", "unknown"), values.get("last exit code", "")
        is_running = state == "running" and "pid" in values
        has_failed = not is_running and exit_code not in ("", "0", "(never exited)")
        return ProcessState(
            is_running=is_running,
            description=f"{state}, exit code {exit_code}" if has_failed else state,
            since=_process_start(values["pid"]) if is_running else None,
            has_failed=has_failed,
        )

    def survives_logout(self) -> bool:
        return False


def _process_start(pid: str) -> float | None:
    """`ps` shows the age as [[days-]hours:]minutes:seconds."""
    elapsed = run_program("ps", "-o", "etime=", "-p", pid).stdout.strip()
    parts = elapsed.replace("-", ":").split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    return time.time() - sum(
        int(part) * unit for part, unit in zip(reversed(parts), _UNITS_SECONDS, strict=False)
    )
