"""Rulers that remember: long texts, as a system prompt comes with every request, and what was measured last."""

from collections.abc import Sequence

from foveate.caching import LruCache, hash_bytes
from foveate.tokens.rendering.rendering import TextLength, TextMeasurer

# A text shorter than this is tokenised sooner than its digest is looked up.
_MIN_CACHED_CHARS = 2048
# One longer than this is rarely met twice on its own, and its digest costs a fifth of its count: where it comes
# in a request, the request's beginning is remembered.
_MAX_CACHED_CHARS = 128 * 1024
# Of what was measured last, so many texts are known that are not as quickly measured as looked for.
_MAX_RECENT_TEXTS = 16
_MIN_RECENT_CHARS = 64


class RecentTextMeasurer:
    """Another ruler, which knows for a moment what it has measured: the blocks of a message come after it."""

    def __init__(self, measurer: TextMeasurer) -> None:
        self.name = measurer.name
        self.exact = measurer.exact
        self._measurer = measurer
        self.clear()

    def clear(self) -> None:
        """Forget it."""
        self._recent_lengths: dict[str, TextLength] = {}

    def measure(self, text: str) -> TextLength:
        """The length of a text."""
        return self._recent_lengths.get(text) or self._measurer.measure(text)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        """The length of each text, the last of which are known until it is asked for others."""
        lengths = self._measurer.measure_many(texts)
        recent = zip(texts[-_MAX_RECENT_TEXTS:], lengths[-_MAX_RECENT_TEXTS:], strict=True)
        self._recent_lengths = {
            text: length for text, length in recent if _MIN_RECENT_CHARS <= len(text) <= _MAX_CACHED_CHARS
        }
        return lengths


class CachingMeasurer:
    """Another ruler, asked once about each long text; `latest` is it for what comes once."""

    def __init__(self, measurer: TextMeasurer, capacity: int) -> None:
        self.recent = RecentTextMeasurer(measurer)
        self.name = measurer.name
        self.exact = measurer.exact
        self._measurer = measurer
        self._lengths: LruCache[TextLength] = LruCache(capacity)

    def clear(self) -> None:
        """Forget every length."""
        self._lengths = LruCache(self._lengths.capacity)
        self.recent.clear()

    def measure(self, text: str) -> TextLength:
        """The length of a text."""
        is_cached = _MIN_CACHED_CHARS <= len(text) <= _MAX_CACHED_CHARS
        return self._measure_cached(text) if is_cached else self.recent.measure(text)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        """The length of each text; the short ones side by side."""
        cached = [i for i, text in enumerate(texts) if _MIN_CACHED_CHARS <= len(text) <= _MAX_CACHED_CHARS]
        long = {i: self._measure_cached(texts[i]) for i in cached}
        if not long:
            return self._measurer.measure_many(texts)
        short = iter(self._measurer.measure_many([text for i, text in enumerate(texts) if i not in long]))
        return [long[i] if i in long else next(short) for i in range(len(texts))]

    def _measure_cached(self, text: str) -> TextLength:
        lengths = self._lengths
        key = hash_bytes(text.encode("utf-8", "surrogatepass"))
        length = lengths.get(key)
        if length is None:
            length = self.recent.measure(text)
            lengths.put(key, length)
        return length
