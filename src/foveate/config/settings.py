"""All settings with their defaults and constraints. `cost_settings.py` has those of the `cost` section.

The docstrings of fields are the descriptions in `docs/reference/configuration.md`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
# YAML reads an unquoted `off` as false.
Clearing = Annotated[
    Literal["off", "cold", "cost"], BeforeValidator(lambda value: "off" if value is False else value)
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]")]
ProxyUrl = Annotated[str, StringConstraints(pattern=r"^(?:[a-z0-9]+://.*)?$")]
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
    """Enable keep-alive requests."""
    most_in_a_row: Annotated[int, Field(gt=0, le=100)] = 3
    """Maximum number of keep-alive requests between two requests of a session."""
    most_sessions: Annotated[int, Field(gt=0)] = 64
    """Maximum number of sessions kept alive at once. If there are more, those that save the most are chosen."""


class PromptCacheSettings(_SettingsModel):
    enabled: bool = True
    """Add cache breakpoints to requests."""
    long_ttl_providers: list[Name] = ["anthropic", "vertex"]
    """Providers that may get breakpoints with a TTL of one hour. All others get `5m`, even with `ttl: 1h`."""
    ttl: Literal["auto", "5m", "1h"] = "auto"
    """TTL of cache breakpoints. `auto` chooses `5m` or `1h` from the time between a session's requests."""
    cache_tools: bool = True
    """Allow a breakpoint after the tool definitions."""
    client_breakpoints: Literal["keep", "replace"] = "keep"
    """Keep the client's breakpoints and add more if that saves money, or replace them (Anthropic API only)."""
    pings: PingSettings = PingSettings()


class CompactionSettings(_SettingsModel):
    enabled: bool = False
    """Enable compaction."""
    trigger: Literal["window", "cost"] = "window"
    """When to compact: `window` at `compact_at_pct`, `cost` also earlier, if that is expected to save money."""
    clearing: Clearing = "off"
    """Clear old tool results: `cold` when the prompt cache has expired, `cost` whenever that saves money.

    Works without `enabled` too."""
    compact_at_pct: Share = 0.75
    """Threshold: compact when a request exceeds this share of (context window − response reserve)."""
    tail_keep_tokens: Annotated[int, Field(ge=0)] = 20_000
    """Minimum number of tokens at the end of the history that compaction leaves unchanged."""
    tool_result_max_pct: Share = 0.30
    """Truncate a tool result that exceeds this share of the context window, before it is first sent."""
    summarizer_model: str = ""
    """Model that writes summaries. Default: the agent's own model, which has the history in its cache."""
    lock_ttl_seconds: Seconds = 300
    """Lifetime of the lock that keeps other processes from compacting the same session."""
    min_turns_between: Annotated[int, Field(ge=0)] = 4
    """Minimum number of model responses between two compactions of a session."""
    extractive: bool = False
    """Let rules write the summary if no model returns a usable one."""
    limit_seconds: Seconds = 600
    """Time limit for one compaction, including retries."""


class TokenCounterSettings(_SettingsModel):
    enabled: bool = True
    """Count the tokens of requests. If off, context limits are not enforced.

    Caps then reject every request, except caps with `unknown: allow`.
    """
    backend: Literal["auto", "anthropic_api", "endpoint", "offline", "tiktoken", "estimate"] = "auto"
    """Counting backend ([list](../guides/counting.md#through-the-gateway))."""
    cache_capacity: Annotated[int, Field(gt=0)] = 1024
    """Number of token counts to cache."""
    use_endpoint: bool = False
    """Allow calls to the upstream's `/tokenize` or counting endpoint. `backend: endpoint` requires it."""
    timeout_ms: Annotated[int, Field(gt=0)] = 2000
    """Timeout for a counting request."""


class WorkspaceCacheSettings(_SettingsModel):
    enabled: bool = True
    """Cache workspace files between requests."""
    watch_debounce_ms: Annotated[int, Field(ge=0)] = 500
    """Time without writes before a changed file is read again."""
    max_age_seconds: Annotated[float, Field(ge=0)] = 0
    """Read files again after this time, even if no change was reported. 0 means never."""


