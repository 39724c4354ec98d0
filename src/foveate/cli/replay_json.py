"""Replayed sessions as an object for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal

from foveate.replay.conclusions import Conclusion, PolicySaving, compare_to_recorded
from foveate.replay.outcomes import CostCheck, Outcome, Placeholders, ReplayedSession
from foveate.replay.policies import Policy
from foveate.replay.recordings import UnreadableLine
from foveate.replay.reports import ModelGroup, ReplayReport, has_recorded_cost


def report_object(report: ReplayReport) -> dict[str, object]:
    """A report as JSON can say it: money as a string, so that nothing of it is lost; null where unknown."""
    check = report.check
    return {
        "policies": list(report.policies),
        "meanings": {policy: policy.meaning for policy in report.policies},
        "configuration": report.configuration or None,
        "conclusion": _conclusion_object(report.conclusion),
        "model": report.model,
        "sessions": [_session_object(session, report.policies) for session in report.sessions],
        "by_model": [_group_object(group, report.policies) for group in report.by_model],
        "total": _outcomes_object(report.total, report.policies),
        "check": _check_object(check) if check is not None else None,
        "placeholders": _placeholders_object(report.placeholders),
        "repeated_calls": report.repeated,
        "unpriced_calls": report.unpriced,
        "unread": [{"files": files, "why": why} for files, why in report.unread],
        "broken": [_broken_object(line) for line in report.unreadable],
    }


def _session_object(session: ReplayedSession, policies: Sequence[Policy]) -> dict[str, object]:
    return {
        "name": session.name,
        "source": session.source,
        "began_at": session.began_at,
        "calls": session.calls,
        "models": dict(session.models),
        "outcomes": _outcomes_object(session.outcomes, policies),
        "check": _check_object(session.check) if has_recorded_cost(session.check) else None,
        "placeholders": _placeholders_object(session.placeholders),
        "lacks": sorted(session.missing),
        "hidden_tokens": session.hidden_tokens,
        "sub_agents": session.sub_agents,
        "unpriced_calls": dict(session.unpriced),
        "broken": [_broken_object(line) for line in session.unreadable],
        "size_bytes": session.size_bytes,
    }


def _group_object(group: ModelGroup, policies: Sequence[Policy]) -> dict[str, object]:
    return {
        "model": group.model,
        "sessions": group.sessions,
        "calls": group.calls,
        "outcomes": _outcomes_object(group.outcomes, policies),
    }


def _outcomes_object(outcomes: Mapping[Policy, Outcome], policies: Sequence[Policy]) -> list[dict[str, object]]:
    recorded = outcomes.get(Policy.RECORDED)
    objects = []
    for policy in policies:
        outcome = outcomes[policy]
        saved = compare_to_recorded(outcome, recorded)
        fields = {name: _to_json(value) for name, value in asdict(outcome).items()}
        objects.append(
            fields
            | {
                "input_tokens": outcome.input_tokens,
                "hit_ratio": outcome.hit_ratio,
                "saved_dollars": _to_json(saved.dollars) if saved is not None else None,
                "saved_share": saved.share if saved is not None else None,
            }
        )
    return objects


def _check_object(check: CostCheck) -> dict[str, object]:
    fields = {name: _to_json(value) for name, value in asdict(check).items()}
    return fields | {"off": check.off, "expected_off": check.expected_off}


def _placeholders_object(placeholders: Placeholders) -> dict[str, object]:
    return {name: _to_json(value) for name, value in asdict(placeholders).items()}


def _broken_object(line: UnreadableLine) -> dict[str, object]:
    return {"file": line.file, "line": line.line, "why": line.reason}


def _to_json(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


def _conclusion_object(conclusion: Conclusion | None) -> dict[str, object] | None:
    if conclusion is None:
        return None
    suggestion = conclusion.suggestion
    return {
        **_saving_object(conclusion.configured),
        "suggestion": None
        if suggestion is None
        else {
            **_saving_object(suggestion.saving),
            "changes": list(suggestion.changes),
            "yaml": suggestion.yaml,
        },
    }


def _saving_object(saving: PolicySaving) -> dict[str, object]:
    return {
        "policy": saving.policy,
        "saved_dollars": _to_json(saving.dollars),
        "saved_share": saving.share,
    }
