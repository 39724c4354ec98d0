"""The page of the configuration: every setting that holds, where it is from, what is wrong with the file."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.config.document import MAX_SETTINGS_BYTES
from foveate.config.effective import EffectiveSetting, SettingSource, format_value
from foveate.config.files import display_path, read_bytes
from foveate.config.load import find_problems
from foveate.config.settings import Settings
from foveate.errors import BadSetting, FoveateError
from foveate.web.data import ConfigSnapshot, GatewayData
from foveate.web.page import PageRequest, WebPage

ROWS_PER_PAGE = 100
"""So many settings are on a page."""
_MAX_PROBLEMS = 20
_AGENT_KEY = re.compile(r"agents\.(\d+)\.")

SETTING_FILTERS: Mapping[str, str] = {
    "changed": "Those that differ from the default",
    "file": "Those in the file",
    "all": "All settings",
}
"""Which settings can be shown, and what that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
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
class ConfigProblem:
    """What is wrong with the file: where, and what to do."""

    where: str
    key: str
    reason: str


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """What holds; `find` looks for words in all of it, `which` chooses what differs, is in the file, or all."""
    find = page_request.text("find")
    config = data.current_config()
    settings = await data.effective_settings()
    differing = sum(setting.differs for setting in settings)
    setting_filter = page_request.choice(
        "which", "changed" if (differing or config.waiting) and not find else "all", SETTING_FILTERS
    )
    rows = await asyncio.to_thread(_select_settings, config, settings, setting_filter, find)
    pages = max(1, -(-len(rows) // ROWS_PER_PAGE))
    # A file that was made shorter may have fewer.
    number = min(page_request.number("page", 1, min_value=1, max_value=1_000_000), pages)
    return WebPage(
        template="configuration.html",
        title="Configuration",
        context={
            "path": None if config.path is None else display_path(config.path),
            "since": config.since,
            "changes": config.changes,
            "problems": await asyncio.to_thread(_list_problems, config),
            "waiting": sorted(config.waiting),
            "find": find,
            "which": setting_filter,
            "choices": SETTING_FILTERS,
            "rows": rows[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE],
            "found": len(rows),
            "known": len(settings),
            "differing": differing,
            "page": number,
            "pages": pages,
            "link": page_request.link,
        },
    )


def _select_settings(
    config: ConfigSnapshot, settings: Sequence[EffectiveSetting], setting_filter: str, find: str
) -> list[SettingRow]:
    words = find.casefold().split()
    found = (
        _build_row(setting, config)
        for setting in settings
        if setting_filter != "file" or setting.source is SettingSource.FILE
    )
    chosen = [
        setting
        for setting in found
        if (setting_filter != "changed" or setting.is_changed) and _matches(setting, words)
    ]
    return sorted(chosen, key=lambda setting: not setting.is_changed)


def _matches(setting: SettingRow, words: Sequence[str]) -> bool:
    text = f"{setting.key} {setting.agent} {setting.value} {setting.origin}".casefold()
    return all(word in text for word in words)


def _build_row(setting: EffectiveSetting, config: ConfigSnapshot) -> SettingRow:
    until_start = next(
        (
            value
            for name, value in config.waiting.items()
            if setting.key == name or setting.key.startswith(f"{name}.")
        ),
        None,
    )
    return SettingRow(
        key=setting.key,
        agent=_find_agent(setting.key, config.settings),
        value=setting.value_text,
        default=format_value(setting.default),
        differs=setting.differs,
        origin=f"line {setting.line}" if setting.line is not None else setting.origin(None),
        until_start=until_start,
    )


def _find_agent(key: str, settings: Settings) -> str:
    found = _AGENT_KEY.match(key)
    number = int(found[1]) if found else len(settings.agents)
    return settings.agents[number].id if number < len(settings.agents) else ""


def _list_problems(config: ConfigSnapshot) -> list[ConfigProblem]:
    """All that is wrong with the file, as `foveate config check` tells it."""
    if config.problem is None:
        return []
    found: list[FoveateError] = []
    if config.path is not None:
        try:
            data = read_bytes(config.path, limit_bytes=MAX_SETTINGS_BYTES)
            found = [*find_problems(data, display_path(config.path))]
        except FoveateError:
            found = []  # which is what is wrong with it
    return [_describe_problem(error) for error in found[:_MAX_PROBLEMS] or [config.problem]]


def _describe_problem(error: FoveateError) -> ConfigProblem:
    if not isinstance(error, BadSetting):
        return ConfigProblem(where="", key="", reason=str(error))
    where = error.source if error.line is None else f"{error.source}:{error.line}"
    return ConfigProblem(where=where, key=error.key, reason=error.reason)
