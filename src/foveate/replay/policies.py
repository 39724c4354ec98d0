"""The policies under which a recording can be replayed."""

from enum import StrEnum

from foveate.errors import BadOption


class Policy(StrEnum):
    RECORDED = "recorded"
    GATEWAY = "gateway"
    GATEWAY_COMPACTION = "gateway-compaction"
    GATEWAY_COST = "gateway-cost"
    NONE = "none"
    MARKERS = "markers"
    MARKERS_1H = "markers-1h"
    ADAPTIVE = "adaptive"
    ADAPTIVE_COMPACTION = "fold"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Policy.RECORDED: "the requests as the client sent them",
    Policy.GATEWAY: "the gateway with this configuration",
    Policy.GATEWAY_COMPACTION: "the gateway with this configuration and with compaction: a summary replaces "
    "old history when requests get long",
    Policy.GATEWAY_COST: "the gateway with this configuration, which also compacts and clears tool results "
    "whenever that is expected to save money",
    Policy.NONE: "no prompt cache",
    Policy.MARKERS: "fixed breakpoints after the tools, the system prompt and the history, with a 5-minute TTL",
    Policy.MARKERS_1H: "the same breakpoints with a 1-hour TTL",
    Policy.ADAPTIVE: "Foveate's breakpoints instead of the client's, with TTLs that fit the session's pauses",
    Policy.ADAPTIVE_COMPACTION: "adaptive, with compaction",
}

ALL = "all"


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Parse a comma-separated list of policies, in the order of the enum.

    Raises:
        BadOption: a policy is unknown, or none is named.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names:
        raise BadOption(f"--policy takes one or more of {_list_policies()}")
    if ALL in names:
        return tuple(Policy)
    for name in names:
        if name not in tuple(Policy):
            raise BadOption(f"--policy takes {_list_policies()}, not {name!r}")
    return tuple(policy for policy in Policy if policy in names)


def _list_policies() -> str:
    return ", ".join((*Policy, ALL))