class ContextOptimizationSettings(_SettingsModel):
    prompt_cache: PromptCacheSettings = PromptCacheSettings()
    compaction: CompactionSettings = CompactionSettings()
    token_counter: TokenCounterSettings = TokenCounterSettings()
    workspace_cache: WorkspaceCacheSettings = WorkspaceCacheSettings()


class AgentSwitches(_SettingsModel):
    """The mechanisms that can be enabled or disabled for one agent. None means the same as for all agents."""

    prompt_cache: bool | None = None
    """Override `prompt_cache.enabled` for this agent."""
    client_breakpoints: Literal["keep", "replace"] | None = None
    """Override `prompt_cache.client_breakpoints` for this agent."""
    compaction: bool | None = None
    """Override `compaction.enabled` for this agent."""
    compaction_trigger: Literal["window", "cost"] | None = None
    """Override `compaction.trigger` for this agent."""
    clearing: Clearing | None = None
    """Override `compaction.clearing` for this agent."""
    token_counter: bool | None = None
    """Override `token_counter.enabled` for this agent."""
    workspace_cache: bool | None = None
    """Override `workspace_cache.enabled` for this agent."""


class WorkspaceSettings(_SettingsModel):
    """The workspace files added to every request of an agent: a folder, a scope below it, and further files."""

    root: FilePath
    """Workspace folder. Its files are added to every request."""
    scope: str = ""
    """Subfolder of the workspace. Its files take precedence over files of the same name above it."""
    extras: list[FilePath] = []
    """Further files in the workspace to add."""


class EmbeddingsSettings(_SettingsModel):
    """A server with OpenAI's `/v1/embeddings`, used to find related notes."""

    url: Url
    """Base URL, with or without `/v1`. The server gets all notes that are not private, and users' messages."""
    model: Name
    """Name of the embedding model on that server."""
    key_variable: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Environment variable with the API key of the server. If not set, no key is sent."""
    dimensions: Annotated[int, Field(gt=0)] | None = None
    """Vector size, for models that offer several."""


class MemorySettings(_SettingsModel):
    """Notes in Org and Markdown, and the limit for what is added to a request."""

    paths: Annotated[list[FilePath], Field(min_length=1)]
    """Files and folders with notes in Org or Markdown."""
    limit_tokens: Annotated[int, Field(gt=0)] = 2000
    """Maximum number of tokens of notes in a request."""
    format: Literal["auto", "org", "markdown"] = "auto"
    """Format of the notes in the request. `auto`: each note in the format of its file."""
    embeddings: EmbeddingsSettings | None = None
    follow_symlinks: bool = False
    """Follow symbolic links that lead out of these folders."""


class BindingSettings(_SettingsModel):
    peers: list[Annotated[str, StringConstraints(min_length=1)]] = []
    """People and agents that the agent works with, e.g. `["Ben, who reviews"]`."""
    channels: dict[Name, str] = {}
    """Instructions by channel name, e.g. `{support: Answer within a paragraph.}`."""
    language: str = ""
    """Language that the agent writes in."""


class TimeSettings(_SettingsModel):
    """The section with the current time and the deadlines that are near."""

    enabled: bool = True
    """Add the current time to requests."""
    format: Literal["iso", "natural"] = "iso"
    """`iso` writes `2026-11-15T09:12+01:00`, `natural` writes `Sunday, 15 November 2026, 09:12 (CET)`."""
    warning_minutes: Annotated[int, Field(ge=0)] = 60
    """List deadlines that are at most this many minutes away."""
    zone: Name = "UTC"
    """IANA time zone, e.g. `Europe/Berlin`."""


class SectionsSettings(_SettingsModel):
    """The sections added to an agent's requests. `limits` is their budget."""

    workspace: WorkspaceSettings | None = None
    skills: FilePath | None = None
    """Folder with skills to add to requests."""
    binding: BindingSettings | None = None
    memory: MemorySettings | None = None
    logs: list[FilePath] = []
    """Log files. The last 20 lines of each are added; `CONTEXT_LOG_LIMIT` sets another number."""
    time: TimeSettings | None = None
    channel: bool = False
    """Add the channel and the sender that a request names in its headers."""
    budget: bool = False
    """Add how much of the agent's token budget is used."""
    privacy_tags: list[Name] = []
    """Never send notes with one of these tags, in addition to `private` and `@personal`."""
    limits: dict[str, Any] = {}
    """Token budget for all sections together ([keys](../guides/budgets.md#budgets))."""


