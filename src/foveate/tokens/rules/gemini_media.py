"""What Gemini counts for pictures and files.

From https://ai.google.dev/gemini-api/docs/tokens, /image-understanding, /document-processing and
/media-resolution (read November 2026). No recorded bill holds media, so none of it is certain.
"""

from foveate.tokens.rendering import Rendering
from foveate.values import Document, Image, MediaSource

# Up to 2.5: a picture of at most this many pixels a side is one tile, a larger one is cut into several.
_SINGLE_TILE_PIXELS = 384
_TILE_TOKENS = 258
_TILE_PIXELS = (256, 768)
_LOW_DETAIL_TOKENS = 64
_SINGLE_TILE_DETAILS = frozenset(("low", "medium"))  # resolutions at which the size does not matter
# 3: the most that a picture takes at each resolution.
_IMAGE_TOKENS = {"low": 280, "medium": 560, "high": 1120, "ultra_high": 2240}
_PDF_PAGE_TOKENS = {2: 258, 3: 560}
_MEDIA_MARGIN = 0.1


def render_image(image: Image, generation: int) -> Rendering:
    """A picture."""
    hidden = () if image.source is MediaSource.INLINE else ("image by reference",)
    if generation >= 3:
        return _media_rendering(_IMAGE_TOKENS.get(image.detail, _IMAGE_TOKENS["high"]), hidden)
    has_size = bool(image.width and image.height)
    if not hidden and not has_size and image.detail not in _SINGLE_TILE_DETAILS:
        hidden = ("image whose size cannot be seen",)
    return _media_rendering(_tile_tokens(image), hidden)


def render_document(document: Document, generation: int) -> Rendering:
    """A file: its text where it is text, its pages where they can be seen, otherwise what it is."""
    if document.media_type.startswith("text/") and document.source is MediaSource.INLINE:
        return Rendering(texts=(document.text,), certain=False)
    kind = document.media_type or "file"
    hidden = () if document.pages is not None else (f"{kind} whose length cannot be seen",)
    return _media_rendering((document.pages or 0) * _PDF_PAGE_TOKENS[min(max(generation, 2), 3)], hidden)


def _tile_tokens(image: Image) -> int:
    if image.detail == "low":
        return _LOW_DETAIL_TOKENS
    width, height = image.width or 0, image.height or 0
    if max(width, height) <= _SINGLE_TILE_PIXELS or image.detail == "medium":
        return _TILE_TOKENS
    min_side, max_side = _TILE_PIXELS
    side = max(min_side, min(max_side, int(min(width, height) / 1.5)))
    return _TILE_TOKENS * -(-width // side) * -(-height // side)


def _media_rendering(tokens: int, unexplained: tuple[str, ...]) -> Rendering:
    return Rendering(
        image_tokens=tokens,
        image_margin_tokens=round(tokens * _MEDIA_MARGIN),
        certain=False,
        unexplained=unexplained,
    )
