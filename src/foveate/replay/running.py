"""One policy on its way through a session: what each call would have been billed, and what it leaves behind."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from foveate.budget.windows import window_of
from foveate.cache.layout import marks_in, weighing_rules, without_long_ttl
from foveate.cache.prefix_log import PrefixLog
from foveate.cache.prompts import CachedPrompt, Piece, next_key
from foveate.cache.rhythm import SILENT, Rhythm, chances, forecast, soon_share
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Served
from foveate.engine.options import AgentOptions
from foveate.engine.steps.cache import with_one_ttl
from foveate.fold.boundary import trigger_tokens, triggers
from foveate.fold.cuts import FoldOptions
from foveate.replay.folds import Folded, Reading, folded
from foveate.replay.in_short import Telling, prompt_of, tail_of
from foveate.replay.marking import fixed_places, shown, with_breakpoints
from foveate.replay.policies import Policy
from foveate.replay.sent import Kept, Sent, recorded_marks, recorded_spots, serve, serve_on_way
from foveate.replay.serving import Spot, fixed_spots, is_served_by_marks
from foveate.replay.stretches import Stretch
from foveate.values import Area, CacheUsage, Format, Place, Ttl

DEFAULT_GATEWAY = AgentOptions()
# So many places at which something long-lived was left are looked at again.
_MOST_ANCHORS = 4
_INSTRUCTION = Place(Area.MESSAGES, -4, 0)


class Step(NamedTuple):
    """What one call comes to: its own input, and of the summary that was made behind it, if one was.

    A tuple, since one is made for every call and policy.
    """

    usage: CacheUsage
    summary: CacheUsage | None = None
    summary_tokens: int = 0
    is_folded: bool = False

    @property
    def tokens(self) -> int:
        """How long its context is."""
        return self.usage.input_tokens


class Run(Protocol):
    """A policy on its way through one session."""

    def take(self, sent: Sent) -> Step:
        """What the next call comes to."""


def runs_of(
    policies: Iterable[Policy],
    *,
    spoken: Format,
    window_tokens: int | None,
    is_as_sent: bool = False,
    gateway: AgentOptions = DEFAULT_GATEWAY,
) -> dict[Policy, Run]:
    """Policies at the beginning of a session; `window_tokens` is in the place of each model's own window.

    They share what is the same for several of them, and give what each would give alone, as long as all of them
    take the same calls in turn. `is_as_sent`: they go to the models that they went to, so that what the client
    did is known already. `gateway` is the configuration that the policies of the gateway follow.
    """
    prompts = _Prompts()
    adaptive = _Adaptive(prompts.telling)
    served = _Adaptive(prompts.telling, gateway)
    as_configured = (
        _Folding(_Adaptive(prompts.telling, gateway), spoken, window_tokens, gateway.fold)
        if gateway.compaction
        else served
    )
    runs: dict[Policy, Run] = {
        Policy.RECORDED: _AsSent() if is_as_sent else _Marked(prompts, recorded_marks, recorded_spots),
        Policy.GATEWAY: as_configured,
        Policy.GATEWAY_COMPACTION: _Folding(served, spoken, window_tokens, gateway.fold),
        Policy.NONE: _Uncached(),
        Policy.MARKERS: _fixed(prompts, 0),
        Policy.MARKERS_1H: _fixed(prompts, -1),
        Policy.ADAPTIVE: adaptive,
        Policy.FOLD: _Folding(adaptive, spoken, window_tokens),
    }
    return {policy: runs[policy] for policy in policies}


def window_tokens_of(model: str, window_tokens: int | None) -> int | None:
    """The window of a call: the one that was asked for, or its model's; None where nobody knows."""
    if window_tokens is not None:
        return window_tokens
    window = window_of(model)
    return window.tokens if window is not None else None


class _AsSent:
    def take(self, sent: Sent) -> Step:
        return Step(usage=sent.recorded)


class _Uncached:
    def take(self, sent: Sent) -> Step:
        return Step(usage=CacheUsage(uncached=sent.input_tokens))


class _Marks(Protocol):
    def __call__(self, sent: Sent, prompt: CachedPrompt, /) -> dict[int, Ttl]:
        """The marks of a prompt."""


class _Spots(Protocol):
    def __call__(self, sent: Sent, /) -> list[Spot]:
        """The same marks, where they are looked for on the way back."""


class _Prompts:
    """What was sent as caches see it, made once for all policies that send it as it is."""

    def __init__(self) -> None:
        self.telling = Telling()
        self._taken: tuple[Sent, CachedPrompt] | None = None

    def of(self, sent: Sent) -> CachedPrompt:
        """The prompt of the call that is taken now."""
        if self._taken is None or self._taken[0] is not sent:
            self._taken = sent, self.telling.of(sent)
        return self._taken[1]


