"""Output of `foveate run`: the plan, the lines to add to a file, and the summary."""

import json
from collections.abc import Iterator
from decimal import Decimal
from shlex import join, quote

from foveate.agents.catalog import Agent
from foveate.agents.launch import LaunchPlan
from foveate.agents.run_summary import RunSummary, find_advice
from foveate.cli.shared.console import Display
from foveate.cli.shared.tables import format_amount, style_text


def plan_lines(plan: LaunchPlan) -> Iterator[str]:
    """Show what would be set, in a form that a shell accepts."""
    yield from (f"export {name}={quote(value)}" for name, value in plan.environment.items())
    yield join(plan.arguments)


def plan_object(plan: LaunchPlan, *, agent: str, run: str) -> dict[str, object]:
    return {
        "agent": agent,
        "run": run,
        "arguments": list(plan.arguments),
        "environment": dict(plan.environment),
        "notes": list(plan.notes),
        "lines": plan.lines or None,
        "lines_file": plan.lines_file if plan.lines else None,
    }


def summary_object(
    summary: RunSummary, *, agent: str, run: str, exit_code: int, advice: str
) -> dict[str, object]:
    worst = summary.worst_miss
    return {
        "agent": agent,
        "run": run,
        "exit_code": exit_code,
        "calls": summary.calls,
        "sessions": summary.sessions,
        "dollars": _to_text(summary.dollars),
        "without_dollars": _to_text(summary.without_dollars),
        "compared_calls": summary.compared_calls,
        "unknown_calls": summary.unknown_calls,
        "subscription_calls": summary.subscription_calls,
        "failed_requests": summary.failed_requests,
        "cache_misses": summary.misses,
        "lost_dollars": _to_text(summary.lost_dollars),
        "worst_miss": None
        if worst is None
        else {"request": worst.request_id, "cause": worst.cache_miss.cause, "where": worst.cache_miss.where},
        "advice": advice or None,
    }


def _to_text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def summary_lines(summary: RunSummary, *, agent: str, advice: str, display: Display) -> Iterator[str]:
    """Describe a run in a few lines."""
    heading = style_text(f"Foveate: {agent}", "bold", display)
    if not summary.calls:
        failed = summary.failed_requests
        yield f"{heading}: no calls" + (f"; {_count(failed, 'request')} failed" if failed else "")
    else:
        parts = [_count(summary.calls, "call"), _count(summary.sessions, "session"), *_cost_parts(summary)]
        yield f"{heading}: {', '.join(parts)}"
        if summary.misses:
            lost = f", {format_amount(summary.lost_dollars)} lost" if summary.lost_dollars else ""
            yield f"  {_count(summary.misses, 'unexpected cache miss', 'unexpected cache misses')}{lost}"
    if advice:
        yield f"  {display.escape(advice)}"


def _cost_parts(summary: RunSummary) -> Iterator[str]:
    if summary.dollars is None:
        yield "cost unknown"
        return
    is_subscription = summary.subscription_calls > 0
    yield f"{format_amount(summary.dollars)}{' at list prices (subscription)' if is_subscription else ''}"
    if summary.unknown_calls:
        yield f"{_count(summary.unknown_calls, 'call')} of unknown cost"
    if summary.without_dollars is not None:
        yield f"{format_amount(summary.without_dollars)} without Foveate"


def advise(summary: RunSummary, *, title: str | None, log_line: str) -> str:
    """Return the most useful next step; empty if there is none.

    `title` is that of a known agent; `log_line` is what the gateway logged about the last request of the run.
    """
    if summary.calls:
        return find_advice(summary)
    if summary.failed_requests or log_line:
        logged = f"the gateway's log has: {log_line}. " if log_line else ""
        return f"{logged}`foveate doctor` checks whether the providers can be reached"
    if title is not None:
        return (
            f"no request reached the gateway: `foveate agents` and `foveate doctor` show how {title} is set up"
        )
    return "no request reached the gateway: does the program read ANTHROPIC_BASE_URL or OPENAI_BASE_URL?"


def lines_to_add(plan: LaunchPlan, agent: Agent) -> Iterator[str]:
    is_command = plan.lines.startswith(f"{agent.command} ")
    action = "Run this once" if is_command else "Add these lines to it"
    yield f"{agent.title} reads the address of the gateway only from {plan.lines_file}. {action}:"
    yield ""
    yield from (f"    {line}" for line in plan.lines.splitlines())
    yield ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def to_json_line(value: dict[str, object]) -> str:
    return json.dumps(value)
