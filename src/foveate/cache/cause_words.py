"""Why a cache broke, in words, where only the cause was kept: of all that stood there nothing is repeated."""

from collections.abc import Mapping

from foveate.cache.causes import WORDS, Cause

_WORDS: Mapping[str, str] = {
    **{wording.value: said for wording, said in WORDS.items()},
    Cause.MODEL: "another model was asked, and each has its own cache",
    Cause.PARAMETER: "a parameter changed that the cache goes by",
    Cause.IMAGES: "the first image came, or the last one went",
    Cause.TOOL_ADDED: "a tool was added",
    Cause.TOOL_REMOVED: "a tool was removed",
    Cause.TOOL_CHANGED: "a tool changed",
    Cause.TOOLS_REORDERED: "the tools stand in another order",
    Cause.KEY_ORDER: "keys of JSON are in another order",
    Cause.BLOCK_ADDED: "a block was added",
    Cause.BLOCK_REMOVED: "a block was removed",
    Cause.BLOCK_MOVED: "the blocks stand in another order",
    Cause.THINKING_REMOVED: "the reasoning of an earlier turn was left out",
    Cause.ROLE: "the same words are said by somebody else",
    Cause.MESSAGES_DROPPED: "messages were dropped",
    Cause.MESSAGES_REPLACED: "messages were replaced, as by a summary",
    Cause.MESSAGES_INSERTED: "messages were inserted",
    Cause.OTHER_CONVERSATION: "this is another conversation",
    Cause.MARK_MISSING: "no cache mark looked for what was kept",
    Cause.MARK_TOO_FAR: "no cache mark was near enough to what was kept",
    Cause.BELOW_MINIMUM: "nothing was kept: the prefix was too short for this model",
    Cause.NOT_CACHED: "nothing is known of a cache for this model",
    Cause.CUT_BACK: "the request ended before what was kept did",
    Cause.EXPIRED: "the cache entry ran out before the request came",
    Cause.CACHE_KEY: "the cache key changed, so another machine may have served it",
    Cause.COMPACTION: "Foveate replaced old messages by a summary",
    Cause.COMPACTION_UNDONE: "a summary was undone, and the messages that it stood for are sent again",
    Cause.TRIMMING: "Foveate shortened tool results or took out old messages",
    Cause.UNEXPLAINED: "the prefix is the same and should have been read: the provider may have dropped it",
}


def cause_in_words(cause: str) -> str:
    """`a timestamp changed`; of a cause that is not known, its own name."""
    return _WORDS.get(cause) or cause.replace("_", " ")
