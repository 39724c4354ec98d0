"""The page of the configuration: every setting that holds, where it is from, what is wrong with the file."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.config.checking import problems_in
from foveate.config.documents import SETTINGS_LIMIT_BYTES
from foveate.config.files import read_bytes, shown
from foveate.config.settings import Settings
from foveate.config.showing import Held, Source, value_in_words
from foveate.errors import BadSetting, FoveateError
from foveate.web.asking import Asked, Shown
from foveate.web.inside import Configured, Inside

ROWS = 100
"""So many settings are on a page."""
_MOST_PROBLEMS = 20
_OF_AN_AGENT = re.compile(r"agents\.(\d+)\.")

WHICH: Mapping[str, str] = {
    "changed": "Those that differ from the default",
    "file": "Those in the file",
    "all": "All settings",
}
"""Which settings can be shown, and what that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as it is shown. `agent` is whose it is, where it is of one.

    One that waits for a start has what is used `until_start`.
    """

    key: str
    agent: str
    value: str
    default: str
    differs: bool
    origin: str
    until_start: str | None

    @property
    def is_changed(self) -> bool:
        """Whether it is another than by default, or than what is used until the next start."""
        return self.differs or self.until_start is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with the file: where, and what to do."""

    where: str
    key: str
    reason: str


async def look(inside: Inside, asked: Asked) -> Shown:
    """What holds; `find` looks for words in all of it, `which` chooses what differs, is in the file, or all."""
    find = asked.text("find")
    configured = inside.configured()
    held = await inside.held()
    differing = sum(one.differs for one in held)
    which = asked.choice("which", "changed" if (differing or configured.waiting) and not find else "all", WHICH)
    given = await asyncio.to_thread(_given, configured, held, which, find)
    pages = max(1, -(-len(given) // ROWS))
    # A file that was made shorter may have fewer.
    number = min(asked.number("page", 1, least=1, most=1_000_000), pages)
    return Shown(
        template="configuration.html",
        title="Configuration",
        given={
            "path": None if configured.path is None else shown(configured.path),
            "since": configured.since,
            "changes": configured.changes,
            "problems": await asyncio.to_thread(_problems, configured),
            "waiting": sorted(configured.waiting),
            "find": find,
            "which": which,
            "choices": WHICH,
            "rows": given[(number - 1) * ROWS : number * ROWS],
            "found": len(given),
            "known": len(held),
            "differing": differing,
            "page": number,
            "pages": pages,
            "link": asked.link,
        },
    )


def _given(configured: Configured, held: Sequence[Held], which: str, find: str) -> list[Setting]:
    words = find.casefold().split()
    found = (_setting(one, configured) for one in held if which != "file" or one.source is Source.FILE)
    chosen = [one for one in found if (which != "changed" or one.is_changed) and _has(one, words)]
    return sorted(chosen, key=lambda one: not one.is_changed)


def _has(setting: Setting, words: Sequence[str]) -> bool:
    said = f"{setting.key} {setting.agent} {setting.value} {setting.origin}".casefold()
    return all(word in said for word in words)


def _setting(held: Held, configured: Configured) -> Setting:
    waits = next(
        (
            until
            for name, until in configured.waiting.items()
            if held.key == name or held.key.startswith(f"{name}.")
        ),
        None,
    )
    return Setting(
        key=held.key,
        agent=_agent(held.key, configured.settings),
        value=held.in_words,
        default=value_in_words(held.default),
        differs=held.differs,
        origin=f"line {held.line}" if held.line is not None else held.origin(None),
        until_start=waits,
    )


def _agent(key: str, settings: Settings) -> str:
    found = _OF_AN_AGENT.match(key)
    number = int(found[1]) if found else len(settings.agents)
    return settings.agents[number].id if number < len(settings.agents) else ""


def _problems(configured: Configured) -> list[Problem]:
    """All that is wrong with the file, as `foveate config check` tells it."""
    if configured.problem is None:
        return []
    found: list[FoveateError] = []
    if configured.path is not None:
        try:
            data = read_bytes(configured.path, limit_bytes=SETTINGS_LIMIT_BYTES)
            found = [*problems_in(data, shown(configured.path))]
        except FoveateError:
            found = []  # which is what is wrong with it
    return [_problem(error) for error in found[:_MOST_PROBLEMS] or [configured.problem]]


def _problem(error: FoveateError) -> Problem:
    if not isinstance(error, BadSetting):
        return Problem(where="", key="", reason=str(error))
    where = error.source if error.line is None else f"{error.source}:{error.line}"
    return Problem(where=where, key=error.key, reason=error.reason)
