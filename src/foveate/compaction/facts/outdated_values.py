"""Cut values that are no longer true out of every statement that still gives them.

A person says "Dinner at 8", and the assistant repeats it. Once the person says "7:30, not 8", no statement may
be carried that still gives the old value. What remains of such a statement is kept.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

from foveate.compaction.facts.amendments import OMITTED, find_unit_end
from foveate.compaction.facts.language import language
from foveate.compaction.facts.rules import find_whole
from foveate.compaction.facts.statements import Statement, find_statement_subject
from foveate.compaction.facts.subjects import ValueType, split_words
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.value_updates import is_same_kind
from foveate.compaction.facts.values import ORDINAL, Mention, find_mentions, split_parts

# Values of these types rarely mean two things in one conversation.
_DISTINCTIVE = frozenset((ValueType.NAME, ValueType.CODE, ValueType.PATH, ValueType.TIME, ValueType.ADDRESS))
_MIN_REST_WORDS = 2
_MIN_NAME_CHARS = 2
_CLAUSE_END = re.compile(r"[,;:.!?]\s+")
_CLAUSE_ENDS = ",.;:!?)"
_EDGES = " ,;:–—-"
_LEADING_CONJUNCTION = re.compile(r"^(?:and|but|so|und|aber|et|mais|y|pero|e|ma|mas)\s", re.IGNORECASE)
_TRAILING_CONJUNCTION = re.compile(r"\s(?:and|but|so|und|aber|et|mais|y|pero|e|ma|mas)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Outdated:
    mention: Mention
    context: frozenset[str]
    """The stems of what was said about it."""
    replaced_by: int
    is_rejected: bool = False
    """Somebody says that it is wrong."""


class OutdatedValues:
    """Values that statements replaced or rejected."""

    def __init__(self) -> None:
        self._by_value: dict[str, list[_Outdated]] = {}

    def add_replaced(self, old: Statement, mentions: Sequence[Mention], number: int) -> None:
        stems = find_mentions(old.text).stems
        for mention in mentions:
            self._add(mention, stems, number)

    def add_rejected(self, statement: Statement, before: str, after: str, number: int) -> None:
        """Add what a statement says is wrong: "8, not 6", "rather than the old host".

        `before` and `after` are the sentences around it.
        """
        for rejection in find_rejections(statement.text, f"{before} {after}"):
            stems = find_mentions(statement.text).stems | find_mentions(before).stems
            self._add(rejection.mention, stems, number, is_rejected=True)

    def _add(self, mention: Mention, stems: frozenset[str], number: int, *, is_rejected: bool = False) -> None:
        outdated = _Outdated(mention, stems | mention.near, number, is_rejected)
        self._by_value.setdefault(mention.normal, []).append(outdated)

    def cut(
        self, statements: Sequence[Statement], replaced: Mapping[int, int], count: int
    ) -> Iterator[tuple[int, int, Statement | None]]:
        """Yield each statement that gives outdated values, which one replaced them, and what remains of it."""
        self._drop_restated(statements[:count], replaced)
        effective = set(replaced.values())
        farewells = self._find_farewells(statements[:count])
        for number, statement in enumerate(statements):
            if number in replaced or statement.is_summary:
                continue
            newer: list[int] = []
            outdated: list[Mention] = []
            places = farewells.get(number, ())
            for mention in find_mentions(statement.text).mentions:
                for known in chain.from_iterable(self._by_value.get(key, ()) for key in _find_keys(mention)):
                    # "In Python, not Java" is a wish, unless it was Java before.
                    if (
                        statement.message_index <= statements[known.replaced_by].message_index
                        and (known.replaced_by != number or number in effective)
                        and _is_same(statement, mention, known)
                    ):
                        outdated.append(mention)
                        newer.append(known.replaced_by)
                        break
            text = _cut(statement.text, outdated) if outdated else statement.text
            effective.update(newer)
            if text == statement.text and places:
                text = _cut_places(text, [place for place, _ in places])
                newer += (replacing for _, replacing in places)
            if statement.cancelled and number in effective:
                text = _cut_cancellation(text)
                newer.append(number)
            if text != statement.text:
                yield (
                    number,
                    max(newer),
                    with_text(statement, text) if _says_enough(text) and text != statement.label else None,
                )

    def _find_farewells(self, statements: Sequence[Statement]) -> dict[int, list[tuple[int, int]]]:
        """Where messages that replace a value still give it: "Ana Lind is ill. Ben Ross will read it.".

        By the number of the statement: each place, and the number of the statement that replaces the value.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for outdated in chain.from_iterable(self._by_value.values()):
            value = outdated.mention.value
            if outdated.is_rejected or _has_longer_name(outdated.mention, statements[outdated.replaced_by]):
                continue
            message = statements[outdated.replaced_by].message_index
            number = outdated.replaced_by
            while number >= 0 and statements[number].message_index == message:
                text = statements[number].text.lower()
                for word in {value, *(_distinct_words(outdated))}:
                    for start in find_whole(word, text):
                        if not _gives_new_value(statements[number].text, start, outdated.mention):
                            found.setdefault(number, []).append((start, outdated.replaced_by))
                number -= 1
        return found

    def _drop_restated(self, statements: Sequence[Statement], replaced: Mapping[int, int]) -> None:
        """Forget what people say again after it was replaced."""
        for number, statement in enumerate(statements):
            if statement.speaker is not Speaker.USER or number in replaced:
                continue
            for mention in find_mentions(statement.text).mentions:
                if mention.normal in self._by_value and not _rejects(statement.text, mention):
                    self._by_value[mention.normal] = [
                        outdated
                        for outdated in self._by_value[mention.normal]
                        if statement.message_index <= statements[outdated.replaced_by].message_index
                        or not _is_same(statement, mention, outdated)
                    ]