class AgentSettings(_SettingsModel):
    """One agent. `keys` are hashes of its gateway keys (`foveate config key` creates one)."""

    id: Name
    """Name of the agent."""
    keys: list[KeyHash] = []
    """Hashes of the agent's gateway keys. `foveate config key --agent NAME` creates a key."""
    user_agents: list[Name] = []
    """Globs for the `user-agent` header of this agent's requests.

    They apply to requests with neither a gateway key nor `x-foveate-agent`. Not allowed together with `keys`.
    """
    context_optimization: AgentSwitches = AgentSwitches()
    on_overflow: Literal["make_room", "refuse", "pass"] | None = None
    """If a request exceeds the context window: `make_room` shortens it, `refuse` rejects it, `pass` sends it.

    Default: `make_room` if compaction is on, else `refuse`.
    """
    window_tokens: Annotated[int, Field(gt=0)] | None = None
    """Context window to use instead of the model's.

    If it is smaller than the model's, at most a quarter of it is reserved for the response.
    """
    max_turns: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of turns to send. The oldest turns are dropped a quarter of this number at a time.

    The cached prefix then changes rarely.
    """
    sections: SectionsSettings | None = None


class UpstreamSettings(_SettingsModel):
    """A server that requests are sent to. Omitted values are those of the built-in upstream of that name.

    The `base_url` of an OpenAI-compatible server can be given with or without `/v1`.
    """

    base_url: Url | None = None
    """Base URL as a client would use it, with or without `/v1`. Required unless the upstream is built in."""
    api: Literal["anthropic", "openai", "both", "gemini", "azure", "bedrock", "vertex"] | None = None
    """API that the server implements.

    Required unless the upstream is built in or named `azure`, `bedrock` or `vertex`.
    """
    provider: Name | None = None
    """Provider whose prompt-cache rules and prices apply. Default: the name of the upstream."""
    key_variable: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Environment variable with the provider key that replaces the clients' credentials.

    If the gateway does not listen on loopback, only requests with a gateway key may use it.
    """
    deployments: dict[Name, Name] = {}
    """Model of each deployment, for token counts, context windows and prices: `{my-deployment: gpt-5.1}`."""
    threads: Literal["hold", "refuse", "pass"] | None = None
    """[Message threads](stored-conversations.md) of Anthropic's API: store, reject or forward them.

    Default: `hold` if the gateway runs as one process with SQLite, else `refuse`.
    """
    sign: Literal["aws"] | None = None
    """`aws` signs requests with the gateway's own AWS credentials, which replace those of the clients."""
    allow: list[AllowedOperation] = ["answers", "counting", "embeddings", "models"]
    """Operations that may use the gateway's own credentials: these groups, `all`, or `METHOD /path` globs.

    `answers` are model responses.
    """
    reuse: bool = True
    """Reuse connections to the server. Turn it off if the server can mix up responses on a connection."""


class RouteSettings(_SettingsModel):
    """Sends requests for models that match a glob to an upstream, with the model name `model` if it is set."""

    models: Name
    """Glob for model names, e.g. `claude-*`. `*` also matches requests without a model."""
    upstream: Name
    """Name of the upstream that these requests are sent to."""
    model: Name | None = None
    """Model name to send instead of the client's. `models` is then an alias."""


class StoreSettings(_SettingsModel):
    url: StoreUrl | None = None
    """Database URL: `sqlite:///path` or `postgresql://user@host/name`. `FOVEATE_STORE` overrides it.

    Default: a SQLite file in the data folder.
    """
    keep_days: Annotated[float, Field(gt=0)] = 30
    """Delete sessions, compactions and the data of `foveate explain` that were unused for this many days.

    The ledger is kept until `foveate store vacuum --keep-ledger-days` deletes old calls.
    """


