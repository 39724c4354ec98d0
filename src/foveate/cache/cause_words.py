"""Why a cache broke, in words, where only the cause was kept: of all that stood there nothing is repeated."""

from collections.abc import Mapping

from foveate.cache.causes import TEXT_CHANGE_DESCRIPTIONS, MissCause

_CAUSE_DESCRIPTIONS: Mapping[str, str] = {
    **{wording.value: said for wording, said in TEXT_CHANGE_DESCRIPTIONS.items()},
    MissCause.MODEL: "another model was asked, and each has its own cache",
    MissCause.PARAMETER: "a parameter changed that the cache goes by",
    MissCause.IMAGES: "the first image came, or the last one went",
    MissCause.TOOL_ADDED: "a tool was added",
    MissCause.TOOL_REMOVED: "a tool was removed",
    MissCause.TOOL_CHANGED: "a tool changed",
    MissCause.TOOLS_REORDERED: "the tools stand in another order",
    MissCause.KEY_ORDER: "keys of JSON are in another order",
    MissCause.BLOCK_ADDED: "a block was added",
    MissCause.BLOCK_REMOVED: "a block was removed",
    MissCause.BLOCK_MOVED: "the blocks stand in another order",
    MissCause.THINKING_REMOVED: "the reasoning of an earlier turn was left out",
    MissCause.ROLE: "the same words are said by somebody else",
    MissCause.MESSAGES_DROPPED: "messages were dropped",
    MissCause.MESSAGES_REPLACED: "messages were replaced, as by a summary",
    MissCause.MESSAGES_INSERTED: "messages were inserted",
    MissCause.OTHER_CONVERSATION: "this is another conversation",
    MissCause.BREAKPOINT_MISSING: "no cache mark looked for what was kept",
    MissCause.BREAKPOINT_TOO_FAR: "no cache mark was near enough to what was kept",
    MissCause.BELOW_MINIMUM: "nothing was kept: the prefix was too short for this model",
    MissCause.NOT_CACHED: "nothing is known of a cache for this model",
    MissCause.CUT_BACK: "the request ended before what was kept did",
    MissCause.EXPIRED: "the cache entry ran out before the request came",
    MissCause.CACHE_KEY: "the cache key changed, so another machine may have served it",
    MissCause.COMPACTION: "Foveate replaced old messages by a summary",
    MissCause.COMPACTION_UNDONE: "a summary was undone, and the messages that it stood for are sent again",
    MissCause.TRIMMING: "Foveate shortened tool results or took out old messages",
    MissCause.UNEXPLAINED: "the prefix is the same and should have been read: the provider may have dropped it",
}


def describe_cause(cause: str) -> str:
    """`a timestamp changed`; of a cause that is not known, its own name."""
    return _CAUSE_DESCRIPTIONS.get(cause) or cause.replace("_", " ")
