"""Whether a text tells anything of what it should sum up, or could have been said to anybody.

An error, a refusal in whatever language or a polite word share no words with a history but those that such
texts are made of. A summary shares others, also a short one that names nothing as it was spelled: so it is held
against the words of the history, and not against the names that should stand in it.
"""

import re
from collections.abc import Iterable

from foveate.tokens.composing import normalize_unicode

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
