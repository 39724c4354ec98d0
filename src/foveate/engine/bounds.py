"""How large and how dear a call can be at most, by what its request asks for."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import msgspec
from msgspec.structs import replace as replace_struct

from foveate import wire
from foveate.budget.answers import longest_answer_of
from foveate.budget.windows import window_of
from foveate.cost.price_book import PriceBook
from foveate.engine.cost_features import (
    MAX_NAME_CHARS,
    Feature,
    fallback_models,
    features_around,
    features_of,
    is_client_tool,
    modalities,
    searches_itself,
    without_allowed,
)
from foveate.fold.overflow import lower_end
from foveate.tokens import counter_for
from foveate.tokens.request_count import BOUNDED
from foveate.values import Format, Request, TokenCount, Ttl
from foveate.wire.around import around_of
from foveate.wire.bills import Unit
from foveate.wire.body import Fields, as_list, as_record, as_text, fields, inner_fields, is_said, record, value
from foveate.wire.gemini import request_fields as gemini_fields
from foveate.wire.large_json import contains

# Hosts take each other's names, and which of two they heed nobody knows: the largest counts.
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# So often a server's tools are taken to be used where the request does not say. Anthropic's loop ends after ten
# rounds (https://docs.anthropic.com/en/api/handling-stop-reasons, November 2026); others name no end.
_UNSAID_USES = 10
# So long a definition can be that the provider has for a tool of its own which the client runs.
_OWN_TOOL_TOKENS = 2_000
_WITHIN = dict.fromkeys(BOUNDED, 0)
# So long an answer can be where the window is that of the prompt alone, or is not known (November 2026: GPT-5).
_LONG_ANSWER_TOKENS = 128_000
_MOST_DIGITS = 18
# A search among tools, which has no fee.
_FREE_SEARCH = "tool_search"
_UNIT_WORDS = {
    Unit.INPUT_AUDIO: "audio input",
    Unit.OUTPUT_AUDIO: "audio output",
    Unit.OUTPUT_IMAGE: "generated images",
}
_UNIT_OF = {"audio": Unit.OUTPUT_AUDIO, "image": Unit.OUTPUT_IMAGE}
_TTL = b'"ttl"'
# Letters and the underscore written as escapes: names can be spelled so, and no encoder does it by itself.
_ESCAPED, _ESCAPED_LETTER = b"\\u00", re.compile(rb"\\u00(?:5[fF]|[67])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for that its price depends on.

    `output_tokens` is the limit that it sets an answer, None where it sets none that can be read. `answers` is
    how many it asks for, None where nobody can say. `tier` and `region` are the provider's own words.
    The provider reads its input up to `readings` times, since its tools run there, and makes up to `searches`.
    `within` has how much is added at most by what cannot be seen, where that is known, by its name. It can be
    answered by `models` too. Its output may have `modalities` beside text, and more tokens than the limit:
    those of a `prediction` that is not used, `added_tokens`, and a summary if the provider `compacts`.
    `features` are those whose cost is not known.
    """

    output_tokens: int | None = None
    answers: int | None = 1
    tier: str = ""
    region: str | None = None
    readings: int = 1
    searches: int = 0
    within: Mapping[str, int] = field(default_factory=lambda: _WITHIN)
    models: tuple[str, ...] = ()
    modalities: frozenset[str] = frozenset()
    prediction: str = ""
    added_tokens: int = 0
    compacts: bool = False
    features: tuple[Feature, ...] = ()

    @property
    def adds_input(self) -> bool:
        """Whether the provider adds to its input while it answers."""
        return self.readings > 1


def asked_of(request: Request) -> Asked:
    """What a request asks for."""
    around = around_of(request)
    if around is None:
        return _asked(request, fields(request.body))
    known: Asked | None = around.known.get(Asked)
    if known is None:
        known = around.known[Asked] = _asked(request, around.fields)
    return known