class _Marked:
    """Marks that depend on nothing but what is sent."""

    def __init__(self, prompts: _Prompts, marks: _Marks, spots: _Spots) -> None:
        self._prompts = prompts
        self._marks = marks
        self._spots = spots
        self._cache = Cache()

    def take(self, sent: Sent) -> Step:
        if is_served_by_marks(sent.rules):
            served = serve_on_way(self._cache, sent, self._spots(sent))
        else:
            prompt = self._prompts.of(sent)
            served = serve(self._cache, sent, prompt, self._marks(sent, prompt))
        self._prompts.telling.told(sent)
        self._cache = served.cache
        return Step(usage=served.usage)


def _fixed(prompts: _Prompts, number: int) -> _Marked:
    """The marks that one would put there by hand, for the time of that number."""

    def marks(sent: Sent, prompt: CachedPrompt) -> dict[int, Ttl]:
        rules = sent.rules
        if rules.caching is not Caching.BOTH or not rules.ttls:
            return {}
        places = fixed_places(prompt, sent.front, minimum_tokens=rules.minimum_tokens)
        return dict.fromkeys(places, rules.ttls[number])

    def spots(sent: Sent) -> list[Spot]:
        ttls = sent.rules.ttls
        return fixed_spots(sent.front, sent.last, ttls[number]) if ttls else []

    return _Marked(prompts, marks, spots)


# A call as it is billed, and what it was sent as, with the marks in it.
_Taken = tuple[Served, CachedPrompt, dict[int, Ttl]]


def keeps_client_breakpoints(options: AgentOptions) -> bool:
    """Tell whether the gateway adds its breakpoints to the client's, and does not replace them."""
    return not options.prompt_cache or not options.replace_breakpoints


class _Adaptive:
    """Foveate's own layout, with the time to live that a conversation's rhythm makes worth its price.

    With `gateway` it follows that configuration, and keeps the client's breakpoints as the gateway does.
    """

    def __init__(self, telling: Telling, gateway: AgentOptions | None = None) -> None:
        self.cache = Cache()
        self._gateway = gateway
        self._options = gateway or DEFAULT_GATEWAY
        self._keeps = gateway is not None and keeps_client_breakpoints(gateway)
        self._telling = telling  # shared with those who send the same
        self._log = PrefixLog()
        self._rhythms: dict[str, tuple[Rhythm, float]] = {}
        self._anchors: dict[str, list[Stretch]] = {}
        self._taken: tuple[Sent, _Taken] | None = None

    def forked(self) -> "_Adaptive":
        """The same from here on, for one whose way is another."""
        other = _Adaptive(self._telling.forked(), self._gateway)
        other.cache = self.cache
        other._log = PrefixLog(self._log.reuse)
        other._rhythms, other._anchors = dict(self._rhythms), dict(self._anchors)
        return other

    def take(self, sent: Sent) -> Step:
        return Step(usage=self.serve(sent)[0].usage)

    def serve(self, sent: Sent) -> _Taken:
        """The call as it is billed, and the prompt with its marks; the same again for who asks again."""
        if self._taken is None or self._taken[0] is not sent:
            self._taken = sent, self._serve(sent)
        return self._taken[1]

    def _serve(self, sent: Sent) -> _Taken:
        name, rules, now = sent.call.conversation, sent.rules, sent.call.at
        anchors = self._anchors.get(name, [])
        prompt = self._telling.of(sent, anchors)
        rhythm = self._heard(name, now)
        client = recorded_marks(replace(sent, kept=None), prompt) if self._keeps else {}
        marks = client
        sighting = None
        if rules.caching in (Caching.MARKS, Caching.BOTH) and self._options.prompt_cache:
            own = self._options.layout
            if rules.provider not in self._options.long_ttl_providers:
                own = without_long_ttl(own, rules)
            expected = forecast(rhythm)
            priced = weighing_rules(rules, own)
            weighed = priced if own.ttl is None else with_one_ttl(priced, own.ttl)
            marked = with_breakpoints(prompt, client) if client else prompt
            sighting = self._log.observe(
                marked,
                weighed,
                self.cache,
                now=now,
                soon_share=soon_share(expected, weighed),
                long_ttl=own.long_ttl,
            )
            added = marks_in(
                marked,
                priced,
                sighting.cache,
                chances(expected, rules, sighting.reach),
                now=now,
                options=dataclasses.replace(own, long_ttl=own.long_ttl and sighting.reach.allows_long),
                reach=sighting.reach.pieces,
            )
            marks = {**client, **added}
            sighting = self._log.place(sighting, marked, marks, rules, now=now)
            self._anchors[name] = _anchors(anchors, prompt, marks, sent.last, rules)
        served = serve(
            self.cache, sent, prompt, {**recorded_marks(sent, prompt), **marks} if self._keeps else marks
        )
        self.cache = served.cache
        if sighting is not None:
            self._log.served(sighting, served.cache)
        self._telling.told(sent)
        return served, prompt, marks

    def _heard(self, name: str, now: float) -> Rhythm:
        rhythm, before = self._rhythms.get(name, (SILENT, None))
        if before is not None:
            rhythm = rhythm.heard(max(0.0, now - before))
        self._rhythms[name] = rhythm, now
        return rhythm


