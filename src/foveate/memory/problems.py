"""What could not be read as it was meant, in words and with its line."""

# Who has made the same mistake a thousand times needs to hear of it, not of each.
_TOLD = 20


class Problems:
    """Collects them while a text is read, and tells them by line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[int, str]] = []

    def add(self, at: int, reason: str) -> None:
        """Remember what is wrong at this place of the text."""
        self._found.append((at, reason))

    def told(self) -> tuple[str, ...]:
        """The first of them in their order, and how many more there are."""
        told, line, before = [], 1, 0
        for at, reason in sorted(self._found)[:_TOLD]:
            passed = self._text[before:at]
            line += passed.count("\n") + passed.count("\r") - passed.count("\r\n")
            before = at
            told.append(f"line {line}: {reason}")
        if len(self._found) > _TOLD:
            told.append(f"and {len(self._found) - _TOLD} more")
        return tuple(told)


def shortened(said: str) -> str:
    """A piece of a text, short enough for a message."""
    said = " ".join(said[:200].split())
    return said if len(said) <= 60 else f"{said[:59]}…"
