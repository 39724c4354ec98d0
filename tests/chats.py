"""Conversations for tests: one in this process before a sandbox, and one at a real terminal."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pyte

from foveate.chat.bills import Bills
from foveate.chat.setting import Setting
from foveate.chat.talk import Talk
from foveate.cli.chat_commands import Asked, Commands, read
from foveate.cli.screen import Look
from foveate.config.overriding import Flags
from foveate.cost.ledger import By
from foveate.gateway.assembly import assembled
from foveate.gateway.serving import live_choices
from foveate.sandbox.asks import Ask
from foveate.store import open_store
from tests.served import configure
from tests.support.forked_commands import REAL_COMMAND
from tests.support.stores import ensure_store

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-of-a-test", "OPENAI_API_KEY": "sk-of-a-test"}
PATIENCE_SECONDS = 30.0
_ASKS_WHERE = b"\x1b[6n"


class Chat:
    """A conversation in this process, as the command has it."""

    def __init__(self, talk: Talk, setting: Setting) -> None:
        self.talk = talk
        self.setting = setting
        self.commands = Commands(talk, setting, lambda: Look(columns=100), start_local=_no_local)

    async def command(self, line: str) -> str:
        """What a command answers."""
        asked = read(line)
        assert isinstance(asked, Asked)
        return "\n".join(await self.commands.run(asked))


def _no_local() -> None:
    raise AssertionError("no test here needs a model on this machine")


@asynccontextmanager
async def chatting(
    folder: Path,
    sandbox_url: str,
    *,
    more: str = "",
    model: str | None = None,
    agent: str = "default",
) -> AsyncIterator[Chat]:
    """A conversation whose providers are a sandbox; `more` is what else is configured."""
    config = folder / "foveate.yaml"
    configure(config, sandbox_url, more)
    environment = {**os.environ, **KEYS, "FOVEATE_STORE": ensure_store(folder / "store.sqlite")}
    live = live_choices(config, environment, Flags(host="127.0.0.1"))
    setting, bills = Setting(lambda: live.now().made), Bills()
    speaking = setting.speak(model or setting.usual_model())
    async with assembled(
        setting.now, environment=environment, watch=bills, spool_folder=folder / "spool"
    ) as gateway:
        yield Chat(Talk(gateway, setting, bills, speaking, agent=agent), setting)


class Terminal:
    """A program at a terminal, and what its screen shows."""

    def __init__(self, process: pexpect.spawn, *, rows: int, columns: int) -> None:
        self.process = process
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""

    @property
    def lines(self) -> list[str]:
        """The lines of the screen that have something on them."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    @property
    def shown(self) -> str:
        """All of the screen."""
        return "\n".join(self.lines)

    @property
    def status(self) -> str:
        """The line below the prompt."""
        return self.screen.display[-1].rstrip()

    def type(self, keys: str) -> None:
        """Press keys."""
        self.process.send(keys)

    def resize(self, rows: int, columns: int) -> None:
        """Be another size from now on."""
        self.screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def wait_for(self, what: "Callable[[], object] | str") -> None:
        """Read on until something is on the screen, or so."""
        is_there = (lambda: what in self.shown) if isinstance(what, str) else what
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            assert time.monotonic() < deadline, f"never came: {what}\n{self.shown}"
            self._read()

    def ended(self) -> int:
        """With which code the program ended."""
        self.wait_for(lambda: self._is_over())
        self.process.close()
        return self.process.exitstatus if self.process.exitstatus is not None else -1

    def _is_over(self) -> bool:
        return not self.process.isalive()

    def _read(self) -> None:
        try:
            came = self.process.read_nonblocking(65_536, timeout=0.05)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        is_asked = _ASKS_WHERE in self.raw[1 - len(_ASKS_WHERE) :] + came  # it may come in two pieces
        self.raw += came
        self._stream.feed(came)
        if is_asked:  # as a terminal answers where its cursor is
            self.process.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")


@contextmanager
def at_terminal(
    folder: Path, *arguments: str, rows: int = 24, columns: int = 80, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """`foveate` at a terminal of its own until the end of the block; all that it keeps is in `folder`."""
    program, *before = REAL_COMMAND
    kept = {name: said for name, said in os.environ.items() if not name.endswith("_API_KEY")}
    own = {"TERM": "xterm-256color", "FOVEATE_HOME": str(folder), "COLUMNS": "", "NO_COLOR": ""}
    process = pexpect.spawn(
        program,
        [*before, *arguments],
        dimensions=(rows, columns),
        cwd=str(folder),
        env={**kept, **own, **(env or {})},
        timeout=PATIENCE_SECONDS,
    )
    try:
        yield Terminal(process, rows=rows, columns=columns)
    finally:
        process.kill(signal.SIGKILL)
        process.wait()
        process.close()


def sent(ask: Ask) -> dict[str, Any]:
    """The body of a request that a sandbox heard."""
    found: dict[str, Any] = json.loads(ask.body)
    return found


async def spent(folder: Path) -> dict[tuple[str, ...], Decimal]:
    """What is booked for a conversation in a folder, by model and category."""
    async with await open_store(f"sqlite:///{folder / 'store.sqlite'}") as store:
        return {one.group: one.dollars for one in await store.ledger.sums([By.MODEL, By.CATEGORY])}
