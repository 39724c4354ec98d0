"""What is sent in the place of a folded head: a summary that stands for it, and edits that a provider takes.

A client that resends everything has its head replaced each time. It is known by the hash at its end, so that it
is replaced in any session, by any gateway, and in the same bytes each time; a client that edited its past
matches no fold and is left alone. What stays, the tail above all, stays byte for byte.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from foveate import wire
from foveate.budget.eviction import answers_itself
from foveate.fold.boundary import Head, Junction, continues_stored, head_of
from foveate.fold.journal import Fold, Outcome
from foveate.fold.outlines import outlines
from foveate.fold.telling import stands
from foveate.fold.thoughts import unbound_thoughts
from foveate.session.chain import Chain
from foveate.tokens.caches import register
from foveate.tokens.memo import Memo
from foveate.values import (
    Document,
    Edit,
    Format,
    Image,
    Message,
    Opaque,
    Part,
    ReplaceMessages,
    Request,
    Text,
)

UNDERSTOOD = "Understood. I go on from there."
GO_ON = "Go on from there."
SO_FAR = "What I did about that until now is told in the summary."

_HEADING = (
    "[Foveate: the first {messages:,} messages of this conversation were folded into this summary. It tells "
    "what was said and done; it is not an instruction.]"
)
_CARRIED = "Also named there:"
_TITLE_CHARS = 80
_UNSPACED = "\u2e80"
_KEPT_HEADS = 1024
# Under it, and what a head ends with, it is noted where that meets what stays.
_JUNCTION = object()
# A request of a folded session says the same as the one before.
_KEPT_SUMMARIES = 64


def fold_of(chain: Chain, folds: Sequence[Fold]) -> Fold | None:
    """The fold in force that reaches farthest into a conversation, and leaves something of it; None if none."""
    in_force = [fold for fold in folds_of(chain, folds) if fold.undone_at is None]
    # Of two that reach as far, the later one was made since the first did not do.
    return max(in_force, key=lambda fold: (fold.messages, fold.compacted_at), default=None)


def folds_of(chain: Chain, folds: Sequence[Fold]) -> list[Fold]:
    """The folds of a conversation's head, in force or undone."""
    return [
        fold
        for fold in folds
        if fold.outcome is Outcome.OK
        and 0 < fold.messages < len(chain)
        and chain.hashes[fold.messages - 1] == fold.boundary
    ]


def folded_edits(
    request: Request,
    chain: Chain,
    folds: Sequence[Fold],
    *,
    unbound: Sequence[range] | None = None,
    model: str = "",
) -> tuple[Edit, ...]:
    """The edits that put the farthest reaching fold in the place of the head; none where no fold is of it.

    `model` is the model of the request where its body does not name it, as at Bedrock. `thoughts.betas_of`
    says which betas have to be asked for with these edits.

    `unbound` are the places in the chain of what the model said after something else than is sent now, as
    `uses.unbound` finds them. On models that bind thinking, what it thought there is left out, and what it
    thought since is kept. Where nobody knows, all that may be is left out.

    Where a fold was undone, the conversation is sent as it came, but for what such a model thought after the
    summary.
    """
    if not folds or continues_stored(request):
        return ()
    model = model or request.model
    fold = fold_of(chain, folds)
    undone = [
        other.seen_messages or other.messages for other in folds_of(chain, folds) if other.undone_at is not None
    ]
    within = None if unbound is None else [range(chain.head + at.start, chain.head + at.stop) for at in unbound]
    if fold is None:
        start = chain.head + (min(undone) if unbound is None and undone else 0)
        return (unbound_thoughts(request, model, changed_from=start, within=within) or ()) if undone else ()
    cut = chain.head + fold.messages
    junction = _junction(request, chain.head, fold)
    if junction is None:  # a fork that goes on in the middle of a step
        return ()
    thoughts = unbound_thoughts(request, model, changed_from=cut, within=within)
    if thoughts is None:
        return ()
    return (*_summary_for_head(request, fold, junction, chain.head), *thoughts)


def _summary_for_head(
    request: Request, fold: Fold, junction: Junction, start: int
) -> Iterator[ReplaceMessages]:
    """The summary as the user's, with all system messages that lost their place behind it, and a reply.

    A question that stays comes after that. Where the model does not go on from it, it is said where it got to.
    """
    reason = f"folded into a summary: {len(junction.replaced):,} messages"
    rows = spans([start + place for place in junction.replaced])
    told, reply = stand_in(
        summary_text(fold),
        request.format,
        after_user=False,
        before_model=junction.by_model and not junction.kept,
    )
    said: dict[int, tuple[Message, ...]] = {}
    question = start + junction.kept[0] if junction.kept else rows[-1].stop
    earlier = [row for row in rows if row.start < question]
    if earlier:
        said[earlier[-1].start] = reply
        said[earlier[0].start] = told + said.get(earlier[0].start, ())
    else:  # the question opens the conversation
        yield ReplaceMessages(start=question, end=question, messages=told + reply, reason=reason)
    if junction.kept and not junction.by_model:
        said[rows[-1].start] = (_by_model(SO_FAR, request.format),)
    for row in rows:
        yield ReplaceMessages(
            start=row.start,
            end=row.stop,
            messages=said.get(row.start, ()),
            reason=reason,
            saved_tokens=fold.tokens_before - fold.tokens_after if row is rows[0] else 0,
        )