def _anchors(
    before: list[Stretch], prompt: CachedPrompt, marks: Mapping[int, Ttl], last: Stretch, rules: Rules
) -> list[Stretch]:
    """The messages at which something long-lived is left: a mark has to stand there again to keep it."""
    lasting = [at for at, ttl in marks.items() if ttl is rules.ttls[-1] and len(rules.ttls) > 1]
    if not lasting:
        return before
    new = []
    for start, stretch in shown(prompt, last):
        end = start + len(stretch.pieces)
        if end - 1 in marks:
            break
        if any(start <= at < end for at in lasting):
            new.append(stretch)
    return list(dict.fromkeys((*before, *reversed(new))))[-_MOST_ANCHORS:]


class _Folding:
    """The same, with the head of a history folded once its request is long: behind the answer, for the next.

    Where a request would not fit at all, it waits for the fold.
    """

    def __init__(
        self,
        adaptive: _Adaptive,
        spoken: Format,
        window_tokens: int | None,
        options: FoldOptions = DEFAULT_GATEWAY.fold,
    ) -> None:
        self._adaptive = adaptive  # shared until the first fold
        self._has_folded = False
        self._reading = Reading(spoken)
        self._window_tokens = window_tokens
        self._options = options
        self._folds: dict[str, list[Folded]] = {}
        self._answers: dict[str, int] = {}  # since the last fold

    def take(self, sent: Sent) -> Step:
        name = sent.call.conversation
        window = window_tokens_of(sent.call.model, self._window_tokens)
        fold, shorter = self._shorter(sent)
        summary: CacheUsage | None = None
        summary_tokens = 0
        if window is not None and shorter.input_tokens > window:
            made = self._fold(sent, fold, window)
            if made is not None:
                prompt = prompt_of(
                    tail_of(shorter.front, shorter.last, lookback_positions=shorter.rules.lookback_positions),
                    shorter.whole,
                )
                summary, summary_tokens = self._summed_up(shorter, prompt, {}, made), made.summary_tokens
                fold, shorter = self._shorter(sent)
        served, prompt, marks = self._adaptive.serve(shorter)
        is_folded = summary is not None
        self._answers[name] = self._answers.get(name, 0) + 1
        rested = self._answers[name] if fold is not None else None
        trigger = self._trigger_tokens(window, sent) if window is not None else None
        if trigger and triggers(
            shorter.input_tokens,
            trigger_tokens=trigger,
            turns_since_fold=rested,
            min_turns_between=self._options.min_turns_between,
        ):
            made = self._fold(sent, fold, window or 0)
            if made is not None:
                summary, summary_tokens = self._summed_up(shorter, prompt, marks, made), made.summary_tokens
                is_folded = True
        return Step(usage=served.usage, summary=summary, summary_tokens=summary_tokens, is_folded=is_folded)

    def _trigger_tokens(self, window: int, sent: Sent) -> int:
        return trigger_tokens(window, sent.reserve_tokens, self._options.compact_at_pct)

    def _shorter(self, sent: Sent) -> tuple[Folded | None, Sent]:
        """The call with the farthest reaching fold of its history put in."""
        for fold in reversed(self._folds.get(sent.call.conversation, [])):
            last = fold.of(sent.last)
            if last is not None:
                return fold, replace(sent, last=last, kept=_front_alone(sent))
        return None, sent

    def _fold(self, sent: Sent, earlier: Folded | None, window: int) -> Folded | None:
        made = folded(
            sent.last,
            self._reading,
            trigger_tokens=self._trigger_tokens(window, sent),
            options=self._options,
            earlier=earlier,
            leaves_out_thoughts=sent.rules.binds_thinking,
        )
        if made is not None:
            if not self._has_folded:
                self._adaptive, self._has_folded = self._adaptive.forked(), True
            self._folds.setdefault(sent.call.conversation, []).append(made)
            self._answers[sent.call.conversation] = 0
        return made

    def _summed_up(
        self, sent: Sent, prompt: CachedPrompt, marks: Mapping[int, Ttl], fold: Folded
    ) -> CacheUsage:
        """What the summary costs: the request as it was sent, read from the cache, and an instruction."""
        piece = Piece(
            digest=fold.base.key,
            tokens=fold.instruction_tokens,
            kind="text",
            area=Area.MESSAGES,
            place=_INSTRUCTION,
        )
        key = sent.front.key + next_key(sent.last.key, piece)
        asked = CachedPrompt(
            model=prompt.model, pieces=(*prompt.pieces, piece), keys=(*(prompt.keys or ()), key)
        )
        at = max(sent.call.at, sent.call.answers_at)
        served = self._adaptive.cache.serve_marked(asked, marks, sent.rules, at=at)
        self._adaptive.cache = served.cache
        return served.usage


def _front_alone(sent: Sent) -> Kept | None:
    """What somebody else had left, but for messages, which now stand behind a summary."""
    return sent.kept if sent.kept is not None and sent.kept.last is None else None
