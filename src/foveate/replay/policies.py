"""The policies that a recording can be replayed under, each by its name."""

from enum import StrEnum

from foveate.errors import BadOption


class Policy(StrEnum):
    """What is done to have a prompt cached, and to keep it short."""

    RECORDED = "recorded"
    NONE = "none"
    MARKERS = "markers"
    MARKERS_1H = "markers-1h"
    ADAPTIVE = "adaptive"
    FOLD = "fold"

    @property
    def meaning(self) -> str:
        """What it does, in a few words."""
        return _MEANINGS[self]


_MEANINGS = {
    Policy.RECORDED: "what the client did itself",
    Policy.NONE: "no cache at all",
    Policy.MARKERS: "fixed marks at the ends of tools, system prompt and history, kept for 5 minutes",
    Policy.MARKERS_1H: "the same marks, kept for an hour",
    Policy.ADAPTIVE: "marks where Foveate puts them, for as long as the session's rhythm makes worth it",
    Policy.FOLD: "adaptive, and the head of a long history folded into a summary",
}

ALL = "all"


def policies_of(said: str) -> tuple[Policy, ...]:
    """The policies that are named, with commas between, in the order of the table.

    Raises:
        BadOption: one is not known, or none is named.
    """
    names = [name.strip().lower() for name in said.split(",") if name.strip()]
    if not names:
        raise BadOption(f"--policy needs a name: {_known()}")
    if ALL in names:
        return tuple(Policy)
    for name in names:
        if name not in tuple(Policy):
            raise BadOption(f"no policy is called {name!r}; there are {_known()}")
    return tuple(policy for policy in Policy if policy in names)


def _known() -> str:
    return ", ".join((*Policy, ALL))
