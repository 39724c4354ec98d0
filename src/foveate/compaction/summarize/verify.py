"""What is no summary, whatever its status was; and what a summary leaves out.

An error page or a refusal that was taken for a summary would be all that is left of a history. How they begin
is a list, and no list is complete: so a summary must also tell something of what it stands for.

Whether a text tells anything of what it should sum up, or could have been said to anybody.

An error, a refusal in whatever language or a polite word share no words with a history but those that such
texts are made of. A summary shares others, also a short one that names nothing as it was spelled: so it is held
against the words of the history, and not against the names that should stand in it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from foveate.compaction.facts.extract import Fact, message_texts
from foveate.compaction.facts.mentions import MentionIndex
from foveate.compaction.facts.ranking import ALWAYS_CARRIED, RankedFact
from foveate.compaction.summarize.extractive import CountTokens, select_missing_facts
from foveate.model import Message
from foveate.tokens.unicode_normalization import normalize_unicode

# So many words of the history, besides those below, must stand in a text that tells of it.
_MIN_SHARED_WORDS = 2
# The same for scripts that write no spaces, in pairs of characters: a word makes more than one of them.
_MIN_SHARED_PAIRS = 4
# A history of fewer words than these is too short to be held against anything.
_MIN_HISTORY_WORDS = 6
# Words are the same where they begin so: "parser" and "parsing".
_STEM_CHARS = 4
_WORD = re.compile(r"[^\W\d_]+")
_ENDING = re.compile(r"(s|es|d|ed|ing)$")
_NAME = re.compile(r"[\w./\\:@-]+")
_NAME_MARKS = "./\\_:@-"
_NAME_MARK_SET = frozenset(_NAME_MARKS)
_FIRST_UNSPACED_CODE = 0x2E80

# What errors, refusals and polite words are made of, and the commonest English words of four letters and more.
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
    """Whether `text` tells something of `history`, which is read only as far as it takes to know."""
    words, pairs = _content_words(text)
    history_words: set[str] = set()
    shared_words: set[str] = set()
    shared_pairs: set[str] = set()
    for history_text in history:
        words_there, pairs_there = _content_words(history_text)
        shared_words |= words & words_there
        shared_pairs |= pairs & pairs_there
        if len(shared_words) >= _MIN_SHARED_WORDS or len(shared_pairs) >= _MIN_SHARED_PAIRS:
            return True
        if len(history_words) < _MIN_HISTORY_WORDS:
            history_words |= words_there | pairs_there
    return len(history_words) < _MIN_HISTORY_WORDS


def _content_words(text: str) -> tuple[set[str], set[str]]:
    """How the words of a text begin, and its names; and the pairs of characters where it writes no spaces."""
    plain = normalize_unicode(text, "NFKC").casefold()
    runs = {run.strip(_NAME_MARKS) for run in _NAME.findall(plain)}
    words = {run for run in runs if not _NAME_MARK_SET.isdisjoint(run)}
    pairs: set[str] = set()
    for word in set(_WORD.findall(plain)):
        if ord(word[0]) >= _FIRST_UNSPACED_CODE:
            pairs.update(word[at : at + 2] for at in range(len(word) - 1))
        elif len(word) >= _STEM_CHARS and not _GENERIC_WORDS.intersection((word, _ENDING.sub("", word))):
            words.add(word[:_STEM_CHARS])
    return words, pairs


_GENERIC_WORDS = frozenset(_GENERIC_WORDS_TEXT.split())


# A name that is likelier than this to be mentioned again is worth asking once more for.
_IMPORTANT_PROBABILITY = 0.5
# A refusal or an error is short; a longer text may speak of one.
_MAX_ERROR_CHARS = 1_200
# No text of any length has so many characters a token; a longer one needs no counting.
_MAX_CHARS_PER_TOKEN = 32
# Fewer words than these say nothing of a history.
_MIN_WORDS = 5
_UNLISTED_NOTE = "and {number:,} more that may be needed, for which there is no room here"

_HTML_PAGE = re.compile(r"\s*(```\w*\s*)?(<!doctype\b|<html\b|<\?xml\b|<head\b|<body\b)", re.IGNORECASE)
# What is asked for is plain text; JSON is what servers, and models that are held to it, say instead.
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
# Blanks are read once: from where they begin, to where they end.
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
# A summary says nothing to whoever reads an error, or asked for what is not given.
_ADDRESSES_READER = re.compile(
    r"""(please|you\s+(can|may))\s+(try\s+again|retry)|try\s+again\s+(later|in\s+a\s+(few|moment|minute))
        |(contact\s+us|reach\s+out\s+to\s+us)\b|check\s+your\s+plan\s+and\s+billing|our\s+(usage|content)\s+polic
        |exceeded\s+your\s+current\s+quota|your\s+credit\s+balance\s+is|this\s+model['’]?s\s+maximum\s+context
        |prompt\s+is\s+too\s+long|\bi\s+((must|have\s+to|need\s+to)\s+)?(respectfully\s+)?decline\b""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFacts:
    """Facts that a summary leaves out.

    `important` are all that are worth a second try, whatever room there is; `listed` those that a list after it
    has room for, important or not; `unlisted` how many important ones stand neither in the summary nor there.
    """

    important: tuple[str, ...]
    listed: tuple[str, ...]
    unlisted: int = 0

    @property
    def carried(self) -> tuple[str, ...]:
        """What the list says: that it is not all, where it is not."""
        return (*self.listed, _UNLISTED_NOTE.format(number=self.unlisted)) if self.unlisted else self.listed


def find_problem(text: str, *, replaced_tokens: int, count: CountTokens) -> str | None:
    """Why a text is no summary of so many tokens; None where it may be one."""
    if not text.strip():
        return "the summary is empty"
    if _HTML_PAGE.match(text):
        return "the answer is a page, not a summary"
    if _JSON.match(text):
        return "the answer is JSON (an error, perhaps), not a summary"
    if len(text) <= _MAX_ERROR_CHARS:
        if _PLAIN_ERROR.match(text):
            return "the answer is an error, not a summary"
        if _ADDRESSES_READER.search(text):
            return "the answer is an error or a refusal, not a summary"
        if _REFUSAL.match(text) or _APOLOGY.match(text):
            return "the answer is a refusal, not a summary"
    if len(text.split()) < _MIN_WORDS and len(text) < _MAX_ERROR_CHARS and not _is_unspaced_script(text):
        return "the answer says nothing"
    if len(text) >= replaced_tokens * _MAX_CHARS_PER_TOKEN or count(text) >= replaced_tokens:
        return f"the summary is longer than the {replaced_tokens:,} tokens that it would replace"
    return None


def check_relevance(text: str, messages: Sequence[Message], earlier_summary: str = "") -> str | None:
    """Why a text is no summary of `messages` and of the `earlier` one: it tells nothing of them."""
    texts = (text_part for message in messages for _, text_part in message_texts(message))
    if shares_content(text, chain((earlier_summary,), texts)):
        return None
    return "the answer tells nothing of what it should sum up"


def find_missing_facts(
    summary: str, ranked: Sequence[RankedFact], *, limit_tokens: int, count: CountTokens, max_tokens: int
) -> MissingFacts:
    """What `summary` leaves out of `ranked`.

    The list after it fills up what the summary has left of `limit_tokens`, at least a quarter of it, as long as
    all is below `most_tokens`.
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
    )


def _omitted_facts(text: str, ranked: Sequence[RankedFact]) -> list[Fact]:
    """All of `ranked` that a text does not tell."""
    unlimited_tokens = 4 * len(ranked) + 4  # for as many lines of one token
    return select_missing_facts(text, ranked, limit_tokens=unlimited_tokens, count=lambda _: 1)


def _is_important(ranked_fact: RankedFact) -> bool:
    return ranked_fact.fact.kind in ALWAYS_CARRIED or ranked_fact.probability >= _IMPORTANT_PROBABILITY


def _is_unspaced_script(text: str) -> bool:
    """Whether its script writes no spaces between words."""
    return len(text) >= _MIN_WORDS * 2 and sum(ord(char) >= 0x2E80 for char in text) * 2 > len(text)
