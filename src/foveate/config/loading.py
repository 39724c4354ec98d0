"""The configuration read from its file: errors name the file, the line and the key, and say what to do."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from foveate.config.cost import CostOptions, cost_from
from foveate.config.documents import SETTINGS_LIMIT_BYTES, Document, document_from
from foveate.config.files import StrPath, read_bytes, shown
from foveate.config.places import Place
from foveate.errors import BadOption, BadSetting

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from foveate.config.settings import Settings

Made = TypeVar("Made")

# `api_key` is no misspelled `api`.
_CLOSE = 0.65
# Where a key may stand in the place of its hash or of its variable's name. Addresses may hold a password.
_SECRETS = frozenset(("keys", "admin_keys", "key_variable"))
# A line that is neither empty nor a comment, nor where a document begins.
_SAYS_SOMETHING = re.compile(rb"^(?![^\S\n]*(#|---[^\S\n]*$|$))", re.MULTILINE)

_KINDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "path_type": "the name of a file",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that a file says: the settings, and what it says of money."""

    settings: "Settings"
    cost: CostOptions


def load_made(path: StrPath, make: Callable[[Configuration], Made]) -> Made:
    """What `make` makes of the configuration in a file; what it refuses is told with its line.

    Raises:
        UnreadableInput: no such file, a folder, larger than 1 MB, not UTF-8, or quite empty.
        BadSetting: an unknown key, a wrong type, an impossible value, or no YAML; names file, line and key.
    """
    path = Path(path)
    return made_from(read_bytes(path, limit_bytes=SETTINGS_LIMIT_BYTES), shown(path), make)


def made_from(data: bytes, source: str, make: Callable[[Configuration], Made]) -> Made:
    """What `make` makes of the configuration in `data`; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or quite empty.
        BadSetting: as `load_made`.
    """
    settings = settings_from(data, source)
    is_said = says_something(data)
    cost = cost_from(data, source) if is_said else CostOptions()
    try:
        return make(Configuration(settings, cost))
    except BadOption as error:
        if not is_said:
            raise
        raise document_from(data, source).problem(str(error), error.path) from None


def says_something(data: bytes) -> bool:
    """Whether there is more in a file than comments."""
    return bool(_SAYS_SOMETHING.search(data))


def load_settings(path: StrPath) -> "Settings":
    """The settings in a file; one with nothing but comments in it leaves all as it is by default.

    Raises:
        UnreadableInput: no such file, a folder, larger than 1 MB, not UTF-8, or quite empty.
        BadSetting: an unknown key, a wrong type, an impossible value, or no YAML; names file, line and key.
    """
    return load_made(path, lambda found: found.settings)


def settings_from(data: bytes, source: str) -> "Settings":
    """The configuration in `data`; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or quite empty.
        BadSetting: an unknown key, a wrong type, an impossible value, or no YAML; names line and key.
    """
    from foveate.config.settings import Settings

    # A file that is quite empty is one that somebody is about to write, and must not undo all that was said.
    if data.strip() and not says_something(data):
        return Settings()
    return settings_in(document_from(data, source))


def settings_in(document: Document) -> "Settings":
    """The configuration that a document holds.

    Raises:
        BadSetting: an unknown key, a wrong type, or an impossible value.
    """
    from pydantic import ValidationError

    from foveate.config.settings import Settings

    if not isinstance(document.data, dict):
        raise document.problem("the configuration is a mapping (key: value)")
    try:
        settings = Settings.model_validate(document.data)
    except ValidationError as error:
        raise problem_of(document, error.errors(include_url=False)[0]) from None
    _check(settings, document)
    return settings


def problem_of(document: Document, detail: "ErrorDetails") -> BadSetting:
    """What pydantic says is wrong, as users are told it: with its line and key, and what to do."""
    place = tuple(detail["loc"])
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return document.problem(_unknown(place), place)
    if kind == "missing":
        return document.problem(f"{place[-1]} has to be given", place[:-1])
    wanted = f"{_key(place)} {_wanted(kind, context, detail['msg'])}"
    if not _SECRETS.isdisjoint(place) or (isinstance(given, str) and "@" in given):
        return document.problem(wanted, place)
    return document.problem(f"{wanted}, not {_shown(given)}", place)


def _wanted(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _KINDS:
        return f"is {_KINDS[kind]}"
    match kind:
        case "literal_error":
            return f"is one of {context['expected'].replace(' or ', ', ')}"
        case "greater_than":
            return f"is more than {context['gt']:g}"
        case "greater_than_equal":
            return f"is at least {context['ge']:g}"
        case "less_than_equal":
            return f"is at most {context['le']:g}"
        case "string_pattern_mismatch" if "https?" in context["pattern"]:
            return "is an address such as https://host/v1"
        case "string_pattern_mismatch" if "sqlite" in context["pattern"]:
            return "is sqlite:///path or postgresql://user@host/name"
        case "string_pattern_mismatch" if "://" in context["pattern"]:
            return "is an origin such as https://app.example, without a path"
        case "string_pattern_mismatch" if "._-" in context["pattern"]:
            return "is the name of a host, without a port"
        case "string_pattern_mismatch" if "0-9a-f" in context["pattern"]:
            return "is the hash of a key, 64 letters and digits long; `foveate config key` makes one"
        case "string_pattern_mismatch" if "A-Za-z_" in context["pattern"]:
            return (
                "is the name of a variable that holds the key, such as OPENAI_API_KEY, and not the key itself"
            )
        case "string_too_short":
            return "has to say something"
        case _:
            return f"cannot be used ({message[:1].lower()}{message[1:]})"


def _unknown(place: Place) -> str:
    """What is said of a key that there is none of."""
    name = str(place[-1])
    there = _keys_beside(place)
    close = get_close_matches(name, there, n=1, cutoff=_CLOSE)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(there)}"
    return f"there is no setting {name!r} here; {hint}"


def _keys_beside(place: Place) -> list[str]:
    """The keys that there are where a key stands."""
    from foveate.config.settings import Settings

    model: type[BaseModel] = Settings
    for step in place[:-1]:
        field = model.model_fields.get(str(step))  # none where it is a number, or a name of the user's
        model = next(iter(_models_in(field.annotation)), model) if field is not None else model
    return list(model.model_fields)


def _models_in(annotation: Any) -> "list[type[BaseModel]]":
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _key(place: Place) -> str:
    names = [str(step) for step in place if not isinstance(step, int)]
    return names[-1] if names else "it"


def _shown(given: object) -> str:
    if isinstance(given, dict | list):  # of which any part may be a key
        return "a mapping" if isinstance(given, dict) else "a list"
    return "nothing" if given is None else repr(given)[:80]


def _check(settings: "Settings", document: Document) -> None:
    """What no single value can be wrong in."""
    seen: dict[str, int] = {}
    for number, agent in enumerate(settings.agents):
        if agent.id in seen:
            raise document.problem(f"there are two agents {agent.id!r}", ("agents", number, "id"))
        seen[agent.id] = number
