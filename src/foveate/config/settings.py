"""The whole configuration: its keys, their defaults, and what each may be. One page, read from top to bottom.

Money (`cost`) has a page of its own. Whatever is not said has the default that stands here.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]")]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Pings(_Settings):
    """Reads that keep an entry of the cache from dying while a return is likely."""

    enabled: bool = False
    most_in_a_row: Annotated[int, Field(gt=0, le=100)] = 3
    most_sessions: Annotated[int, Field(gt=0)] = 64


class PromptCache(_Settings):
    """The provider's prompt cache."""

    enabled: bool = True
    long_ttl_providers: list[Name] = ["anthropic", "vertex"]
    ttl: Literal["auto", "5m", "1h"] = "auto"
    cache_tools: bool = True
    pings: Pings = Pings()


class Compaction(_Settings):
    """Folds of long histories."""

    enabled: bool = False
    compact_at_pct: Share = 0.75
    tail_keep_tokens: Annotated[int, Field(ge=0)] = 20_000
    tool_result_max_pct: Share = 0.30
    summarizer_model: str = ""
    lock_ttl_seconds: Seconds = 300
    min_turns_between: Annotated[int, Field(ge=0)] = 4
    extractive: bool = False
    limit_seconds: Seconds = 600


class TokenCounter(_Settings):
    """How requests are counted."""

    enabled: bool = True
    backend: Literal["auto", "anthropic_api", "endpoint", "offline", "tiktoken", "estimate"] = "auto"
    cache_capacity: Annotated[int, Field(gt=0)] = 1024
    use_endpoint: bool = False
    timeout_ms: Annotated[int, Field(gt=0)] = 2000


class WorkspaceCache(_Settings):
    """The files that every prompt of an agent carries."""

    enabled: bool = True
    watch_debounce_ms: Annotated[int, Field(ge=0)] = 500
    max_age_seconds: Annotated[float, Field(ge=0)] = 0


class ContextOptimization(_Settings):
    """The four mechanisms, with their numbers."""

    prompt_cache: PromptCache = PromptCache()
    compaction: Compaction = Compaction()
    token_counter: TokenCounter = TokenCounter()
    workspace_cache: WorkspaceCache = WorkspaceCache()


class Switches(_Settings):
    """What of the four can be set for one agent: whether they are on. None: as for all."""

    prompt_cache: bool | None = None
    compaction: bool | None = None
    token_counter: bool | None = None
    workspace_cache: bool | None = None


class WorkspaceFolder(_Settings):
    """The files that every request of an agent carries: a folder, a scope below it, further files in it."""

    root: FilePath
    scope: str = ""
    extras: list[FilePath] = []


class MemoryFiles(_Settings):
    """Notes in Org and Markdown, and how much of them a request shows."""

    paths: Annotated[list[FilePath], Field(min_length=1)]
    limit_tokens: Annotated[int, Field(gt=0)] = 2000
    format: Literal["org", "markdown"] = "org"


class Binding(_Settings):
    """Whom an agent works with, what holds in a channel (by its name), and the language it speaks."""

    peers: list[Annotated[str, StringConstraints(min_length=1)]] = []
    channels: dict[Name, str] = {}
    language: str = ""


class TimeTold(_Settings):
    """Whether requests tell the time, how, and how long before a deadline they speak of it."""

    enabled: bool = True
    format: Literal["iso", "natural"] = "iso"
    warning_minutes: Annotated[int, Field(ge=0)] = 60
    zone: Name = "UTC"


class InjectedSections(_Settings):
    """What is put into an agent's requests. `limits` are a budget: a total, a ladder, rules by section."""

    workspace: WorkspaceFolder | None = None
    skills: FilePath | None = None
    binding: Binding | None = None
    memory: MemoryFiles | None = None
    time: TimeTold | None = None
    channel: bool = False
    budget: bool = False
    privacy_tags: list[Name] = []
    limits: dict[str, Any] = {}


class Agent(_Settings):
    """One agent. `keys` are hashes of its keys of the gateway (`foveate config key` makes one)."""

    id: Name
    keys: list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]] = []
    context_optimization: Switches = Switches()
    on_overflow: Literal["make_room", "refuse", "pass"] | None = None
    window_tokens: Annotated[int, Field(gt=0)] | None = None
    sections: InjectedSections | None = None


class UpstreamServer(_Settings):
    """A server that requests go to. What is left out is what is known of an upstream of that name.

    The `base_url` of one that speaks both APIs, as llama.cpp and vLLM do, is without the version.
    """

    base_url: Url | None = None
    api: Literal["anthropic", "openai", "both"] | None = None
    provider: Name | None = None
    key_variable: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None


class RouteTo(_Settings):
    """Requests for models that match a glob go to an upstream, for `model` where that is its name there."""

    models: Name
    upstream: Name
    model: Name | None = None


class StoreAt(_Settings):
    """Where sessions, folds and the ledger are kept, and for how long."""

    url: str | None = None
    keep_days: Annotated[float, Field(gt=0)] = 30


class Timeouts(_Settings):
    """How long the gateway waits for an upstream."""

    connect_seconds: Seconds = 10
    idle_seconds: Seconds = 600
    total_seconds: Seconds = 3600


class Tls(_Settings):
    """The certificate and key that the gateway shows, each a file in PEM."""

    certificate: Annotated[Path, Field(strict=False)]
    key: Annotated[Path, Field(strict=False)]


class Server(_Settings):
    """The gateway itself."""

    host: Name = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8090
    workers: Annotated[int, Field(gt=0, le=256)] = 1
    body_limit_bytes: Annotated[int, Field(gt=0)] = 64 * 1024 * 1024
    timeouts: Timeouts = Timeouts()
    tls: Tls | None = None
    cors_origins: list[Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^\s/]+)$")]] = []
    host_names: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$")]] = []
    grace_seconds: Annotated[float, Field(ge=0)] = 30
    log: Literal["lines", "json"] = "lines"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    opentelemetry: bool = False


class KeepRequests(_Settings):
    """Whether whole requests are kept for `explain` and `replay`, for how long and how much of them."""

    enabled: bool = False
    days: Annotated[float, Field(gt=0)] = 7
    most_bytes: Annotated[int, Field(gt=0)] = 1_000_000_000


class Settings(_Settings):
    """All of it."""

    context_optimization: ContextOptimization = ContextOptimization()
    agents: list[Agent] = []
    upstreams: dict[Name, UpstreamServer] = {}
    routes: list[RouteTo] = []
    server: Server = Server()
    store: StoreAt = StoreAt()
    keep_requests: KeepRequests = KeepRequests()
    cost: Any = None
