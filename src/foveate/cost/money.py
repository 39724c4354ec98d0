"""Money, exact: dollars as decimals, and whole picodollars (1e-12 of one) where sums are kept."""

from decimal import ROUND_HALF_EVEN, Decimal

# A dollar for a million tokens is a million of these for one: prices have six more digits before one is lost.
_DIGITS = 12
_MOST = 2**62


def picodollars(dollars: Decimal) -> int:
    """As many picodollars as that is; what is less than one is rounded to the nearest.

    Raises:
        OverflowError: more than a database can add up: over four million dollars.
    """
    found = int(dollars.scaleb(_DIGITS).to_integral_value(rounding=ROUND_HALF_EVEN))
    if abs(found) > _MOST:
        raise OverflowError(f"{dollars} dollars are more than can be kept")
    return found


def dollars(picodollars: int) -> Decimal:
    """The same in dollars."""
    return Decimal(picodollars).scaleb(-_DIGITS)
