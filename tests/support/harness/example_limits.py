"""Number of examples that Hypothesis tries of a property: all of them in `./test`, a few in `./test --fast`."""

from hypothesis import settings

QUICK = "quick"


def limit_examples(count: int) -> int:
    """Return `count`, or what the profile of quick runs allows if that is less."""
    if settings.get_current_profile_name() == QUICK:
        return min(count, settings.get_profile(QUICK).max_examples)
    return count
