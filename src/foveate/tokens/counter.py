"""The count of a request."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec
from msgspec.structs import replace

from foveate import formats
from foveate.caching import DEFAULT_CAPACITY, LruCache, hash_bytes, register
from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import get_envelope
from foveate.formats.incremental.history import count_memoized
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE
from foveate.model import ZERO_TOKENS, Format, Message, Request, TokenCount
from foveate.notebook import BarRow, format_tokens, render_bars
from foveate.tokens.accuracy import (
    AccuracyAssessment,
    AccuracyAssessor,
    AccuracyProfile,
    RawCount,
    RequestOrigin,
    accuracy_features,
    load_evidence,
    message_features,
    tool_features,
)
from foveate.tokens.rendering.rendering import MeasuredRendering, Rendering, RenderingRules, measure_renderings
from foveate.tokens.text_meter import TextMeter
from foveate.tokens.tokenizers.tokenizer import CachingMeasurer, Tokenizer, length_to_count
from foveate.tokens.worker_threads import frequent_thread_switches

# Not visible in the request, but covered by the bound: images have a maximum size, encrypted thinking is at
# most as long as its data, and a guardrail is not part of the input.
BOUNDED_UNEXPLAINED = frozenset(("image (url)", "image (file)", "sealed reasoning", "guardrailConfig"))


# Model names that select a system of the provider, which decides what it adds to the input: Groq's compound
# systems search and run code, OpenRouter's presets contain prompts, and `:online` adds the results of a web
# search (console.groq.com/docs/compound, openrouter.ai/docs; November 2026).
PROVIDER_SYSTEMS = {
    "compound system": re.compile(r"(^|/)compound(-|$)"),
    "preset": re.compile(r"(^|@)@?preset/"),
    "web plugin": re.compile(r":online$"),
}


def provider_systems(model: str) -> tuple[str, ...]:
    name = model.lower().strip()
    return tuple(system for system, pattern in PROVIDER_SYSTEMS.items() if pattern.search(name))


@dataclass(frozen=True, slots=True)
class PartCount:
    """One row of a request's breakdown."""

    name: str
    tokens: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestCount:
    """Count of a request: the total, its parts, and what is not visible in the request.

    `unexplained` names what the provider adds that the request does not show, such as the results of a
    server-side tool. `total.upper` bounds the rest.
    """

    model: str
    backend: str
    total: TokenCount
    parts: tuple[PartCount, ...] = ()
    unexplained: tuple[str, ...] = ()

    @property
    def upper(self) -> int | None:
        """Upper bound for all input that is charged. None if the provider decides how much it adds."""
        return self.total.upper if BOUNDED_UNEXPLAINED.issuperset(self.unexplained) else None

    def __repr__(self) -> str:
        """Without the parts: there is one for each message."""
        hidden = f", not counted: {', '.join(self.unexplained)}" if self.unexplained else ""
        return f"<RequestCount {self.model}: {self._size}, {len(self.parts):,} parts{hidden}>"

    @property
    def _size(self) -> str:
        if self.total.exact:
            return f"{self.total.tokens:,} tokens"
        return f"~{self.total.tokens:,} tokens, at most {self.total.upper:,}"

    def _repr_html_(self) -> str:
        rows = [
            BarRow(
                name=part.name,
                tokens=part.tokens,
                tokens_before=part.tokens,
                size=format_tokens(part.tokens, exact=part.exact),
            )
            for part in self.parts
            if part.tokens
        ]
        return render_bars(f"{self.model}: {self._size}", rows)


