"""Replayed sessions as an object for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal

from foveate.replay.conclusions import Conclusion, Saving, saving_of
from foveate.replay.outcomes import Check, Outcome, Placeholders, Replayed
from foveate.replay.policies import Policy
from foveate.replay.recordings import Broken
from foveate.replay.reports import Group, Report, is_billed


def report_object(report: Report) -> dict[str, object]:
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
        "broken": [_broken_object(line) for line in report.broken],
    }


def _session_object(session: Replayed, policies: Sequence[Policy]) -> dict[str, object]:
    return {
        "name": session.name,
        "source": session.source,
        "began_at": session.began_at,
        "calls": session.calls,
        "models": dict(session.models),
        "outcomes": _outcomes_object(session.outcomes, policies),
        "check": _check_object(session.check) if is_billed(session.check) else None,
        "placeholders": _placeholders_object(session.placeholders),
        "lacks": sorted(session.lacks),
        "hidden_tokens": session.hidden_tokens,
        "sub_agents": session.sub_agents,
        "unpriced_calls": dict(session.unpriced),
        "broken": [_broken_object(line) for line in session.broken],
        "size_bytes": session.size_bytes,
    }


def _group_object(group: Group, policies: Sequence[Policy]) -> dict[str, object]:
    return {
        "model": group.model,
        "sessions": group.sessions,
        "calls": group.calls,
        "outcomes": _outcomes_object(group.outcomes, policies),
    }


def _outcomes_object(outcomes: Mapping[Policy, Outcome], policies: Sequence[Policy]) -> list[dict[str, object]]:
    recorded = outcomes.get(Policy.RECORDED)
    found = []
    for policy in policies:
        outcome = outcomes[policy]
        saved = saving_of(outcome, recorded)
        told = {name: _jsonable(value) for name, value in asdict(outcome).items()}
        found.append(
            told
            | {
                "input_tokens": outcome.input_tokens,
                "hit_ratio": outcome.hit_ratio,
                "saved_dollars": _jsonable(saved.dollars) if saved is not None else None,
                "saved_share": saved.share if saved is not None else None,
            }
        )
    return found


def _check_object(check: Check) -> dict[str, object]:
    told = {name: _jsonable(value) for name, value in asdict(check).items()}
    return told | {"off": check.off, "expected_off": check.expected_off}


def _placeholders_object(placeholders: Placeholders) -> dict[str, object]:
    return {name: _jsonable(value) for name, value in asdict(placeholders).items()}


def _broken_object(line: Broken) -> dict[str, object]:
    return {"file": line.file, "line": line.line, "why": line.why}


def _jsonable(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


def _conclusion_object(conclusion: Conclusion | None) -> dict[str, object] | None:
    if conclusion is None:
        return None
    suggested = conclusion.suggestion
    return {
        **_saving_object(conclusion.configured),
        "suggestion": None
        if suggested is None
        else {**_saving_object(suggested.saving), "changes": list(suggested.changes), "yaml": suggested.yaml},
    }


def _saving_object(saving: Saving) -> dict[str, object]:
    return {
        "policy": saving.policy,
        "saved_dollars": _jsonable(saving.dollars),
        "saved_share": saving.share,
    }
