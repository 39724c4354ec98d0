"""What Anthropic takes for cache marks: how many, on what, in which order of lifetimes.

After https://platform.claude.com/docs/en/build-with-claude/prompt-caching (read November 2026). Written without
a look at where Foveate puts them, so that both are not wrong together; the numbers come from `cache/rules`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foveate.cache.rules import Rules
from foveate.sandbox.anthropic_turns import blocks_of
from foveate.values import Ttl
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal

_WHERE = "Note that blocks are processed in the following order: `tools`, `system`, `messages`."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A tool or block, with its path and tag as errors have them, and its mark where it has one."""

    path: str
    tag: str
    kind: str
    mark: Any
    is_empty: bool


def problems(asked: dict[str, Any], rules: Rules) -> Iterator[Refusal]:
    """What is wrong with the marks of a request, the first thing first."""
    places = list(_places(asked))
    automatic = asked.get("cache_control")
    for place in places:
        if place.mark is not None:
            path = f"{place.path}.{place.tag}" if place.tag else place.path
            if place.kind not in rules.markable:
                yield Refusal(message=f"{path}.cache_control: Extra inputs are not permitted")
            yield from _mark(f"{path}.cache_control", place.mark, rules)
    if automatic is not None:
        yield from _mark("cache_control", automatic, rules)
    marked = [place for place in places if place.mark is not None]
    yield from _number(len(marked) + (automatic is not None), rules)
    yield from _order(marked)
    if automatic is not None:
        yield from _automatic(places, marked, _ttl(automatic), rules)


def _places(asked: dict[str, Any]) -> Iterator[_Place]:
    for i, tool in enumerate(map(as_record, as_list(asked.get("tools")))):
        tag = as_text(tool.get("type")) or "custom"
        mark = tool.get("cache_control")
        yield _Place(path=f"tools.{i}", tag=tag, kind="tool", mark=mark, is_empty=False)
    for j, block in enumerate(map(as_record, as_list(asked.get("system")))):
        yield _block(f"system.{j}", block, tag="")
    for i, message in enumerate(map(as_record, as_list(asked.get("messages")))):
        for j, block in enumerate(blocks_of(message)):
            yield _block(f"messages.{i}.content.{j}", block, tag=as_text(block.get("type")))


def _block(path: str, block: dict[str, Any], *, tag: str) -> _Place:
    kind = as_text(block.get("type"))
    is_empty = kind == "text" and not as_text(block.get("text")).strip()
    return _Place(path=path, tag=tag, kind=kind, mark=block.get("cache_control"), is_empty=is_empty)


def _mark(path: str, mark: Any, rules: Rules) -> Iterator[Refusal]:
    if not isinstance(mark, dict):
        yield Refusal(message=f"{path}: Input should be a valid dictionary or object")
        return
    if mark.get("type") != "ephemeral":
        yield Refusal(message=f"{path}.type: Input should be 'ephemeral'")
    if mark.get("ttl") is not None and mark["ttl"] not in rules.ttls:
        known = " or ".join(f"'{ttl}'" for ttl in rules.ttls)
        yield Refusal(message=f"{path}.ttl: Input should be {known}")
    for field in (name for name in mark if name not in ("type", "ttl")):
        yield Refusal(message=f"{path}.{field}: Extra inputs are not permitted")


def _number(found: int, rules: Rules) -> Iterator[Refusal]:
    if found > rules.most_marks:
        yield Refusal(
            message=f"A maximum of {rules.most_marks} blocks with cache_control may be provided. Found {found}."
        )


def _order(marked: list[_Place]) -> Iterator[Refusal]:
    shorter = False
    for place in marked:
        ttl = _ttl(place.mark)
        if shorter and ttl is Ttl.ONE_HOUR:
            yield _too_late(f"{place.path}.cache_control.ttl")
        shorter = shorter or ttl is Ttl.FIVE_MINUTES


def _automatic(places: list[_Place], marked: list[_Place], ttl: Ttl, rules: Rules) -> Iterator[Refusal]:
    """The mark of the whole request stands on the last block that can bear one."""
    bearing = next((p for p in reversed(places) if p.kind in rules.markable and not p.is_empty), None)
    if bearing is None:
        return
    if bearing.mark is not None and _ttl(bearing.mark) is not ttl:
        yield Refusal(
            message=f"cache_control: the last cacheable block ({bearing.path}) already has cache_control with "
            f"a different ttl ('{_ttl(bearing.mark)}', not '{ttl}')"
        )
    if ttl is Ttl.ONE_HOUR and any(_ttl(place.mark) is Ttl.FIVE_MINUTES for place in marked):
        yield _too_late("cache_control.ttl")


def _too_late(path: str) -> Refusal:
    return Refusal(
        message=f"{path}: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
        f"{_WHERE}"
    )


def _ttl(mark: Any) -> Ttl:
    return Ttl.ONE_HOUR if as_record(mark).get("ttl") == Ttl.ONE_HOUR else Ttl.FIVE_MINUTES
