"""Tokens of images, from the providers' documentation (November 2026)."""

import math
from dataclasses import dataclass

# Assumed size of an image whose size is unknown.
_ASSUMED_PIXELS = (1024, 1024)
_PATCH_PIXELS = 32
_LOW_DETAIL_PATCHES = 256


@dataclass(frozen=True, slots=True)
class TileImagePricing:
    """GPT-4o and related models: a base and a price per tile of 512 pixels, scaled to 2,048 and a short side of
    768.
    """

    base_tokens: int
    tile_tokens: int

    def tokens(self, size: tuple[int, int] | None, detail: str) -> int:
        if detail == "low":
            return self.base_tokens
        width, height = _scale_to_fit(size or _ASSUMED_PIXELS, max_long_side=2048, max_short_side=768)
        return self.base_tokens + self.tile_tokens * _count_steps(width, 512) * _count_steps(height, 512)

    @property
    def max_tokens(self) -> int:
        """Tokens of the largest image: two by four tiles."""
        return self.base_tokens + 8 * self.tile_tokens


@dataclass(frozen=True, slots=True)
class PatchImagePricing:
    """Smaller models, and all from GPT-5.4 on: patches of 32 pixels up to a cap, times a factor."""

    cap: int
    factor: float

    def tokens(self, size: tuple[int, int] | None, detail: str) -> int:
        cap = min(self.cap, _LOW_DETAIL_PATCHES) if detail == "low" else self.cap
        width, height = size or _ASSUMED_PIXELS
        patches = _count_steps(width, _PATCH_PIXELS) * _count_steps(height, _PATCH_PIXELS)
        if patches > cap:
            patches = _count_shrunk_patches(width, height, cap)
        return math.ceil(patches * self.factor)

    @property
    def max_tokens(self) -> int:
        return math.ceil(self.cap * self.factor)


@dataclass(frozen=True, slots=True)
class GridImagePricing:
    """Claude: squares of 28 pixels after scaling down to a maximum side and number of squares, plus
    overhead.
    """

    max_side_pixels: int
    max_squares: int
    around_tokens: int = 3

    def tokens(self, size: tuple[int, int] | None, detail: str) -> int:
        """Tokens of an image; the maximum if its size is unknown."""
        del detail
        if size is None or min(size) <= 0:
            return self.max_tokens
        width, height = size
        scale = min(1.0, self.max_side_pixels / max(width, height))
        squares = _count_squares(width * scale, height * scale)
        if squares > self.max_squares:
            scale *= math.sqrt(self.max_squares / squares)
            squares = min(self.max_squares, _count_squares(width * scale, height * scale))
        return squares + self.around_tokens

    @property
    def max_tokens(self) -> int:
        return self.max_squares + self.around_tokens


ImagePricing = TileImagePricing | PatchImagePricing | GridImagePricing


def _count_squares(width: float, height: float) -> int:
    return _count_steps(width, 28) * _count_steps(height, 28)


def _count_steps(length: float, step: int) -> int:
    return max(1, math.ceil(length / step - 1e-9))


def _scale_to_fit(size: tuple[float, float], *, max_long_side: int, max_short_side: int) -> tuple[float, float]:
    width, height = size
    scale = min(1.0, max_long_side / max(width, height))
    scale *= min(1.0, max_short_side / max(1e-9, min(width, height) * scale))
    return width * scale, height * scale


def _count_shrunk_patches(width: float, height: float, cap: int) -> int:
    """Count the patches after scaling down to `cap`, with a whole number of patches on both sides."""
    scale = math.sqrt(_PATCH_PIXELS**2 * cap / (width * height))
    across, down = width * scale / _PATCH_PIXELS, height * scale / _PATCH_PIXELS
    scale *= min(math.floor(across) / across, math.floor(down) / down) or 1.0
    return min(cap, _count_steps(width * scale, _PATCH_PIXELS) * _count_steps(height * scale, _PATCH_PIXELS))
