"""Limits the cardinality of labels: anybody can send any agent in a header, or any model in a body."""

from collections.abc import Iterable

from foveate.engine.redaction import redact_keys

OTHER = "other"
"""Replaces values beyond the limit."""

MAX_VALUES = 100
MAX_LABEL_SETS = 300
MAX_LABEL_CHARS = 80
MAX_PATH_CHARS = 4096


class CardinalityLimiter:
    """The values of a label: known ones, and the first `max_values` of all others.

    A value longer than `max_chars` is not shown, unless it is known.
    """

    def __init__(
        self,
        known_values: Iterable[str] = (),
        *,
        max_values: int = MAX_VALUES,
        max_chars: int = MAX_LABEL_CHARS,
    ) -> None:
        self._labels = {OTHER: OTHER, "": ""}
        self._max_values = max_values
        self._max_chars = max_chars
        self._new_values = 0
        self.add_known(known_values)

    def add_known(self, values: Iterable[str]) -> None:
        for value in values:
            self._labels.setdefault(value, _to_label(value))

    def label(self, value: str, *, may_be_new: bool = True) -> str:
        """The label for a value. An unconfirmed one (`may_be_new` is false) takes no place."""
        text = self._labels.get(value)
        if text is not None:
            return text
        if not may_be_new or self._new_values >= self._max_values or len(value) > self._max_chars:
            return OTHER
        self._new_values += 1
        self._labels[value] = _to_label(value)
        return self._labels[value]


def _to_label(value: str) -> str:
    return redact_keys(to_printable(value))


def to_printable(value: str) -> str:
    """Replace what is not printable, and unpaired surrogates."""
    if value.isascii() and value.isprintable():
        return value
    printable = "".join(char if char.isprintable() else "?" for char in value)
    return printable.encode("utf-8", "replace").decode("utf-8")
