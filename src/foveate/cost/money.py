"""Exact amounts: dollars as decimals, and integer picodollars (1e-12 dollars) for stored sums."""

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, ROUND_UP, Context, Decimal

# A dollar per million tokens is a million picodollars per token, so prices have six spare digits.
_DIGITS = 12
MAX_PICODOLLARS = 2**62 - 1
"""A database can add two of these: over four million dollars."""

# Independent of the precision that a caller has set.
_EXACT = Context(prec=100)
MAX_DOLLARS = _EXACT.scaleb(Decimal(MAX_PICODOLLARS), -_DIGITS)
MIN_DOLLARS = _EXACT.scaleb(Decimal(1), -_DIGITS)
"""Reserved for calls of unknown price: a spent cap rejects even that, and nobody is charged for it."""
_MILLIONTH = Decimal("0.000001")


def to_picodollars(dollars: Decimal) -> int:
    """Convert dollars, rounding to the nearest picodollar.

    Raises:
        OverflowError: too large for a database, or not a number.
    """
    return _scale(dollars, ROUND_HALF_EVEN)


def to_picodollars_rounded_up(dollars: Decimal) -> int:
    """Convert dollars, rounding up.

    Raises:
        OverflowError: too large for a database, or not a number.
    """
    return _scale(dollars, ROUND_CEILING)


def to_dollars(picodollars: int) -> Decimal:
    return _EXACT.scaleb(Decimal(picodollars), -_DIGITS)


def format_dollars(dollars: Decimal) -> str:
    """Format dollars to the cent, or with up to six decimals if needed.

    Rounds up, so that an amount above zero never looks like zero.
    """
    rounded = abs(dollars).quantize(_MILLIONTH, ROUND_UP, _EXACT)
    sign = "-" if dollars < 0 else ""
    whole, _, rest = f"{rounded:,f}".partition(".")
    return f"{sign}${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def _scale(dollars: Decimal, rounding: str) -> int:
    if not dollars:
        return 0
    if not dollars.is_finite() or not -MAX_DOLLARS <= dollars <= MAX_DOLLARS:
        raise OverflowError(f"{dollars} dollars is too large to be stored")
    return int(_EXACT.scaleb(dollars, _DIGITS).to_integral_value(rounding))
