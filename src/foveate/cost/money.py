"""Money, exact: dollars as decimals, and whole picodollars (1e-12 of one) where sums are kept."""

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, ROUND_UP, Context, Decimal

# A dollar for a million tokens is a million of these for one: prices have six more digits before one is lost.
_DIGITS = 12
MAX_PICODOLLARS = 2**62 - 1
"""So that a database can add two of them: over four million dollars."""

# Not the caller's, who may have set another precision.
_EXACT = Context(prec=100)
MAX_DOLLARS = _EXACT.scaleb(Decimal(MAX_PICODOLLARS), -_DIGITS)
MIN_DOLLARS = _EXACT.scaleb(Decimal(1), -_DIGITS)
"""What is reserved where nobody knows how much: a spent cap refuses even that, and nobody is charged it."""
_MILLIONTH = Decimal("0.000001")


def to_picodollars(dollars: Decimal) -> int:
    """As many picodollars as that is; what is less than one is rounded to the nearest.

    Raises:
        OverflowError: more than a database can add up, or no number at all.
    """
    return _scale(dollars, ROUND_HALF_EVEN)


def to_picodollars_rounded_up(dollars: Decimal) -> int:
    """As many picodollars as that may be: what is less than one is one.

    Raises:
        OverflowError: more than a database can add up, or no number at all.
    """
    return _scale(dollars, ROUND_CEILING)


def to_dollars(picodollars: int) -> Decimal:
    """The same in dollars."""
    return _EXACT.scaleb(Decimal(picodollars), -_DIGITS)


def format_dollars(dollars: Decimal) -> str:
    """Dollars as people write them: to the cent, or as far as it takes up to the millionth of one.

    Half a millionth is a whole one: what is not nothing never looks like it.
    """
    rounded = abs(dollars).quantize(_MILLIONTH, ROUND_UP, _EXACT)
    sign = "-" if dollars < 0 else ""
    whole, _, rest = f"{rounded:,f}".partition(".")
    return f"{sign}${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def _scale(dollars: Decimal, rounding: str) -> int:
    if not dollars:
        return 0
    if not dollars.is_finite() or not -MAX_DOLLARS <= dollars <= MAX_DOLLARS:
        raise OverflowError(f"{dollars} dollars are more than can be kept")
    return int(_EXACT.scaleb(dollars, _DIGITS).to_integral_value(rounding))
