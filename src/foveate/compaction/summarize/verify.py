"""Verify a summary: reject errors and refusals, and find the facts that it omits.

An error page or a refusal taken for a summary would replace the whole history. A list of their beginnings is
never complete, so a summary must also share content with what it replaces. Errors, refusals in any language and
polite phrases share only generic words with a conversation; even a short summary without exact names shares
others. Therefore words are compared, not facts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from foveate.compaction.facts.extract import ALWAYS_CARRIED, ConversationFacts, Fact, RankedFact
from foveate.compaction.facts.mentions import MentionIndex, contains_whole
from foveate.compaction.facts.texts import message_texts
from foveate.compaction.summarize.extractive import TokenCounter, select_missing_facts
from foveate.model import Message
from foveate.unicode_normalization import normalize_unicode

# A fact that is more probable than this to be mentioned again is worth a redraft.
_IMPORTANT_PROBABILITY = 0.5
# Errors and refusals are short; a longer text may be about one.
_MAX_ERROR_CHARS = 1_200
# No text has more characters per token, so a longer one need not be counted.
_MAX_CHARS_PER_TOKEN = 32
_MIN_WORDS = 5
_UNLISTED_NOTE = "and {number:,} more that may be needed, for which there is no room here"

_HTML_PAGE = re.compile(r"\s*(```\w*\s*)?(<!doctype\b|<html\b|<\?xml\b|<head\b|<body\b)", re.IGNORECASE)
# The prompt asks for plain text; JSON comes from servers, and from models that are forced to it.
_JSON = re.compile(r"""\s*(```\w*\s*)?(\{\s*(["'}]|$)|\[\s*[\[{"'])""")
_PLAIN_ERROR = re.compile(
    r"""\s*(
        (http[ ]?(error|/\d(\.\d)?)?[ :]*)? [45]\d\d\s*($|\n|[:{-]|bad|internal|service|gateway|too[ ]many
          |not[ ]found|forbidden|unauthori|error|overloaded)
        | (api|internal|server|upstream|gateway|proxy|connection|network|rate[ -]?limit|timeout|unknown)[ ]
          (\w+[ ])? (error|failure|exceeded|timeout|timed[ ]out|unavailable)\s*($|\n|[:.({!-]|\d|occurred|or\b)
        | (fatal[ ])?error\b[ ]*(code|\d|:|-)
        | [\w.]*(error|exception):
        | (request|call|generation)[ ](failed|timed[ ]out|was[ ]rejected)
        | (an|the|some)[ ](unexpected[ ]|unknown[ ]|internal[ ])?(server[ ]|model[ ])?
          (error[ ]occurred|is[ ]currently[ ]overloaded|had[ ]an[ ]error)
        | traceback[ ]\(most[ ]recent
        | (bad[ ]gateway|gateway[ ]time-?out|service[ ](temporarily[ ])?unavailable|too[ ]many[ ]requests
          |overloaded|request[ ]timed[ ]out|unauthori[sz]ed|forbidden|not[ ]found)[.!:]?\s*(\n|$)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
# Possessive quantifiers: whitespace is read only once.
_REFUSAL = re.compile(
    r"""\s*((i[ ]?['’]?a?m\s+(very\s+|so\s+)?sorry|sorry|unfortunately|i\s+apologi[sz]e|my\s+apologies
        |as\s+an\s+ai\b[^.,]{0,40})[^.!?]{0,60}?(?!(?<=\s)\s)[,.!;:]?\s*+(but\s++)?)?
        i(\s+am|['’]m)?\s*(can['’]?t|can\s?not|won['’]?t|will\s+not|not\s+able\s+to|unable\s+to|must\s+decline
          |am\s+not\s+able\s+to|do\s?n['’]?o?t\s+have\s+(access|the\s+ability)|have\s+to\s+decline)
        (\s+(to|in\s+good\s+conscience))?\s*
        (help|assist|comply|do|provide|summari[sz]e|write|create|continue|fulfil|process|generate|discuss|engage
          |answer|respond|share|support|proceed|be\s+able|decline|with|$|[.,])""",
    re.IGNORECASE | re.VERBOSE,
)


_APOLOGY = re.compile(
    r"""\s*[¡"“«]?(lo\s+siento|lamento|perdón|disculp|desculp|lamentamos|sinto\s+muito|mi\s+(dis)?spiace|scusa
        |es\s+tut\s+mir\s+leid|tut\s+mir\s+leid|entschuldig|leider\s+kann\s+ich|(je\s+suis\s+)?désolé|je\s+ne\s+peux\s+pas
        |no\s+puedo\s+(ayudar|asistir|cumplir|resumir)|não\s+posso|non\s+posso\s+(aiutar|riassumere)
        |het\s+spijt\s+me|helaas\s+kan\s+ik|przepraszam|niestety\s+nie\s+mog|извин|прости|к\s+сожалению,?\s+я
        |я\s+не\s+могу|üzgünüm|maalesef|xin\s+lỗi|maaf\b|很?抱歉|对不起|對不起|我(无法|無法|不能)|申し訳|すみません|ごめん
        |お手伝いでき|죄송|미안|عذر|آسف|क्षमा|माफ)""",
    re.IGNORECASE | re.VERBOSE,
)
# A summary does not talk to somebody who reads an error or a refusal.
_ADDRESSES_READER = re.compile(
    r"""(please|you\s+(can|may))\s+(try\s+again|retry)|try\s+again\s+(later|in\s+a\s+(few|moment|minute))
        |(contact\s+us|reach\s+out\s+to\s+us)\b|check\s+your\s+plan\s+and\s+billing|our\s+(usage|content)\s+polic
        |exceeded\s+your\s+current\s+quota|your\s+credit\s+balance\s+is|this\s+model['’]?s\s+maximum\s+context
        |prompt\s+is\s+too\s+long|\bi\s+((must|have\s+to|need\s+to)\s+)?(respectfully\s+)?decline\b""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFacts:
    """Facts that a summary omits.

    `important` ones are worth a redraft; `listed` ones fit the list after the summary; `unlisted` is the number
    of important ones in neither. `outdated` are values that the summary states although they are no longer
    true, each with the sentence that is.
    """

    important: tuple[str, ...]
    listed: tuple[str, ...]
    unlisted: int = 0
    outdated: tuple[str, ...] = ()

    @property
    def redraft_reasons(self) -> tuple[str, ...]:
        return (*self.outdated, *self.important)

    @property
    def carried_facts(self) -> tuple[str, ...]:
        """The facts to list, with a note if important ones do not fit."""
        return (*self.listed, _UNLISTED_NOTE.format(number=self.unlisted)) if self.unlisted else self.listed


def is_unlisted_note(fact: str) -> bool:
    return fact.endswith(_UNLISTED_NOTE.partition("}")[2])


def find_problem(text: str, *, replaced_tokens: int, count: TokenCounter) -> str | None:
    """Explain why a text is not a summary of `replaced_tokens`; None if it may be one."""
    if not text.strip():
        return "the summary is empty"
    if _HTML_PAGE.match(text):
        return "the response is an HTML page, not a summary"
    if _JSON.match(text):
        return "the response is JSON (perhaps an error), not a summary"
    if len(text) <= _MAX_ERROR_CHARS:
        if _PLAIN_ERROR.match(text):
            return "the response is an error, not a summary"
        if _ADDRESSES_READER.search(text):
            return "the response is an error or a refusal, not a summary"
        if _REFUSAL.match(text) or _APOLOGY.match(text):
            return "the response is a refusal, not a summary"
    if len(text.split()) < _MIN_WORDS and len(text) < _MAX_ERROR_CHARS and not _is_unspaced_script(text):
        return "the response is too short for a summary"
    if len(text) >= replaced_tokens * _MAX_CHARS_PER_TOKEN or count(text) >= replaced_tokens:
        return f"the summary is longer than the {replaced_tokens:,} tokens that it would replace"
    return None


def check_relevance(text: str, messages: Sequence[Message], earlier_summary: str = "") -> str | None:
    """Explain that a text is unrelated to `messages` and to the earlier summary; None if it is related."""
    texts = (text_part for message in messages for _, text_part in message_texts(message))
    if shares_content(text, chain((earlier_summary,), texts)):
        return None
    return "the response has nothing in common with the history"


def find_outdated_values(summary: str, conversation: ConversationFacts) -> tuple[str, ...]:
    """Values in `summary` that only replaced statements have, each with the statement that replaces them."""
    statements, replaced = conversation.statements, conversation.replaced
    current = " ".join(
        statement.text.lower() for number, statement in enumerate(statements) if number not in replaced
    )
    text = summary.lower()
    outdated: dict[str, str] = {}
    for number, newer in replaced.items():
        for value in sorted(statements[number].subject.all_values - statements[newer].subject.all_values):
            if len(value) > 1 and contains_whole(value, text) and not contains_whole(value, current):
                outdated[value] = statements[newer].text
    return tuple(f"{value} is no longer true. What holds: {newer}" for value, newer in outdated.items())


def find_missing_facts(
    summary: str,
    ranked: Sequence[RankedFact],
    *,
    limit_tokens: int,
    count: TokenCounter,
    max_tokens: int,
    conversation: ConversationFacts | None = None,
) -> MissingFacts:
    """Find which of the `ranked` facts `summary` omits, and which outdated values of `conversation` it has.

    The list after the summary may fill what is left of `limit_tokens`, at least a quarter of it, while both
    together stay below `max_tokens`.
    """
    summary_tokens = count(summary)
    room_tokens = min(max(limit_tokens - summary_tokens, limit_tokens // 4), max_tokens - summary_tokens)
    listed = tuple(
        fact.text for fact in select_missing_facts(summary, ranked, limit_tokens=room_tokens, count=count)
    )
    important = _omitted_facts(summary, [ranked_fact for ranked_fact in ranked if _is_important(ranked_fact)])
    listed_mentions = MentionIndex("\n".join(listed))
    return MissingFacts(
        important=tuple(fact.text for fact in important),
        listed=listed,
        unlisted=sum(not listed_mentions.mentions(fact) for fact in important),
        outdated=() if conversation is None else find_outdated_values(summary, conversation),
    )


def _omitted_facts(text: str, ranked: Sequence[RankedFact]) -> list[Fact]:
    unlimited_tokens = 4 * len(ranked) + 4  # enough for a line of one token each
    return select_missing_facts(text, ranked, limit_tokens=unlimited_tokens, count=lambda _: 1)


def _is_important(ranked_fact: RankedFact) -> bool:
    return ranked_fact.fact.kind in ALWAYS_CARRIED or ranked_fact.probability >= _IMPORTANT_PROBABILITY


def _is_unspaced_script(text: str) -> bool:
    return len(text) >= _MIN_WORDS * 2 and sum(ord(char) >= 0x2E80 for char in text) * 2 > len(text)


# How many words of the history, besides generic ones, a summary must share.
_MIN_SHARED_WORDS = 2
# The same for scripts without spaces, in pairs of characters; a word has more than one pair.
_MIN_SHARED_PAIRS = 4
# A shorter history cannot be compared.
_MIN_HISTORY_WORDS = 6
# Words with the same start count as equal: "parser" and "parsing".
_STEM_CHARS = 4
_WORD = re.compile(r"[^\W\d_]+")
_ENDING = re.compile(r"(s|es|d|ed|ing)$")
_NAME = re.compile(r"[\w./\\:@-]+")
_NAME_MARKS = "./\\_:@-"
_NAME_MARK_SET = frozenset(_NAME_MARKS)
_FIRST_UNSPACED_CODE = 0x2E80

# Words of errors, refusals and polite phrases, and the commonest English words of four letters or more.
_GENERIC_WORDS_TEXT = """
    able about above accept access account admin after again allocate allow almost already also although
    always amount another answer anthropic anyone anything apologies apologise apologize appear apply around
    asked asking assist assistance assistant attempt attention authentication author available await aware
    back backend balance because been before being below best better between beyond billing body both busy
    call came cancel cannot capacity certainly change charge chat check claude client close code come comply
    concern connect connection contact contain content context continue conversation correct could course
    create credential credit current currently data deadline dear decline default denied detail different
    does doing done down during each either else empty enough ensure error even ever every everything exceed
    exceeded exceeds exception exist expect fail failed failure false fatal feel find first forbidden found
    free from fulfil full function further gateway general generate give given glad going good great
    guideline happen happy have having header healthy hear hello help here high hold hope hour however http
    https human image incorrect index information input instead internal into invalid invoke issue just keep
    kind know language last late later least length less like likely limit limitation line litellm load long
    look lost made make many maximum maybe mean memory message might minute missing model moment more most
    much must name need network never next none note nothing null number object occur occurred offer okay
    once only open openai operation option order organisation organization other otherwise over overload
    overloaded page parameter part pass permission persist plan platform please point policies policy
    possible present problem proceed process processing program project prompt proper provide provided
    provider proxy question quota rate rather reach reached read ready reason receive refuse regarding
    region reject remain remember request require reset resolve resource respectfully respond response rest
    result retry return right role runner running safety same second seem select send server service session
    several shall should show simply since some someone something soon sorry specific start state status
    still stop stopped stream string subject submit success such sufficient summarise summarize summary
    support sure system take task team temporarily text than thank that their them then there these they
    thing think this those though thought through thus time timed timeout today token tokens told took tool
    total toward traceback traffic trial tried trouble true trying turn type unable unauthorised
    unauthorized unavailable under understand understood unexpectedly unfortunately unknown unsupported
    until update upgrade upon upstream usage used user using valid value very violate wait waiting want
    welcome well went were what whatever when where whether which while whole will wish with within without
    word work worker would write wrong year your yourself
"""


def shares_content(text: str, history: Iterable[str]) -> bool:
    """Read `history` only as far as necessary."""
    words, pairs = _content_words(text)
    history_words: set[str] = set()
    shared_words: set[str] = set()
    shared_pairs: set[str] = set()
    for history_text in history:
        other_words, other_pairs = _content_words(history_text)
        shared_words |= words & other_words
        shared_pairs |= pairs & other_pairs
        if len(shared_words) >= _MIN_SHARED_WORDS or len(shared_pairs) >= _MIN_SHARED_PAIRS:
            return True
        if len(history_words) < _MIN_HISTORY_WORDS:
            history_words |= other_words | other_pairs
    return len(history_words) < _MIN_HISTORY_WORDS


def _content_words(text: str) -> tuple[set[str], set[str]]:
    """Word stems and names of a text, and the character pairs of its words in scripts without spaces."""
    plain = normalize_unicode(text, "NFKC").casefold()
    runs = {run.strip(_NAME_MARKS) for run in _NAME.findall(plain)}
    words = {run for run in runs if not _NAME_MARK_SET.isdisjoint(run)}
    pairs: set[str] = set()
    for word in set(_WORD.findall(plain)):
        if ord(word[0]) >= _FIRST_UNSPACED_CODE:
            pairs.update(word[position : position + 2] for position in range(len(word) - 1))
        elif len(word) >= _STEM_CHARS and not _GENERIC_WORDS.intersection((word, _ENDING.sub("", word))):
            words.add(word[:_STEM_CHARS])
    return words, pairs


_GENERIC_WORDS = frozenset(_GENERIC_WORDS_TEXT.split())
