"""Every setting that holds, and where it is from."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from foveate.config.documents import document_from
from foveate.config.files import shown
from foveate.config.live import LiveSettings
from foveate.config.loading import says_something
from foveate.config.showing import Held, held
from foveate.gateway.configured import USUAL_VARIABLES

if TYPE_CHECKING:
    from foveate.gateway.assembly import Choices


def held_now(live: "LiveSettings[Choices]", environment: Mapping[str, str]) -> list[Held]:
    """The same of the configuration that is in force."""
    settings = live.now().made.settings
    variables = dict(USUAL_VARIABLES)
    variables |= {name: said.key_variable for name, said in settings.upstreams.items() if said.key_variable}
    path = live.path if says_something(live.text) else None
    document = None if path is None else document_from(live.text, shown(path))
    return held(settings, document, environment, variables)
