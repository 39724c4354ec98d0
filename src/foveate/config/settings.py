"""All settings with their defaults and constraints. `cost.py` has those of the `cost` section.

The docstrings of fields are the descriptions in `docs/reference/configuration.md`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]")]
AllowedOperation = Annotated[
    str,
    StringConstraints(pattern=r"^(?:answers|counting|embeddings|models|all|[A-Z*]{1,10} /[^\s]{0,200})$"),
]
KeyHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
StoreUrl = Annotated[str, StringConstraints(pattern=r"^(?:sqlite:///[^:]|postgres(?:ql)?://)")]


class _SettingsModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PingSettings(_SettingsModel):
    """Keep-alive requests that keep a cache entry from expiring."""

    enabled: bool = False
    """Whether there are any."""
    most_in_a_row: Annotated[int, Field(gt=0, le=100)] = 3
    """How many between two requests of a session."""
    most_sessions: Annotated[int, Field(gt=0)] = 64
    """In how many sessions at once; of more, those that save most."""


class PromptCacheSettings(_SettingsModel):
    enabled: bool = True
    """Whether marks are placed."""
    long_ttl_providers: list[Name] = ["anthropic", "vertex"]
    """Providers that are asked to keep breakpoints for an hour; all others get `5m`, also with `ttl: 1h`."""
    ttl: Literal["auto", "5m", "1h"] = "auto"
    """How long marks live: `5m` or `1h` for all, or by each session's rhythm."""
    cache_tools: bool = True
    """Whether one of the four may go to the tools."""
    client_breakpoints: Literal["keep", "replace"] = "keep"
    """Keep the client's own breakpoints and add to them where that pays, or replace them (Anthropic's API)."""
    pings: PingSettings = PingSettings()


class CompactionSettings(_SettingsModel):
    enabled: bool = False
    """Whether histories are folded."""
    compact_at_pct: Share = 0.75
    """From which share of the window on, less the reserve for the answer."""
    tail_keep_tokens: Annotated[int, Field(ge=0)] = 20_000
    """How much of the end stays as it is."""
    tool_result_max_pct: Share = 0.30
    """Larger tool results than this share of the window are cut before they are first sent."""
    summarizer_model: str = ""
    """Who writes summaries. Empty: the agent's own model, which has the history in its cache."""
    lock_ttl_seconds: Seconds = 300
    """How long one gateway has a session to itself while it folds."""
    min_turns_between: Annotated[int, Field(ge=0)] = 4
    """So many turns pass between two folds of a session."""
    extractive: bool = False
    """Whether rules make the summary where no model gives one."""
    limit_seconds: Seconds = 600
    """How long a fold may take."""


class TokenCounterSettings(_SettingsModel):
    enabled: bool = True
    """Whether requests are counted; without it nothing is kept within the window, and caps refuse."""
    backend: Literal["auto", "anthropic_api", "endpoint", "offline", "tiktoken", "estimate"] = "auto"
    """Who counts ([what each does](../guides/counting.md#through-the-gateway))."""
    cache_capacity: Annotated[int, Field(gt=0)] = 1024
    """How many counts are remembered."""
    use_endpoint: bool = False
    """Whether an upstream may be asked by `/tokenize`, or by its counting route; `endpoint` needs it."""
    timeout_ms: Annotated[int, Field(gt=0)] = 2000
    """How long is waited for a count."""


class WorkspaceCacheSettings(_SettingsModel):
    enabled: bool = True
    """Whether they are remembered between requests."""
    watch_debounce_ms: Annotated[int, Field(ge=0)] = 500
    """How long a file that is being written is left in peace."""
    max_age_seconds: Annotated[float, Field(ge=0)] = 0
    """After how long they are read again without a change; 0: never."""


class ContextOptimizationSettings(_SettingsModel):
    prompt_cache: PromptCacheSettings = PromptCacheSettings()
    compaction: CompactionSettings = CompactionSettings()
    token_counter: TokenCounterSettings = TokenCounterSettings()
    workspace_cache: WorkspaceCacheSettings = WorkspaceCacheSettings()


class AgentSwitches(_SettingsModel):
    """The mechanisms that can be switched for one agent. None means the same as for all agents."""

    prompt_cache: bool | None = None
    """Whether marks are placed for it; as for all where it is not said."""
    client_breakpoints: Literal["keep", "replace"] | None = None
    """Keep or replace its own breakpoints; the same as for all if not set."""
    compaction: bool | None = None
    """Whether its histories are folded; as for all where it is not said."""
    token_counter: bool | None = None
    """Whether its requests are counted; as for all where it is not said."""
    workspace_cache: bool | None = None
    """Whether its files are remembered; as for all where it is not said."""


