"""What could not be read as it was meant, in words and with its line."""

# Who has made the same mistake a thousand times needs to hear of it, not of each.
_MAX_LISTED = 20


class ParseProblems:
    """Collects them while a text is read, and tells them by line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[int, str]] = []

    def add(self, at: int, reason: str) -> None:
        """Remember what is wrong at this place of the text."""
        self._found.append((at, reason))

    def to_messages(self) -> tuple[str, ...]:
        """The first of them in their order, and how many more there are."""
        messages, line, before = [], 1, 0
        for at, reason in sorted(self._found)[:_MAX_LISTED]:
            passed = self._text[before:at]
            line += passed.count("\n") + passed.count("\r") - passed.count("\r\n")
            before = at
            messages.append(f"line {line}: {reason}")
        if len(self._found) > _MAX_LISTED:
            messages.append(f"and {len(self._found) - _MAX_LISTED} more")
        return tuple(messages)


def shorten(text: str) -> str:
    """A piece of a text, short enough for a message."""
    text = " ".join(text[:200].split())
    return text if len(text) <= 60 else f"{text[:59]}…"
