"""What can be asked of a conversation beside its questions: each command, and what it answers in lines."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from foveate.chat.looking import Look
from foveate.chat.setting import Setting, nearest
from foveate.chat.talk import Talk
from foveate.cli import chat_lines as lines
from foveate.cli.screen import Look as Screen
from foveate.config.overriding import LOCAL
from foveate.errors import BadOption, FoveateError

if TYPE_CHECKING:
    from foveate.store import Store

COMMANDS: Mapping[str, tuple[str, str]] = {
    ":model": ("[NAME]", "talk to another model from now on; alone, say which there are"),
    ":cost": ("[detail]", "what this session has cost; detail: by model and category"),
    ":budget": ("", "caps and what is left of them, and the budget of injected sections"),
    ":context": ("", "what fills the window"),
    ":memory": ("[FOCUS]", "what the model sees of the agent's memory"),
    ":compact": ("", "fold all but the last exchange into a summary, now"),
    ":tokenize": ("TEXT", "the tokens of a text, one by one"),
    ":save": ("FILE", "write the conversation to a new file, as Markdown"),
    ":reset": ("", "begin anew: another session, in which nothing was said"),
    ":help": ("", "this list"),
    ":quit": ("", "end, as Ctrl-D does"),
}
"""Every command, what follows it, and what it does."""

ENDS = frozenset((":quit", ":q", ":exit"))
"""What ends a conversation; whoever reads its lines does it."""

_DETAIL = "detail"


@dataclass(frozen=True, slots=True)
class Asked:
    """A command with what follows it."""

    name: str
    rest: str = ""


def read(line: str) -> Asked | str:
    """What a line means: a command, or a message; `::` begins a message with a colon."""
    text = line.strip()
    if text.startswith("::"):
        return text[1:]
    if not text.startswith(":"):
        return text
    name, _, rest = text.partition(" ")
    return Asked(name, rest.strip())


def completions(text: str, models: Sequence[str]) -> list[tuple[str, int, str]]:
    """What a line that is being typed may become: the words, how many characters they replace, what they do."""
    if not text.startswith(":") or "\n" in text:
        return []
    name, space, rest = text.partition(" ")
    if not space:
        return [(word, len(text), told) for word, (_, told) in COMMANDS.items() if word.startswith(name)]
    words = {":model": models, ":cost": (_DETAIL,)}.get(name, ())
    return [(word, len(rest), "") for word in words if word.startswith(rest)]


class Commands:
    """Does what is asked of a conversation. `start_local` starts the model on this machine."""

    def __init__(
        self, talk: Talk, setting: Setting, screen: Callable[[], Screen], start_local: Callable[[], None]
    ) -> None:
        self._talk = talk
        self._setting = setting
        self._screen = screen
        self._start_local = start_local

    async def run(self, asked: Asked) -> list[str]:
        """What a command answers.

        Raises:
            FoveateError: it cannot be done; says why.
        """
        try:
            return await self._run(asked)
        except FoveateError:
            raise
        except Exception as error:  # the border of a command: a conversation outlives whatever fails in one
            raise BadOption(f"{asked.name:.40} failed: {type(error).__name__}: {error}") from error

    async def _run(self, asked: Asked) -> list[str]:
        match asked.name:
            case ":model":
                return await self._model(asked.rest)
            case ":cost":
                return await self._cost(asked.rest)
            case ":budget":
                return await self._budget()
            case ":context":
                told = lines.context_lines(await self._talk.look(), self._screen())
                return told if self._talk.turns else [*told, "nothing was said yet: this is with a first word"]
            case ":memory":
                return lines.memory_lines(
                    await self._talk.look(focus=asked.rest), self._talk.agent, self._screen()
                )
            case ":compact":
                return await self._compact()
            case ":tokenize":
                return await self._tokenize(asked.rest)
            case ":save":
                return [self._save(asked.rest)]
            case ":reset":
                self._talk.reset()
                return ["begun anew: nothing was said yet in this session"]
            case ":help":
                return lines.help_lines(COMMANDS, self._screen())
            case name:
                near = nearest(name, tuple(COMMANDS))
                meant = f"did you mean {near}?" if near else ":help lists them"
                raise BadOption(
                    f"there is no command {name:.40}: {meant} (a message that begins so: :{name:.40})"
                )

    async def _model(self, name: str) -> list[str]:
        if not name:
            return lines.model_lines(self._talk.speaking, self._setting.models(), self._screen())
        if name == LOCAL and not self._setting.has_local:
            import asyncio

            await asyncio.to_thread(self._start_local)
        before = await self._seen()
        self._talk.switch(name)
        after = await self._seen()
        told = [lines.model_line(self._talk.speaking, after)]
        if before is not None and after is not None and before.is_folded and not after.is_folded:
            told.append("what was folded is sent whole in the format of this model: :compact folds it anew")
        return told

    async def _seen(self) -> Look | None:
        """What would be sent next; None where it would be refused, which the next question says."""
        try:
            return await self._talk.look()
        except FoveateError:
            return None

    async def _cost(self, rest: str) -> list[str]:
        if rest not in ("", _DETAIL):
            raise BadOption(f":cost is asked alone, or with detail, and not with {rest:.40}")
        if rest == _DETAIL:
            return lines.detail_lines(self._talk.entries, await self._talk.look(), self._screen())
        return lines.cost_lines(self._talk.spent, self._talk.answers_spent)

    async def _budget(self) -> list[str]:
        from foveate.cli.chat_caps import held_for

        look, caps = await self._talk.look(), self._setting.now().cost.caps
        told = lines.budget_lines(look, self._screen())
        if not caps:
            return [*told, "no caps are configured: nothing keeps a call from being made"]
        try:
            async with self._store() as store:
                held = await held_for(store.ledger, caps, self._talk, now=time())
        except FoveateError as error:
            return [*told, f"how caps stand cannot be read: {error}"]
        return [*told, *lines.cap_lines(held, self._screen())]

    @asynccontextmanager
    async def _store(self) -> "AsyncIterator[Store]":
        from foveate.store import open_store

        async with await open_store(self._setting.now().settings.store.url) as store:
            yield store

    async def _compact(self) -> list[str]:
        before = await self._talk.look()
        folded = await self._talk.compact()
        return lines.folded_lines(folded, before, await self._talk.look(), self._screen())

    async def _tokenize(self, text: str) -> list[str]:
        if not text:
            raise BadOption(":tokenize needs a text: :tokenize How long is this?")
        from foveate.chat.tokenizing import tokens_of

        options = self._setting.now().agents(self._talk.agent).counter
        look = await self._talk.look()
        found = await tokens_of(text, look.model or self._talk.speaking.model, self._talk.speaking, options)
        return lines.token_lines(found, look.model, self._screen())

    def _save(self, name: str) -> str:
        if not name:
            raise BadOption(":save needs the name of a file: :save talk.md")
        from pathlib import Path

        from foveate.config.files import replacing

        path = Path(name).expanduser()
        if path.exists():
            raise BadOption(f"{path} is there already: choose another name")
        with replacing(path, mode=0o600) as file:
            file.write(lines.markdown(self._talk.turns).encode("utf-8", "replace"))
        return f"{len(self._talk.turns)} messages are in {path}"