class WorkspaceSettings(_SettingsModel):
    """The files that every request of an agent carries: a folder, a scope below it, and further files."""

    root: FilePath
    """A folder whose files every request carries."""
    scope: str = ""
    """A folder below it, whose files stand before those of the same name above."""
    extras: list[FilePath] = []
    """Further files in it."""


class EmbeddingsSettings(_SettingsModel):
    """A server with OpenAI's `/v1/embeddings`, used to find related notes."""

    url: Url
    """Its address, with or without `/v1`. The text of notes that are not private is sent there."""
    model: Name
    """The embedding model's name there."""
    key_variable: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The environment variable that holds its key; not set: no key is sent."""
    dimensions: Annotated[int, Field(gt=0)] | None = None
    """How many numbers a vector has, for models that offer several sizes."""


class MemorySettings(_SettingsModel):
    """Notes in Org and Markdown, and how much of them a request shows."""

    paths: Annotated[list[FilePath], Field(min_length=1)]
    """Notes in Org and Markdown: files and folders."""
    limit_tokens: Annotated[int, Field(gt=0)] = 2000
    """How much of them a request shows."""
    format: Literal["org", "markdown"] = "org"
    """How they are shown."""
    embeddings: EmbeddingsSettings | None = None
    follow_symlinks: bool = False
    """Whether links that lead out of these folders are followed."""


class BindingSettings(_SettingsModel):
    peers: list[Annotated[str, StringConstraints(min_length=1)]] = []
    """Whom it works with."""
    channels: dict[Name, str] = {}
    """What holds in a channel, by its name."""
    language: str = ""
    """The language it speaks."""


class TimeSettings(_SettingsModel):
    """Whether and how requests state the time and warn of deadlines."""

    enabled: bool = True
    """Whether the time is told."""
    format: Literal["iso", "natural"] = "iso"
    """As `2026-11-15T09:12+01:00`, or as `Sunday, 15 November 2026, 09:12 (CET)`."""
    warning_minutes: Annotated[int, Field(ge=0)] = 60
    """How long before a deadline it is spoken of."""
    zone: Name = "UTC"
    """Whose time it is."""


class SectionsSettings(_SettingsModel):
    """The sections added to an agent's requests. `limits` is a budget: a total, a ladder, rules by section."""

    workspace: WorkspaceSettings | None = None
    skills: FilePath | None = None
    """A folder of skills."""
    binding: BindingSettings | None = None
    memory: MemorySettings | None = None
    logs: list[FilePath] = []
    """Files whose newest lines are shown: 20 of each, or as many as `CONTEXT_LOG_LIMIT` says."""
    time: TimeSettings | None = None
    channel: bool = False
    """Whether the channel that a request names is told."""
    budget: bool = False
    """Whether it is told how much of its budget is used."""
    privacy_tags: list[Name] = []
    """Notes with one of these tags are never shown, beside `private` and `@personal`."""
    limits: dict[str, Any] = {}
    """A budget for all of this ([its keys](../guides/budgets.md#budgets))."""


class AgentSettings(_SettingsModel):
    """One agent. `keys` are hashes of its gateway keys (`foveate config key` creates one)."""

    id: Name
    """Its name."""
    keys: list[KeyHash] = []
    """Hashes of the gateway keys that it shows (`foveate config key --agent NAME` makes one)."""
    user_agents: list[Name] = []
    """Globs of `user-agent`: clients that match and show no key are this agent. Not for an agent with keys."""
    context_optimization: AgentSwitches = AgentSwitches()
    on_overflow: Literal["make_room", "refuse", "pass"] | None = None
    """What is done with what does not fit; not said: `make_room` with compaction, `refuse` without."""
    window_tokens: Annotated[int, Field(gt=0)] | None = None
    """The window that it has; not said: the model's. At most a quarter of a smaller one is for the response."""
    max_turns: Annotated[int, Field(gt=0)] | None = None
    """Older turns than this many are left out, a quarter of the number at a time; not set: all are sent."""
    sections: SectionsSettings | None = None


class UpstreamSettings(_SettingsModel):
    """A server that requests go to. Omitted values are those of the known upstream of that name.

    The `base_url` of an OpenAI-compatible server can be given with or without `/v1`.
    """

    base_url: Url | None = None
    """As its clients would be given it, with or without `/v1`; not said: the known one."""
    api: Literal["anthropic", "openai", "both", "gemini", "azure", "bedrock", "vertex"] | None = None
    """Whose API it speaks; not said: the known one."""
    provider: Name | None = None
    """Who runs it, for the rules of its cache and its prices; not said: its name."""
    key_variable: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """A variable whose key stands for whatever clients bring; beyond loopback, for gateway keys alone."""
    deployments: dict[Name, Name] = {}
    """Models by the names that deployments have there, for counts, windows and prices: `{house: gpt-5.1}`."""
    threads: Literal["hold", "refuse", "pass"] | None = None
    """Handling of Anthropic's [message threads](stored-conversations.md).

    Default: `hold` in a gateway of one process, else `refuse`.
    """
    sign: Literal["aws"] | None = None
    """`aws`: the gateway signs requests with its own AWS credentials, in the place of what clients bring."""
    allow: list[AllowedOperation] = ["answers", "counting", "embeddings", "models"]
    """What the gateway's own credentials may be used for: these kinds, `all`, or `METHOD /path` globs."""
    reuse: bool = True
    """Whether connections to it serve several requests; off for a server that may answer a request twice."""


