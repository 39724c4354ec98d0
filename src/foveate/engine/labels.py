"""Labels that stay few: an agent comes from a header anybody can send, a model from a body."""

from collections.abc import Iterable

from foveate.engine.redacting import redacted

OTHER = "other"
"""What stands for all that there is no room for."""

MOST_VALUES = 100
MOST_SETS = 300
MOST_LETTERS = 80
MOST_LETTERS_OF_PATHS = 4096


class Few:
    """The values that a label has: those that are known beforehand, and the first `most` of all others.

    One that is longer than `most_letters` is not shown, unless it is known.
    """

    def __init__(
        self, known: Iterable[str] = (), *, most: int = MOST_VALUES, most_letters: int = MOST_LETTERS
    ) -> None:
        self._shown = {OTHER: OTHER, "": ""}
        self._most = most
        self._most_letters = most_letters
        self._taken = 0
        self.know(known)

    def know(self, values: Iterable[str]) -> None:
        """Have these shown whatever comes."""
        for value in values:
            self._shown.setdefault(value, _shown(value))

    def of(self, value: str, *, may_be_new: bool = True) -> str:
        """How a value is shown. One that is only claimed (`may_be_new` is false) takes nobody's place."""
        shown = self._shown.get(value)
        if shown is not None:
            return shown
        if not may_be_new or self._taken >= self._most or len(value) > self._most_letters:
            return OTHER
        self._taken += 1
        self._shown[value] = _shown(value)
        return self._shown[value]


def _shown(value: str) -> str:
    return redacted(plain(value))


def plain(value: str) -> str:
    """A value as any reader of metrics takes it: printable, and without halves of letters."""
    if value.isascii() and value.isprintable():
        return value
    kept = "".join(letter if letter.isprintable() else "?" for letter in value)
    return kept.encode("utf-8", "replace").decode("utf-8")
