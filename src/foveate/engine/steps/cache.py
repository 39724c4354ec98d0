"""The step that has a request read from and kept in its provider's cache."""

from dataclasses import replace

from msgspec import structs

from foveate.cache.keys import headers as key_headers
from foveate.cache.keys import keyed
from foveate.cache.layout import borne_by, layout, weighing_rules, without_long_ttl
from foveate.cache.prompts import CachedPrompt, landmarks_of
from foveate.cache.refusals import Refusals
from foveate.cache.requests import BlockTokens, cached_prompt
from foveate.cache.rhythm import chances, forecast, soon_share
from foveate.cache.rules import Caching, Rules
from foveate.cache.trailing import unread_bytes
from foveate.engine.client_breakpoints import client_removals
from foveate.engine.prefix_logs import PrefixLogs
from foveate.engine.remembered import Remembered
from foveate.engine.steps.names import CACHE
from foveate.engine.work import Work
from foveate.session.counting import beside
from foveate.values import Edit, Format, RemoveMark, Request, SetParameter, Ttl
from foveate.wire.around import parameters_of

_REPLACED = "Foveate places all breakpoints"
# Reading so much takes milliseconds, in which others want to be served.
_MUCH_BYTES = 64 * 1024


class MarkCache:
    """Marks for the provider's cache where they pay, or the key by which it finds a warm machine."""

    name = CACHE

    def __init__(self, remembered: Remembered, refusals: "RefusalsHeld", logs: PrefixLogs) -> None:
        self._remembered = remembered
        self._refusals = refusals
        self._logs = logs

    async def take(self, work: Work) -> None:
        """Decide both; nothing is written yet."""
        rules = work.rules
        if not work.options.prompt_cache:
            return
        key = keyed(work.request, rules, work.session_id)
        if key is not None and self._refusals.take_parameter(work, rules.key_parameter):
            work.parameters += (key,)
        work.headers |= key_headers(rules, work.session_id)
        where, held = work.incoming.upstream, self._refusals.held
        if rules.rejects_marks or not held.takes_client_marks(where, work.model, at=work.now):
            await work.edit(self.name, client_removals(work.request))
        if rules.caching not in (Caching.MARKS, Caching.BOTH):
            return
        if work.request.continues_stored:
            return  # nobody knows what stands before its messages
        if work.count is not None and work.count.upper < rules.minimum_tokens:
            return  # too short to be kept, however it is marked
        prompt = await read_prompt(work.request, rules, work.block_tokens)
        takes_marks = held.takes_marks(where, work.model, session=work.session_id, at=work.now)
        # Of a session that others serve too, the client knows better what is in the cache.
        replaces = work.options.replace_breakpoints and work.state.is_whole and takes_marks
        if replaces and (removals := _removals(work.request, prompt)):
            await work.edit(self.name, removals)
            prompt = await read_prompt(work.request, rules, work.block_tokens)
        work.prompt = prompt
        if not takes_marks:
            return
        takes_ttl = held.takes_ttl(where, work.model, at=work.now)
        takes_long = takes_ttl and work.incoming.provider in work.options.long_ttl_providers
        expected = forecast(work.state.rhythm, self._remembered.agent(work.incoming.agent))
        options = work.options.layout
        if not takes_long:
            options = without_long_ttl(options, rules)
        kept = work.kept_rules
        log = self._logs.open(work.incoming.agent)
        priced = weighing_rules(kept, options)
        weighed = priced if options.ttl is None else with_one_ttl(priced, options.ttl)
        sighting = log.observe(
            prompt,
            weighed,
            work.state.cache,
            now=work.now,
            soon_share=soon_share(expected, weighed),
            long_ttl=options.long_ttl,
            passing=work.passing,
        )
        marks = layout(
            prompt,
            priced,
            sighting.cache,
            chances(expected, rules, sighting.reach),
            now=work.now,
            options=options if sighting.reach.allows_long else replace(options, long_ttl=False),
            passing=work.passing,
            reach=sighting.reach.pieces,
        )
        work.sighting = log.place(sighting, prompt, borne_by(prompt, marks), kept, now=work.now)
        work.marks = marks if takes_ttl else tuple(structs.replace(mark, ttl=None) for mark in marks)


def _removals(request: Request, prompt: CachedPrompt) -> list[Edit]:
    """Edits that remove the client's breakpoints. Only Anthropic's API is known to take `null` for one."""
    if request.format is not Format.ANTHROPIC:
        return []
    is_automatic = "cache_control" in parameters_of(request)
    places = [prompt.pieces[at].place for at in landmarks_of(prompt).marks]
    if is_automatic and not prompt.double_marks:
        places.pop()  # the provider places this one itself
    found: list[Edit] = [RemoveMark(place=place, reason=_REPLACED) for place in places if place is not None]
    if is_automatic:
        found.append(SetParameter(path=("cache_control",), value=None, reason=_REPLACED))
    return found


def with_one_ttl(rules: Rules, ttl: Ttl) -> Rules:
    """The rules of a cache that keeps everything for one time."""
    return (
        replace(rules, ttls=(ttl,), write_prices={ttl: rules.write_prices[ttl]}) if ttl in rules.ttls else rules
    )


async def read_prompt(request: Request, rules: Rules, tokens: BlockTokens) -> CachedPrompt:
    """Read a request as its provider's cache sees it, in a thread if much of it is new."""
    size_bytes = unread_bytes(request, rules, tokens)
    if size_bytes < _MUCH_BYTES:
        return cached_prompt(request, rules, tokens)
    return await beside(lambda: cached_prompt(request, rules, tokens), size_bytes)


class RefusalsHeld:
    """The refusals that a process knows of, replaced whole as they change."""

    def __init__(self) -> None:
        self.held = Refusals()

    def take_parameter(self, work: Work, name: str) -> bool:
        """Whether the upstream of a request is not known to refuse an optional parameter."""
        return self.held.takes_parameter(work.incoming.upstream, work.model, name, at=work.now)
