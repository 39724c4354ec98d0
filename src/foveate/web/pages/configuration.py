"""The configuration page: every effective setting, its source, and problems of the file."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foveate.config.document import MAX_SETTINGS_BYTES
from foveate.config.effective_settings import EffectiveSetting, SettingSource, format_value
from foveate.config.files import display_path, read_bytes
from foveate.config.load import find_problems
from foveate.config.settings import Settings
from foveate.errors import BadSetting, FoveateError
from foveate.web.page import ConfigSnapshot, GatewayData, PageRequest, WebPage

ROWS_PER_PAGE = 100
_MAX_PROBLEMS = 20
_AGENT_KEY = re.compile(r"agents\.(\d+)\.")

SETTING_FILTERS: Mapping[str, str] = {
    "changed": "Changed from the default",
    "file": "Set in the file",
    "all": "All settings",
}
"""Names and titles of the filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting as shown. `agent` is the agent that it belongs to, if any.

    `until_start` is the value used until the next start, if the setting waits for it.
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
        """Return whether it differs from its default, or from the value used until the next start."""
        return self.differs or self.until_start is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    where: str
    key: str
    reason: str


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """Load the settings; `find` searches all texts, `which` selects changed ones, those in the file, or all."""
    find = page_request.text("find")
    config = data.current_config()
    settings = await data.effective_settings()
    differing = sum(setting.differs for setting in settings)
    setting_filter = page_request.choice(
        "which", "changed" if (differing or config.waiting) and not find else "all", SETTING_FILTERS
    )
    rows = await asyncio.to_thread(_select_settings, config, settings, setting_filter, find)
    pages = max(1, -(-len(rows) // ROWS_PER_PAGE))
    # A shortened file may have fewer pages.
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
            "setting_filter": setting_filter,
            "filters": SETTING_FILTERS,
            "rows": rows[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE],
            "match_count": len(rows),
            "setting_count": len(settings),
            "changed_count": differing,
            "page": number,
            "pages": pages,
            "link": page_request.link,
        },
    )


def _select_settings(
    config: ConfigSnapshot, settings: Sequence[EffectiveSetting], setting_filter: str, find: str
) -> list[SettingRow]:
    words = find.casefold().split()
    rows = (
        _build_row(setting, config)
        for setting in settings
        if setting_filter != "file" or setting.source is SettingSource.FILE
    )
    selected = [
        setting
        for setting in rows
        if (setting_filter != "changed" or setting.is_changed) and _matches(setting, words)
    ]
    return sorted(selected, key=lambda setting: not setting.is_changed)


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
    match = _AGENT_KEY.match(key)
    number = int(match[1]) if match else len(settings.agents)
    return settings.agents[number].id if number < len(settings.agents) else ""


def _list_problems(config: ConfigSnapshot) -> list[ConfigProblem]:
    """List all problems of the file, as `foveate config check` does."""
    if config.problem is None:
        return []
    errors: list[FoveateError] = []
    if config.path is not None:
        try:
            data = read_bytes(config.path, limit_bytes=MAX_SETTINGS_BYTES)
            errors = [*find_problems(data, display_path(config.path))]
        except FoveateError:
            errors = []  # then the error in force says what is wrong
    return [_describe_problem(error) for error in errors[:_MAX_PROBLEMS] or [config.problem]]


def _describe_problem(error: FoveateError) -> ConfigProblem:
    if not isinstance(error, BadSetting):
        return ConfigProblem(where="", key="", reason=str(error))
    place = error.source if error.line is None else f"{error.source}:{error.line}"
    return ConfigProblem(where=place, key=error.key, reason=error.reason)
