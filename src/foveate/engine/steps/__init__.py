"""The steps of the pipeline, in the order of `PIPELINE`.

Each is in the module of its name, unless a comment names another one: `history` has the steps that change
earlier messages, and steps that only prepare work in the background are next to it.

A step that fails is skipped, and the next one goes on with the request as it is. So each step relies only on
what it checks itself. Metrics, traces and logs show steps by these values.
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
"""The order in which steps run; `in_pipeline_order` sorts them by it."""

# Names under which failures outside the pipeline are counted and logged.
ROUTE = "route"
"""The change of the model's name, before the first step."""
RECORD_CHARGES = "book"
STORE_WRITES = "keep"
PREPARE_CHARGE = "note"
