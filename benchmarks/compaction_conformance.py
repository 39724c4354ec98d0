"""Share of facts that survive five compactions by rules, judged by compaction-conformance-kit.

The kit (PyPI) plants typed statements, updates of them and pairs of similar statements in conversations, and
looks for their values after five compactions, each of the output of the one before. The budget is a share of
the characters of the conversation: 10, 20 and 30 percent. `ours_survival` is of its randomized corpus;
`ours_stale`, `ours_resolved` and `ours_distinct` are of its two corpora of updates in other words: replaced
values that are still there (a count), updates of which only the new value is there, and pairs of which both
are there. `generated` is its corpus with rotating subjects.

`dev` and `test` are our own conversations of other domains and in other languages, once compacted at 20
percent: current values carried, replaced values still there, pairs kept word for word, fragments of tool
results per summary. Rules are tuned on `dev` only. Peers: the kit's references, and LangChain's trim_messages,
which keeps the newest messages.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.conformance_domains import (
    DEV,
    TEST,
    Domain,
    Tally,
    Turn,
    build_conversation,
    transcript_characters,
)
from benchmarks.harness import BadData, Report
from foveate import summarize

NAME = "conformance"
FIGURES = (
    "<who>_survival_<percent>",
    "<who>_stale_<percent>",
    "<who>_updates_<percent>",
    "<who>_resolved_<percent>",
    "<who>_distinct_<percent>",
    "<half>_carried_20",
    "<half>_stale_20",
    "<half>_pairs_20",
    "<half>_fragments_20",
    "<half>_budget_used_20",
)

_SEEDS = "1-4"
_PERCENTS = (10, 20, 30)
_DOMAIN_PERCENT = 20
_ROUNDS = 5
_ATTEMPTS = 5

Compact = Callable[[Sequence[Turn], int], str]


def run(data: Path | None, *, seeds: str = _SEEDS) -> Report:  # noqa: ARG001 - all cases are generated
    """Return the report; `seeds` are the numbers of the generated conversations, as "1-4"."""
    numbers = _parse_seeds(seeds)
    figures = _kit_figures(_compact_by_rules, numbers, "ours") | _generated_figures(_compact_by_rules, numbers)
    for half, domains in (("dev", DEV), ("test", TEST)):
        tally = _measure_domains(domains, numbers, _compact_by_rules)
        figures |= {f"{half}_{name}_{_DOMAIN_PERCENT}": value for name, value in tally.figures().items()}
    return Report(figures=figures, peers=_peer_figures(numbers))


def _parse_seeds(seeds: str) -> range:
    first, _, last = seeds.partition("-")
    if not (first.isdigit() and (last or first).isdigit()):
        raise BadData(f"--seeds takes two numbers, e.g. 1-4, not {seeds!r}")
    return range(int(first), int(last or first) + 1)


def _compact_by_rules(turns: Sequence[Turn], limit_characters: int) -> str:
    """Summarize with about the largest token limit whose summary has at most `limit_characters`."""
    low, high, best = 0, limit_characters // 2, ""
    guess = limit_characters // 4
    length = 0
    for _ in range(_ATTEMPTS):
        summary = summarize(list(turns), limit_tokens=guess)
        if len(summary) <= limit_characters:
            low, best = guess, max(best, summary, key=len)
        else:
            high = guess - 1
        if low >= high:
            break
        # A summary of all there is does not shrink with its limit at first.
        is_stuck = len(summary) == length > limit_characters
        scaled = guess * 9 // 10 if is_stuck else guess * limit_characters // max(len(summary), 1)
        length = len(summary)
        guess = min(max(scaled, low + 1), high)
    return best


def _compact_with_langchain(turns: Sequence[Turn], limit_characters: int) -> str:
    """Keep the newest messages."""
    from langchain_core.messages import convert_to_messages, trim_messages

    kept = trim_messages(
        # LangChain rejects tool messages without an id. It belongs to no call, and the kept text is the same.
        convert_to_messages([{"tool_call_id": "none", **turn} for turn in turns]),
        max_tokens=limit_characters,
        token_counter=lambda messages: sum(len(str(message.content)) + 1 for message in messages),
        strategy="last",
        allow_partial=True,
    )
    return "\n".join(str(message.content) for message in kept)[-limit_characters:]


class _Compactor:
    """One of our functions, as the kit calls compactors."""

    name = "function"

    def __init__(self, compact: Compact) -> None:
        self._compact = compact

    def compact(self, turns: Sequence[Any], round_num: int = 1, budget_chars: int = 0) -> Any:
        """Return the summary as the kit's value."""
        from compaction_kit.compacted import CompactedContext

        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        text = self._compact(messages, budget_chars)
        return CompactedContext(text=text, compactor_name=self.name, round_num=round_num)