def _has_longer_name(mention: Mention, statement: Statement) -> bool:
    """Return whether a statement has a longer name with the same words: "Lind", "Ana Lind"."""
    words = set(split_words(mention.value))
    return mention.value_type is ValueType.NAME and any(
        words < set(split_words(other.value)) for other in find_mentions(statement.text).mentions
    )


def _gives_new_value(text: str, place: int, old: Mention) -> bool:
    """Return whether the part of a text at a place says what replaced a value: "We renamed X to Y"."""
    start = 0
    for part in split_parts(text):
        end = start + len(part)
        if start <= place < end:
            words = set(split_words(old.value))
            return any(
                start <= mention.start < end
                and mention.start > place
                and words.isdisjoint(split_words(mention.value))
                and mention.value_type is not ValueType.NAME
                and is_same_kind(mention, old)
                for mention in find_mentions(text).mentions
            )
        start = end
    return False


def _distinct_words(outdated: _Outdated) -> Iterator[str]:
    """Words that stand for a whole name: not those of several names."""
    if outdated.mention.value_type is ValueType.NAME:
        for word in split_words(outdated.mention.value):
            if len(word) > _MIN_NAME_CHARS:
                yield word


def _find_keys(mention: Mention) -> list[str]:
    """How people give a value: "6 October" is also "the 6th"."""
    day = _DAY.search(mention.normal) if mention.value_type is ValueType.DATE else None
    return [mention.normal, *(f"{int(day[1])}{suffix}" for suffix in _ORDINAL_SUFFIXES if day)]


_DAY = re.compile(r"(?<![\d-])(\d{1,2})(?![\d-])")
_ORDINAL_SUFFIXES = ("st", "nd", "rd", "th")


def _is_same(statement: Statement, mention: Mention, outdated: _Outdated) -> bool:
    """Return whether a value is the outdated one, and not the same number of something else."""
    old = outdated.mention
    is_day = mention.value_type is ValueType.DATE and ORDINAL.fullmatch(old.value) is not None
    if not (is_day or is_same_kind(mention, old) or is_same_kind(old, mention)):
        return False
    is_clear = outdated.is_rejected and mention.value_type in (ValueType.DATE, ValueType.MONEY)
    return (
        is_clear
        or mention.value_type in _DISTINCTIVE
        or _is_seat(mention)
        or not outdated.context.isdisjoint(find_mentions(statement.text).stems)
    )


