"""Help of `foveate`: lists the commands in groups instead of one long list."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from typer.core import TyperCommand, TyperGroup

COMMAND_GROUPS: Mapping[str, Sequence[str]] = {
    "Run": ("run", "agents", "serve", "chat", "sandbox", "status"),
    "Analyse": ("advise", "usage", "cost", "replay", "explain", "compactions", "demo"),
    "Build": ("count", "assemble", "memory"),
    "Operate": ("config", "doctor", "service", "store", "prices"),
}


class PlainUsageCommand(TyperCommand):
    """Shows required arguments as `FILE...` in the usage line, as other programs do. Typer adds braces."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        pieces = " ".join(self.collect_usage_pieces(ctx)).replace("{", "").replace("}", "")
        formatter.write_usage(ctx.command_path, pieces)


class _HelpFormatter(Protocol):
    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class GroupedCommands(TyperGroup):
    """Lists the commands of each group under a heading. Typer does so only with Rich, which loads slowly."""

    def format_commands(self, ctx: object, formatter: _HelpFormatter) -> None:
        width = max(map(len, self.commands))  # the same in all groups
        for group, names in COMMAND_GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(f"{name:<{width}}", self.commands[name].short_help or "") for name in names]
                )