def _kit_figures(compact: Compact, seeds: Sequence[int], who: str) -> dict[str, float]:
    return _read_entries(_run_kit({who: lambda: _Compactor(compact)}, seeds))


def _run_kit(factories: Mapping[str, Callable[[], Any]], seeds: Sequence[int]) -> Iterable[Mapping[str, Any]]:
    from compaction_kit.benchmark import run_budget_benchmark

    budgets = [percent / 100 for percent in _PERCENTS]
    report = run_budget_benchmark(factories, budgets=budgets, seeds=list(seeds), rounds=_ROUNDS)
    entries: list[Mapping[str, Any]] = report["entries"]
    return entries


def _read_entries(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for entry in entries:
        if not entry["budget_compliant"]:
            continue  # a text over its budget is not comparable
        who, percent = entry["compactor"].replace("-", "_"), round(entry["budget_fraction"] * 100)
        figures[f"{who}_survival_{percent}"] = entry["randomized"]["overall_final_survival"]
        figures[f"{who}_stale_{percent}"] = entry["semantic"]["conflicts"]["stale"]
        figures[f"{who}_updates_{percent}"] = entry["semantic"]["conflicts"]["n"]
        figures[f"{who}_resolved_{percent}"] = entry["semantic"]["resolved_rate"]
        figures[f"{who}_distinct_{percent}"] = entry["semantic"]["distinct_pair_rate"]
    return figures


def _generated_figures(compact: Compact, seeds: Sequence[int]) -> dict[str, float]:
    from compaction_kit.generated import build_generated_session
    from compaction_kit.runner import run_conformance

    figures: dict[str, float] = {}
    for percent in _PERCENTS:
        survived = total = updates = stale = resolved = 0
        for seed in seeds:
            session, canaries = build_generated_session(seed)
            compaction = run_conformance(
                session, _Compactor(compact), rounds=_ROUNDS, canaries=canaries, budget_fraction=percent / 100
            )
            final = compaction.rounds[-1]
            text = final.context.text.lower()
            survived += sum(final.survived.values())
            total += len(canaries)
            for canary in canaries:
                if canary.superseded_tokens:
                    is_stale = any(token.lower() in text for token in canary.superseded_tokens)
                    updates += 1
                    stale += is_stale
                    resolved += bool(final.survived[canary.id]) and not is_stale
        figures |= {
            f"generated_survival_{percent}": survived / total,
            f"generated_stale_{percent}": stale,
            f"generated_updates_{percent}": updates,
            f"generated_resolved_{percent}": resolved / max(updates, 1),
        }
    return figures


def _measure_domains(domains: Sequence[Domain], seeds: Sequence[int], compact: Compact) -> Tally:
    tally = Tally()
    for domain in domains:
        for seed in seeds:
            conversation = build_conversation(domain, seed)
            limit = transcript_characters(conversation.messages) * _DOMAIN_PERCENT // 100
            tally.add(conversation, compact(conversation.messages, limit), limit)
    return tally


def _peer_figures(seeds: Sequence[int]) -> dict[str, Mapping[str, object]]:
    from compaction_kit.compactors import ChecklistCompactor, UpdateAwareChecklistCompactor
    from compaction_kit.semantic import SemanticChecklistCompactor

    references = (ChecklistCompactor, UpdateAwareChecklistCompactor, SemanticChecklistCompactor)
    peers: dict[str, Mapping[str, object]] = {
        f"kit: {reference.name}": _read_entries(_run_kit({"reference": reference}, seeds))
        for reference in references
    }
    langchain = _kit_figures(_compact_with_langchain, seeds, "langchain")
    for half, domains in (("dev", DEV), ("test", TEST)):
        tally = _measure_domains(domains, seeds, _compact_with_langchain)
        langchain |= {f"{half}_{name}_{_DOMAIN_PERCENT}": value for name, value in tally.figures().items()}
    peers["LangChain trim_messages"] = langchain
    return peers