def _asked(request: Request, said: Fields | Mapping[str, bytes]) -> Asked:
    found = _parameters(request.format, said)
    given = [_whole(limit) for limit in _limits(request.format, said, found)]
    limits = [limit for limit in given if limit is not None]
    is_fast = as_text(found.get("speed")) == "fast"
    tools = [(_kind(request.format, raw), raw) for raw in request.tools]
    uses, searches = _uses(request.format, said, tools)
    manages = "context_management" in request.unexplained
    is_clearing = manages and _only_clears(found["context_management"])
    return Asked(
        output_tokens=max(limits) if limits and len(limits) == len(given) else None,
        answers=_answers(found),
        tier="fast" if is_fast else as_text(found.get("service_tier")),
        region=as_text(found.get("inference_geo")) or None,
        readings=1 + uses + (1 if manages and not is_clearing else 0),
        searches=searches,
        within=_WITHIN | _own_tools(tools) | ({"context_management": 0} if is_clearing else {}),
        models=tuple(fallback_models(request.format, said)),
        modalities=modalities(request.format, said),
        prediction=_prediction(found.get("prediction")),
        added_tokens=_whole(found.get("thinking_budget")) or 0,
        compacts=manages and not is_clearing,
        features=features_around(request.format, said, request.tools),
    )


def _answers(found: Mapping[str, object]) -> int | None:
    """How many answers are written: all of `best_of` are paid for, though `n` are returned."""
    given = [_whole(found[name]) for name in ("n", "best_of") if found.get(name) is not None]
    return None if None in given else max((one for one in given if one is not None), default=1)


def _prediction(said: object) -> str:
    """The text that a request predicts of its answer; all of it is paid for as output if it is not used.

    `rejected_prediction_tokens` are counted in the completion tokens "for purposes of billing" (OpenAI's API
    reference, read November 2026).
    """
    content = as_record(said).get("content")
    if isinstance(content, str):
        return content
    return "".join(as_text(as_record(part).get("text")) for part in as_list(content))


_COST_FIELDS = ("service_tier", "speed", "inference_geo", "context_management")
_NAMES = frozenset((*LIMITS, "n", "best_of", "prediction", "thinking_budget", *_COST_FIELDS))


def _limits(spoken: Format, said: Fields, found: Mapping[str, object]) -> list[object]:
    """Every limit that a request sets its answer.

    Gemini reads names in two spellings, and its limit bounds thinking and answer together: measured in
    https://github.com/googleapis/python-genai/issues/2062 (read November 2026).
    """
    if spoken is Format.GEMINI:
        limits = _gemini_config(said, "maxOutputTokens", "max_output_tokens")
    elif spoken is Format.BEDROCK:
        limits = [record(said.get("inferenceConfig")).get("maxTokens")]
    else:
        limits = [found.get(name) for name in LIMITS]
    return [limit for limit in limits if limit is not None]


def _parameters(spoken: Format, said: Fields) -> dict[str, object]:
    """The parameters in `_NAMES`, whatever a format calls them."""
    if spoken is Format.GEMINI:
        answers = _gemini_config(said, "candidateCount", "candidate_count")
        inner = gemini_fields(said)
        tiers = [value(inner.get(name)) for name in ("serviceTier", "service_tier")]
        return {"n": _first(answers), "service_tier": _first(tiers)}
    if spoken is Format.BEDROCK:
        return {"service_tier": record(said.get("serviceTier")).get("type")}
    return {name: value(said[name]) for name in _NAMES if name in said}


def _gemini_config(said: Fields, *names: str) -> list[object]:
    inner = gemini_fields(said)
    configs = [record(inner.get(name)) for name in ("generationConfig", "generation_config")]
    return [config.get(name) for config in configs for name in names]


def _first(values: Sequence[object]) -> object:
    return next((value for value in values if value is not None), None)


def _uses(
    spoken: Format, said: Fields | Mapping[str, bytes], tools: Sequence[tuple[str, bytes]]
) -> tuple[int, int]:
    """How often tools can be used that run at the provider, and how often it can search the web."""
    there = [(kind, _whole(record(raw).get("max_uses"))) for kind, raw in tools if not _runs_here(kind)]
    if is_said(said.get("mcp_servers")):
        there.append(("mcp", None))
    searches = [
        limit for kind, limit in there if "search" in kind.lower() and not kind.startswith(_FREE_SEARCH)
    ]
    if is_said(said.get("web_search_options")):  # it searches once, before it answers
        searches.append(1)
    total = _whole(value(said.get("max_tool_calls"))) if spoken is Format.RESPONSES else None
    if total is not None and all(kind != "mcp" for kind, _ in there):
        return (total if there else 0), (total if searches else 0)
    return _together([limit for _, limit in there]), _together(searches)


