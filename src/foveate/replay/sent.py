"""What each call of a recording sent: told from its messages, and from its bill where they are not all.

A bill says how many tokens were sent, so what each message weighs is told from how the sums grow, and the
system prompt and the tools, which logs do not hold, are what the first bill has beyond its messages. It also
says how much of that the provider's cache knew. Where this is less than what the calls before have left there,
something was another than the recording shows: a time in the system prompt, a tool, a reminder. Where it is
more, somebody else had sent the same. Both hold whatever the policy: both are taken from the bill, and counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from foveate.cache.entries import written
from foveate.cache.prompts import CachedPrompt
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Served
from foveate.errors import MalformedRequest
from foveate.replay.in_short import Telling
from foveate.replay.marking import client_marks, rules_then
from foveate.replay.recordings import Call, Recording, Said, Source
from foveate.replay.serving import Spot, client_spots, is_served_by_marks, serve_spots
from foveate.replay.sizes import Scale, divided, tokenizer_of
from foveate.replay.stretches import Front, Stretch, chained, unthought
from foveate.replay.talks import Talk
from foveate.values import CacheUsage, Ttl

# A read that is off by no more than this share of the input, or these tokens, is the one that was expected.
_TOLERANCE = 0.005
_TOLERANCE_TOKENS = 64
# A sum that falls by more than this share cannot come from how texts were weighed.
_SHRUNK = 0.02

_NOTHING = CacheUsage()
# Agents that are known to put marks.
_PUT_MARKS = (Source.CLAUDE_CODE, Source.PI)


class Told(StrEnum):
    """What only the bill of a call tells."""

    NOTHING = "nothing"
    CHANGED = "changed"  # less was read than had been left: from somewhere on, another prompt was sent
    KEPT = "kept"  # more was read: somebody else had sent the same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """What somebody else had left in the cache: up to a piece of the front, or up to a message."""

    piece: int = -1
    last: Stretch | None = None

    @property
    def whole(self) -> tuple[Stretch, ...]:
        """The message at which it ends, where it is one."""
        return (self.last,) if self.last is not None else ()


# Made for every call, and a struct is made several times as fast as a dataclass.
class Sent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call as it was sent.

    `ttls` are for how long the client asked to keep its system prompt and its messages; None where it put no
    marks. `expected` is what its bill would have been by all that was known before, and `told` what the bill
    then told beyond that; `recorded` is what the simulation makes of it with all of that. `reserve_tokens` is
    how long the answer may be, where the request says it.
    """

    call: Call
    rules: Rules
    front: Front
    last: Stretch
    ttls: tuple[Ttl, Ttl] | None
    output_tokens: int
    expected: CacheUsage = _NOTHING
    recorded: CacheUsage = _NOTHING
    told: Told = Told.NOTHING
    kept: Kept | None = None
    reserve_tokens: int = 0

    @property
    def whole(self) -> tuple[Stretch, ...]:
        """The message at which what somebody else had left ends, where it is one."""
        return self.kept.whole if self.kept is not None else ()

    @property
    def input_tokens(self) -> int:
        """All that was sent."""
        return self.front.tokens + self.last.end


def sent_in(recording: Recording) -> list[Sent]:
    """What the calls of a recording sent, in their order."""
    return list(_Calls(recording).calls())


def recorded_marks(sent: Sent, prompt: CachedPrompt) -> dict[int, Ttl]:
    """The marks that the client itself had put into `prompt`, by the pieces that they stand on."""
    if sent.ttls is None or sent.rules.caching is Caching.AUTOMATIC:
        return {}
    front_ttl, tail_ttl = sent.ttls
    marks = client_marks(prompt, sent.front, sent.last, front_ttl=front_ttl, tail_ttl=tail_ttl)
    if sent.kept is not None:  # an entry that was read is one that a mark has found
        marks |= _kept_mark(prompt, sent.front, sent.kept, sent.ttls)
    return marks


