"""What Anthropic takes for cache marks: how many, on what, in which order of lifetimes.

After https://platform.claude.com/docs/en/build-with-claude/prompt-caching (read November 2026). Written without
a look at where Foveate puts them, so that both are not wrong together; the numbers come from `cache/rules`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foveate.cache.rules import CacheRules
from foveate.sandbox.anthropic_turns import content_blocks
from foveate.values import Ttl
from foveate.wire.body import as_dict, as_list, as_text
from foveate.wire.refusals import ErrorResponse

_ORDER_NOTE = "Note that blocks are processed in the following order: `tools`, `system`, `messages`."


@dataclass(frozen=True, slots=True, kw_only=True)
class _CacheableBlock:
    """A tool or block, with its path and tag as errors have them, and its mark where it has one."""

    path: str
    tag: str
    kind: str
    cache_breakpoint: Any
    is_empty: bool


def check_breakpoints(body: dict[str, Any], rules: CacheRules) -> Iterator[ErrorResponse]:
    """What is wrong with the marks of a request, the first thing first."""
    blocks = list(_find_cacheable_blocks(body))
    automatic = body.get("cache_control")
    for block in blocks:
        if block.cache_breakpoint is not None:
            path = f"{block.path}.{block.tag}" if block.tag else block.path
            if block.kind not in rules.breakpoint_kinds:
                yield ErrorResponse(message=f"{path}.cache_control: Extra inputs are not permitted")
            yield from _check_breakpoint(f"{path}.cache_control", block.cache_breakpoint, rules)
    if automatic is not None:
        yield from _check_breakpoint("cache_control", automatic, rules)
    marked = [block for block in blocks if block.cache_breakpoint is not None]
    yield from _check_count(len(marked) + (automatic is not None), rules)
    yield from _check_ttl_order(marked)
    if automatic is not None:
        yield from _check_automatic(blocks, marked, _read_ttl(automatic), rules)


def _find_cacheable_blocks(body: dict[str, Any]) -> Iterator[_CacheableBlock]:
    for i, tool in enumerate(map(as_dict, as_list(body.get("tools")))):
        tag = as_text(tool.get("type")) or "custom"
        cache_breakpoint = tool.get("cache_control")
        yield _CacheableBlock(
            path=f"tools.{i}", tag=tag, kind="tool", cache_breakpoint=cache_breakpoint, is_empty=False
        )
    for j, block in enumerate(map(as_dict, as_list(body.get("system")))):
        yield _to_cacheable_block(f"system.{j}", block, tag="")
    for i, message in enumerate(map(as_dict, as_list(body.get("messages")))):
        for j, block in enumerate(content_blocks(message)):
            yield _to_cacheable_block(f"messages.{i}.content.{j}", block, tag=as_text(block.get("type")))


def _to_cacheable_block(path: str, block: dict[str, Any], *, tag: str) -> _CacheableBlock:
    kind = as_text(block.get("type"))
    is_empty = kind == "text" and not as_text(block.get("text")).strip()
    return _CacheableBlock(
        path=path, tag=tag, kind=kind, cache_breakpoint=block.get("cache_control"), is_empty=is_empty
    )


def _check_breakpoint(path: str, cache_breakpoint: Any, rules: CacheRules) -> Iterator[ErrorResponse]:
    if not isinstance(cache_breakpoint, dict):
        yield ErrorResponse(message=f"{path}: Input should be a valid dictionary or object")
        return
    if cache_breakpoint.get("type") != "ephemeral":
        yield ErrorResponse(message=f"{path}.type: Input should be 'ephemeral'")
    if cache_breakpoint.get("ttl") is not None and cache_breakpoint["ttl"] not in rules.ttls:
        known = " or ".join(f"'{ttl}'" for ttl in rules.ttls)
        yield ErrorResponse(message=f"{path}.ttl: Input should be {known}")
    for field in (name for name in cache_breakpoint if name not in ("type", "ttl")):
        yield ErrorResponse(message=f"{path}.{field}: Extra inputs are not permitted")


def _check_count(found: int, rules: CacheRules) -> Iterator[ErrorResponse]:
    if found > rules.max_breakpoints:
        yield ErrorResponse(
            message=f"A maximum of {rules.max_breakpoints} blocks with cache_control may be provided. Found {found}."
        )


def _check_ttl_order(marked: list[_CacheableBlock]) -> Iterator[ErrorResponse]:
    shorter = False
    for block in marked:
        ttl = _read_ttl(block.cache_breakpoint)
        if shorter and ttl is Ttl.ONE_HOUR:
            yield _ttl_order_error(f"{block.path}.cache_control.ttl")
        shorter = shorter or ttl is Ttl.FIVE_MINUTES


def _check_automatic(
    blocks: list[_CacheableBlock], marked: list[_CacheableBlock], ttl: Ttl, rules: CacheRules
) -> Iterator[ErrorResponse]:
    """The mark of the whole request stands on the last block that can bear one."""
    last_block = next(
        (block for block in reversed(blocks) if block.kind in rules.breakpoint_kinds and not block.is_empty),
        None,
    )
    if last_block is None:
        return
    if last_block.cache_breakpoint is not None and _read_ttl(last_block.cache_breakpoint) is not ttl:
        yield ErrorResponse(
            message=f"cache_control: the last cacheable block ({last_block.path}) already has cache_control with "
            f"a different ttl ('{_read_ttl(last_block.cache_breakpoint)}', not '{ttl}')"
        )
    if ttl is Ttl.ONE_HOUR and any(_read_ttl(block.cache_breakpoint) is Ttl.FIVE_MINUTES for block in marked):
        yield _ttl_order_error("cache_control.ttl")


def _ttl_order_error(path: str) -> ErrorResponse:
    return ErrorResponse(
        message=f"{path}: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
        f"{_ORDER_NOTE}"
    )


def _read_ttl(cache_breakpoint: Any) -> Ttl:
    return Ttl.ONE_HOUR if as_dict(cache_breakpoint).get("ttl") == Ttl.ONE_HOUR else Ttl.FIVE_MINUTES