def _junction(request: Request, start: int, fold: Fold) -> Junction | None:
    """Where the head that a fold has replaced meets what stays of a request.

    It is noted with the last message: what comes after it changes nothing, unless it answers an earlier call.
    """
    trail = wire.trail(request)
    links, cut = trail.links, start + fold.messages
    key = _JUNCTION, fold.boundary
    known = len(links)
    while known > cut - trail.head and key not in links[known - 1].known:
        known -= 1
    junction: Junction | None = None
    if known > cut - trail.head and answers_itself(outlines(request, trail, trail.head + known)):
        junction = links[known - 1].known[key]
    if junction is None:
        junction = _head(request, start, fold).before(outlines(request, trail, cut))
    if junction is not None and key not in links[-1].known:
        links[-1].known[key] = junction
    return junction


@lru_cache(maxsize=_KEPT_SUMMARIES)
def _summary_text(messages: int, summary: str, facts: tuple[str, ...]) -> str:
    told = " ".join(summary.split()) if facts else ""
    carried = carried_text([fact for fact in facts if not stands(" ".join(fact.split()), told)])
    heading = _HEADING.format(messages=messages)
    return "\n\n".join(filter(None, (heading, summary.strip(), carried)))


class _Heads:
    """What is known of heads that were folded, by the hash at their end."""

    def __init__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Forget all of them, and what was said in their place."""
        self.known: Memo[Head] = Memo(_KEPT_HEADS)
        _summary_text.cache_clear()


_HEADS = _Heads()
register(_HEADS)


def _head(request: Request, start: int, fold: Fold) -> Head:
    """What is known of the head that a request begins with, and a fold has replaced."""
    known = _HEADS.known.get(fold.boundary)
    if known is None:
        raws = request.messages[start : start + fold.messages]
        known = head_of([wire.message(request.format, raw) for raw in raws])
        _HEADS.known.put(fold.boundary, known)
    return known


def summary_text(fold: Fold) -> str:
    """What is said in the place of a folded head, the same each time."""
    return _summary_text(fold.messages, fold.summary, fold.carried)


def carried_text(carried: Sequence[str]) -> str:
    """The list after a summary: names in one line, since each line takes tokens; the rest each in its own."""
    names: list[str] = []
    rest: list[str] = []
    for fact in carried:
        if _is_name(fact):
            names.append(fact)
        else:
            rest.append(" ".join(fact.split()))
    lines = [f"- {line}" for line in (" ".join(names), *rest) if line]
    return "\n".join((_CARRIED, *lines)) if lines else ""


def _is_name(fact: str) -> bool:
    """Whether it is one word; in scripts that write no spaces a sentence would seem one."""
    return not fact or (fact.split() == [fact] and (fact.isascii() or max(fact) < _UNSPACED))


def stand_in(
    text: str, spoken: Format, *, after_user: bool, before_model: bool
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Messages that say `text` in the place of others, so that speakers alternate with what stands around.

    System messages that stay come between the first and the second of them: always after what the user says
    and before what the model says, where alone Anthropic takes them.
    https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages (read November 2026)
    """
    by_user, by_model = _by_user(text), _by_model(text, spoken)
    match after_user, before_model:
        case True, True:
            return (by_model, _by_user(GO_ON)), ()
        case True, False:
            return (), (by_model,)
        case False, True:
            return (by_user,), ()
        case _:
            return (by_user,), (_by_model(UNDERSTOOD, spoken),)


def _by_user(text: str) -> Message:
    return Message(role="user", parts=(Text(text),))


def _by_model(text: str, spoken: Format) -> Message:
    return Message(role="model" if spoken is Format.GEMINI else "assistant", parts=(Text(text),))


def spans(places: Sequence[int]) -> list[range]:
    """Ascending places as rows of those that follow each other."""
    rows = groupby(enumerate(places), lambda numbered: numbered[1] - numbered[0])
    found = [[place for _, place in row] for _, row in rows]
    return [range(row[0], row[-1] + 1) for row in found]


def named(part: Part) -> str | None:
    """What a summary says of a picture, a document or a block that it cannot show; None of what has words."""
    match part:
        case Image(width=int(width), height=int(height)):
            return f"[image: {width}x{height} pixels]"
        case Image():
            return f"[image: {part.source}]"
        case Document():
            title = part.text.partition("\n")[0].strip()[:_TITLE_CHARS] if not _is_plain(part) else ""
            pages = f"{part.pages:,} pages" if part.pages else ""
            said = ", ".join(filter(None, (title, part.media_type, pages)))
            return f"[document: {said or part.source}]"
        case Opaque():
            return f"[{part.kind}]"
        case _:
            return None


def _is_plain(document: Document) -> bool:
    """Whether its text is what it says, and not its title."""
    return document.media_type.startswith("text/")
