"""Loads the configuration: its file, environment variables, and above them command-line flags.

Errors name the file, line and key, and say what to do.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from foveate.config.cost_settings import CostOptions, parse_cost
from foveate.config.document import MAX_SETTINGS_BYTES, ConfigDocument, parse_document
from foveate.config.files import StrPath, display_path, read_bytes
from foveate.config.key_path import KeyPath
from foveate.errors import BadOption, BadSetting

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from foveate.config.settings import Settings

BuiltT = TypeVar("BuiltT")

# Above the similarity of `api_key` and `api`.
_SIMILARITY_CUTOFF = 0.65
# Users may put a key here instead of its hash or its variable's name. URLs may contain a password.
_SECRET_KEYS = frozenset(("keys", "admin_keys", "key_variable"))
# A line that is not empty, a comment or the start of a document.
_CONTENT_LINE = re.compile(rb"^(?![^\S\n]*(#|---[^\S\n]*$|$))", re.MULTILINE)

_EXPECTED_TYPES = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "path_type": "a file name",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: "Settings"
    cost: CostOptions


def load_and_build(path: StrPath, build: Callable[[Configuration], BuiltT]) -> BuiltT:
    """Load a configuration and return what `build` makes of it. Errors of `build` get a line too.

    Raises:
        UnreadableInput: the file does not exist, is a folder, exceeds 1 MB, is not UTF-8, or is empty.
        BadSetting: an unknown key, a wrong type, an invalid value, or not YAML; names file, line and key.
    """
    path = Path(path)
    return build_from_bytes(read_bytes(path, limit_bytes=MAX_SETTINGS_BYTES), display_path(path), build)


def build_from_bytes(data: bytes, source: str, build: Callable[[Configuration], BuiltT]) -> BuiltT:
    """Parse a configuration and return what `build` makes of it; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: as `load_and_build`.
    """
    settings = parse_settings(data, source)
    is_nonempty = has_content(data)
    cost = parse_cost(data, source) if is_nonempty else CostOptions()
    try:
        return build(Configuration(settings, cost))
    except BadOption as error:
        if not is_nonempty:
            raise
        raise parse_document(data, source).error(str(error), error.path) from None


def has_content(data: bytes) -> bool:
    """False if the file has only comments."""
    return bool(_CONTENT_LINE.search(data))


def load_settings(path: StrPath) -> "Settings":
    """Load the settings in a file; a file with only comments yields the defaults.

    Raises:
        UnreadableInput: the file does not exist, is a folder, exceeds 1 MB, is not UTF-8, or is empty.
        BadSetting: an unknown key, a wrong type, an invalid value, or not YAML; names file, line and key.
    """
    return load_and_build(path, lambda configuration: configuration.settings)


def parse_settings(data: bytes, source: str) -> "Settings":
    """Parse settings; errors call the data `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: an unknown key, a wrong type, an invalid value, or not YAML; names line and key.
    """
    from foveate.config.settings import Settings

    # An empty file is about to be written, and must not reset all settings.
    if data.strip() and not has_content(data):
        return Settings()
    return validate_settings(parse_document(data, source))


def validate_settings(document: ConfigDocument) -> "Settings":
    """Validate the data of a document.

    Raises:
        BadSetting: an unknown key, a wrong type, or an invalid value.
    """
    from pydantic import ValidationError

    from foveate.config.settings import Settings

    if not isinstance(document.data, dict):
        raise document.error("the configuration must be a mapping (key: value)")
    try:
        settings = Settings.model_validate(document.data)
    except ValidationError as error:
        raise to_setting_error(document, error.errors(include_url=False)[0]) from None
    _check_agent_ids(settings, document)
    return settings


def to_setting_error(document: ConfigDocument, detail: "ErrorDetails") -> BadSetting:
    """Convert a pydantic error to one with line and key that says what to do."""
    key_path = tuple(detail["loc"])
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return document.error(_describe_unknown_key(key_path), key_path)
    if kind == "missing":
        return document.error(f"{key_path[-1]} is required", key_path[:-1])
    expected = f"{_last_name(key_path)} {_describe_expected(kind, context, detail['msg'])}"
    if not _SECRET_KEYS.isdisjoint(key_path) or (isinstance(value, str) and "@" in value):
        return document.error(expected, key_path)
    return document.error(f"{expected}, not {_describe_value(value)}", key_path)


def _describe_expected(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _EXPECTED_TYPES:
        return f"must be {_EXPECTED_TYPES[kind]}"
    match kind:
        case "literal_error":
            return f"must be one of {context['expected'].replace(' or ', ', ')}"
        case "greater_than":
            return f"must be more than {context['gt']:g}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}"
        case "string_pattern_mismatch" if "https?" in context["pattern"]:
            return "must be a URL such as https://host/v1"
        case "string_pattern_mismatch" if "[a-z0-9]+://" in context["pattern"]:
            return "must be a URL such as http://user:password@host:port"
        case "string_pattern_mismatch" if "sqlite" in context["pattern"]:
            return "must be sqlite:///path or postgresql://user@host/name"
        case "string_pattern_mismatch" if "://" in context["pattern"]:
            return "must be an origin such as https://app.example, without a path"
        case "string_pattern_mismatch" if "._-" in context["pattern"]:
            return "must be a host name without a port"
        case "string_pattern_mismatch" if "0-9a-f" in context["pattern"]:
            return "must be the hash of a key (64 hexadecimal digits); `foveate config key` creates one"
        case "string_pattern_mismatch" if "A-Za-z_" in context["pattern"]:
            return "must be the name of an environment variable such as OPENAI_API_KEY, not the key itself"
        case "string_pattern_mismatch" if "embeddings" in context["pattern"]:
            return "must be answers, counting, embeddings, models, all, or a glob such as `POST /v1/images/*`"
        case "string_pattern_mismatch" if "x1f" in context["pattern"]:
            return "must not contain control characters"
        case "string_too_short":
            return "must not be empty"
        case _:
            return f"is invalid ({message[:1].lower()}{message[1:]})"


def _describe_unknown_key(key_path: KeyPath) -> str:
    name = str(key_path[-1])
    known_keys = _sibling_keys(key_path)
    close = get_close_matches(name, known_keys, n=1, cutoff=_SIMILARITY_CUTOFF)
    hint = f"did you mean {close[0]}?" if close else f"the settings here are {', '.join(known_keys)}"
    return f"unknown setting {name!r}; {hint}"


def _sibling_keys(key_path: KeyPath) -> list[str]:
    from foveate.config.settings import Settings

    model: type[BaseModel] = Settings
    for step in key_path[:-1]:
        field = model.model_fields.get(str(step))  # None for an index or a name that the user chose
        model = next(iter(_find_models(field.annotation)), model) if field is not None else model
    return list(model.model_fields)


def _find_models(annotation: Any) -> "list[type[BaseModel]]":
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _find_models(argument)]


def _last_name(key_path: KeyPath) -> str:
    names = [str(step) for step in key_path if not isinstance(step, int)]
    return names[-1] if names else "the configuration"


def _describe_value(value: object) -> str:
    if isinstance(value, (dict, list)):  # may contain a key
        return "a mapping" if isinstance(value, dict) else "a list"
    return "null" if value is None else repr(value)[:80]


def _check_agent_ids(settings: "Settings", document: ConfigDocument) -> None:
    seen: dict[str, int] = {}
    for number, agent in enumerate(settings.agents):
        if agent.id in seen:
            raise document.error(f"there are two agents with the id {agent.id!r}", ("agents", number, "id"))
        seen[agent.id] = number


def find_problems(data: bytes, source: str) -> list[BadSetting]:
    """Return all errors in a configuration, in order of lines; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
    """
    try:
        parse_settings(data, source)
    except BadSetting as first:
        document = _try_parse(data, source)
        found = [first] if document is None else _find_settings_problems(document) or [first]
        return sorted([*found, *_find_cost_problems(data, source)], key=lambda problem: problem.line or 0)
    return _find_cost_problems(data, source) if has_content(data) else []


def _try_parse(data: bytes, source: str) -> ConfigDocument | None:
    try:
        return parse_document(data, source)
    except BadSetting:
        return None


def _find_settings_problems(document: ConfigDocument) -> list[BadSetting]:
    from pydantic import ValidationError

    from foveate.config.settings import Settings

    try:
        Settings.model_validate(document.data)
    except ValidationError as error:
        return [to_setting_error(document, detail) for detail in error.errors(include_url=False)]
    try:
        validate_settings(document)
    except BadSetting as problem:
        return [problem]
    return []


def _find_cost_problems(data: bytes, source: str) -> list[BadSetting]:
    try:
        parse_cost(data, source)
    except BadSetting as problem:
        # Invalid YAML is already reported.
        return [problem] if problem.key.startswith("cost") else []
    return []


STORE_VARIABLE = "FOVEATE_STORE"
"""Overrides `store.url`."""

LOCAL_UPSTREAM = "local"
"""The model name that requests the local model, and the name of its upstream."""
LOCAL_PROVIDER = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    base_url: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """The flags of `foveate serve`. Those that are None or empty override nothing.

    `is_plain_http` is set by `foveate run`, whose agents cannot be made to trust a certificate.
    """

    host: str | None = None
    port: int | None = None
    workers: int | None = None
    certificate: str | None = None
    key: str | None = None
    cors_origins: tuple[str, ...] = ()
    local: LocalModel | None = None
    is_plain_http: bool = False


def apply_overrides(
    configuration: Configuration,
    environment: Mapping[str, str],
    flags: ServeFlags = ServeFlags(),  # noqa: B008 - frozen
) -> Configuration:
    settings = configuration.settings
    if store := environment.get(STORE_VARIABLE):
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"url": store})})
    settings = _apply_flags(settings, flags)
    if flags.local is None:
        return Configuration(settings, configuration.cost)
    return _add_local_model(Configuration(settings, configuration.cost), flags.local)


def _apply_flags(settings: "Settings", flags: ServeFlags) -> "Settings":
    from foveate.config.settings import TlsSettings

    updates: dict[str, object] = {
        name: value for name in ("host", "port", "workers") if (value := getattr(flags, name)) is not None
    }
    if flags.cors_origins:
        updates["cors_origins"] = list(flags.cors_origins)
    if flags.certificate is not None and flags.key is not None:
        updates["tls"] = TlsSettings(certificate=Path(flags.certificate), key=Path(flags.key))
    if flags.is_plain_http:
        updates["tls"] = None
    if not updates:
        return settings
    return settings.model_copy(update={"server": settings.server.model_copy(update=updates)})


def _add_local_model(configuration: Configuration, local: LocalModel) -> Configuration:
    from foveate.config.settings import RouteSettings, UpstreamSettings
    from foveate.cost.pricing.custom_prices import CustomPrice, DollarsPerMillion

    settings = configuration.settings
    upstream = UpstreamSettings(base_url=local.base_url, api="both", provider=LOCAL_PROVIDER)
    family = local.model.partition("-")[0].lower()
    routes = [
        RouteSettings(models=models, upstream=LOCAL_UPSTREAM, model=local.model)
        for models in dict.fromkeys((LOCAL_UPSTREAM, local.model, f"{family}*"))
    ]
    free = CustomPrice(
        model=local.model,
        provider=LOCAL_PROVIDER,
        dollars_per_million=DollarsPerMillion(uncached=Decimal(0), output=Decimal(0)),
    )
    return Configuration(
        settings.model_copy(
            update={
                "upstreams": {**settings.upstreams, LOCAL_UPSTREAM: upstream},
                "routes": [*settings.routes, *routes],
            }
        ),
        replace(configuration.cost, prices=(*configuration.cost.prices, free)),
    )
