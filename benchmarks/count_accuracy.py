"""Offline token counts of recorded requests, compared with their reported usage and with litellm's counts.

An error is the distance from the reported usage as a share of it. A rule on the request, never on the usage,
leaves rows out: requests that the count names as unexplained, and calls that do not give a model messages to
read. `held_out_*` figures judge the calls of each source by evidence from the other sources, so they say more
about new requests than the others, whose rules and evidence come from the same recordings. Calls to a
provider's own system, such as a preset, are compared but have no bound.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import count_evidence, recorded
from benchmarks.harness import Cell, Report
from benchmarks.recorded import RecordedCall
from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import Request, TokenCount
from foveate.tokens import RequestCount, counter_for, with_model
from foveate.tokens.counter import PROVIDER_SYSTEMS
from foveate.tokens.offline_counters import is_claude

_Judged = tuple[count_evidence.CountedCall, TokenCount]
_PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "google", "bedrock")
_ENDPOINTS = "counting endpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRequest:
    """One request: its usage, our count, and litellm's count; None if litellm raises."""

    group: str
    is_claude: bool
    has_tools: bool
    has_schema: bool
    reported_tokens: int
    ours: RequestCount
    litellm: int | None


FIGURES = (
    "held_out_called_exact_share",
    "held_out_called_exact_right_share",
    "held_out_upper_covers",
    "held_out_upper_over_billed_median",
    "held_out_<group>_rows",
    "held_out_<group>_called_exact_share",
    "held_out_<group>_called_exact_right_share",
    "held_out_<group>_upper_covers",
    "held_out_<group>_upper_over_billed_median",
    "rows_counted",
    "rows_left_out",
    "called_exact_share",
    "called_exact_right_share",
    "<group>_exact_share",
    "<group>_median_error",
    "<group>_p95_error",
    "<group>_upper_given_share",
    "<group>_upper_covers",
    "<group>_upper_over_billed_median",
)


def run(data: Path | None) -> Report:
    """Return errors by provider and by use of tools."""
    from benchmarks import litellm_peer

    pairs = recorded.read_pairs(data)
    calls = pairs + recorded.read_counted(data)
    left_out: dict[str, list[float | None]] = {}
    rows: list[CountedRequest] = []
    for call in calls:
        request, count = _count_call(call)
        if why := _left_out_reason(call, count):
            left_out.setdefault(why, []).append(_left_out_error(call, count))
        elif request and count and call.input_tokens:
            rows.append(
                CountedRequest(
                    group=call.provider if call.provider in (*_PROVIDERS, _ENDPOINTS) else "other hosts",
                    is_claude=is_claude(request.model),
                    has_tools=bool(request.tools),
                    has_schema=request.schema is not None,
                    reported_tokens=call.input_tokens,
                    ours=count,
                    litellm=litellm_peer.count(call, request),
                )
            )
    groups = _groups([row for row in rows if row.group != _ENDPOINTS])
    groups[_ENDPOINTS] = [row for row in rows if row.group == _ENDPOINTS]
    report = _report({name: group for name, group in groups.items() if group}, rows, left_out)
    return replace(report, figures=_held_out_figures(pairs) | dict(report.figures))


def _held_out_figures(calls: Sequence[RecordedCall]) -> dict[str, float]:
    """Return figures of calls judged by evidence from other sources."""
    counted = [
        counted_call
        for call in calls
        if (counted_call := count_evidence.count(call)) and not counted_call.raw.unexplained
    ]
    judged = list(count_evidence.judge_held_out(counted))
    if not judged:
        return {}
    figures = {f"held_out_{name}": value for name, value in _judged_figures(judged).items()}
    for group, found in _held_out_groups(judged).items():
        key = f"held_out_{group.replace('-', '_').replace(' ', '_')}"
        figures[f"{key}_rows"] = len(found)
        figures |= {f"{key}_{name}": value for name, value in _judged_figures(found).items()}
    return {name: round(value, 4) for name, value in figures.items()}


def _held_out_groups(judged: Sequence[_Judged]) -> dict[str, list[_Judged]]:
    groups: dict[str, list[_Judged]] = defaultdict(list)
    for counted, count in judged:
        provider = counted.call.provider if counted.call.provider in _PROVIDERS else "other hosts"
        has_schema = counted.request.schema is not None
        kind = "tools" if counted.request.tools else "structured" if has_schema else "plain"
        for name in ("all", provider, f"{provider} {kind}"):
            groups[name].append((counted, count))
    return {name: groups[name] for name in sorted(groups)}


def _judged_figures(judged: Sequence[_Judged]) -> dict[str, float]:
    called = [counted for counted, count in judged if count.exact]
    found = {"called_exact_share": len(called) / len(judged)}
    if called:
        found["called_exact_right_share"] = sum(counted.is_right for counted in called) / len(called)
    uppers = [(count.upper, counted.used_tokens) for counted, count in judged]
    return found | _upper_figures(uppers)