class TimeoutSettings(_SettingsModel):
    connect_seconds: Seconds = 10
    """Timeout for connecting to an upstream."""
    idle_seconds: Seconds = 600
    """Maximum time between two parts of a response."""
    total_seconds: Seconds = 3600
    """Timeout for a whole response."""
    keep_alive_seconds: Seconds = 50
    """Close a connection to an upstream that was unused for this long, or earlier if the upstream says so."""


class TlsSettings(_SettingsModel):
    """The TLS certificate and private key of the gateway, as PEM files."""

    certificate: Annotated[Path, Field(strict=False)]
    """Certificate with its chain, in PEM format. The gateway then serves HTTPS only."""
    key: Annotated[Path, Field(strict=False)]
    """Private key of the certificate, in PEM format, without a password."""


class ServerSettings(_SettingsModel):
    host: Name = "127.0.0.1"
    """Address to listen on. On an address other than loopback, the dashboard and `/metrics` require a key."""
    admin_keys: list[KeyHash] = []
    """Hashes of keys for the whole dashboard and `/metrics`. `foveate config key --admin` creates a key."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8090
    """Port to listen on. 0 means any free port."""
    workers: Annotated[int, Field(gt=0, le=256)] = 1
    """Number of worker processes."""
    body_limit_bytes: Annotated[int, Field(gt=0)] = 64 * 1024 * 1024
    """Maximum size of a request body. Larger ones are rejected with 413."""
    body_memory_bytes: Annotated[int, Field(gt=0)] = 512 * 1024 * 1024
    """Memory for request bodies in each process. Requests wait up to 30 seconds for room, then get 503."""
    body_timeout_seconds: Seconds = 300
    """Timeout for receiving a request body. Slower requests are rejected with 408."""
    max_messages: Annotated[int, Field(gt=0)] = 20_000
    """Maximum number of messages or embedding inputs. Requests with more are rejected with 400."""
    max_tools: Annotated[int, Field(gt=0)] = 2_000
    """Maximum number of tools. Requests with more are rejected with 400."""
    max_depth: Annotated[int, Field(gt=0, le=500)] = 100
    """Maximum nesting of the JSON. Requests with deeper nesting are rejected with 400."""
    timeouts: TimeoutSettings = TimeoutSettings()
    proxy: ProxyUrl | None = None
    """Proxy for requests to upstreams: `http://user:password@host:port`. `""` means none.

    Default: that of `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY`. Hosts in `NO_PROXY` are reached without it.
    """
    tls: TlsSettings | None = None
    cors_origins: list[Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^\s/]+)$")]] = []
    """Origins whose web pages may call the gateway, e.g. `https://app.example`. `*` allows all."""
    host_names: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$")]] = []
    """Host names accepted on loopback besides `127.0.0.1` and `localhost`, e.g. `host.docker.internal`."""
    grace_seconds: Annotated[float, Field(ge=0)] = 30
    """Time for requests in progress to finish when the gateway stops."""
    log: Literal["lines", "json"] = "lines"
    """Log format, on standard error."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages."""
    opentelemetry: bool = False
    """Export traces and metrics over OTLP ([requirements](metrics.md#opentelemetry))."""
    page: bool = True
    """Serve the [dashboard](../guides/dashboard.md) at `/`."""


class KeepRequestsSettings(_SettingsModel):
    """The archive of whole requests for `explain` and `replay`, and its limits."""

    enabled: bool = False
    """Archive whole requests, including message text."""
    days: Annotated[float, Field(gt=0)] = 7
    """Delete archived requests after this many days."""
    most_bytes: Annotated[int, Field(gt=0)] = 1_000_000_000
    """Maximum size of the archive. The oldest requests are deleted first."""


class Settings(_SettingsModel):
    context_optimization: ContextOptimizationSettings = ContextOptimizationSettings()
    agents: list[AgentSettings] = []
    upstreams: dict[Name, UpstreamSettings] = {}
    routes: list[RouteSettings] = []
    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    keep_requests: KeepRequestsSettings = KeepRequestsSettings()
    cost: Any = None
