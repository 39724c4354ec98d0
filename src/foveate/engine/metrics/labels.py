"""Labels that stay few: an agent comes from a header anybody can send, a model from a body."""

from collections.abc import Iterable

from foveate.engine.redaction import redact_keys

OTHER = "other"
"""What stands for all that there is no room for."""

MAX_VALUES = 100
MAX_LABEL_SETS = 300
MAX_LABEL_CHARS = 80
MAX_PATH_CHARS = 4096


class CardinalityLimiter:
    """The values that a label has: those that are known beforehand, and the first `most` of all others.

    One that is longer than `most_letters` is not shown, unless it is known.
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
        """Have these shown whatever comes."""
        for value in values:
            self._labels.setdefault(value, _to_label(value))

    def label(self, value: str, *, may_be_new: bool = True) -> str:
        """How a value is shown. One that is only claimed (`may_be_new` is false) takes nobody's place."""
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
    """A value as any reader of metrics takes it: printable, and without halves of letters."""
    if value.isascii() and value.isprintable():
        return value
    printable = "".join(char if char.isprintable() else "?" for char in value)
    return printable.encode("utf-8", "replace").decode("utf-8")
