"""Every setting that holds, and where it is from."""

from collections.abc import Mapping
from pathlib import Path

from foveate.config.documents import parse_document
from foveate.config.files import display_path
from foveate.config.live import LiveSettings
from foveate.config.loading import has_content
from foveate.config.settings import Settings
from foveate.config.showing import EffectiveSetting, list_effective_settings
from foveate.gateway.configured import DEFAULT_KEY_VARIABLES, ResolvedConfig


def describe_current_settings(
    live: LiveSettings[ResolvedConfig], environment: Mapping[str, str]
) -> list[EffectiveSetting]:
    """The same of the configuration that is in force."""
    return describe_settings(live.current().value.settings, live.text, live.path, environment)


def describe_settings(
    settings: Settings, text: bytes, path: Path | None, environment: Mapping[str, str]
) -> list[EffectiveSetting]:
    """Every setting that holds, where the file at `path` says `text`."""
    variables = dict(DEFAULT_KEY_VARIABLES)
    variables |= {
        name: upstream.key_variable for name, upstream in settings.upstreams.items() if upstream.key_variable
    }
    document = None if path is None or not has_content(text) else parse_document(text, display_path(path))
    return list_effective_settings(settings, document, environment, variables)
