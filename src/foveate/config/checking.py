"""All that is wrong with a configuration at once, so that nobody mends it error by error."""

from foveate.config.cost import parse_cost
from foveate.config.documents import Document, parse_document
from foveate.config.loading import has_content, parse_settings, to_setting_error, validate_settings
from foveate.errors import BadSetting


def find_problems(data: bytes, source: str) -> list[BadSetting]:
    """Everything in a configuration that cannot be, in the order of its lines; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or quite empty.
    """
    try:
        parse_settings(data, source)
    except BadSetting as first:
        document = _try_parse(data, source)
        found = [first] if document is None else _find_settings_problems(document) or [first]
        return sorted([*found, *_find_cost_problems(data, source)], key=lambda problem: problem.line or 0)
    return _find_cost_problems(data, source) if has_content(data) else []


def _try_parse(data: bytes, source: str) -> Document | None:
    """The document, where it is YAML or JSON at all."""
    try:
        return parse_document(data, source)
    except BadSetting:
        return None


def _find_settings_problems(document: Document) -> list[BadSetting]:
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
        # What is no YAML, or no mapping, was told before.
        return [problem] if problem.key.startswith("cost") else []
    return []
