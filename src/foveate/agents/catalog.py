"""The coding agents that `foveate run` knows: how each is pointed at a gateway (releases of November 2026).

Texts may contain `{url}`, the base URL without a version, and `{package}`, the folder of this package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """Files of the user in which an agent may have a base URL. They are only read.

    A path may start with `~`, or with a variable that replaces its folder (`$CODEX_HOME|~/.codex/config.toml`).
    `keys` lead to base URLs, with `*` for any name or position. If `overrides_run`, they take precedence
    over what `foveate run` sets.
    """

    paths: tuple[str, ...]
    keys: tuple[str, ...]
    overrides_run: bool = False


@dataclass(frozen=True, slots=True)
class DirectLogin:
    """Logins in a settings file with which an agent calls servers that cannot be replaced by a gateway."""

    path: str
    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededSetting:
    """A key that one of the settings files must have for an agent that uses a gateway."""

    paths: tuple[str, ...]
    key: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent: its `command`, its `name` in the ledger, and `how` it is pointed at the gateway in a few words.

    `variables`, `json_variables` (merged with JSON that they contain) and `arguments` point it at the gateway.
    Without all of these, the user must add `lines` to `lines_file`. `override_arguments` are added if a
    settings file would take precedence. `required` are variables of which one must be set, with
    `required_advice` if none is. If one of the variables `other_providers` is set, or with one of the
    `direct_logins`, it calls another address, past the gateway. Without the `needed_setting`, it may fail.
    """

    command: str
    name: str
    title: str
    how: str
    variables: Mapping[str, str] = field(default_factory=dict)
    json_variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    override_arguments: tuple[str, ...] = ()
    lines_file: str = ""
    lines: str = ""
    required: tuple[str, ...] = ()
    required_advice: str = ""
    other_providers: tuple[str, ...] = ()
    direct_logins: tuple[DirectLogin, ...] = ()
    needed_setting: NeededSetting | None = None
    settings_files: tuple[SettingsFile, ...] = ()

    @property
    def word(self) -> str:
        """The word by which users know it: `foveate run continue`, although the program is `cn`."""
        return "continue" if self.command == "cn" else self.command

    @property
    def needs_lines(self) -> bool:
        return bool(self.lines)


_OPENCODE_CONFIG = (
    '{"provider": {"anthropic": {"options": {"baseURL": "{url}/v1"}},'
    ' "openai": {"options": {"baseURL": "{url}/v1"}}, "google": {"options": {"baseURL": "{url}/v1beta"}}}}'
)

_CLAUDE_PROVIDERS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")

COMMON_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "ANTHROPIC_BASE_URL": "{url}",
        "OPENAI_BASE_URL": "{url}/v1",
        "OPENAI_API_BASE": "{url}/v1",
        "GOOGLE_GEMINI_BASE_URL": "{url}",
    }
)
"""Variables that most SDKs and agents read: those of the SDKs, and of older ones and LiteLLM."""