def _together(limits: list[int | None]) -> int:
    return sum(limit for limit in limits if limit is not None) + (_UNSAID_USES if None in limits else 0)


def _kind(spoken: Format, raw: bytes) -> str:
    """The kind of a tool; where it has a name of its own for that, nothing else is read."""
    if spoken in (Format.GEMINI, Format.BEDROCK):
        return wire.tool(spoken, raw).kind
    return as_text(value(inner_fields(raw).get("type"))) or "function"


def _runs_here(kind: str) -> bool:
    return is_client_tool(kind)


def _own_tools(tools: Sequence[tuple[str, bytes]]) -> dict[str, int]:
    """The most that the provider's definitions of tools come to that the client runs, by the tools' names."""
    found: dict[str, int] = {}
    for kind, raw in tools:
        if _runs_here(kind) and kind not in ("function", "custom"):
            for name in (kind, f"server tool {kind}"):
                found[name] = found.get(name, 0) + _OWN_TOOL_TOKENS + len(raw)
    return found


def _only_clears(managed: object) -> bool:
    """Whether the provider is only asked to leave something out, and not to write a summary of it."""
    edits = as_list(as_record(managed).get("edits")) if isinstance(managed, dict) else as_list(managed)
    return all(as_text(as_record(edit).get("type")).startswith("clear_") for edit in edits)


def _whole(said: object) -> int | None:
    """A number above zero, also as hosts take it that are not strict; None where it is none."""
    if isinstance(said, str) and said.isdecimal() and len(said) <= _MOST_DIGITS:
        said = int(said)
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    return said if type(said) is int and said > 0 else None


def longest_mark(request: Request) -> Ttl | None:
    """The longest time for which a mark in a request asks; None where there is none that says how long."""
    body = request.body
    if not contains(body, _TTL) and not (contains(body, _ESCAPED) and _ESCAPED_LETTER.search(body)):
        return None
    marks = [wire.automatic_mark(request), *(block.mark for block in wire.blocks(request))]
    return max((ttl for ttl in marks if ttl is not None), key=lambda ttl: ttl.seconds, default=None)


class AtMost(msgspec.Struct, frozen=True, kw_only=True):
    """The most tokens that a call can have, and how it is paid for.

    `added_tokens` are billed as output beyond any limit of it. `models` may answer in the place of `model`. It
    may be billed for `units` too, so that they need a price.
    """

    model: str
    provider: str
    input_tokens: int
    output_tokens: int
    at: float
    ttl: Ttl | None = None
    tier: str = ""
    region: str | None = None
    searches: int = 0
    added_tokens: int = 0
    models: tuple[str, ...] = ()
    units: tuple[Unit, ...] = ()

    def dollars(self, prices: PriceBook) -> Decimal | None:
        """The most that it can cost; None where that is not known of one of the models that may answer."""
        most = Decimal(0)
        for model in (self.model, *self.models):
            found = prices.ceiling(
                model,
                provider=self.provider,
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens + self.added_tokens,
                at=self.at,
                ttl=self.ttl,
                tier=self.tier,
                region=self.region,
                searches=self.searches,
                units=self.units,
            )
            if found is None:
                return None
            most = max(most, found)
        return most

    def unpriced(self, prices: PriceBook) -> str:
        """What the call may be billed for that has no price though its tokens have; empty if nothing."""
        plain = replace_struct(self, searches=0, units=(), models=())
        if plain.dollars(prices) is None:
            return ""
        for model in self.models:
            if replace_struct(plain, model=model).dollars(prices) is None:
                return f"the fallback model `{model[:MAX_NAME_CHARS]}`"
        names = [_UNIT_WORDS[unit] for unit in self.units]
        names += ["searches of the web"] if self.searches else []
        return " and ".join(names)


