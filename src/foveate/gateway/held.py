"""Every setting that holds, and where it is from."""

from collections.abc import Mapping
from pathlib import Path

from foveate.config.documents import document_from
from foveate.config.files import shown
from foveate.config.live import LiveSettings
from foveate.config.loading import says_something
from foveate.config.settings import Settings
from foveate.config.showing import Held, held
from foveate.gateway.configured import USUAL_VARIABLES, Choices


def held_now(live: LiveSettings[Choices], environment: Mapping[str, str]) -> list[Held]:
    """The same of the configuration that is in force."""
    return held_in(live.now().made.settings, live.text, live.path, environment)


def held_in(settings: Settings, text: bytes, path: Path | None, environment: Mapping[str, str]) -> list[Held]:
    """Every setting that holds, where the file at `path` says `text`."""
    variables = dict(USUAL_VARIABLES)
    variables |= {name: said.key_variable for name, said in settings.upstreams.items() if said.key_variable}
    document = None if path is None or not says_something(text) else document_from(text, shown(path))
    return held(settings, document, environment, variables)