def _kept_mark(prompt: CachedPrompt, front: Front, kept: Kept, ttls: tuple[Ttl, Ttl]) -> dict[int, Ttl]:
    if kept.last is None:
        return {kept.piece: ttls[0]}
    key = front.key + kept.last.key
    return {at: ttls[1] for at, one in enumerate(prompt.keys or ()) if one == key}


def recorded_spots(sent: Sent) -> list[Spot]:
    """The same marks, where they are looked for on the way back."""
    if sent.ttls is None:
        return []
    front_ttl, tail_ttl = sent.ttls
    spots = client_spots(sent.front, sent.last, front_ttl=front_ttl, tail_ttl=tail_ttl)
    kept = sent.kept
    if kept is not None and kept.last is None:
        spots.append(Spot(None, kept.piece, front_ttl))
    elif kept is not None and kept.last is not None and kept.last.pieces and sent.last.follows(kept.last):
        spots.append(Spot(kept.last, len(kept.last.pieces) - 1, tail_ttl))
    return spots


def with_kept(cache: Cache, sent: Sent) -> Cache:
    """`cache` with what somebody else had left there: it would have been there whatever the policy."""
    kept = sent.kept
    if kept is None or not sent.rules.ttls:
        return cache
    if kept.last is not None:
        key, tokens = sent.front.key + kept.last.key, sent.front.tokens + kept.last.end
    else:
        key, tokens = sent.front.keys[kept.piece], sent.front.end(kept.piece)
    at, ttl = sent.call.at, sent.rules.ttls[0]
    return Cache(cache.entries.changed({key: written(tokens, ttl, at=at, readable_at=at)}, at=at))


def serve(cache: Cache, sent: Sent, prompt: CachedPrompt, marks: Mapping[int, Ttl]) -> Served:
    """A call as it is billed, sent as `prompt` with these marks."""
    call = sent.call
    return with_kept(cache, sent).serve_marked(
        prompt, marks, sent.rules, at=call.at, answers_at=call.answers_at
    )


def serve_on_way(cache: Cache, sent: Sent, spots: Iterable[Spot]) -> Served:
    """The same with marks that are looked for on the way back."""
    call, kept = sent.call, with_kept(cache, sent)
    return serve_spots(kept, sent.front, sent.last, spots, sent.rules, at=call.at, answers_at=call.answers_at)