class Tally(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Counts of the messages so far: tokens, images, and thinking of the current turn."""

    messages: int = 0
    tokens: float = 0.0
    upper: float = 0.0
    image_tokens: int = 0
    image_upper: int = 0
    thinking_tokens: float = 0.0
    thinking_upper: float = 0.0
    certain: bool = True
    loaded_tools: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    features: int = 0
    # Parallel calls whose results form one list, and the number of results that are still missing.
    parallel_calls: int = 0
    missing_results: int = 0
    # Facts about the last message that the sums do not show.
    last_thinking_tokens: float = 0.0
    last_opens_turn: bool = False
    last_is_certain: bool = True
    previous: "Tally | None" = None

    def with_message(self, message: MeasuredRendering, *, keeps_thinking: bool) -> "Tally":
        drops_thinking = message.opens_turn and not keeps_thinking
        tokens, upper, certain = message.tokens, message.upper, message.certain
        parallel_calls = missing_results = message.parallel_calls
        if message.entry_tokens and self.missing_results:
            first, other, last = message.entry_tokens
            parallel_calls, missing_results = self.parallel_calls, self.missing_results - 1
            tokens = first if self.missing_results == parallel_calls else other if missing_results else last
            upper += tokens - message.tokens + message.entry_margin_tokens
            certain = certain and not message.entry_margin_tokens
        unexplained = self.unexplained
        if message.unexplained:
            unexplained = tuple(dict.fromkeys(unexplained + message.unexplained))
        return Tally(
            messages=self.messages + 1,
            tokens=self.tokens + tokens,
            upper=self.upper + upper,
            image_tokens=self.image_tokens + message.image_tokens,
            image_upper=self.image_upper + message.image_upper,
            thinking_tokens=message.thinking_tokens + (0 if drops_thinking else self.thinking_tokens),
            thinking_upper=message.thinking_upper + (0 if drops_thinking else self.thinking_upper),
            certain=self.certain and certain,
            loaded_tools=self.loaded_tools + message.loaded_tools
            if message.loaded_tools
            else self.loaded_tools,
            unexplained=unexplained,
            features=self.features | message.features,
            parallel_calls=parallel_calls,
            missing_results=missing_results,
            last_thinking_tokens=message.thinking_tokens,
            last_opens_turn=message.opens_turn,
            last_is_certain=certain and not message.unexplained,
            previous=self,
        )

    def after_head(self, head: "Tally") -> "Tally":
        """Combine with the tally of system messages before these. Those contain no thinking."""
        return Tally(
            messages=head.messages + self.messages,
            tokens=head.tokens + self.tokens,
            upper=head.upper + self.upper,
            image_tokens=head.image_tokens + self.image_tokens,
            image_upper=head.image_upper + self.image_upper,
            thinking_tokens=self.thinking_tokens,
            thinking_upper=self.thinking_upper,
            certain=head.certain and self.certain,
            loaded_tools=head.loaded_tools + self.loaded_tools,
            unexplained=tuple(dict.fromkeys(head.unexplained + self.unexplained)),
            features=head.features | self.features,
        )

    def message_tokens(self, *, keeps_thinking: bool) -> list[tuple[float, bool]]:
        """For each message in order: the tokens that it adds, and whether they are certain."""
        counts: list[tuple[float, bool]] = []
        counts_thinking = True
        tally = self
        while tally.previous is not None:
            thinking_tokens = tally.last_thinking_tokens if counts_thinking else 0
            counts.append((tally.tokens - tally.previous.tokens + thinking_tokens, tally.last_is_certain))
            counts_thinking = counts_thinking and (keeps_thinking or not tally.last_opens_turn)
            tally = tally.previous
        return counts[::-1]


EMPTY_TALLY = Tally()


_MIN_LONG_CHARS = 8 * 1024
# System messages of a few agents. Longer ones are cached by their hash.
_MAX_CACHED_HEADS = 64
_MAX_CACHED_ASSESSMENTS = 256
_MAX_HEAD_KEY_BYTES = 16 * 1024
# Messages are parsed and rendered under the GIL, and tokenised without it. Working in batches lets other
# threads run in between.
_MESSAGES_PER_BATCH = 64
# What a router's translation may add: 8 recordings of chats that a router translated into Gemini's format.
_TRANSLATED_SPREAD, _TRANSLATED_TOKENS = 0.05, 10


class EnvelopeCount(msgspec.Struct, frozen=True):
    system: MeasuredRendering
    tools: MeasuredRendering
    frame: MeasuredRendering
    tokens: float
    upper: float
    certain: bool
    unexplained: tuple[str, ...]
    features: frozenset[str]

    @classmethod
    def combine(
        cls,
        system: MeasuredRendering,
        tools: MeasuredRendering,
        frame: MeasuredRendering,
        features: frozenset[str],
    ) -> "EnvelopeCount":
        parts = (system, tools, frame)
        return cls(
            system,
            tools,
            frame,
            sum(part.tokens + part.image_tokens for part in parts),
            sum(part.upper + part.image_upper for part in parts),
            all(is_certain(part) for part in parts),
            tuple(dict.fromkeys(name for part in parts for name in part.unexplained)),
            features,
        )


def is_certain(part: MeasuredRendering) -> bool:
    """Return whether the rules for a part are known, and it contains everything that is charged for it."""
    return part.certain and not part.unexplained


class _CounterCache:
    """Everything that a counter caches. `clear` replaces it, so counts under way keep the old one."""

    def __init__(self, capacity: int) -> None:
        # Tools. Saves 39% of the CPU of a session's first request with 500 tools that other sessions have sent.
        self.parts: LruCache[tuple[MeasuredRendering, frozenset[str]]] = LruCache(capacity)
        self.head_tallies: LruCache[Tally] = LruCache(_MAX_CACHED_HEADS)
        self.last_frame = Rendering(), MeasuredRendering()
        self.assessments: dict[tuple[Format, bool, frozenset[str], int], AccuracyAssessment] = {}


class RequestCounter:
    """Token counter for one model: the rendering rules of its family, and a tokenizer."""

    def __init__(
        self,
        *,
        model: str,
        backend: str,
        tokenizer: Tokenizer,
        rules: RenderingRules,
        capacity: int = DEFAULT_CAPACITY,
        assessor: AccuracyAssessor | None = None,
    ) -> None:
        """`assessor` decides which counts are exact and how wide their bounds are. Default: the shipped
        evidence.
        """
        self.model = model
        self.backend = backend
        self._provider_systems = provider_systems(model)
        self._measurer = CachingMeasurer(tokenizer, capacity)
        self._tokenizer = tokenizer
        self._rules = rules
        self._assessor = assessor
        self._capacity = capacity
        self._cache = _CounterCache(capacity)
        self.text_meter = TextMeter(tokenizer)
        register(self)

    def clear(self) -> None:
        """Empty the caches. Counts under way are not disturbed."""
        self._cache = _CounterCache(self._capacity)
        self._measurer.clear()
        self.text_meter.clear()

    def text(self, text: str) -> TokenCount:
        """Count a text. Never raises; an empty text is 0."""
        if len(text) < _MIN_LONG_CHARS:  # the context manager would add a quarter to the time of a short text
            length = self._measurer.measure(text)
        else:
            with frequent_thread_switches(len(text)):
                length = self._measurer.measure(text)
        return length_to_count(length, exact=self._measurer.exact) if text else ZERO_TOKENS

    def count_message(self, message: Message) -> TokenCount:
        """Count one message with its own overhead, without what a request adds."""
        measured = measure_renderings([self._rules.render_message(message)], self._measurer)[0]
        total = measured.tokens + measured.image_tokens + measured.thinking_tokens
        upper = measured.upper + measured.image_upper + measured.thinking_upper
        certain = measured.certain and not measured.unexplained and not measured.thinking_tokens
        return _round_count(total, upper, exact=self._measurer.exact and certain)

    def count_request(self, request: Request, *, with_parts: bool = True) -> RequestCount:
        """Count a whole request, with its parts if `with_parts`.

        Raises:
            MalformedRequest: a part cannot be parsed, or is nested too deeply to be rendered.
        """
        with frequent_thread_switches(len(request.body)):
            return self._count_request(request, with_parts=with_parts)

    def _count_request(self, request: Request, *, with_parts: bool) -> RequestCount:
        try:
            history = formats.message_history(request)
            head, tally = self.tally_head(request, history), self.tally_messages(request, history)
            return self.build_count(request, history, head, tally, with_parts=with_parts)
        except RecursionError:
            raise MalformedRequest(TOO_DEEP_MESSAGE) from None

    def build_count(
        self, request: Request, history: formats.MessageHistory, head: Tally, tally: Tally, *, with_parts: bool
    ) -> RequestCount:
        all_messages = tally.after_head(head) if history.leading_system_messages else tally
        envelope_count = self.cached_envelope_count(request, history, all_messages.loaded_tools)
        total = self.total(request, envelope_count, all_messages)
        return RequestCount(
            model=self.model,
            backend=self.backend,
            total=total,
            parts=self._breakdown(envelope_count, head, tally, total) if with_parts else (),
            unexplained=_join_unexplained(envelope_count, all_messages),
        )

    def cached_envelope_count(
        self, request: Request, history: formats.MessageHistory, loaded_tools: Sequence[str]
    ) -> EnvelopeCount:
        envelope = get_envelope(request)
        if envelope is None or not request.messages:
            return self.count_envelope(request, *self._first_and_last(request), loaded_tools)
        # Of the first and last message only the roles matter, unless the first is a system message.
        first = request.messages[0] if history.leading_system_messages else history.nodes[0].role
        key = first, history.nodes[-1].role if history.nodes else "", loaded_tools
        cached_key, envelope_count = envelope.memo.get(self._cache, (None, None))
        if cached_key != key or envelope_count is None:
            envelope_count = self.count_envelope(request, *self._first_and_last(request), loaded_tools)
            envelope.memo[self._cache] = key, envelope_count
        result: EnvelopeCount = envelope_count
        return result

    def count_envelope(
        self, request: Request, first: Message | None, last: Message | None, loaded_tools: Sequence[str] = ()
    ) -> EnvelopeCount:
        """Count everything except the messages.

        The first and last message can change what is added around all messages. `loaded_tools` are deferred
        tools that messages load.
        """
        renderings = [
            self._rules.render_system(request),
            self._rules.render_tool_preamble(request, first, loaded_tools),
        ]
        system, tool_preamble = measure_renderings(renderings, self._measurer)
        frame = self.measure_frame(request, first, last)
        tools, features = self._measure_tools(request, tool_preamble)
        return EnvelopeCount.combine(system, tools, frame, accuracy_features(request) | features)

    def measure_frame(self, request: Request, first: Message | None, last: Message | None) -> MeasuredRendering:
        rendering = self._rules.render_frame(request, first, last)
        if request.format not in self._rules.api_formats:
            margin = rendering.margin_tokens + _TRANSLATED_TOKENS
            rendering = replace(rendering, margin_tokens=margin, certain=False)
        if hidden := request.unexplained + self._provider_systems:
            rendering = replace(rendering, unexplained=hidden + rendering.unexplained)
        cache = self._cache
        last_rendering, measured = cache.last_frame
        if rendering != last_rendering:
            measured = measure_renderings([rendering], self._measurer)[0]
            cache.last_frame = rendering, measured
        return measured

    def extend_tally(self, tally: Tally, *messages: Message) -> Tally:
        """The cost does not depend on the length of the session."""
        return self.add_measured(tally, self.measure_messages(*messages))

    def measure_messages(self, *messages: Message) -> list[MeasuredRendering]:
        measured: list[MeasuredRendering] = []
        for start in range(0, len(messages), _MESSAGES_PER_BATCH):
            renderings = [self._rules.render_message(m) for m in messages[start : start + _MESSAGES_PER_BATCH]]
            # Messages of a new turn rarely repeat, so their texts are cached only briefly.
            features = [message_features(m) for m in messages[start : start + _MESSAGES_PER_BATCH]]
            measured += measure_renderings(renderings, self._measurer.recent, features)
        return measured

    def add_measured(self, tally: Tally, measured: Iterable[MeasuredRendering]) -> Tally:
        for message in measured:
            tally = tally.with_message(message, keeps_thinking=self._rules.keeps_thinking)
        return tally

    def total(self, request: Request, envelope_count: EnvelopeCount, tally: Tally) -> TokenCount:
        tokens, upper, certain = self._sum_counts(request, envelope_count, tally)
        return self._assess(request.format, certain, envelope_count, tally).apply(tokens, upper)

    def raw_count(self, request: Request) -> RawCount:
        """Count a request without assessing the accuracy; used to produce the evidence."""
        history = formats.message_history(request)
        tally = self.tally_messages(request, history)
        all_messages = (
            tally.after_head(self.tally_head(request, history)) if history.leading_system_messages else tally
        )
        envelope_count = self.cached_envelope_count(request, history, all_messages.loaded_tools)
        tokens, upper, certain = self._sum_counts(request, envelope_count, all_messages)
        profile = self._build_profile(request.format, certain, envelope_count, all_messages)
        return RawCount(
            tokens=tokens,
            upper=upper,
            profile=profile,
            unexplained=_join_unexplained(envelope_count, all_messages),
        )

    def _sum_counts(
        self, request: Request, envelope_count: EnvelopeCount, tally: Tally
    ) -> tuple[float, float, bool]:
        """Return the tokens, the upper bound of the rules, and whether all rules are known."""
        total = envelope_count.tokens + tally.tokens + tally.image_tokens + tally.thinking_tokens
        upper = envelope_count.upper + tally.upper + tally.image_upper + tally.thinking_upper
        certain = tally.certain and not tally.unexplained and tally.thinking_upper == tally.thinking_tokens
        if request.format not in self._rules.api_formats:
            upper += _TRANSLATED_SPREAD * total
        return total, upper, self._measurer.exact and certain and envelope_count.certain

    def _build_profile(
        self, api_format: Format, certain: bool, envelope_count: EnvelopeCount, tally: Tally
    ) -> AccuracyProfile:
        rules = self._rules
        return AccuracyProfile(
            origin=RequestOrigin(rules.vendor, str(api_format), rules.family, rules.generation),
            certain=certain,
            features=envelope_count.features,
            message_features=tally.features,
        )

    def _assess(
        self, api_format: Format, certain: bool, envelope_count: EnvelopeCount, tally: Tally
    ) -> AccuracyAssessment:
        key = api_format, certain, envelope_count.features, tally.features
        assessments = self._cache.assessments
        assessment = assessments.get(key)
        if assessment is None:
            if len(assessments) >= _MAX_CACHED_ASSESSMENTS:
                assessments.clear()
            profile = self._build_profile(api_format, certain, envelope_count, tally)
            assessment = assessments[key] = (self._assessor or load_evidence()).assess(profile)
        return assessment

    def _first_and_last(self, request: Request) -> tuple[Message | None, Message | None]:
        if not request.messages:
            return None, None
        first, last = (formats.parse_message(request.format, request.messages[end]) for end in (0, -1))
        return first, last

    def _measure_tools(
        self, request: Request, preamble: MeasuredRendering
    ) -> tuple[MeasuredRendering, frozenset[str]]:
        api_format = request.format.encode()
        keys = [hash_bytes(api_format, i.to_bytes(8, "little"), raw) for i, raw in enumerate(request.tools)]
        parts = self._cache.parts
        cached = [parts.get(key) for key in keys]
        new = [i for i, counted_tools in enumerate(cached) if counted_tools is None]
        tools = [formats.parse_tool(request.format, request.tools[i]) for i in new]
        fresh = measure_renderings(
            [self._rules.render_tool(t, i) for t, i in zip(tools, new, strict=True)], self._measurer
        )
        for i, tool, measured in zip(new, tools, fresh, strict=True):
            # Without an exact tokenizer no count is exact, whatever the features are.
            measured_tool = measured, tool_features(tool) if self._measurer.exact else frozenset[str]()
            cached[i] = measured_tool
            parts.put(keys[i], measured_tool)
        counted_tools = [tool for tool in cached if tool is not None]
        measured_parts = [preamble, *(measured for measured, _ in counted_tools)]
        total = MeasuredRendering(
            tokens=sum(part.tokens for part in measured_parts),
            upper=sum(part.upper for part in measured_parts),
            certain=all(part.certain for part in measured_parts),
            unexplained=tuple(dict.fromkeys(name for part in measured_parts for name in part.unexplained)),
        )
        return total, frozenset[str]().union(*(features for _, features in counted_tools))

    def cached_tally(self, history: formats.MessageHistory) -> tuple[int, Tally]:
        """Return how many leading messages are counted already, and their tally."""
        cache, nodes = self._cache, history.nodes
        counted_messages = count_memoized(nodes, cache)
        return counted_messages, nodes[counted_messages - 1].memo[cache][0] if counted_messages else EMPTY_TALLY

    def new_envelope_bytes(self, request: Request) -> int:
        """Size of the envelope if it has not been counted yet, otherwise 0."""
        envelope = get_envelope(request)
        if envelope is not None and self._cache in envelope.memo:
            return 0
        return len(request.body) - sum(map(len, request.messages))

    def measured_at(self, history: formats.MessageHistory, position: int) -> MeasuredRendering:
        measured: MeasuredRendering = history.nodes[position].memo[self._cache][1]
        return measured

    def tally_at(self, history: formats.MessageHistory, position: int) -> Tally:
        """Tally up to and including one message that is counted already."""
        tally: Tally = history.nodes[position].memo[self._cache][0]
        return tally

    @property
    def keeps_thinking(self) -> bool:
        return self._rules.keeps_thinking

    def store_tally(
        self, history: formats.MessageHistory, start: int, tally: Tally, measured: Iterable[MeasuredRendering]
    ) -> Tally:
        """Extend `tally`, which covers the first `start` messages, to all messages, and cache it at each of
        them.
        """
        cache = self._cache
        for node, message in zip(history.nodes[start:], measured, strict=True):
            tally = self.add_measured(tally, (message,))
            node.memo[cache] = tally, message
        return tally

    def tally_messages(self, request: Request, history: formats.MessageHistory) -> Tally:
        start, tally = self.cached_tally(history)
        while start < len(history.nodes):
            end = min(start + _MESSAGES_PER_BATCH, len(history.nodes))
            raws = [node.raw for node in history.nodes[start:end]]
            measured = self._measure_raw_messages(request.format, raws)
            tally = self.store_tally(
                formats.MessageHistory(history.leading_system_messages, history.nodes[:end]),
                start,
                tally,
                measured,
            )
            start = end
        return tally

    def _measure_raw_messages(self, api_format: Format, raws: Sequence[bytes]) -> list[MeasuredRendering]:
        messages = [formats.parse_message(api_format, formats.strip_breakpoints(raw)) for raw in raws]
        features = [message_features(message) for message in messages]
        return measure_renderings(
            [self._rules.render_message(message) for message in messages], self._measurer, features
        )

    def tally_head(self, request: Request, history: formats.MessageHistory) -> Tally:
        """Tally the system messages at the beginning."""
        if not history.leading_system_messages:
            return EMPTY_TALLY
        raws = request.messages[: history.leading_system_messages]
        is_short = sum(map(len, raws)) < _MAX_HEAD_KEY_BYTES
        head_tallies, key = self._cache.head_tallies, (request.format, raws if is_short else hash_bytes(*raws))
        tally = head_tallies.get(key)
        if tally is None:
            measured = self._measure_raw_messages(request.format, raws)
            tally = self.add_measured(EMPTY_TALLY, measured)
            head_tallies.put(key, tally)
        return tally

    def _breakdown(
        self, envelope_count: EnvelopeCount, head: Tally, tally: Tally, total: TokenCount
    ) -> tuple[PartCount, ...]:
        keeps_thinking = self._rules.keeps_thinking
        messages = (
            *head.message_tokens(keeps_thinking=keeps_thinking),
            *tally.message_tokens(keeps_thinking=keeps_thinking),
        )
        images = head.image_tokens + tally.image_tokens + envelope_count.system.image_tokens
        image_upper = head.image_upper + tally.image_upper
        rows: list[tuple[str, float, bool]] = [
            ("system", envelope_count.system.tokens, is_certain(envelope_count.system)),
            ("tools", envelope_count.tools.tokens, is_certain(envelope_count.tools)),
            *((f"messages[{i}]", *message) for i, message in enumerate(messages)),
            ("images", images, image_upper == head.image_tokens + tally.image_tokens),
            ("overhead", envelope_count.frame.tokens, is_certain(envelope_count.frame)),
        ]
        rounded = _round_parts([tokens for _, tokens, _ in rows], total.tokens)
        return tuple(
            PartCount(name, tokens, total.exact and certain)
            for (name, _, certain), tokens in zip(rows, rounded, strict=True)
        )


def _round_count(tokens: float, upper: float, *, exact: bool) -> TokenCount:
    rounded = max(0, round(tokens))
    return TokenCount(rounded, exact, rounded if exact else max(rounded, math.ceil(upper)))


def _round_parts(parts: Sequence[float], total: int) -> list[int]:
    """Round `parts` so that they add up to `total`, each by less than one."""
    ends = [round(end) for end in accumulate(parts)]
    ends[-1] = total
    return [end - start for start, end in pairwise((0, *ends))]


def _join_unexplained(envelope_count: EnvelopeCount, tally: Tally) -> tuple[str, ...]:
    if not tally.unexplained:
        return envelope_count.unexplained
    return tuple(dict.fromkeys(envelope_count.unexplained + tally.unexplained))
