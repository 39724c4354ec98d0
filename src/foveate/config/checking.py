"""All that is wrong with a configuration at once, so that nobody mends it error by error."""

from foveate.config.cost import cost_from
from foveate.config.documents import Document, document_from
from foveate.config.loading import problem_of, says_something, settings_from, settings_in
from foveate.errors import BadSetting


def problems_in(data: bytes, source: str) -> list[BadSetting]:
    """Everything in a configuration that cannot be, in the order of its lines; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or quite empty.
    """
    try:
        settings_from(data, source)
    except BadSetting as first:
        document = _document(data, source)
        found = [first] if document is None else _in_settings(document) or [first]
        return sorted([*found, *_in_cost(data, source)], key=lambda problem: problem.line or 0)
    return _in_cost(data, source) if says_something(data) else []


def _document(data: bytes, source: str) -> Document | None:
    """The document, where it is YAML or JSON at all."""
    try:
        return document_from(data, source)
    except BadSetting:
        return None


def _in_settings(document: Document) -> list[BadSetting]:
    from pydantic import ValidationError

    from foveate.config.settings import Settings

    try:
        Settings.model_validate(document.data)
    except ValidationError as error:
        return [problem_of(document, detail) for detail in error.errors(include_url=False)]
    try:
        settings_in(document)
    except BadSetting as problem:
        return [problem]
    return []


def _in_cost(data: bytes, source: str) -> list[BadSetting]:
    try:
        cost_from(data, source)
    except BadSetting as problem:
        # What is no YAML, or no mapping, was told before.
        return [problem] if problem.key.startswith("cost") else []
    return []