AGENTS = (
    Agent(
        command="claude",
        name="claude-code",
        title="Claude Code",
        how="ANTHROPIC_BASE_URL",
        variables={"ANTHROPIC_BASE_URL": "{url}"},
        override_arguments=("--settings", '{"env": {"ANTHROPIC_BASE_URL": "{url}"}}'),
        other_providers=_CLAUDE_PROVIDERS,
        direct_logins=tuple(
            DirectLogin("$CLAUDE_CONFIG_DIR|~/.claude/settings.json", f"env.{name}", ("1", "true"))
            for name in _CLAUDE_PROVIDERS
        ),
        settings_files=(
            SettingsFile(
                paths=(
                    "$CLAUDE_CONFIG_DIR|~/.claude/settings.json",
                    ".claude/settings.json",
                    ".claude/settings.local.json",
                ),
                keys=("env.ANTHROPIC_BASE_URL",),
                overrides_run=True,
            ),
        ),
    ),
    Agent(
        command="codex",
        name="codex",
        title="Codex",
        how="-c openai_base_url=URL",
        arguments=("-c", 'openai_base_url="{url}/v1"'),
        settings_files=(
            SettingsFile(
                paths=("$CODEX_HOME|~/.codex/config.toml",),
                keys=("openai_base_url", "model_providers.*.base_url"),
            ),
        ),
    ),
    Agent(
        command="opencode",
        name="opencode",
        title="opencode",
        how="OPENCODE_CONFIG_CONTENT",
        json_variables={"OPENCODE_CONFIG_CONTENT": _OPENCODE_CONFIG},
        settings_files=(
            SettingsFile(
                paths=(
                    "~/.config/opencode/opencode.json",
                    "~/.config/opencode/opencode.jsonc",
                    "opencode.json",
                    "opencode.jsonc",
                ),
                keys=("provider.*.options.baseURL",),
            ),
        ),
    ),
    Agent(
        command="gemini",
        name="gemini-cli",
        title="Gemini CLI",
        how="GOOGLE_GEMINI_BASE_URL",
        variables={"GOOGLE_GEMINI_BASE_URL": "{url}"},
        # Without a prompt it asks for a login, and stores it there.
        needed_setting=NeededSetting(
            paths=("~/.gemini/settings.json", ".gemini/settings.json"),
            key="security.auth.selectedType",
            advice="Gemini CLI 0.61 with -p reports an invalid auth method if a base URL is set and no login is"
            ' selected in its settings: add {"security": {"auth": {"selectedType": "gemini-api-key"}}} to'
            " ~/.gemini/settings.json",
        ),
        other_providers=("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"),
        direct_logins=(
            DirectLogin(
                "~/.gemini/settings.json", "security.auth.selectedType", ("oauth-personal", "vertex-ai")
            ),
        ),
        settings_files=(
            SettingsFile(paths=("~/.gemini/.env", ".gemini/.env"), keys=("GOOGLE_GEMINI_BASE_URL",)),
        ),
    ),
    Agent(
        command="pi",
        name="pi",
        title="pi",
        how="-e FILE (extension)",
        # It has no setting for the address of a provider other than models.json and extensions.
        variables={"FOVEATE_RUN_URL": "{url}"},
        arguments=("-e", "{package}/pi_extension.js"),
        settings_files=(
            SettingsFile(
                paths=("$PI_CODING_AGENT_DIR|~/.pi/agent/models.json",), keys=("providers.*.baseUrl",)
            ),
        ),
    ),
    Agent(
        command="aider",
        name="aider",
        title="aider",
        how="OPENAI_API_BASE, ANTHROPIC_BASE_URL",
        variables={
            "AIDER_OPENAI_API_BASE": "{url}/v1",  # or else its file would take precedence
            "OPENAI_API_BASE": "{url}/v1",
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_BASE": "{url}",
        },
        settings_files=(
            SettingsFile(paths=("~/.aider.conf.yml", ".aider.conf.yml"), keys=("openai-api-base",)),
            # It loads .env over the environment.
            SettingsFile(
                paths=(".env",),
                keys=("AIDER_OPENAI_API_BASE", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
                overrides_run=True,
            ),
        ),
    ),
    Agent(
        command="qwen",
        name="qwen-code",
        title="Qwen Code",
        how="OPENAI_BASE_URL",
        variables={"OPENAI_BASE_URL": "{url}/v1"},
        direct_logins=(DirectLogin("~/.qwen/settings.json", "security.auth.selectedType", ("qwen-oauth",)),),
        settings_files=(
            SettingsFile(
                paths=("~/.qwen/settings.json", ".qwen/settings.json"),
                keys=("security.auth.baseUrl", "modelProviders.*.*.baseUrl"),
                overrides_run=True,
            ),
        ),
    ),
    Agent(
        command="copilot",
        name="copilot",
        title="GitHub Copilot CLI",
        how="COPILOT_PROVIDER_BASE_URL (own key only)",
        variables={"COPILOT_PROVIDER_BASE_URL": "{url}/v1"},
        required=(
            "COPILOT_PROVIDER_API_KEY",
            "COPILOT_PROVIDER_BEARER_TOKEN",
            "COPILOT_PROVIDER_API_KEY_COMMAND",
        ),
        # With a key, Copilot charges the owner of that key instead of the subscription: never set one unasked.
        required_advice="with a GitHub subscription, Copilot calls only GitHub's own servers. To use it through"
        " the gateway, give it a provider's key: set COPILOT_PROVIDER_API_KEY, COPILOT_PROVIDER_TYPE (openai or"
        " anthropic) and COPILOT_MODEL",
    ),
    Agent(
        command="openhands",
        name="openhands",
        title="OpenHands",
        how="LLM_BASE_URL, --override-with-envs",
        variables={"LLM_BASE_URL": "{url}"},
        arguments=("--override-with-envs",),
        settings_files=(SettingsFile(paths=("~/.openhands/agent_settings.json",), keys=("llm.base_url",)),),
    ),
    Agent(
        command="cline",
        name="cline",
        title="Cline",
        how="lines in its settings",
        lines_file="~/.cline/data/settings/providers.json",
        lines="cline auth --provider openai --apikey YOUR_KEY --modelid MODEL --baseurl {url}/v1",
        settings_files=(
            SettingsFile(
                paths=("$CLINE_DATA_DIR|~/.cline/data/settings/providers.json",),
                keys=("providers.*.settings.baseUrl", "providers.*.baseUrl"),
            ),
            SettingsFile(  # version 2
                paths=("$CLINE_DATA_DIR|~/.cline/data/globalState.json",), keys=("openAiBaseUrl",)
            ),
        ),
    ),
    Agent(
        command="cn",
        name="continue",
        title="Continue",
        how="lines in ~/.continue/config.yaml",
        lines_file="~/.continue/config.yaml",
        lines="""\
models:
  - name: Claude
    provider: anthropic
    model: claude-sonnet-5-5
    apiKey: YOUR_KEY
    apiBase: {url}/v1/""",
        settings_files=(
            SettingsFile(paths=("$CONTINUE_GLOBAL_DIR|~/.continue/config.yaml",), keys=("models.*.apiBase",)),
        ),
    ),
    Agent(
        command="droid",
        name="droid",
        title="Factory droid",
        how="lines in ~/.factory/settings.json",
        lines_file="~/.factory/settings.json",
        lines="""\
{"customModels": [{"displayName": "Claude through Foveate", "provider": "anthropic",
  "model": "claude-sonnet-5-5", "apiKey": "YOUR_KEY", "baseUrl": "{url}"}]}""",
        settings_files=(SettingsFile(paths=("~/.factory/settings.json",), keys=("customModels.*.baseUrl",)),),
    ),
    Agent(
        command="crush",
        name="crush",
        title="Crush",
        how="ANTHROPIC_API_ENDPOINT, OPENAI_API_ENDPOINT",
        variables={
            "ANTHROPIC_API_ENDPOINT": "{url}",
            "OPENAI_API_ENDPOINT": "{url}/v1",
            "GEMINI_API_ENDPOINT": "{url}",
        },
        settings_files=(
            SettingsFile(
                paths=("~/.config/crush/crush.json", "crush.json", ".crush.json"),
                keys=("providers.*.base_url",),
                overrides_run=True,
            ),
        ),
    ),
    Agent(
        command="goose",
        name="goose",
        title="goose",
        how="ANTHROPIC_HOST, OPENAI_HOST",
        # It joins paths to a host as browsers do, so the host must end with a slash.
        variables={"ANTHROPIC_HOST": "{url}/", "OPENAI_HOST": "{url}/"},
        settings_files=(
            SettingsFile(paths=("~/.config/goose/config.yaml",), keys=("ANTHROPIC_HOST", "OPENAI_HOST")),
        ),
    ),
)

_ALIASES = {"claude-code": "claude", "gemini-cli": "gemini", "qwen-code": "qwen", "continue": "cn"}


def find_agent(command: str) -> Agent | None:
    """Return the agent with this command or name."""
    wanted = _ALIASES.get(command, command)
    return next((agent for agent in AGENTS if agent.command == wanted), None)


def agent_words() -> tuple[str, ...]:
    return tuple(agent.word for agent in AGENTS)