class _Calls:
    """Goes through the calls of a recording, and keeps beside what they leave in the provider's cache."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._cache = Cache()
        self._telling = Telling()
        self._scales: dict[str, Scale] = {}
        # By tokenizer and message, whose sizes are those of that tokenizer.
        self._talks: dict[tuple[str, int], Talk] = {}
        self._latest: dict[tuple[str, str], Talk] = {}

    def calls(self) -> Iterator[Sent]:
        """Each call as it was sent."""
        return map(self._call, self._recording.calls)

    def _call(self, call: Call) -> Sent:
        rules = rules_then(call.model, call.at)
        tokenizer = tokenizer_of(call.model)
        scale = self._scales.get(tokenizer)
        if scale is None:
            scale = self._scales[tokenizer] = Scale(call.model, self._recording.format)
        talk, new = self._found(call, tokenizer)
        is_first = not talk.links
        _show(talk, call, scale)
        last = _placed(call, talk, new, scale, rules)
        sent = Sent(
            call=call,
            rules=rules,
            front=talk.front(call.model, thinks=call.thinks),
            last=last,
            ttls=_ttls(call, talk, rules, self._recording.source),
            output_tokens=call.billed.output_tokens if call.billed is not None else scale.message(call.answer),
            reserve_tokens=talk.reserve_tokens,
        )
        served = self._served(sent)
        expected, told = served.usage, Told.NOTHING
        if call.billed is not None and sent.ttls is not None and rules.caching is not Caching.NONE:
            sent, served = self._told(sent, served, talk, call.billed.cache)
            told = sent.told
            if is_first:  # what sessions before it have left is nobody's surprise
                told, expected = Told.NOTHING, served.usage
        self._cache = served.cache
        told_of = replace(sent, expected=expected, recorded=served.usage, told=told)
        self._telling.told(told_of)
        return told_of

    def _found(self, call: Call, tokenizer: str) -> tuple[Talk, list[Said]]:
        """The conversation that a call goes on with, and its messages that are new."""
        new: list[Said] = []
        here: Said | None = call.last
        while here is not None and (tokenizer, id(here)) not in self._talks:
            new.append(here)
            here = here.before
        new.reverse()
        name = call.conversation, call.model
        if here is not None:
            talk = self._talks[tokenizer, id(here)]
        else:
            talk = Talk(call.conversation, call.id)
            talk.hidden_tokens = self._recording.hidden_tokens
            if name in self._latest:
                talk.like(self._latest[name])
        self._latest[name] = talk
        self._talks.update(((tokenizer, id(said)), talk) for said in new)
        return talk, new

    def _served(self, sent: Sent) -> Served:
        if is_served_by_marks(sent.rules):
            return serve_on_way(self._cache, sent, recorded_spots(sent))
        prompt = self._telling.of(sent)
        return serve(self._cache, sent, prompt, recorded_marks(sent, prompt))

    def _told(self, sent: Sent, served: Served, talk: Talk, billed: CacheUsage) -> tuple[Sent, Served]:
        """The same, with what only the bill tells."""
        off = billed.read - served.usage.read
        allowed = tolerance_tokens(billed, sent.rules)
        if abs(off) <= allowed:
            return sent, served
        if off < 0:
            sent = _changed(sent, talk, billed.read, allowed)
            return sent, self._served(sent)
        kept = replace(_kept(sent, talk, billed.read, allowed), told=Told.KEPT)
        with_it = self._served(kept)
        is_nearer = abs(billed.read - with_it.usage.read) < off
        return (kept, with_it) if is_nearer else (sent, served)


def tolerance_tokens(billed: CacheUsage, rules: Rules) -> int:
    """By how many tokens a read may be off and still be the one that was billed."""
    return max(int(_TOLERANCE * billed.input_tokens), _TOLERANCE_TOKENS, rules.step_tokens)


def _changed(sent: Sent, talk: Talk, read: int, allowed: int) -> Sent:
    """What was sent, if it was another prompt from where the bill stopped reading."""
    last, front = sent.last, sent.front.tokens
    if read <= allowed:
        talk.change(after_tokens=0)
    elif read < front - allowed:
        talk.change(after_tokens=talk.end_near(read, allowed))
    elif read <= front + allowed:
        talk.change()
    else:
        last = talk.rewrite(last, last.nearest(read - front))
    now = talk.front(sent.call.model, thinks=sent.call.thinks)
    changed = replace(sent, front=now, last=last, told=Told.CHANGED)
    # It may be the first time that a bill shows this end of the system prompt.
    return _kept(changed, talk, read, allowed) if read > allowed else changed


def _kept(sent: Sent, talk: Talk, read: int, allowed: int) -> Sent:
    """What was sent, with the entry that the bill read and no call before had left."""
    front = sent.front
    if read > front.tokens + allowed:
        last = sent.last.nearest(read - front.tokens)
        return replace(sent, kept=Kept(last=last)) if last is not None else sent
    piece = len(front.pieces) - 1
    if read < front.tokens - allowed:
        end = talk.end_near(read, allowed)
        front = talk.front(sent.call.model, thinks=sent.call.thinks)
        piece = next((at for at in range(len(front.pieces)) if front.end(at) >= end), piece)
    return replace(sent, front=front, kept=Kept(piece=piece)) if piece >= 0 else sent


def _show(talk: Talk, call: Call, scale: Scale) -> None:
    """Take over what was recorded of a call beside its messages."""
    if not call.around or talk.around == call.around:
        return
    try:
        front = scale.front(call.around)
    except MalformedRequest:
        return
    talk.show(call.around, front.pieces, front.marks)
    talk.reserve_tokens = front.reserve_tokens


def _ttls(call: Call, talk: Talk, rules: Rules, source: Source) -> tuple[Ttl, Ttl] | None:
    """For how long a client asked to keep its system prompt and its messages; None where it did not."""
    usual = rules.ttls[0] if rules.ttls else Ttl.FIVE_MINUTES
    billed = call.billed.cache if call.billed is not None else None
    if billed is not None and rules.caching is Caching.MARKS:
        is_long_enough = billed.input_tokens >= rules.minimum_tokens
        if is_long_enough and not (billed.read or billed.written_5m or billed.written_1h):
            return None
        if billed.written_1h:
            talk.ttls = Ttl.ONE_HOUR, Ttl.FIVE_MINUTES if billed.written_5m else Ttl.ONE_HOUR
        elif billed.written_5m:
            talk.ttls = usual, usual
    if billed is None and source not in _PUT_MARKS and not talk.shows_marks and call.marks is None:
        return None  # nothing says that there were marks
    asked = call.marks if call.marks is not None and call.marks in rules.ttls else usual
    return talk.ttls or (asked, asked)


def _placed(call: Call, talk: Talk, new: Sequence[Said], scale: Scale, rules: Rules) -> Stretch:
    """The last message of a call in its place, those before it that are new too."""
    first = new[0] if new else call.last
    before = talk.links.get(id(first.before)) if new and first.before is not None else None
    if not new:
        before = talk.links[id(call.last)]
    messages = [scale.weighed(said) for said in new]
    opens = [at for at, message in enumerate(messages) if message.opens_turn(new[at].role)]
    opened = opens[-1] if opens and rules.drops_thinking else 0
    if opens and rules.drops_thinking and before is not None:
        before = unthought(before)
    messages = [message.unthought() if at < opened else message for at, message in enumerate(messages)]
    if call.billed is None:
        sizes = [scale.message(said.raw) for said in new]
    else:
        # What stands before the messages is told from what they weigh: so these are counted well, once.
        counted = before is None and talk.hidden_tokens is None
        weights = [
            scale.message(said.raw) if counted else message.tokens
            for said, message in zip(new, messages, strict=True)
        ]
        grown = _grown(call.billed.cache, talk, before, weights)
        if grown < 0 and before is not None:
            before, grown = _shrunk(call.billed.cache, talk, before, sum(weights))
        sizes = divided(max(grown, 0), weights)
    for said, message, size in zip(new, messages, sizes, strict=True):
        before = chained(before, message.pieces(size, rules), said=said, role=said.role)
        talk.links[id(said)] = before
    assert before is not None
    return before


def _grown(billed: CacheUsage, talk: Talk, before: Stretch | None, weights: Sequence[int]) -> int:
    """How many tokens the new messages have; of a first call, what stands before them is told too."""
    total = billed.input_tokens
    if not talk.links and talk.is_shown:
        talk.scale(total / max(talk.front_tokens + sum(weights), 1))
    elif before is None and not talk.is_shown and talk.hidden_tokens is None:
        hidden = max(total - sum(weights), 0)
        # What a first call reads is mostly the system prompt, and its sum is surer than a difference.
        is_near = abs(billed.read - hidden) <= _SHRUNK * total or len(weights) == 1
        if billed.read and billed.read < total and is_near and billed.read > hidden - _SHRUNK * total:
            hidden = billed.read
        talk.hidden_tokens = hidden
    return total - talk.front_tokens - (before.end if before is not None else 0)


def _shrunk(billed: CacheUsage, talk: Talk, before: Stretch, new_tokens: int) -> tuple[Stretch, int]:
    """The history behind which new messages stand, and how many tokens these have, where the sum has fallen.

    Agents leave out old results of tools without a word in their logs. What the bill still read is what stayed.
    """
    total, front = billed.input_tokens, talk.front_tokens
    known = front + before.end
    if known - total <= _SHRUNK * total:
        return before, 0
    if not talk.is_shown and total < front + new_tokens:  # not even without any history
        talk.shorten(max(total - before.end - new_tokens, 0))
        return before, max(total - talk.front_tokens - before.end, 0)
    keep = before.within(max(billed.read - front, 0))
    kept = keep.end if keep is not None else 0
    left = max(total - front - kept - new_tokens, 0)
    scale = left / (before.end - kept) if before.end > kept else 1.0
    after = talk.rewrite(before, keep, scale)
    return after, max(total - front - after.end, 0)
