"""Find which single value of an earlier statement a later one changes.

"The left bed is 2.4 m and the right one 1.8 m." "Only 2.1 m on the left." People give a new value in few words,
and the assistant repeats it with what it belongs to ("Then the left bed becomes 2.1 m."). So each value is
compared with those of earlier statements of the same type and unit, by the words in the same part of the
sentence: those of the person, and those of the assistant just before and after. If the sentence does not name
what the value is of ("It's called …", "We're landing on …"), the only other value of the same form is meant.
After a sentence that gives the reason, one word in common is enough.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat

from foveate.compaction.facts.amendments import OMITTED, find_unit_end
from foveate.compaction.facts.contrasts import are_in_same_slot, have_other_qualifiers
from foveate.compaction.facts.language import language
from foveate.compaction.facts.statements import Statement
from foveate.compaction.facts.subjects import Subject, ValueType, find_subject, split_words
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.values import ORDINAL, Mention, Wording, find_mentions

_MAX_TEXTS = 20_000
_MIN_PREFIX_CHARS = 3
_MAX_POSTINGS = 16
_MAX_RECENT = 48
_MAX_LATEST = 12


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """The number of a statement, one of its values, and what replaces that."""

    number: int
    old: Mention
    new: Mention


class ValueIndex:
    """The values of statements that are still true, by the words around them."""

    def __init__(self) -> None:
        self._contexts: dict[int, frozenset[str]] = {}
        """The words of the statement before each, in the same message."""
        self._postings: dict[str, deque[tuple[int, Mention]]] = {}
        self._recent: deque[tuple[int, Mention]] = deque(maxlen=_MAX_RECENT)
        self._repeated: deque[Mention] = deque(maxlen=_MAX_LATEST)
        """What the assistant said of late."""

    def add(self, number: int, statement: Statement, before: Statement | None) -> None:
        """`before` is the statement before it in the same message."""
        if statement.is_quoted:
            return
        wording = find_mentions(statement.text)
        self._contexts[number] = find_mentions(before.text).stems if before else frozenset()
        names = _find_names(wording) | self._contexts[number]
        for mention in wording.mentions:
            if statement.speaker is Speaker.USER:
                self._recent.append((number, mention))
                self._add_postings(number, mention, names if mention.value_type in _NAMED_TYPES else ())
                for said in self._repeated:
                    if said.normal == mention.normal:
                        self._add_postings(number, replace(mention, near=mention.near | said.near))
            else:  # The assistant says a value with what it belongs to.
                self._repeated.append(mention)
                for earlier, old in [*self._recent][-_MAX_LATEST:]:
                    if old.normal == mention.normal:
                        self._add_postings(earlier, replace(old, near=old.near | mention.near))

    def _add_postings(self, number: int, mention: Mention, names: Iterable[str] = ()) -> None:
        for key in {stem[:_MIN_PREFIX_CHARS] for stem in (*mention.near, *names)}:
            self._postings.setdefault(key, deque(maxlen=_MAX_POSTINGS)).append((number, mention))

    def find_changes(
        self,
        statement: Statement,
        before: Statement | None,
        replies: Sequence[str],
        known: Sequence[Statement],
        replaced: Mapping[int, int],
        are_different: Callable[[Subject, Subject], bool],
    ) -> Iterator[ChangedValue]:
        """The values of earlier statements that a statement changes.

        `before` is the statement before it in the same message, `replies` are what the assistant said just
        before and after it. `are_different` compares two statements.
        """
        wording = find_mentions(statement.text)
        texts = statement.text, before.text if before else ""
        said = {mention.value for text in texts for mention in find_mentions(text).mentions}
        said.update(match[1].lower() for text in texts for match in _CAPITALIZED.finditer(text))
        # "The hall is taken. We start at 10:30."
        announcing = [before] if before is not None and not _hard_mentions(before.text) else []
        has_cue = any(said_before.subject.has_cue for said_before in (statement, *announcing))
        has_weak_cue = any(
            language().weak_cues.search(said_before.text) for said_before in (statement, *announcing)
        )
        refers_back = not language().back_references.isdisjoint(split_words(statement.text.lower())[:1])
        others = [(find_mentions(reply), language().update_cues.search(reply) is not None) for reply in replies]
        for mention in wording.mentions:
            names = _find_names(wording) - set(split_words(mention.value))
            views = [_View(mention, wording.stems, has_cue, names)]
            for other, is_change in others:
                views += [
                    _View(repeated, frozenset(), is_change)
                    for repeated in other.mentions
                    if repeated.normal == mention.normal
                ]
            change = self._find_change(statement, views, said, known, replaced, are_different, has_weak_cue)
            says_little = (
                not _near_in_part(mention)
                or mention.value_type is ValueType.CODE
                or (statement.subject.has_cue and _starts_with_pronoun(mention.part))
            )
            if change is None and (
                refers_back
                or (says_little and (statement.subject.has_cue or any(view.has_cue for view in views[1:])))
            ):
                change = self._find_only(statement, mention, known, replaced, are_different)
            # "The builders stay, we can't move till 3 September."
            is_reason_in_front = mention.value_type in _NAMED_TYPES and not statement.text.startswith(
                mention.part
            )
            is_explained = bool(announcing) or is_reason_in_front
            if change is None and is_explained:
                change = self._find_explained(statement, mention, announcing, known, replaced)
            if change is not None and change.old.normal != mention.normal:
                yield change

    def _find_change(
        self,
        statement: Statement,
        views: Sequence["_View"],
        said: Set[str],
        known: Sequence[Statement],
        replaced: Mapping[int, int],
        are_different: Callable[[Subject, Subject], bool],
        has_weak_cue: bool,
    ) -> ChangedValue | None:
        has_cue = has_weak_cue or any(view.has_cue for view in views)
        own = views[0].mention
        hard = _hard_mentions(statement.text)
        best: list[tuple[float, int, Mention]] = []
        for number, old in self._candidates(views):
            alike = [view for view in views if is_same_kind(view.mention, old)]
            if not alike or number in replaced or known[number].message_index >= statement.message_index:
                continue
            is_wrong = old.value in said and old.value != own.value
            wording = find_mentions(known[number].text)
            stems = wording.stems if old.near <= wording.stems else wording.stems | old.near
            # "Breakfast on weekdays starts at 6:30." "Breakfast on Sundays starts at 7:30."
            has_same_types = all(any(is_same_kind(new, other) for other in wording.mentions) for new in hard)
            link = max(
                (
                    link
                    for view in alike
                    if (link := _link(view, old, stems, self._contexts.get(number, frozenset())))
                    and _is_evident(
                        view.mention,
                        old,
                        has_cue=has_cue,
                        is_wrong=is_wrong,
                        is_contained=has_same_types and _is_contained(view.mention, old, stems),
                        is_taken_over=view.has_cue and _count_shared(view.context, old.near) > 1,
                    )
                    and not are_different(_find_part_subject(view.mention.part), _find_part_subject(old.part))
                ),
                default=0.0,
            )
            # Perhaps in another part, which says something else.
            is_negated = statement.subject.is_negated or (
                known[number].subject.is_negated and not _find_part_subject(old.part).is_negated
            )
            if link and (is_negated or not are_different(statement.subject, known[number].subject)):
                best.append((link, number, old))
        if not best:
            return None
        link, number, old = max(best, key=lambda found: found[:2])
        same = {other[2].start for other in best if other[:2] == (link, number)}
        return ChangedValue(number, old, own) if len(same) == 1 else None

    def _find_only(
        self,
        statement: Statement,
        new: Mention,
        known: Sequence[Statement],
        replaced: Mapping[int, int],
        are_different: Callable[[Subject, Subject], bool],
    ) -> ChangedValue | None:
        """The only value of the same form that was said not long ago, if little is said about the new one."""
        if len(_near_in_part(new)) > 1:
            return None
        found = [
            ChangedValue(number, old, new)
            for number, old in self._recent
            if (new.unit or statement.subject.has_cue) and _has_same_form(new, old)
            if number not in replaced and old.normal != new.normal
            # "wheel £41,000, roof 23,500"
            if new.value_type is not ValueType.MONEY
            or not any(
                is_same_kind(other, old) for other in find_mentions(known[number].text).mentions if other != old
            )
        ]
        repeated = {mention.normal for mention in self._repeated}
        latest = {number for number, _ in [*self._recent][-_MAX_LATEST:]}
        for candidates in (
            found,
            [change for change in found if change.number in latest] if len(_near_in_part(new)) <= 1 else [],
            [change for change in found if change.old.normal in repeated],
        ):
            if len(candidates) == 1:
                (change,) = candidates
                old = known[change.number]
                is_same_message = old.message_index >= statement.message_index
                subjects = statement.subject, old.subject
                if statement.subject.is_negated:  # "I can't come that early, so we land on 21 May."
                    subjects = _find_part_subject(new.part), _find_part_subject(change.old.part)
                return None if is_same_message or are_different(*subjects) else change
        return None

    def _find_explained(
        self,
        statement: Statement,
        new: Mention,
        announcing: Sequence[Statement],
        known: Sequence[Statement],
        replaced: Mapping[int, int],
    ) -> ChangedValue | None:
        """The only value of the same form with a word in common, after a clause that gives the reason.

        After a sentence that announces a change, no word need be the same for the only date or amount.

        "The server listens on port 3307." "The network was divided. MariaDB is reachable on port 3310."
        """
        subject = statement.subject
        part = _find_part_subject(new.part)
        if new.value_type is ValueType.NAME or subject.is_step or not _near_in_part(new):
            return None
        if part.is_negated and not language().time_limits.search(new.part):
            return None
        hard = [mention for mention in _hard_mentions(statement.text) if is_same_kind(mention, new)]
        if len(hard) > 1:
            return None
        stems = (find_mentions(said.text).stems for said in (*announcing, statement) if announcing)
        view = _View(new, frozenset[str]().union(*stems), has_cue=False)
        found: list[tuple[int, ChangedValue]] = []
        rates = [(number, old) for number, old in self._recent if _is_share(new) and _is_share(old)]
        for number, old in (*self._candidates([view]), *rates):
            earlier = known[number]
            if (
                number in replaced
                or earlier.message_index >= statement.message_index
                or not _is_similar(new, old)
                or _find_part_subject(old.part).is_negated
            ):
                continue
            parts = part, _find_part_subject(old.part)
            if are_in_same_slot(*parts) or have_other_qualifiers(*parts):
                continue
            own = _near_in_part(old)
            shared = 2 * _count_shared(new.near, own) + _count_shared(view.context, own)
            if _is_share(new) and _is_share(old):
                shared += 2
            if shared:
                found.append((shared, ChangedValue(number, old, new)))
        most = max((shared for shared, _ in found), default=0)
        best = {change.old.normal: change for shared, change in found if shared == most}
        if not found and any(said.subject.has_cue for said in announcing):
            best = {
                old.normal: ChangedValue(number, old, new)
                for number, old in self._recent
                if number not in replaced
                and known[number].message_index < statement.message_index
                and new.value_type in (ValueType.DATE, ValueType.MONEY)
                and _is_similar(new, old)
            }
        return next(iter(best.values())) if len(best) == 1 else None

    def _candidates(self, views: Sequence["_View"]) -> Iterator[tuple[int, Mention]]:
        keys = {
            stem[:_MIN_PREFIX_CHARS]
            for view in views
            for stem in (*view.mention.near, *view.context, *view.names)
        }
        found = {
            (number, mention.start, mention.near): (number, mention)
            for key in keys
            for number, mention in self._postings.get(key, ())
        }
        return iter(found.values())


# Perhaps a name, also at the start of a sentence and with an ending: "Reza's band …".
_CAPITALIZED = re.compile(r"\b([^\W\d_a-z][^\W\d_]{1,30})")


@dataclass(frozen=True, slots=True)
class _View:
    """A value as somebody said it, with the words and the names of all that they said."""

    mention: Mention
    context: frozenset[str]
    has_cue: bool
    names: frozenset[str] = frozenset()


@lru_cache(maxsize=_MAX_TEXTS)
def _find_names(wording: Wording) -> frozenset[str]:
    named = (mention.value for mention in wording.mentions if mention.value_type is ValueType.NAME)
    return frozenset(word for name in named for word in split_words(name))


def _starts_with_pronoun(part: str) -> bool:
    """Return whether a part of a sentence does not name what it is about: "we're landing on 21 May"."""
    return not language().pronouns.isdisjoint(split_words(part.lower())[:2])  # "so we …"


def _hard_mentions(text: str) -> list[Mention]:
    return [mention for mention in find_mentions(text).mentions if mention.value_type is not ValueType.NAME]


def _near_in_part(mention: Mention) -> frozenset[str]:
    """The stems around a value in its own part of the sentence, without those of the parts before."""
    alone = (other for other in find_mentions(mention.part).mentions if other.value == mention.value)
    return next((other.near for other in alone), mention.near)


# What a name is enough for to tell which value is meant.
_NAMED_TYPES = frozenset((ValueType.DATE, ValueType.TIME, ValueType.MONEY, ValueType.ADDRESS))
_NAMED_LINK = 0.25
_WEAK_LINK = 0.2
_BARE_PENALTY = 0.75
_AMOUNT = re.compile(r"\d{3}|\d{1,3}(?:,\d{3})+")


def _link(view: _View, old: Mention, stems: frozenset[str], before: frozenset[str]) -> float:
    """How much the words around two values have in common.

    `stems` are those of the old statement, and `before` those of the statement before it.
    """
    near = _count_shared(view.mention.near, old.near)
    far = _count_shared(view.context, old.near)
    # "They moved the deadline, in my favour: 15 January." "The plumber can't, he's coming on Friday instead."
    is_unnamed = not _near_in_part(view.mention) or _starts_with_pronoun(view.mention.part)
    is_bare_part = view.has_cue and old.value_type in _NAMED_TYPES and is_unnamed
    if not near and not (far and (is_bare_part or not view.mention.near)):
        # "Zen installs it on 2 July." "Rang Zen, a very nice man, it's 9 July now."
        is_amount = (
            _AMOUNT.fullmatch(view.mention.value) is not None and _AMOUNT.fullmatch(old.value) is not None
        )
        named = stems if old.value_type in _NAMED_TYPES else old.near if is_amount else frozenset[str]()
        is_named = view.has_cue and not view.names.isdisjoint(named)
        # "I bought seeds. I sow them on 6 May." "The seeds go in on 9 May now."
        is_named_before = old.value_type in _NAMED_TYPES and not view.mention.near.isdisjoint(before)
        return _NAMED_LINK if is_named else _WEAK_LINK if view.has_cue and is_named_before else 0.0
    is_same_unit = bool(old.unit) and view.mention.unit == old.unit
    is_bare = bool(old.unit) and not view.mention.unit  # of two values, the one without a unit is more like it
    shared = near + far / 2 + (_count_shared(view.mention.near, stems) - near) / 4
    return max(shared + is_same_unit / 2 - is_bare * _BARE_PENALTY, _NAMED_LINK)


def _is_evident(
    new: Mention, old: Mention, *, has_cue: bool, is_wrong: bool, is_contained: bool, is_taken_over: bool
) -> bool:
    if old.value_type is ValueType.NAME:  # "Ana is a vegetarian." "Ben is a vegetarian now."
        is_other = is_contained and old.value not in new.part.lower()
        return is_other and (is_wrong or is_taken_over)
    # A code without numbers may name something else: a host, an option, a table.
    is_name = old.value_type is ValueType.CODE and not any(char.isdigit() for char in old.value)
    counts_other = bool(new.unit) and new.dimension != old.dimension  # "safe 4", "400 days"
    return is_wrong or (is_contained and not counts_other) or (has_cue and not is_name)


def _is_contained(new: Mention, old: Mention, stems: frozenset[str]) -> bool:
    """Return whether an old statement has all words around a value, and some of them around its own."""
    return (
        bool(new.near)
        and _count_shared(new.near, stems) == len(new.near)
        and _count_shared(new.near, old.near) > 0
    )


@lru_cache(maxsize=_MAX_TEXTS)
def _count_shared(stems: frozenset[str], others: frozenset[str]) -> int:
    """How many of the stems are among others, perhaps abbreviated: "bio", "biolog"."""
    prefixes = _find_prefixes(others)
    abbreviated = (
        any(map(_is_abbreviated, repeat(stem), others))
        for stem in stems - others
        if stem[:_MIN_PREFIX_CHARS] in prefixes
    )
    return len(stems & others) + sum(abbreviated)


@lru_cache(maxsize=_MAX_TEXTS)
def _find_prefixes(stems: frozenset[str]) -> frozenset[str]:
    return frozenset(stem[:_MIN_PREFIX_CHARS] for stem in stems)


def _is_abbreviated(one: str, other: str) -> bool:
    short, long = (one, other) if len(one) < len(other) else (other, one)
    return len(short) >= _MIN_PREFIX_CHARS <= len(long) - len(short) and long.startswith(short)


def is_same_kind(new: Mention, old: Mention) -> bool:
    if not _are_comparable(new, old):
        return False
    if new.value_type in (ValueType.CODE, ValueType.PATH):
        return new.value_type is old.value_type and find_signs(new.value) == find_signs(old.value)
    if new.value_type is old.value_type:
        return not (new.unit and old.unit) or new.dimension == old.dimension
    if new.value_type is not ValueType.NUMBER or new.unit:
        return False
    if ORDINAL.fullmatch(new.value):
        return old.value_type is ValueType.DATE  # "on the 8th"
    return old.value_type in (ValueType.TIME, ValueType.MONEY)


def _are_comparable(new: Mention, old: Mention) -> bool:
    """Return whether two amounts are of about the same size: few change by a factor of ten."""
    amounts = [amount for mention in (new, old) if (amount := _find_amount(mention)) is not None]
    count_other = new.unit and old.unit and new.unit != old.unit
    return bool(count_other) or len(amounts) < len((new, old)) or max(amounts) <= _MAX_FACTOR * min(amounts)


_MAX_FACTOR = 5
_PLAIN_AMOUNT = re.compile(r"[$€£¥]?([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,8})(k)?")


@lru_cache(maxsize=_MAX_TEXTS)
def _find_amount(mention: Mention) -> int | None:
    match = _PLAIN_AMOUNT.fullmatch(mention.value)
    if match is None or not (mention.unit or mention.value_type is ValueType.MONEY):
        return None
    return int(match[1].replace(",", "")) * (1000 if match[2] else 1)


def _has_same_form(new: Mention, old: Mention) -> bool:
    """Return whether two values look alike: "18:40" and "17:10", "4.12" and "4.15", but not any two numbers."""
    if not is_same_kind(new, old) or new.unit != old.unit or new.value_type is ValueType.NAME:
        return False
    signs = find_signs(new.value)
    return bool(new.unit) or new.value_type is not ValueType.NUMBER or signs == find_signs(old.value) != set()


def _is_share(mention: Mention) -> bool:
    """Return whether an amount is what each person pays."""
    return mention.value_type is ValueType.MONEY and language().shares.search(mention.part) is not None


def _is_similar(new: Mention, old: Mention) -> bool:
    """Return whether two values look alike: also "3307" and "3310", but not "ep1" and "ep2"."""
    if _VERSION.fullmatch(new.value) and _VERSION.fullmatch(old.value):
        return True
    if new.value_type is old.value_type is ValueType.NUMBER and not new.unit and not old.unit:
        are_codes = all(
            mention.value.isdigit() and not _YEAR.fullmatch(mention.value) for mention in (new, old)
        )
        return are_codes and len(new.value) == len(old.value) > _MAX_COUNT_DIGITS
    if new.value_type is ValueType.CODE and new.value.rstrip("0123456789") == old.value.rstrip("0123456789"):
        return False
    return _has_same_form(new, old) and not any(
        _NAMED_PERIOD.fullmatch(mention.value) for mention in (new, old)
    )


_VERSION = re.compile(r"\d{1,3}\.\d{1,3}")
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")
_MAX_COUNT_DIGITS = 2
_NAMED_PERIOD = re.compile(r"[^\W\d]+")


def find_signs(value: str) -> set[str]:
    """The punctuation of a code or path: those of the same kind have the same."""
    return {char for char in value if not char.isalnum()}


@lru_cache(maxsize=_MAX_TEXTS)
def _find_part_subject(part: str) -> Subject:
    return find_subject(part)


def find_other_changes(
    number: int, old: Statement, new: Statement, changes: Sequence[ChangedValue]
) -> list[ChangedValue]:
    """Other values of a statement of which one changes: "The dentist called, Thursday at 3 now."."""
    olds, news = find_mentions(old.text).mentions, find_mentions(new.text).mentions
    same = {mention.value for mention in olds} & {mention.value for mention in news}
    changed = same.union(*((change.old.value, change.new.value) for change in changes))
    found: list[ChangedValue] = []
    for mention in news:
        pairs = [
            (other, candidate)
            for other in news
            for candidate in olds
            if is_same_kind(mention, other) and is_same_kind(other, candidate)
        ]
        if (
            len(pairs) == 1
            and mention.value_type in (ValueType.DATE, ValueType.TIME)
            and len(_near_in_part(mention) - find_mentions(old.text).stems) <= 1
            and changed.isdisjoint((mention.value, pairs[0][1].value))
        ):
            found.append(ChangedValue(number, pairs[0][1], mention))
    return found


def write_changes(old: Statement, new: Statement, changes: Sequence[ChangedValue]) -> str:
    text = old.text
    by_place = {change.old.start: change for change in changes}
    for _, change in sorted(by_place.items(), reverse=True):
        end, unit_end = change.old.end, find_unit_end(text, change.old.end)
        new_end = find_unit_end(new.text, change.new.end)
        # "6 pm" and "7" become "7 pm"; "30 s" and "2 minutes" become "2 minutes".
        is_bare = new_end == change.new.end and change.new.value.strip("0123456789.,") == ""
        if change.old.unit and unit_end == end:  # "six rowing days"
            new_end = change.new.end
        # "Kit is fifteen." "Kit has 51 cues."
        is_number = change.old.value_type is change.new.value_type is ValueType.NUMBER
        counts_other = is_number and bool(change.new.unit) and not change.old.unit
        value = OMITTED if counts_other else new.text[change.new.start : new_end]
        text = text[: change.old.start] + value + text[end if is_bare else unit_end :]
    return text
