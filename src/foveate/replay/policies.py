"""The policies under which a recording can be replayed."""

from enum import StrEnum

from foveate.errors import BadOption


class Policy(StrEnum):
    RECORDED = "recorded"
    GATEWAY = "gateway"
    GATEWAY_COMPACTION = "gateway-compaction"
    NONE = "none"
    MARKERS = "markers"
    MARKERS_1H = "markers-1h"
    ADAPTIVE = "adaptive"
    ADAPTIVE_COMPACTION = "fold"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Policy.RECORDED: "what the client did itself",
    Policy.GATEWAY: "what the gateway would do with this configuration",
    Policy.GATEWAY_COMPACTION: "the same, and old history replaced by a summary once a request is long",
    Policy.NONE: "no cache at all",
    Policy.MARKERS: "fixed breakpoints at the ends of tools, system prompt and history, kept for 5 minutes",
    Policy.MARKERS_1H: "the same breakpoints, kept for an hour",
    Policy.ADAPTIVE: "Foveate's breakpoints in place of the client's, for as long as the session's rhythm pays",
    Policy.ADAPTIVE_COMPACTION: "adaptive, and old history replaced by a summary once a request is long",
}

ALL = "all"


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Parse a comma-separated list of policies, in the order of the enum.

    Raises:
        BadOption: a policy is unknown, or none is named.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise BadOption(f"--policy needs a name: {_list_policies()}")
    if ALL in names:
        return tuple(Policy)
    for name in names:
        if name not in tuple(Policy):
            raise BadOption(f"no policy is called {name!r}; there are {_list_policies()}")
    return tuple(policy for policy in Policy if policy in names)


def _list_policies() -> str:
    return ", ".join((*Policy, ALL))