def at_most(
    request: Request,
    count: TokenCount,
    *,
    provider: str,
    window_tokens: int | None,
    ttl: Ttl | None,
    at: float,
    unexplained: Collection[str] = (),
    counted: Collection[str] = (),
    region: str | None = None,
    allowed: Collection[str] = (),
) -> AtMost | None:
    """The most that a request can come to; None where nobody can say.

    Features of unknown cost are looked for apart (`unknown_features`); of those that are `allowed` on purpose,
    nothing is reserved for fees that have no price. `unexplained` names what its provider adds that the request
    does not show, and `counted` those of them that `count` includes. `region` is where it is served, if that is
    known from elsewhere than the request.
    """
    asked = asked_of(request)
    input_tokens = most_input_tokens(
        request, count.upper, unexplained, window_tokens=window_tokens, counted=counted
    )
    if asked.answers is None or input_tokens is None:
        return None
    before = 0 if unexplained or request.unexplained else lower_end(count)
    longest = _longest_output(request.model, asked.output_tokens, before, window_tokens)
    for model in asked.models:
        # Another model may count more tokens, have a larger window and write longer answers.
        window = window_of(model)
        window_tokens = window.tokens if window is not None else None
        upper = counter_for(model).request(replace(request, model=model)).total.upper
        found = most_input_tokens(request, upper, unexplained, window_tokens=window_tokens, counted=counted)
        if found is None:
            return None
        input_tokens = max(input_tokens, found)
        longest = max(longest, _longest_output(model, asked.output_tokens, 0, window_tokens))
    added = asked.added_tokens
    if asked.prediction:
        added += counter_for(request.model).text(asked.prediction).upper
    if asked.compacts:
        added += _longest_output(request.model, None, 0, window_tokens)
    searches, units = _fees(asked, (request.model, *asked.models), allowed)
    return AtMost(
        model=request.model,
        provider=provider,
        input_tokens=input_tokens,
        output_tokens=longest * asked.answers,
        added_tokens=added * asked.answers,
        models=asked.models,
        units=units,
        at=at,
        ttl=ttl,
        tier=asked.tier,
        region=region or asked.region,
        searches=searches,
    )


def _fees(asked: Asked, models: Sequence[str], allowed: Collection[str]) -> tuple[int, tuple[Unit, ...]]:
    """How many searches are paid for, and what else is billed beside text; nothing that is `allowed`."""
    kinds = [Feature("field", "modalities"), Feature("tool", "web_search")]
    kept = {one.name for one in without_allowed([*kinds, *(Feature("model", one) for one in models)], allowed)}
    searching = any(searches_itself(model) for model in models if model in kept)
    searches = max(asked.searches if "web_search" in kept else 0, _UNSAID_USES if searching else 0)
    units = {_UNIT_OF[one] for one in asked.modalities if one in _UNIT_OF and "modalities" in kept}
    if any("audio" in model.lower() for model in models if model in kept):
        units.add(Unit.INPUT_AUDIO)
    return searches, tuple(sorted(units))


def unknown_features(request: Request, provider: str, allowed: Collection[str] = ()) -> tuple[Feature, ...]:
    """The features of a request whose cost is not known, but for those that are `allowed` on purpose."""
    asked = asked_of(request)
    return without_allowed((*asked.features, *features_of(request, asked.models, provider)), allowed)


def most_input_tokens(
    request: Request,
    upper: int,
    unexplained: Collection[str],
    *,
    window_tokens: int | None,
    counted: Collection[str] = (),
) -> int | None:
    """The most input that a request is billed whose own is at most `upper`; None where nobody can say.

    What the provider fetches, or has kept, fits into the window, and so does what each use of its tools adds.
    """
    asked = asked_of(request)
    if not unexplained and not request.unexplained and not asked.adds_input:
        return upper
    hidden = {*unexplained, *request.unexplained}.difference(counted)
    within = sum(asked.within[name] for name in hidden if name in asked.within)
    if not asked.adds_input and hidden <= asked.within.keys():
        return upper + within
    return None if window_tokens is None else asked.readings * max(upper + within, window_tokens)


def _longest_output(model: str, limit_tokens: int | None, input_tokens: int, window_tokens: int | None) -> int:
    """How long an answer of a model can be whose request has this limit."""
    known = longest_answer_of(model)
    if known is not None:
        return min(limit_tokens or known.tokens, known.tokens)
    return _longest_answer(input_tokens, window_tokens) if limit_tokens is None else limit_tokens


def _longest_answer(input_tokens: int, window_tokens: int | None) -> int:
    """How long an answer can be to which no limit is set, of a model that nothing more is known of."""
    if window_tokens is None:
        return _LONG_ANSWER_TOKENS
    return max(window_tokens - input_tokens, min(window_tokens, _LONG_ANSWER_TOKENS))