def _count_call(call: RecordedCall) -> tuple[Request, RequestCount] | tuple[None, None]:
    if not call.has_messages:
        return None, None
    try:
        request = with_model(formats.parse_request(call.body, call.format), call.model)
        return request, counter_for(request.model, call.host).count_request(request)
    except MalformedRequest:
        return None, None


def _left_out_reason(call: RecordedCall, count: RequestCount | None) -> str:
    """Return why a call is not compared; empty if it is."""
    if not call.has_messages:
        return f"no messages to read: {call.route}"
    if count is None:
        return f"not in a format that is read: {call.route}"
    if hidden := [name for name in count.unexplained if name not in PROVIDER_SYSTEMS]:
        return hidden[0]
    return "" if call.input_tokens else "no input billed"


def _left_out_error(call: RecordedCall, count: RequestCount | None) -> float | None:
    return None if count is None or not call.input_tokens else _error(count.total.tokens, call.input_tokens)


def _groups(rows: Sequence[CountedRequest]) -> dict[str, list[CountedRequest]]:
    """Return the rows of each provider, and those with and without tools."""
    sources = {name: [row for row in rows if row.group == name] for name in (*_PROVIDERS, "other hosts")}
    sources["claude anywhere"] = [row for row in rows if row.is_claude]
    sources["all"] = list(rows)
    groups: dict[str, list[CountedRequest]] = {}
    for name, found in sources.items():
        groups[name] = found
        plain = [row for row in found if not row.has_tools]
        if name == "openai-chat":
            groups[f"{name} structured"] = [row for row in plain if row.has_schema]
            plain = [row for row in plain if not row.has_schema]
        groups[f"{name} plain"] = plain
        groups[f"{name} tools"] = [row for row in found if row.has_tools]
    return groups


def _report(
    groups: Mapping[str, Sequence[CountedRequest]],
    rows: Sequence[CountedRequest],
    left_out: Mapping[str, Sequence[float | None]],
) -> Report:
    figures: dict[str, float] = {
        "rows_counted": len(rows),
        "rows_left_out": sum(map(len, left_out.values())),
        **_exact_figures(rows),
    }
    theirs: dict[str, float] = {"rows_counted": sum(row.litellm is not None for row in rows)}
    table: list[dict[str, Cell]] = []
    for name, group in groups.items():
        key = name.replace("-", "_").replace(" ", "_")
        our_figures = _figures([(row.ours.total.tokens, row.reported_tokens) for row in group])
        upper = _upper(group)
        peer_figures = _figures(
            [(row.litellm, row.reported_tokens) for row in group if row.litellm is not None]
        )
        failed = sum(row.litellm is None for row in group) / len(group)
        figures |= {f"{key}_{figure}": value for figure, value in (our_figures | upper).items()}
        theirs |= {
            f"{key}_{figure}": value for figure, value in (peer_figures | {"failed_share": failed}).items()
        }
        litellm_figures = {f"litellm_{figure}": value for figure, value in peer_figures.items()}
        table.append(
            {
                "group": name,
                "rows": len(group),
                **our_figures,
                **upper,
                **litellm_figures,
                "litellm_failed_share": failed,
            }
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
    return Report(figures=figures, peers=peers, rows=[_round(row) for row in table])


def _exact_figures(rows: Sequence[CountedRequest]) -> dict[str, float]:
    """Return how often a count is called exact, and how often that is right."""
    called = [row for row in rows if row.ours.total.exact]
    found = {"called_exact_share": len(called) / len(rows) if rows else 0.0}
    if called:
        right = Counter(row.ours.total.tokens == row.reported_tokens for row in called)
        found["called_exact_right_share"] = right[True] / len(called)
    return found


def _figures(pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    if not pairs:
        return {}
    errors = [_error(tokens, reported_tokens) for tokens, reported_tokens in pairs]
    return {
        "exact_share": sum(error == 0 for error in errors) / len(errors),
        "median_error": _quantile(errors, 0.5),
        "p95_error": _quantile(errors, 0.95),
    }


def _upper(rows: Sequence[CountedRequest]) -> dict[str, float]:
    """Return how often there is an upper bound, how often it holds, and its distance from the usage."""
    bounds = [(row.ours.upper, row.reported_tokens) for row in rows if row.ours.upper is not None]
    return {"upper_given_share": len(bounds) / len(rows), **_upper_figures(bounds)}


def _upper_figures(bounds: Sequence[tuple[int, int]]) -> dict[str, float]:
    if not bounds:
        return {}
    return {
        "upper_covers": sum(upper >= reported_tokens for upper, reported_tokens in bounds) / len(bounds),
        "upper_over_billed_median": _quantile(
            [upper / reported_tokens for upper, reported_tokens in bounds], 0.5
        ),
    }


def _error(tokens: int, reported_tokens: int) -> float:
    return abs(tokens - reported_tokens) / reported_tokens


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile, interpolated between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _round(row: Mapping[str, Cell]) -> dict[str, Cell]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
