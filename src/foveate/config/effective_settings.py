"""Effective settings: every setting with its value and source. Never contains keys."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from foveate.budget.model_limits import MAX_TOKENS_VARIABLE
from foveate.config.document import ConfigDocument
from foveate.config.key_path import KeyPath, find_line, format_key_path
from foveate.config.load import STORE_VARIABLE, validate_settings
from foveate.context.time_section import (
    AWARENESS_VARIABLE,
    FORMAT_VARIABLE,
    WARNING_MINUTES_VARIABLE,
    TimeOptions,
)

if TYPE_CHECKING:
    from pathlib import Path

    from foveate.config.settings import Settings


# libpq also accepts a password in the query, and some servers a key.
_SECRET_PARAMETER = re.compile(r"([?&](?:password|token|[a-z_-]*key)=)[^&]*", re.IGNORECASE)


_TIME_VARIABLES = {
    "enabled": AWARENESS_VARIABLE,
    "format": FORMAT_VARIABLE,
    "warning_minutes": WARNING_MINUTES_VARIABLE,
}


class SettingSource(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A setting with the `line` of the file or the `variable` that sets it, if any.

    `default` is None for a setting that is required or whose key the user chose.
    """

    key: str
    value: object
    source: SettingSource
    line: int | None = None
    variable: str | None = None
    default: object = None

    @property
    def differs(self) -> bool:
        return self.value != self.default

    @property
    def value_text(self) -> str:
        return format_value(self.value)

    def origin(self, path: "Path | None") -> str:
        if self.variable is not None:
            return self.variable
        return f"{path}:{self.line}" if self.line is not None else self.source.value


def format_value(value: object) -> str:
    if isinstance(value, str):
        return value or '""'
    return "-" if value is None else json.dumps(value, default=str, ensure_ascii=False)


def list_effective_settings(
    settings: "Settings",
    document: ConfigDocument | None,
    environment: Mapping[str, str],
    keys: Mapping[str, str],
) -> list[EffectiveSetting]:
    """Return every effective setting, and which upstreams have a key.

    `keys` maps upstreams to the variables of their keys. `settings` include all overrides, `document` is the
    file alone.
    """
    file_settings = _read_file_settings(document)
    found = [_to_effective_setting(leaf, file_settings, environment) for leaf in _iter_settings(settings)]
    found += [
        EffectiveSetting(
            key=f"cost.{format_key_path(key_path)}",
            value=value,
            source=SettingSource.FILE,
            line=file_settings.line(("cost", *key_path)),
        )
        for key_path, value in _iter_plain_values(settings.cost, ())
    ]
    found += [
        EffectiveSetting(
            key=f"upstreams.{name}.key", value="set", source=SettingSource.ENVIRONMENT, variable=variable
        )
        for name, variable in keys.items()
        if environment.get(variable)
    ]
    return found


@dataclass(frozen=True, slots=True)
class _SettingValue:
    key_path: KeyPath
    value: object
    default: object


@dataclass(frozen=True, slots=True)
class _FileSettings:
    values: Mapping[KeyPath, object]
    lines: Mapping[KeyPath, int]
    data: object

    def line(self, key_path: KeyPath) -> int | None:
        value: Any = self.data
        for step in key_path:
            exists = (
                step in value if isinstance(value, dict) else isinstance(value, list) and int(step) < len(value)
            )
            if not exists:
                return None
            value = value[step]
        # Values within an alias have no line of their own.
        return find_line(self.lines, key_path)


def _read_file_settings(document: ConfigDocument | None) -> _FileSettings:
    from foveate.config.settings import Settings

    settings = Settings() if document is None else validate_settings(document)
    lines = {} if document is None else document.lines()
    values = {leaf.key_path: leaf.value for leaf in _iter_settings(settings)}
    return _FileSettings(values, lines, None if document is None else document.data)


def _to_effective_setting(
    leaf: _SettingValue, file_settings: _FileSettings, environment: Mapping[str, str]
) -> EffectiveSetting:
    key_path = leaf.key_path
    line = file_settings.line(key_path)
    source = SettingSource.DEFAULT if line is None else SettingSource.FILE
    value, variable = _apply_environment(key_path, leaf.value, environment)
    if variable is not None:
        source, line = SettingSource.ENVIRONMENT, None
    elif key_path not in file_settings.values or file_settings.values[key_path] != leaf.value:
        # Only flags can override the file otherwise.
        source, line = SettingSource.COMMAND, None
    return EffectiveSetting(
        key=format_key_path(key_path),
        value=_redact_value(key_path, value),
        source=source,
        line=line,
        variable=variable,
        default=leaf.default,
    )


def _apply_environment(
    key_path: KeyPath, value: object, environment: Mapping[str, str]
) -> tuple[object, str | None]:
    match key_path:
        case ("store", "url"):
            variable = STORE_VARIABLE  # already applied to `settings`
        case (*_, "sections", "time", str(name)) if name in _TIME_VARIABLES:
            variable = _TIME_VARIABLES[name]
            options = TimeOptions.from_environment(environment)
            value = (
                getattr(options, "awareness" if name == "enabled" else name)
                if environment.get(variable)
                else value
            )
        case (*_, "sections", "limits") if isinstance(value, dict):
            variable = MAX_TOKENS_VARIABLE
            tokens = environment.get(variable, "")
            value = {**value, "total_tokens": int(tokens)} if tokens.strip().isdecimal() else value
        case _:
            return value, None
    return value, variable if environment.get(variable, "").strip() else None


def _redact_value(key_path: KeyPath, value: object) -> object:
    if key_path[-1] in ("keys", "admin_keys") and isinstance(value, list):
        return [f"{key_hash[:8]}…" for key_hash in value]
    return redact_url(value) if isinstance(value, str) and "://" in value else value


def _iter_settings(settings: Any, parent_path: KeyPath = ()) -> Iterator[_SettingValue]:
    """Yield every setting of a model that is not a model itself, except `cost`, which is plain data."""
    from pydantic import BaseModel

    for name, field in type(settings).model_fields.items():
        if not parent_path and name == "cost":
            continue
        value, key_path = getattr(settings, name), (*parent_path, name)
        if isinstance(value, BaseModel):
            yield from _iter_settings(value, key_path)
        elif isinstance(value, dict) and any(isinstance(item, BaseModel) for item in value.values()):
            for key, item in value.items():
                yield from _iter_settings(item, (*key_path, key))
        elif isinstance(value, list) and any(isinstance(item, BaseModel) for item in value):
            for number, item in enumerate(value):
                yield from _iter_settings(item, (*key_path, number))
        else:
            yield _SettingValue(key_path, value, None if field.is_required() else field.get_default())


def _iter_plain_values(data: object, key_path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _iter_plain_values(value, (*key_path, str(key)))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _iter_plain_values(value, (*key_path, number))
    elif data is not None:
        yield key_path, data


def redact_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    account, at, host = rest.rpartition("@")
    redacted = f"{scheme}{separator}{account.partition(':')[0]}{at}{host}" if at else url
    return _SECRET_PARAMETER.sub(r"\1…", redacted)
