"""Results of parallel calls, as OpenAI's models before GPT-5 are shown them in chats.

Parallel calls are one call of `multi_tool_use.parallel`, so their results are one message: a JSON list of
strings. Found from 24 recorded chats of four sources (November 2026), of which 22 are counted to the token. Not
followed: results in another order than their calls, which moves a token. Letters beyond ASCII were escaped in
one of four recordings, and not in three.
"""

import json
import re

# OpenAI's vocabularies take punctuation in a row as one piece, so the ends of a string are counted together
# with what the list puts around it, and apart from the rest.
_TOKENS_PER_ESCAPE = 4.0  # the recording had 3
_PUNCTUATION = re.compile(r"(?:[^\s\w]|_)*")
_REVERSED_PUNCTUATION = re.compile(r"(?:[^\s\w]|_)* ?")


def split_list_entry(text: str) -> tuple[str, ...]:
    """A result as an entry of the list: its text, and its two ends as the first, another and the last entry."""
    encoded = json.dumps(text, ensure_ascii=False)[1:-1]
    head = _match_start(_PUNCTUATION, encoded)
    if head == encoded:
        return "", f'["{head}",', "", f' "{head}",', "", f' "{head}"]', ""
    rest = encoded[len(head) :]
    tail = _match_start(_REVERSED_PUNCTUATION, rest[::-1])[::-1]
    inner = rest[: len(rest) - len(tail)]
    return inner, f'["{head}', f'{tail}",', f' "{head}', f'{tail}",', f' "{head}', f'{tail}"]'


def count_escape_tokens(text: str) -> float:
    """Tokens that a result has more if its letters beyond ASCII are escaped."""
    if text.isascii():
        return 0.0
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return _TOKENS_PER_ESCAPE * (units - len(text.encode("ascii", "ignore")))


def _match_start(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.match(text)
    return match[0] if match else ""