@dataclass(frozen=True, slots=True)
class RejectedValue:
    """A value that a text says is wrong, and the phrase that says so.

    `can_be_cut`: the text makes sense without the phrase.
    """

    mention: Mention
    start: int
    end: int
    can_be_cut: bool = False


def _is_seat(mention: Mention) -> bool:
    """Return whether a number has a letter that is not a unit: "21C"."""
    return (
        mention.value_type is ValueType.NUMBER
        and not mention.unit
        and mention.value[-1:].isalpha()
        and mention.value[0].isdigit()
        and not ORDINAL.fullmatch(mention.value)
    )


def find_rejections(text: str, around: str = "") -> list[RejectedValue]:
    """The values that a text says are wrong.

    "8, not 6", "rather than 6", "no longer 6", "from 6 to 8"; "6 is too late". The right value may be in the
    sentences `around`.
    """
    mentions = find_mentions(text).mentions
    if not mentions:
        return []
    words = language()
    found: list[RejectedValue] = []
    right = (*mentions, *find_mentions(around).mentions)
    for match in words.rejections.finditer(text):
        mention = next((mention for mention in mentions if mention.start >= match.end()), None)
        if mention is None or not _is_only_articles(text[match.end() : mention.start]):
            continue
        end = find_unit_end(text, mention.end)
        is_certain = match[0].lower() in words.certain_rejections or _ANY_MORE.match(text, end) is not None
        others = (other for other in right if other.value != mention.value)
        if is_certain or any(is_same_kind(other, mention) or is_same_kind(mention, other) for other in others):
            is_end = end == len(text) or text[end] in _CLAUSE_ENDS
            found.append(RejectedValue(mention, match.start(), end, is_end))
    for before, mention in pairwise(mentions):
        if move := _find_move(text, before, mention):
            found.append(move)
    for match in words.refusals.finditer(text):
        found += (
            RejectedValue(mention, mention.start, match.end())
            for mention in mentions
            if text[mention.end : match.start()] == " "
        )
    return found


_ANY_MORE = re.compile(r",?\s(?:any\s?more|any longer)\b", re.IGNORECASE)


def _find_move(text: str, before: Mention, mention: Mention) -> RejectedValue | None:
    """What something was before: "moves from 6 to 8", "goes to 8 from 6", "6 → 8"."""
    between = text[find_unit_end(text, before.end) : mention.start]
    if _ARROW.fullmatch(between):
        return RejectedValue(before, before.start, mention.start, can_be_cut=True)
    start = max(accumulate(map(len, split_parts(text[: before.start])[:-1]), initial=0))
    lead = text[start : before.start]
    if language().moves.search(text[start : mention.end]) is None:
        return None
    origin, target = _FROM.search(lead), _TO.search(lead)
    if origin and _TO.fullmatch(between) and is_same_kind(mention, before):
        return RejectedValue(
            before,
            start + origin.start(),
            mention.start - len(between.lstrip()),
            can_be_cut=True,
        )
    if target and _FROM.fullmatch(between) and is_same_kind(before, mention):
        return RejectedValue(
            mention,
            mention.start - len(between),
            find_unit_end(text, mention.end),
            can_be_cut=True,
        )
    return None


_ARROW = re.compile(r"\s?(?:→|[-=]>)\s?")
_FROM = re.compile(r"\s(?:from|von|vom|de|del|da)\s(?:the\s)?$", re.IGNORECASE)
_TO = re.compile(r"\s(?:to|auf|nach|à|a|para)\s(?:the\s)?$", re.IGNORECASE)


def _rejects(text: str, mention: Mention) -> bool:
    return any(rejection.mention.normal == mention.normal for rejection in find_rejections(text))


def _is_only_articles(text: str) -> bool:
    words = language()
    return all(word in words.determiners or word in words.prepositions for word in text.lower().split())


