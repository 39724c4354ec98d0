"""Chats: one in this process with a sandbox, and one at a real terminal."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pexpect
import pyte

from foveate.chat.conversation import ChatConversation, ChatObserver
from foveate.chat.models import ChatConfig
from foveate.cli.chat.slash_commands import CommandLine, CommandRunner, parse_line
from foveate.cli.shared.console import Display
from foveate.config.load import ServeFlags
from foveate.cost.ledger import GroupBy
from foveate.gateway.build import open_gateway
from foveate.gateway.server.serve import load_live_config
from foveate.sandbox.http import SandboxRequest
from foveate.store import open_store
from tests.support.processes.forked_commands import COMMAND, ensure_running
from tests.support.servers.gateway_process import write_config
from tests.support.stores.templates import ensure_store

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-of-a-test", "OPENAI_API_KEY": "sk-of-a-test"}
TIMEOUT_SECONDS = 30.0
_CURSOR_POSITION_QUERY = b"\x1b[6n"


class Chat:
    """A chat in this process."""

    def __init__(self, talk: ChatConversation, setting: ChatConfig) -> None:
        self.talk = talk
        self.setting = setting
        self.commands = CommandRunner(
            talk, setting, lambda: Display(columns=100), start_local=_start_no_local_model
        )

    async def command(self, line: str) -> str:
        parsed = parse_line(line)
        assert isinstance(parsed, CommandLine)
        return "\n".join(await self.commands.run(parsed))


def _start_no_local_model() -> None:
    raise AssertionError("no test here needs a model on this machine")


@asynccontextmanager
async def open_chat(
    folder: Path,
    sandbox_url: str,
    *,
    more: str = "",
    model: str | None = None,
    agent: str = "default",
) -> AsyncIterator[Chat]:
    """Open a chat with a sandbox as provider; `more` is additional configuration."""
    config = folder / "foveate.yaml"
    write_config(config, sandbox_url, more)
    environment = {**os.environ, **KEYS, "FOVEATE_STORE": ensure_store(folder / "store.sqlite")}
    live = load_live_config(config, environment, ServeFlags(host="127.0.0.1"))
    setting, charges = ChatConfig(lambda: live.current().value), ChatObserver()
    model_choice = setting.select_model(model or setting.default_model())
    async with open_gateway(
        setting.current_config, environment=environment, observer=charges, outbox_folder=folder / "spool"
    ) as gateway:
        yield Chat(ChatConversation(gateway, setting, charges, model_choice, agent=agent), setting)


class Terminal:
    """A program at a terminal, and its screen."""

    def __init__(self, process: "pexpect.spawn[bytes]", *, rows: int, columns: int) -> None:
        self.process = process
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._lines: list[str] | None = None  # None: the screen has changed

    @property
    def lines(self) -> list[str]:
        """Lines of the screen that are not empty."""
        if self._lines is None:
            self._lines = [line.rstrip() for line in self.screen.display if line.strip()]
        return self._lines

    @property
    def screen_text(self) -> str:
        return "\n".join(self.lines)

    @property
    def status(self) -> str:
        """The line below the prompt."""
        return self.screen.display[-1].rstrip()

    def type(self, keys: str) -> None:
        self.process.send(keys)

    def resize(self, rows: int, columns: int) -> None:
        self.screen.resize(rows, columns)
        self._lines = None
        self.process.setwinsize(rows, columns)

    def wait_for(self, what: "Callable[[], object] | str") -> None:
        """Read output until a text is on the screen or a condition holds."""
        is_shown = (lambda: what in self.screen_text) if isinstance(what, str) else what
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_shown():
            assert time.monotonic() < deadline, f"timed out: {what}\n{self.screen_text}"
            self._read()

    def wait_for_exit(self) -> int:
        """Return the exit code."""
        self.wait_for(lambda: self._has_exited())
        while self._read():  # what it wrote last
            pass
        self.process.close()
        return self.process.exitstatus if self.process.exitstatus is not None else -1

    def _has_exited(self) -> bool:
        return not self.process.isalive()

    def _read(self) -> bool:
        """Return whether there was anything to read."""
        try:
            data = self.process.read_nonblocking(65_536, timeout=0.05)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        is_query = (
            _CURSOR_POSITION_QUERY in self.raw[1 - len(_CURSOR_POSITION_QUERY) :] + data
        )  # the query may be split
        self.raw += data
        self._stream.feed(data)
        self._lines = None
        if is_query:  # answer the query as a terminal does
            self.process.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return True


@contextmanager
def open_terminal(
    folder: Path, *arguments: str, rows: int = 24, columns: int = 80, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run `foveate` at a terminal until the end of the block, with its data in `folder`."""
    ensure_running()
    program, *prefix = COMMAND
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    overrides = {"TERM": "xterm-256color", "FOVEATE_HOME": str(folder), "COLUMNS": "", "NO_COLOR": ""}
    process = pexpect.spawn(
        program,
        [*prefix, *arguments],
        dimensions=(rows, columns),
        cwd=str(folder),
        env={**inherited, **overrides, **(env or {})},
        timeout=TIMEOUT_SECONDS,
    )
    try:
        yield Terminal(process, rows=rows, columns=columns)
    finally:
        process.kill(signal.SIGKILL)
        process.wait()
        process.close()


def parse_request_body(request: SandboxRequest) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request.body)
    return body


async def read_spending(folder: Path) -> dict[tuple[str, ...], Decimal]:
    """Return the dollars of a chat by model and category."""
    async with await open_store(f"sqlite:///{folder / 'store.sqlite'}") as store:
        return {
            row.group: row.dollars for row in await store.ledger.sum_charges([GroupBy.MODEL, GroupBy.CATEGORY])
        }
