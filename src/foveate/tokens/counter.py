"""Counts texts, messages and whole requests offline, and remembers what it counted.

What cost most in other tools was counting again what had been counted before. What the messages of a request
come to is noted with them in the tree of conversations: the longest beginning that was seen before is taken
from there, and only what follows is read, rendered and tokenised.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.tokens.caches import register
from foveate.tokens.courtesy import courtesy
from foveate.tokens.evidence import Judge, Profile, RawCount, Subject, Verdict, evidence
from foveate.tokens.features import message_features, request_features, tool_features
from foveate.tokens.gauge import Gauge
from foveate.tokens.memo import DEFAULT_CAPACITY, Memo, digest
from foveate.tokens.opening import Opening, is_certain
from foveate.tokens.remembering import Remembering
from foveate.tokens.rendering import Measured, Rendering, Rules, Yardstick, measure, text_count
from foveate.tokens.request_count import PartCount, RequestCount, provider_systems
from foveate.tokens.tally import EMPTY, Tally
from foveate.values import NOTHING, Format, Message, Request, TokenCount
from foveate.wire.around import around_of
from foveate.wire.body import TOO_DEEP
from foveate.wire.trails import noted

_NOTICED_CHARS = 8 * 1024
# So many of a request's last messages are remembered alone: marks that move along the tail change some of them.
_REMEMBERED_TAIL = 16
# The system messages of a few agents; those that are longer are told by their digest, and not held.
_KEPT_HEADS = 64
_KEPT_VERDICTS = 256
_SHORT_HEAD_BYTES = 16 * 1024
# Messages are read and rendered under the interpreter's lock and tokenised without it: so many in turn, and no
# other thread has to wait until all of a long session are read.
_MESSAGES_AT_ONCE = 64
# What a translation on the way may add: 8 recordings of chats that a router turned into Gemini's format.
_TRANSLATED_SPREAD, _TRANSLATED_TOKENS = 0.05, 10


class _Memory:
    """What was counted before. A new one in its place drops it all; who is counting goes on with the old."""

    def __init__(self, capacity: int) -> None:
        self.parts: Memo[tuple[Measured, frozenset[str]]] = Memo(capacity)
        self.tail: Memo[Measured] = Memo(capacity)
        self.heads: Memo[Tally] = Memo(_KEPT_HEADS)
        self.last_frame = Rendering(), Measured()
        self.verdicts: dict[tuple[Format, bool, frozenset[str], int], Verdict] = {}


class RequestCounter:
    """Counts for one model, by one family's rules and ruler."""

    def __init__(
        self,
        *,
        model: str,
        backend: str,
        ruler: Yardstick,
        rules: Rules,
        capacity: int = DEFAULT_CAPACITY,
        judge: Judge | None = None,
    ) -> None:
        """`judge` says what its counts are worth; by default the evidence that ships with Foveate."""
        self.model = model
        self.backend = backend
        self._provider_systems = provider_systems(model)
        self._ruler = Remembering(ruler, capacity)
        self._plain_ruler = ruler
        self._rules = rules
        self._judge = judge
        self._capacity = capacity
        self._memory = _Memory(capacity)
        self.gauge = Gauge(ruler)
        register(self)

    def drop(self) -> None:
        """Forget all that was counted; counts that are under way are not disturbed."""
        self._memory = _Memory(self._capacity)
        self._ruler.drop()
        self.gauge.drop()

    def text(self, text: str) -> TokenCount:
        """The count of a text alone. Never raises; an empty text is 0."""
        if len(text) < _NOTICED_CHARS:  # entering a context takes a short text a quarter longer
            length = self._ruler.length(text)
        else:
            with courtesy(len(text)):
                length = self._ruler.length(text)
        return text_count(length, exact=self._ruler.exact) if text else NOTHING

    def message(self, message: Message) -> TokenCount:
        """The count of one message, with what goes around it but nothing that a request adds."""
        measured = measure([self._rules.message(message)], self._ruler)[0]
        total = measured.tokens + measured.image_tokens + measured.thought_tokens
        upper = measured.upper + measured.image_upper + measured.thought_upper
        certain = measured.certain and not measured.unexplained and not measured.thought_tokens
        return _rounded(total, upper, exact=self._ruler.exact and certain)

    def request(self, request: Request, *, in_parts: bool = True) -> RequestCount:
        """The count of a whole request, part by part where that is wanted.

        Raises:
            MalformedRequest: a part cannot be read, or is nested too deeply to be rendered.
        """
        with courtesy(len(request.body)):
            return self._request(request, in_parts=in_parts)

    def _request(self, request: Request, *, in_parts: bool) -> RequestCount:
        try:
            trail = wire.trail(request)
            head, tally = self.head(request, trail), self.tally(request, trail)
            return self.counted(request, trail, head, tally, in_parts=in_parts)
        except RecursionError:
            raise MalformedRequest(TOO_DEEP) from None

    def counted(
        self, request: Request, trail: wire.Trail, head: Tally, tally: Tally, *, in_parts: bool
    ) -> RequestCount:
        """The count of a request whose messages are counted."""
        together = tally.behind(head) if trail.head else tally
        opening = self.around(request, trail, together.loads)
        total = self.total(request, opening, together)
        return RequestCount(
            model=self.model,
            backend=self.backend,
            total=total,
            parts=self._breakdown(opening, head, tally, total) if in_parts else (),
            unexplained=_joined(opening, together),
        )

    def around(self, request: Request, trail: wire.Trail, loads: Sequence[str]) -> Opening:
        """The opening, counted once for requests that have the same around their messages."""
        around = around_of(request)
        if around is None or not request.messages:
            return self.opening(request, *self._ends(request), loads)
        # Of the ends only the roles matter, but for a system message.
        first = request.messages[0] if trail.head else trail.links[0].role
        key = first, trail.links[-1].role if trail.links else "", loads
        known, opening = around.known.get(self._memory, (None, None))
        if known != key or opening is None:
            opening = self.opening(request, *self._ends(request), loads)
            around.known[self._memory] = key, opening
        found: Opening = opening
        return found

    def opening(
        self, request: Request, first: Message | None, last: Message | None, loads: Sequence[str] = ()
    ) -> Opening:
        """The count of everything but the messages.

        Of those the ends can matter to what goes around them, and the deferred tools that they `loads`.
        """
        around = [self._rules.system(request), self._rules.toolbox(request, first, loads)]
        system, toolbox = measure(around, self._ruler)
        frame = self.frame(request, first, last)
        tools, features = self._tools(request, toolbox)
        return Opening.of(system, tools, frame, request_features(request) | features)

    def frame(self, request: Request, first: Message | None, last: Message | None) -> Measured:
        """The part of the opening that the last message can change."""
        rendering = self._rules.frame(request, first, last)
        if request.format not in self._rules.speaks:
            margin = rendering.margin_tokens + _TRANSLATED_TOKENS
            rendering = replace(rendering, margin_tokens=margin, certain=False)
        if hidden := request.unexplained + self._provider_systems:
            rendering = replace(rendering, unexplained=hidden + rendering.unexplained)
        memory = self._memory
        known, measured = memory.last_frame
        if rendering != known:
            measured = measure([rendering], self._ruler)[0]
            memory.last_frame = rendering, measured
        return measured

    def extend(self, tally: Tally, *messages: Message) -> Tally:
        """`tally` with more messages; costs what they cost, however long the session is."""
        return self.add(tally, self.measured(*messages))

    def measured(self, *messages: Message) -> list[Measured]:
        """What each message comes to by itself."""
        found: list[Measured] = []
        for start in range(0, len(messages), _MESSAGES_AT_ONCE):
            renderings = [self._rules.message(m) for m in messages[start : start + _MESSAGES_AT_ONCE]]
            # A turn is new, so there is nothing to be remembered of it for long.
            features = [message_features(m) for m in messages[start : start + _MESSAGES_AT_ONCE]]
            found += measure(renderings, self._ruler.latest, features)
        return found

    def add(self, tally: Tally, measured: Iterable[Measured]) -> Tally:
        """`tally` with messages that are measured already."""
        for message in measured:
            tally = tally.plus(message, keeps_thoughts=self._rules.keeps_thoughts)
        return tally

    def total(self, request: Request, opening: Opening, tally: Tally) -> TokenCount:
        """Opening and messages together."""
        tokens, upper, certain = self._sums(request, opening, tally)
        return self._verdict(request.format, certain, opening, tally).judge(tokens, upper)

    def raw_count(self, request: Request) -> RawCount:
        """The count of a request before it is judged, for those who make the evidence."""
        trail = wire.trail(request)
        tally = self.tally(request, trail)
        together = tally.behind(self.head(request, trail)) if trail.head else tally
        opening = self.around(request, trail, together.loads)
        tokens, upper, certain = self._sums(request, opening, together)
        profile = self._profile(request.format, certain, opening, together)
        return RawCount(tokens=tokens, upper=upper, profile=profile, unexplained=_joined(opening, together))

    def _sums(self, request: Request, opening: Opening, tally: Tally) -> tuple[float, float, bool]:
        """Tokens, the bound of the rules, and whether the rules guess nothing."""
        total = opening.tokens + tally.tokens + tally.image_tokens + tally.thought_tokens
        upper = opening.upper + tally.upper + tally.image_upper + tally.thought_upper
        certain = tally.certain and not tally.unexplained and tally.thought_upper == tally.thought_tokens
        if request.format not in self._rules.speaks:
            upper += _TRANSLATED_SPREAD * total
        return total, upper, self._ruler.exact and certain and opening.certain

    def _profile(self, spoken: Format, certain: bool, opening: Opening, tally: Tally) -> Profile:
        rules = self._rules
        return Profile(
            subject=Subject(rules.vendor, str(spoken), rules.family, rules.generation),
            certain=certain,
            features=opening.features,
            message_features=tally.features,
        )

    def _verdict(self, spoken: Format, certain: bool, opening: Opening, tally: Tally) -> Verdict:
        key = spoken, certain, opening.features, tally.features
        verdicts = self._memory.verdicts
        known = verdicts.get(key)
        if known is None:
            if len(verdicts) >= _KEPT_VERDICTS:
                verdicts.clear()
            profile = self._profile(spoken, certain, opening, tally)
            known = verdicts[key] = (self._judge or evidence()).verdict(profile)
        return known

    def _ends(self, request: Request) -> tuple[Message | None, Message | None]:
        if not request.messages:
            return None, None
        first, last = (wire.message(request.format, request.messages[end]) for end in (0, -1))
        return first, last

    def _tools(self, request: Request, toolbox: Measured) -> tuple[Measured, frozenset[str]]:
        spoken = request.format.encode()
        keys = [digest(spoken, i.to_bytes(8, "little"), raw) for i, raw in enumerate(request.tools)]
        parts = self._memory.parts
        known = [parts.get(key) for key in keys]
        new = [i for i, found in enumerate(known) if found is None]
        tools = [wire.tool(request.format, request.tools[i]) for i in new]
        fresh = measure([self._rules.tool(t, i) for t, i in zip(tools, new, strict=True)], self._ruler)
        for i, tool, measured in zip(new, tools, fresh, strict=True):
            # Without an exact ruler nothing is exact, whatever the features are.
            counted = measured, tool_features(tool) if self._ruler.exact else frozenset[str]()
            known[i] = counted
            parts.put(keys[i], counted)
        found = [tool for tool in known if tool is not None]
        measured_parts = [toolbox, *(measured for measured, _ in found)]
        together = Measured(
            tokens=sum(part.tokens for part in measured_parts),
            upper=sum(part.upper for part in measured_parts),
            certain=all(part.certain for part in measured_parts),
            unexplained=tuple(dict.fromkeys(name for part in measured_parts for name in part.unexplained)),
        )
        return together, frozenset[str]().union(*(features for _, features in found))

    def tallied(self, trail: wire.Trail) -> tuple[int, Tally]:
        """How many messages of a trail were counted before, and what they come to together."""
        memory, links = self._memory, trail.links
        at = noted(links, memory)
        return at, links[at - 1].known[memory][0] if at else EMPTY

    def new_around_bytes(self, request: Request) -> int:
        """How much stands around the messages of a request, if that was not counted before."""
        around = around_of(request)
        if around is not None and self._memory in around.known:
            return 0
        return len(request.body) - sum(map(len, request.messages))

    def measured_at(self, trail: wire.Trail, position: int) -> Measured:
        """What one message of a trail that is counted comes to by itself."""
        measured: Measured = trail.links[position].known[self._memory][1]
        return measured

    def tallied_at(self, trail: wire.Trail, position: int) -> Tally:
        """What the messages of a trail that is counted come to, up to and with one of them."""
        tally: Tally = trail.links[position].known[self._memory][0]
        return tally

    @property
    def keeps_thoughts(self) -> bool:
        """Whether the reasoning of earlier turns counts."""
        return self._rules.keeps_thoughts

    def noted(self, trail: wire.Trail, start: int, tally: Tally, measured: Iterable[Measured]) -> Tally:
        """The tally of a whole trail whose first `start` messages come to `tally`; remembered with each."""
        memory = self._memory
        for link, message in zip(trail.links[start:], measured, strict=True):
            tally = self.add(tally, (message,))
            link.known[memory] = tally, message
        return tally

    def tally(self, request: Request, trail: wire.Trail) -> Tally:
        """The tally of a trail, of which only what is new is counted."""
        at, tally = self.tallied(trail)
        while at < len(trail.links):
            end = min(at + _MESSAGES_AT_ONCE, len(trail.links))
            tail = range(at, end)[-_REMEMBERED_TAIL:]
            raws = [wire.unmarked(link.raw) for link in trail.links[at:end]]
            measured = self._each(request.format, raws, first=max(0, tail.start - at))
            tally = self.noted(wire.Trail(trail.head, trail.links[:end]), at, tally, measured)
            at = end
        return tally

    def _each(self, spoken: Format, raws: Sequence[bytes], *, first: int) -> list[Measured]:
        """What some messages come to, each without its marks; those from `first` on are remembered alone.

        Marks move along the tail, and make other links of messages that have been counted.
        """
        memory = self._memory.tail
        keys = [digest(spoken.encode(), raw) for raw in raws[first:]]
        known = [*([None] * first), *(memory.get(key) for key in keys)]
        new = [at for at, found in enumerate(known) if found is None]
        messages = [wire.message(spoken, raws[at]) for at in new]
        features = [message_features(message) for message in messages]
        fresh = measure([self._rules.message(message) for message in messages], self._ruler, features)
        for at, measured in zip(new, fresh, strict=True):
            known[at] = measured
            if at >= first:
                memory.put(keys[at - first], measured)
        return [measured for measured in known if measured is not None]

    def head(self, request: Request, trail: wire.Trail) -> Tally:
        """The tally of the system messages that stand before a trail."""
        if not trail.head:
            return EMPTY
        raws = request.messages[: trail.head]
        is_short = sum(map(len, raws)) < _SHORT_HEAD_BYTES
        heads, key = self._memory.heads, (request.format, raws if is_short else digest(*raws))
        known = heads.get(key)
        if known is None:
            messages = [wire.message(request.format, wire.unmarked(raw)) for raw in raws]
            features = [message_features(message) for message in messages]
            measured = measure([self._rules.message(m) for m in messages], self._ruler, features)
            known = self.add(EMPTY, measured)
            heads.put(key, known)
        return known

    def _breakdown(
        self, opening: Opening, head: Tally, tally: Tally, total: TokenCount
    ) -> tuple[PartCount, ...]:
        keeps = self._rules.keeps_thoughts
        messages = (*head.each(keeps_thoughts=keeps), *tally.each(keeps_thoughts=keeps))
        images = head.image_tokens + tally.image_tokens + opening.system.image_tokens
        image_upper = head.image_upper + tally.image_upper
        rows: list[tuple[str, float, bool]] = [
            ("system", opening.system.tokens, is_certain(opening.system)),
            ("tools", opening.tools.tokens, is_certain(opening.tools)),
            *((f"messages[{i}]", *message) for i, message in enumerate(messages)),
            ("images", images, image_upper == head.image_tokens + tally.image_tokens),
            ("overhead", opening.frame.tokens, is_certain(opening.frame)),
        ]
        whole = _whole([tokens for _, tokens, _ in rows], total.tokens)
        return tuple(
            PartCount(name, tokens, total.exact and certain)
            for (name, _, certain), tokens in zip(rows, whole, strict=True)
        )


def _rounded(tokens: float, upper: float, *, exact: bool) -> TokenCount:
    whole = max(0, round(tokens))
    return TokenCount(whole, exact, whole if exact else max(whole, math.ceil(upper)))


def _whole(parts: Sequence[float], total: int) -> list[int]:
    """`parts` in whole numbers that add up to `total`, each less than one away from its own."""
    ends = [round(end) for end in accumulate(parts)]
    ends[-1] = total
    return [end - start for start, end in pairwise((0, *ends))]


def _joined(opening: Opening, tally: Tally) -> tuple[str, ...]:
    if not tally.unexplained:
        return opening.unexplained
    return tuple(dict.fromkeys(opening.unexplained + tally.unexplained))