def without_values(old: Statement, new: Statement, values: Sequence[Mention]) -> Statement | None:
    """What remains of a statement without some values: gaps, or nothing where the new one says the rest."""
    text, start = old.text, 0
    gaps = {mention.start: mention for mention in sorted(values, key=lambda mention: -mention.start)}
    places = [mention.start for mention in find_mentions(text).mentions if mention.start not in gaps]
    said = find_mentions(new.text).stems
    rest: list[str] = []
    for part in split_parts(text):
        end = start + len(part)
        inside = [mention for mention in gaps.values() if start <= mention.start < end]
        has_others = any(start <= place < end for place in places)
        if not inside or has_others or not find_mentions(part).stems <= said:
            for mention in inside:
                unit_end = min(find_unit_end(text, mention.end), end)
                part = part[: mention.start - start] + OMITTED + part[unit_end - start :]
            rest.append(part)
        start = end
    remaining = _trim("".join(rest))
    return with_text(old, remaining) if _says_enough(remaining) else None


def _cut(text: str, outdated: Sequence[Mention]) -> str:
    """The text without the phrases that reject outdated values, and without the parts that give them."""
    phrases = {
        rejection.mention.start: rejection
        for rejection in find_rejections(text)
        if rejection.start < rejection.mention.start or rejection.can_be_cut
    }
    places: list[int] = []
    for mention in reversed(outdated):
        phrase = phrases.get(mention.start)
        if phrase is None or _is_whole_part(text, phrase):
            places.append(mention.start)
        elif phrase.can_be_cut:
            start = len(text[: phrase.start].rstrip(_EDGES))
            rest = text[phrase.end :]
            cut = phrase.end - start
            if rest and rest[0] not in _CLAUSE_ENDS:
                rest = f" {rest.lstrip()}"
                cut = len(text) - start - len(rest)
            text = text[:start] + rest
            places = [place - cut for place in places]
    return _keep_parts(text, lambda start, end: not any(start <= place < end for place in places))


def _is_whole_part(text: str, phrase: RejectedValue) -> bool:
    """Return whether a part of a text says nothing else: "I'm no longer in 6, …"."""
    part = split_parts(text[: phrase.start])[-1]
    before = find_mentions(part)
    return (
        phrase.can_be_cut
        and bool(part.strip())
        and not (before.stems or before.mentions)
        and text[phrase.end : phrase.end + 1] in ("", *_CLAUSE_ENDS)
    )


def _cut_places(text: str, places: Sequence[int]) -> str:
    """The text without the parts in which something is said of outdated values, unless another is in them."""

    def is_kept(start: int, end: int) -> bool:
        return not any(start <= place < end for place in places)

    return _keep_parts(text, is_kept)


def _cut_cancellation(text: str) -> str:
    """What else a statement says that called something off which is no longer carried."""
    ends = [0, *(match.end() for match in _CLAUSE_END.finditer(text)), len(text)]
    clauses = [text[start:end] for start, end in pairwise(ends)]
    rest = _trim("".join(clause for clause in clauses if not language().cancel_cues.search(clause)))
    return rest if _says_enough(rest) else text


def _keep_parts(text: str, is_kept: Callable[[int, int], bool]) -> str:
    """The parts of a text that are kept, by where they start and end."""
    ends = [0, *accumulate(map(len, split_parts(text)))]
    rest = [text[start:end] for start, end in pairwise(ends) if is_kept(start, end)]
    return text if len(rest) == len(ends) - 1 else _trim("".join(rest))


def _trim(text: str) -> str:
    text = _LEADING_CONJUNCTION.sub("", text.strip().lstrip(_EDGES), count=1).rstrip(_EDGES)
    return _TRAILING_CONJUNCTION.sub("", text)


def _says_enough(text: str) -> bool:
    wording = find_mentions(text)
    return bool(wording.mentions) or len(wording.stems) >= _MIN_REST_WORDS


def with_text(statement: Statement, text: str) -> Statement:
    return replace(statement, text=text, subject=find_statement_subject(text, statement.speaker))
