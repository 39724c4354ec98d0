"""Rulers that remember: long texts, as a system prompt comes with every request, and what was measured last."""

from collections.abc import Sequence

from foveate.tokens.memo import Memo, digest
from foveate.tokens.rendering import Length, Ruler

# A text shorter than this is tokenised sooner than its digest is looked up.
_LONG_CHARS = 2048
# One longer than this is rarely met twice on its own, and its digest costs a fifth of its count: where it comes
# in a request, the request's beginning is remembered.
_LONGEST_CHARS = 128 * 1024
# Of what was measured last, so many texts are known that are not as quickly measured as looked for.
_KEPT_LATEST = 16
_SHORT_CHARS = 64


class Latest:
    """Another ruler, which knows for a moment what it has measured: the blocks of a message come after it."""

    def __init__(self, ruler: Ruler) -> None:
        self.name = ruler.name
        self.exact = ruler.exact
        self._ruler = ruler
        self.drop()

    def drop(self) -> None:
        """Forget it."""
        self._known: dict[str, Length] = {}

    def length(self, text: str) -> Length:
        """The length of a text."""
        return self._known.get(text) or self._ruler.length(text)

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text, the last of which are known until it is asked for others."""
        lengths = self._ruler.lengths(texts)
        latest = zip(texts[-_KEPT_LATEST:], lengths[-_KEPT_LATEST:], strict=True)
        self._known = {text: length for text, length in latest if _SHORT_CHARS <= len(text) <= _LONGEST_CHARS}
        return lengths


class Remembering:
    """Another ruler, asked once about each long text; `latest` is it for what comes once."""

    def __init__(self, ruler: Ruler, capacity: int) -> None:
        self.latest = Latest(ruler)
        self.name = ruler.name
        self.exact = ruler.exact
        self._ruler = ruler
        self._lengths: Memo[Length] = Memo(capacity)

    def drop(self) -> None:
        """Forget every length."""
        self._lengths = Memo(self._lengths.capacity)
        self.latest.drop()

    def length(self, text: str) -> Length:
        """The length of a text."""
        kept = _LONG_CHARS <= len(text) <= _LONGEST_CHARS
        return self._remembered(text) if kept else self.latest.length(text)

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text; the short ones side by side."""
        kept = [i for i, text in enumerate(texts) if _LONG_CHARS <= len(text) <= _LONGEST_CHARS]
        long = {i: self._remembered(texts[i]) for i in kept}
        if not long:
            return self._ruler.lengths(texts)
        short = iter(self._ruler.lengths([text for i, text in enumerate(texts) if i not in long]))
        return [long[i] if i in long else next(short) for i in range(len(texts))]

    def _remembered(self, text: str) -> Length:
        lengths = self._lengths
        key = digest(text.encode("utf-8", "surrogatepass"))
        found = lengths.get(key)
        if found is None:
            found = self.latest.length(text)
            lengths.put(key, found)
        return found
