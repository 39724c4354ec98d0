"""The steps of the pipeline, in the order of `PIPELINE`.

A step is named after the module of this package that implements it, with three exceptions: `history` has those
that change messages before and after the request is counted, and two belong to work in the background, which
they prepare: `background.tracing` (`SENT_MESSAGES`) and `background.keepalive` (`KEEP_ALIVE`).

A step that fails is skipped, and the next one goes on with the request as it is. So each step relies only on
what it checks itself. The values are the names of steps in metrics, traces and logs.
"""

SESSION = "session"
COMPACTION = "fold"  # history
LIMIT_TURNS = "turns"  # history
COUNT = "count"
EDITS = "edits"  # history
OVERFLOW = "room"
SECTIONS = "sections"
THINKING = "thoughts"  # history
TOOLS = "tools"
CACHE = "cache"
SAVINGS = "savings"
SENT_MESSAGES = "trail"  # background.tracing
USAGE = "usage"
CAPS = "cost"
KEEP_ALIVE = "pings"  # background.keepalive

PIPELINE = (
    SESSION,
    COMPACTION,
    LIMIT_TURNS,
    COUNT,
    EDITS,
    OVERFLOW,
    SECTIONS,
    THINKING,
    TOOLS,
    CACHE,
    SAVINGS,
    SENT_MESSAGES,
    USAGE,
    CAPS,
    KEEP_ALIVE,
)
"""The order in which steps run; `engine.build` sorts them by it."""

# Failures outside the pipeline are counted and logged under these names.
ROUTE = "route"
"""The change of the model's name, before the first step."""
RECORD_CHARGES = "book"
STORE_WRITES = "keep"
PREPARE_CHARGE = "note"
