"""Offline counts of recorded requests beside what was billed for them, and beside litellm's.

An error is the distance from the bill as a share of it. Rows are left out by a rule on the request, never on
the bill: what we name as unexplained by it, and calls that do not hand a model messages to read.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import recorded
from benchmarks.harness import Cell, Report
from benchmarks.recorded import Call
from foveate import wire
from foveate.errors import MalformedRequest
from foveate.tokens import RequestCount, counter_for, with_model
from foveate.tokens.families import is_claude
from foveate.values import Request

_PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "google", "bedrock")
_ENDPOINTS = "counting endpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request: what was billed, what we say, and what litellm says; None where it raises."""

    group: str
    is_claude: bool
    has_tools: bool
    billed: int
    ours: RequestCount
    litellm: int | None


FIGURES = (
    "rows_counted",
    "rows_left_out",
    "called_exact_share",
    "called_exact_right_share",
    "<group>_exact_share",
    "<group>_median_error",
    "<group>_p95_error",
    "<group>_upper_covers",
    "<group>_upper_over_billed_median",
)


def run(data: Path | None) -> Report:
    """Errors by provider and by whether there are tools."""
    from benchmarks import litellm_peer

    calls = recorded.pairs(data) + recorded.counted(data)
    left_out: dict[str, list[float | None]] = {}
    rows: list[Row] = []
    for call in calls:
        request, count = _counted(call)
        if why := _left_out(call, count):
            left_out.setdefault(why, []).append(_left_out_error(call, count))
        elif request and count and call.billed:
            rows.append(
                Row(
                    group=call.provider if call.provider in (*_PROVIDERS, _ENDPOINTS) else "other hosts",
                    is_claude=is_claude(request.model),
                    has_tools=bool(request.tools),
                    billed=call.billed,
                    ours=count,
                    litellm=litellm_peer.count(call, request),
                )
            )
    groups = _groups([row for row in rows if row.group != _ENDPOINTS])
    groups[_ENDPOINTS] = [row for row in rows if row.group == _ENDPOINTS]
    return _report({name: group for name, group in groups.items() if group}, rows, left_out)


def _counted(call: Call) -> tuple[Request, RequestCount] | tuple[None, None]:
    if not call.asks_to_read:
        return None, None
    try:
        request = with_model(wire.read(call.body, call.format), call.model)
        return request, counter_for(request.model, call.host).request(request)
    except MalformedRequest:
        return None, None


def _left_out(call: Call, count: RequestCount | None) -> str:
    """Why a call is not compared; nothing where it is."""
    if not call.asks_to_read:
        return f"no messages to read: {call.route}"
    if count is None:
        return f"not in a format that is read: {call.route}"
    if count.unexplained:
        return count.unexplained[0]
    return "" if call.billed else "no input billed"


def _left_out_error(call: Call, count: RequestCount | None) -> float | None:
    return None if count is None or not call.billed else _error(count.total.tokens, call.billed)


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each provider, and those with and without tools."""
    sources = {name: [row for row in rows if row.group == name] for name in (*_PROVIDERS, "other hosts")}
    sources["claude anywhere"] = [row for row in rows if row.is_claude]
    sources["all"] = list(rows)
    groups: dict[str, list[Row]] = {}
    for name, found in sources.items():
        groups[name] = found
        groups[f"{name} plain"] = [row for row in found if not row.has_tools]
        groups[f"{name} tools"] = [row for row in found if row.has_tools]
    return groups


def _report(
    groups: Mapping[str, Sequence[Row]], rows: Sequence[Row], left_out: Mapping[str, Sequence[float | None]]
) -> Report:
    figures: dict[str, float] = {
        "rows_counted": len(rows),
        "rows_left_out": sum(map(len, left_out.values())),
        **_called_exact(rows),
    }
    theirs: dict[str, float] = {"rows_counted": sum(row.litellm is not None for row in rows)}
    table: list[dict[str, Cell]] = []
    for name, group in groups.items():
        key = name.replace("-", "_").replace(" ", "_")
        mine = _figures([(row.ours.total.tokens, row.billed) for row in group])
        upper = _upper(group)
        peer = _figures([(row.litellm, row.billed) for row in group if row.litellm is not None])
        failed = sum(row.litellm is None for row in group) / len(group)
        figures |= {f"{key}_{figure}": value for figure, value in (mine | upper).items()}
        theirs |= {f"{key}_{figure}": value for figure, value in (peer | {"failed_share": failed}).items()}
        beside = {f"litellm_{figure}": value for figure, value in peer.items()}
        table.append(
            {"group": name, "rows": len(group), **mine, **upper, **beside, "litellm_failed_share": failed}
        )
    for why, errors in sorted(left_out.items(), key=lambda found: -len(found[1])):
        known = [error for error in errors if error is not None]
        table.append(
            {
                "group": f"left out: {why}",
                "rows": len(errors),
                "median_error": _quantile(known, 0.5) if known else None,
            }
        )
    figures = {name: round(value, 4) for name, value in figures.items()}
    peers = {"litellm": {name: round(value, 4) for name, value in theirs.items()}}
    return Report(figures=figures, peers=peers, rows=[_rounded(row) for row in table])


def _called_exact(rows: Sequence[Row]) -> dict[str, float]:
    """How often we call a count exact, and how often that is right."""
    called = [row for row in rows if row.ours.total.exact]
    found = {"called_exact_share": len(called) / len(rows) if rows else 0.0}
    if called:
        right = Counter(row.ours.total.tokens == row.billed for row in called)
        found["called_exact_right_share"] = right[True] / len(called)
    return found


def _figures(pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    if not pairs:
        return {}
    errors = [_error(tokens, billed) for tokens, billed in pairs]
    return {
        "exact_share": sum(error == 0 for error in errors) / len(errors),
        "median_error": _quantile(errors, 0.5),
        "p95_error": _quantile(errors, 0.95),
    }


def _upper(rows: Sequence[Row]) -> dict[str, float]:
    """How often the bill stays under our bound, and how far above it the bound is."""
    bounds = [(row.ours.total.upper, row.billed) for row in rows]
    return {
        "upper_covers": sum(upper >= billed for upper, billed in bounds) / len(bounds),
        "upper_over_billed_median": _quantile([upper / billed for upper, billed in bounds], 0.5),
    }


def _error(tokens: int, billed: int) -> float:
    return abs(tokens - billed) / billed


def _quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, between neighbours in proportion."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _rounded(row: Mapping[str, Cell]) -> dict[str, Cell]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
