"""The step that injects an agent's sections: each source may be missing."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from foveate.budget.sections import Section
from foveate.cache.stability import InjectedBlock, Layer, flattened
from foveate.engine.calls import Problem
from foveate.engine.injecting.fitting import NO_PART, Fit, Part
from foveate.engine.injecting.gathering import (
    BYTES_PER_TOKEN,
    Gathering,
    MakeRoomFor,
    Money,
    StableSections,
)
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.injecting.placing import (
    Placed,
    edits_at,
    joins_strings,
    last_user_message,
    speaks,
    stable_edits,
    turn_edits,
    words_of,
)
from foveate.engine.injecting.sources import PATIENCE_SECONDS, Sources
from foveate.engine.injecting.staying import Said, SaidBefore, Stay, has_to_stay, place_now
from foveate.engine.steps.names import SECTIONS
from foveate.engine.work import Work
from foveate.fold.thoughts import unbound_thoughts
from foveate.values import NOTHING, Area, Edit, Insert, Place, SetParameter, TokenCount

_LOG = logging.getLogger(__name__)
_NO_SECTIONS = SectionOptions()
# The last of what the user said; what is looked for stands rarely farther up.
_QUERY_CHARS = 2_000
_REASON = "said here before, and what the model has thought since stands after it"


class Inject:
    """Puts an agent's sections into its requests."""

    name = SECTIONS

    def __init__(
        self, sources: Sources, money: Money | None = None, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._gathering = Gathering(sources, money)
        self._patience_seconds = patience_seconds
        self._said = SaidBefore()
        self._has_warned = False
        self._agents: set[str] = set()
        """Those that have, or had, sections."""

    async def take(self, work: Work, make_room: MakeRoomFor | None = None) -> None:
        """Inject what there is, as far as there is room for it.

        `make_room` makes room in the request for sections that are required.

        Raises:
            BudgetExceeded: the sections do not fit in the limits of the agent.
            DoesNotFit: the window has no room for the required ones, and none may be made.
        """
        options = work.options.sections
        if options is None or options == _NO_SECTIONS:
            if not self._has_injected(work):
                return
            options = _NO_SECTIONS  # what was injected before is gone now, and thoughts may stand after it
        until = asyncio.get_running_loop().time() + self._patience_seconds
        options = await self._gathering.limited(work, options, until=until)
        stays = has_to_stay(work.request, work.rules)
        joins = joins_strings(work.request, work.rules)
        sources = await self._gathering.stable_sections(work, options, until=until)
        said, known = self._before(work)
        repeated = _repeated(said) if stays and known else NOTHING
        is_due = not stays or _is_due(work, said, known)

        def room() -> int | None:
            left = _room(work)
            return None if left is None else max(0, left - repeated.upper)

        found = None if is_due else _as_before(said, sources, room())
        turn: tuple[Section, ...] = ()
        if found is None:
            turn = await self._gathering.turn_sections(work, options, said.words, until=until)
        fit = partial(self._gathering.fit, work, options, sources, turn, room=room, make_room=make_room)
        found = found or await fit(added=repeated)
        edits: list[Edit] = []
        added = found.stable.count
        if stays:
            if not (known and said.stable == found.stable.version and _fits(found.stable, room())):
                said, is_due = _new_beginning(work, said), work.chain is not None
                if repeated is not NOTHING:
                    repeated = NOTHING
                    found = await fit()
                said = replace(said, stable=found.stable.version)
            again = _again(work, said, joins=joins)
            if again is None:
                reason = "nothing is injected: thoughts of before would not be taken, and cannot be left out"
                work.problems.append(Problem(f"{SECTIONS}/thoughts", reason))
                return
            edits, said = again
            said = replace(said, part=found.stable, sources=sources.key)
            added += repeated
        edits = [*stable_edits(work.request, found.stable.sections, joins=joins), *edits]
        shift = int(any(_is_first_message(edit) for edit in edits))
        turn_part = found.turn if is_due else NO_PART
        placed = turn_edits(work.request, turn_part.sections, joins=joins)
        edits += placed.edits
        self._keep(work, _with_turn(work, said, turn_part, placed) if stays else said, known)
        if edits:
            self._warn_if_flattened(work, found)
            await work.edit(self.name, edits)
            _count(work, added + turn_part.count if placed.edits else added)
        if not stays:
            work.passing = tuple(
                Place(place.area, place.index + shift, place.block) for place in placed.passing
            )
        left_out = (*found.stable.left_out, *turn_part.left_out)
        work.problems += [Problem(f"{SECTIONS}/room", why) for why in left_out]

    def _warn_if_flattened(self, work: Work, found: Fit) -> None:
        """Warn once in a process that a provider takes no blocks, so that sections become one text."""
        if self._has_warned or work.rules.takes_blocks:
            return
        sides = ((Layer.WORKSPACE, found.stable), (Layer.TURN, found.turn))
        blocks = [
            InjectedBlock(name=section.name, layer=layer, text=section.text)
            for layer, part in sides
            for section in part.sections
        ]
        if note := flattened(blocks, provider=work.incoming.provider).note:
            self._has_warned = True
            _LOG.warning("%s", note)

    def _has_injected(self, work: Work) -> bool:
        """Whether something was put into this conversation before that its thoughts are bound to."""
        if work.incoming.agent not in self._agents or work.chain is None or not work.rules.binds_thinking:
            return False
        found, _ = self._said.of(work.incoming.agent, work.chain)
        return found is not None and bool(found.stable or found.stays or found.since)

    def _before(self, work: Work) -> tuple[Said, int]:
        """What is known of the conversation, with the user's last words, and up to which of its messages."""
        if work.chain is None:
            return Said(), 0
        found, known = self._said.of(work.incoming.agent, work.chain)
        said = found or Said()
        for index in range(len(work.came.messages) - 1, work.chain.head + known - 1, -1):
            if words := words_of(work.came, index):
                return replace(said, words=words[-_QUERY_CHARS:]), known
        return said, known

    def _keep(self, work: Work, said: Said, known: int) -> None:
        """Remember what was said, for the next request of the conversation."""
        if work.chain is not None and (known < len(work.chain) or said.since):
            self._said.keep(work.incoming.agent, work.chain, said)
            self._agents.add(work.incoming.agent)


def _is_due(work: Work, said: Said, known: int) -> bool:
    """Whether something is to be said that will stay: where the user speaks anew, or nothing was said yet."""
    if work.chain is None or known == len(work.chain):  # the same once more, as after an answer that was lost
        return bool(work.chain is not None and not said.stays)
    last = last_user_message(work.request)
    return last is not None and (speaks(work.request, last) or not said.stays)


def _repeated(said: Said) -> TokenCount:
    """How many tokens the texts take that have to be repeated."""
    tokens = sum(stay.tokens for stay in said.stays)
    return TokenCount(tokens, False, tokens + tokens // 8) if tokens else NOTHING


def _fits(part: Part, room: int | None) -> bool:
    return room is None or part.count.upper <= room


def _as_before(said: Said, sources: StableSections, room: int | None) -> Fit | None:
    """The stable part as it was sent before, if its sources are the same and there is room for it."""
    if said.sources != sources.key or not _fits(said.part, room):
        return None
    return Fit(stable=said.part)


def _new_beginning(work: Work, said: Said) -> Said:
    """Nothing is repeated, and thoughts of before are left out on models that would not take them.

    So it is if nothing is known, the system prompt is another one now, or there is no room for what was said.
    """
    head = work.chain.head if work.chain is not None else 0
    return Said(words=said.words, since=len(work.came.messages) - head)


def _again(work: Work, said: Said, *, joins: bool) -> tuple[list[Edit], Said] | None:
    """What has to be repeated, and what is done about thoughts of before; None if nothing can be done."""
    head = work.chain.head if work.chain is not None else 0
    edits: list[Edit] = []
    for stay in said.stays:
        place = place_now(work.request, work.came, head + stay.at)
        if place is not None:
            edits += edits_at(work.request, place, stay.texts, _REASON, joins=joins)
    if not work.rules.binds_thinking or not said.since:
        return edits, said
    if said.asks is not None:
        return [*edits, said.asks], said
    end = head + said.since + len(work.request.messages) - len(work.came.messages)
    earlier = replace(work.request, messages=work.request.messages[: max(0, end)])
    thoughts = unbound_thoughts(earlier, work.model, changed_from=0)
    if thoughts is None:
        return None
    asks = next((edit for edit in thoughts if isinstance(edit, SetParameter)), None)
    return [*edits, *thoughts], replace(said, asks=asks, since=said.since if thoughts else 0)


def _with_turn(work: Work, said: Said, turn: Part, placed: Placed) -> Said:
    """What was said, and what is said now."""
    if not placed.edits or work.chain is None:
        return said
    at = placed.edits[0].place.index + len(work.came.messages) - len(work.request.messages) - work.chain.head
    texts = tuple((section.text, section.tokens) for section in turn.sections)
    return replace(said, stays=(*said.stays, Stay(at, texts)))


def _room(work: Work) -> int | None:
    """How many tokens there are beside the request; None where nobody knows the window."""
    if work.window_tokens is None:
        return None
    limit = work.window_tokens - work.output_reserve
    if work.count is None:
        return max(0, limit - len(work.request.body) // BYTES_PER_TOKEN)
    return max(0, int((limit - work.count.upper) / max(1.0, work.rate)))


def _count(work: Work, added: TokenCount) -> None:
    """Have the count of the request be that with what was put into it."""
    rate = work.rate
    if work.estimate is not None:
        work.estimate = replace(work.estimate, total=work.estimate.total + added)
    if work.count is not None:
        upper = round(added.upper * max(1.0, rate))
        work.count += TokenCount(round(added.tokens * rate), added.exact, upper)


def _is_first_message(edit: Edit) -> bool:
    """Whether it puts a message before all others."""
    if not isinstance(edit, Insert) or edit.place.area is not Area.MESSAGES:
        return False
    return (edit.place.index, edit.place.block) == (0, None)


class InjectInRoom:
    """Puts an agent's sections into its requests, and makes room there for required ones."""

    name = SECTIONS

    def __init__(self, inject: Inject, make_room: MakeRoomFor) -> None:
        self._inject = inject
        self._make_room = make_room

    async def take(self, work: Work) -> None:
        """Inject what there is."""
        await self._inject.take(work, self._make_room)
