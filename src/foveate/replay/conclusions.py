"""Conclusion of a replay: what the gateway saves as it is configured, and the setting that would save more."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from foveate.engine.options import AgentOptions
from foveate.replay.outcomes import Outcome
from foveate.replay.policies import Policy
from foveate.replay.running import keeps_client_breakpoints

# A suggestion must save this much more of the recorded cost than the configuration does.
_MIN_SHARE = Decimal("0.01")
_COMPACTION = ("  compaction:", "    enabled: true")
_REPLACE_BREAKPOINTS = ("  prompt_cache:", "    client_breakpoints: replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySaving:
    """What a policy saves of the recorded cost: dollars, and their share if there was any cost."""

    policy: Policy
    dollars: Decimal
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change of the configuration that would save more, as YAML."""

    saving: PolicySaving
    changes: tuple[str, ...]
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What the gateway saves as it is configured, and the best change of that, if one is worth it."""

    configured: PolicySaving
    suggestion: Suggestion | None = None


def compare_to_recorded(outcome: Outcome, recorded: Outcome | None) -> PolicySaving | None:
    """Compare a policy with what the client did; None if one of the prices is unknown."""
    if recorded is None or recorded.dollars is None or outcome.dollars is None:
        return None
    dollars = recorded.dollars - outcome.dollars
    share = float(dollars / recorded.dollars) if recorded.dollars else None
    return PolicySaving(policy=outcome.policy, dollars=dollars, share=share)


def draw_conclusion(outcomes: Mapping[Policy, Outcome], gateway: AgentOptions) -> Conclusion | None:
    """Draw the conclusion from the totals; None if the gateway was not replayed, or a price is unknown."""
    recorded = outcomes.get(Policy.RECORDED)
    configured = compare_to_recorded(outcomes[Policy.GATEWAY], recorded) if Policy.GATEWAY in outcomes else None
    if configured is None or recorded is None or not recorded.dollars:
        return None
    better = [
        Suggestion(saving=saving, changes=changes, yaml=_make_yaml(policy))
        for policy, changes in _configuration_changes(gateway).items()
        if policy in outcomes
        and (saving := compare_to_recorded(outcomes[policy], recorded)) is not None
        and saving.dollars - configured.dollars >= _MIN_SHARE * recorded.dollars
    ]
    # Of two that save the same, the one that changes less.
    best = min(
        better, key=lambda suggestion: (-suggestion.saving.dollars, len(suggestion.changes)), default=None
    )
    return Conclusion(configured=configured, suggestion=best)


def find_reachable_policies(gateway: AgentOptions) -> frozenset[Policy]:
    """List the policies that are what the client did, or what the gateway does or can be told to do."""
    return frozenset((Policy.RECORDED, Policy.GATEWAY, *_configuration_changes(gateway)))


def _configuration_changes(gateway: AgentOptions) -> dict[Policy, tuple[str, ...]]:
    """List what would have to change for each policy; only what this version of the gateway can be told."""
    changes: dict[Policy, tuple[str, ...]] = {}
    if not gateway.compaction:
        changes[Policy.GATEWAY_COMPACTION] = ("compaction",)
    if gateway.prompt_cache and keeps_client_breakpoints(gateway):
        replaced = "Foveate's breakpoints in place of the client's"
        changes[Policy.ADAPTIVE] = (replaced,)
        if not gateway.compaction:
            changes[Policy.ADAPTIVE_COMPACTION] = (replaced, "compaction")
    return changes


def _make_yaml(policy: Policy) -> str:
    replaces = policy in (Policy.ADAPTIVE, Policy.ADAPTIVE_COMPACTION)
    compacts = policy in (Policy.GATEWAY_COMPACTION, Policy.ADAPTIVE_COMPACTION)
    lines = (
        "context_optimization:",
        *(_REPLACE_BREAKPOINTS if replaces else ()),
        *(_COMPACTION if compacts else ()),
    )
    return "\n".join(lines) + "\n"