class RouteSettings(_SettingsModel):
    """Sends requests for models that match a glob to an upstream, as `model` if that is its name there."""

    models: Name
    """A glob of models: `claude-*`; `*` is also what names none."""
    upstream: Name
    """Where they go."""
    model: Name | None = None
    """The model's name there, which makes an alias; not said: as it came."""


class StoreSettings(_SettingsModel):
    url: StoreUrl | None = None
    """Where sessions, folds and the ledger are kept; not said: a file in the data folder."""
    keep_days: Annotated[float, Field(gt=0)] = 30
    """What was not seen for so many days is forgotten, every few hours; the ledger is kept."""


class TimeoutSettings(_SettingsModel):
    connect_seconds: Seconds = 10
    """How long a connection to an upstream may take."""
    idle_seconds: Seconds = 600
    """How long it may be silent."""
    total_seconds: Seconds = 3600
    """How long an answer may take in all."""


class TlsSettings(_SettingsModel):
    """The certificate and key of the gateway, as PEM files."""

    certificate: Annotated[Path, Field(strict=False)]
    """Serves HTTPS with it; a file in PEM, with its chain."""
    key: Annotated[Path, Field(strict=False)]
    """Its key, a file in PEM, without a password."""


class ServerSettings(_SettingsModel):
    host: Name = "127.0.0.1"
    """Where it listens; on anything but loopback, its own pages need a gateway key."""
    admin_keys: list[KeyHash] = []
    """Hashes of keys that see all agents' pages and `/metrics` (`foveate config key --admin` makes one)."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8090
    """On which port; 0 is any that is free."""
    workers: Annotated[int, Field(gt=0, le=256)] = 1
    """How many processes serve."""
    body_limit_bytes: Annotated[int, Field(gt=0)] = 64 * 1024 * 1024
    """Larger requests are refused with 413."""
    body_memory_bytes: Annotated[int, Field(gt=0)] = 512 * 1024 * 1024
    """Limit for all bodies in memory, of each process; requests wait 30 seconds for room, then get 503."""
    body_timeout_seconds: Seconds = 300
    """How long a body may take to arrive; then its request is refused with 408."""
    max_messages: Annotated[int, Field(gt=0)] = 20_000
    """Requests with more messages, or more inputs to embed, are refused with 400."""
    max_tools: Annotated[int, Field(gt=0)] = 2_000
    """Requests with more tools are refused with 400."""
    max_depth: Annotated[int, Field(gt=0, le=500)] = 100
    """Requests whose JSON is nested more deeply are refused with 400."""
    timeouts: TimeoutSettings = TimeoutSettings()
    tls: TlsSettings | None = None
    cors_origins: list[Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^\s/]+)$")]] = []
    """Origins whose pages may call the gateway from a browser."""
    host_names: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$")]] = []
    """Names by which it may be asked on loopback, beside `127.0.0.1` and `localhost`."""
    grace_seconds: Annotated[float, Field(ge=0)] = 30
    """How long answers under way may take when it is ended."""
    log: Literal["lines", "json"] = "lines"
    """How lines are written, on standard error."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """From which level on."""
    opentelemetry: bool = False
    """Spans and numbers over OTLP ([what is needed](metrics.md#opentelemetry))."""
    page: bool = True
    """Whether the gateway has a [page to look at](../guides/dashboard.md) at its root."""


class KeepRequestsSettings(_SettingsModel):
    """Whether whole requests are archived for `explain` and `replay`, and how long and how much of them."""

    enabled: bool = False
    """Whether they are kept."""
    days: Annotated[float, Field(gt=0)] = 7
    """For how long."""
    most_bytes: Annotated[int, Field(gt=0)] = 1_000_000_000
    """And how much of them."""


class Settings(_SettingsModel):
    context_optimization: ContextOptimizationSettings = ContextOptimizationSettings()
    agents: list[AgentSettings] = []
    upstreams: dict[Name, UpstreamSettings] = {}
    routes: list[RouteSettings] = []
    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    keep_requests: KeepRequestsSettings = KeepRequestsSettings()
    cost: Any = None
