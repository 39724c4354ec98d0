"""Small programs in place of `systemctl`, `loginctl` and `launchctl`, which record how they are called."""

import os
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
printf '%s\\n' "{name} $*" >>"{folder}/calls"
for words in "{name} $*" "{name} $1" "{name} $2"; do
    if [ -f "{folder}/failures/$(printf %s "$words" | tr / _)" ]; then
        cat "{folder}/failures/$(printf %s "$words" | tr / _)" >&2
        exit 1
    fi
done
if [ -f "{folder}/outputs/{name}" ]; then cat "{folder}/outputs/{name}"; fi
"""


@dataclass(frozen=True)
class RecordedPrograms:
    """Programs in a folder for `PATH`, what they print, and how they were called."""

    folder: Path

    @property
    def calls(self) -> list[str]:
        record = self.folder / "calls"
        return record.read_text(encoding="utf-8").splitlines() if record.exists() else []

    @property
    def path(self) -> str:
        """A value for `PATH`."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def print_from(self, name: str, output: str) -> None:
        """Make a program print a text whenever it succeeds."""
        (self.folder / "outputs" / name).write_text(output, encoding="utf-8")

    def fail(self, call: str, message: str) -> None:
        """Make a call fail with a message: all its words, or the program and its first or second word."""
        (self.folder / "failures" / call.replace("/", "_")).write_text(message, encoding="utf-8")


def record_programs(folder: Path, *names: str) -> RecordedPrograms:
    for part in ("bin", "outputs", "failures"):
        (folder / part).mkdir(parents=True)
    for name in names:
        program = folder / "bin" / name
        program.write_text(_SCRIPT.format(name=name, folder=folder), encoding="utf-8")
        program.chmod(0o755)
    return RecordedPrograms(folder)
