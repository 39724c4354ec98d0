"""What is switched on for an agent, in words: what each mechanism does for it, and who decided that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foveate.budget.budgets import SectionRule
from foveate.budget.ladders import Drop, Ladder, LastLines, Replace, Rung, Truncate
from foveate.config.settings import AgentSettings, Settings
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.options import AgentOptions
from foveate.fold.overflow import OnOverflow
from foveate.tokens.options import Backend
from foveate.web.words import format_count, format_number, format_percent, shorten

_SET_FOR_AGENT = "set for this agent"
_SET_FOR_ALL = "as for all agents"

_OVERFLOW_TEXTS = {
    OnOverflow.MAKE_ROOM: "old tool results are cleared, then the oldest turns go, each with a placeholder",
    OnOverflow.REFUSE: "it is refused, where the count is sure that it does not fit",
    OnOverflow.PASS: "it is passed, and the provider decides",
}
_BACKEND_TEXTS = {
    Backend.AUTO: "counted here, corrected by bills; where that is not sure enough, by the upstream",
    Backend.OFFLINE: "counted here, corrected by bills; nobody is asked",
    Backend.ESTIMATE: "counted here by classes of characters, corrected by bills; nobody is asked",
    Backend.ENDPOINT: "counted by the upstream's /tokenize, each time",
    Backend.ANTHROPIC_API: "counted by Anthropic's count_tokens, each time",
    Backend.OPENAI_API: "counted by OpenAI's input_tokens, each time",
    Backend.GEMINI_API: "counted by Gemini's countTokens, each time",
}
_MAX_NAME_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFeature:
    """A mechanism: whether it is on, what that means, and who decided it. `chosen` is one of more than two."""

    name: str
    is_on: bool
    means: str
    decided: str = ""
    chosen: str = ""

    @property
    def state(self) -> str:
        """How it is set, in a word."""
        return self.chosen or ("on" if self.is_on else "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRuleRow:
    """What the budget says of a section by its name."""

    section: str
    said: SectionRule


def list_features(
    options: AgentOptions, agent_settings: AgentSettings | None, settings: Settings
) -> list[AgentFeature]:
    """Every mechanism of an agent; `said` is what the configuration says of it alone."""
    return [
        *_list_cache_features(options, agent_settings),
        *_list_compaction_features(options, agent_settings),
        *_list_counting_features(options, agent_settings, settings),
    ]


def _list_cache_features(options: AgentOptions, agent_settings: AgentSettings | None) -> Iterator[AgentFeature]:
    is_on = options.prompt_cache
    ttl = options.layout.ttl
    long = ", ".join(sorted(options.long_ttl_providers)) or "no provider"
    lifetime = "five minutes or an hour, by each session's rhythm" if ttl is None else f"always {ttl.value}"
    tools = "one of them may go to the tools" if options.layout.cache_tools else "none goes to the tools"
    yield AgentFeature(
        name="Prompt cache",
        is_on=is_on,
        means=f"marks where they pay, {tools}; they live {lifetime} (an hour only on {long})"
        if is_on
        else "no marks are placed",
        decided=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.prompt_cache is not None
        ),
    )
    pings = options.keep_alive
    yield AgentFeature(
        name="Pings",
        is_on=options.sends_keep_alive,
        means=f"at most {pings.max_in_a_row} in a row, in {format_count(pings.max_sessions, 'session')} at once"
        if options.sends_keep_alive
        else "no reads keep what is cached from dying",
        decided=_SET_FOR_ALL,
    )


def _list_compaction_features(
    options: AgentOptions, agent_settings: AgentSettings | None
) -> Iterator[AgentFeature]:
    is_on = options.compaction
    means = _describe_compaction(options) if is_on else "histories are sent as they come"
    yield AgentFeature(
        name="Compaction",
        is_on=options.compacts,
        means=means if options.token_counter or not is_on else "nothing is folded, since nothing is counted",
        decided=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.compaction is not None
        ),
    )
    wish = options.overflow.policy
    default_text = f"usual {'with' if is_on else 'without'} compaction"
    yield AgentFeature(
        name="What does not fit",
        is_on=options.token_counter and wish is not OnOverflow.PASS,
        means=_OVERFLOW_TEXTS[wish]
        if options.token_counter
        else "left to the provider, since nothing is counted",
        decided=default_text if options.on_overflow is None else _SET_FOR_AGENT,
        chosen=wish.value,
    )
    if options.max_turns is not None:
        yield AgentFeature(
            name="Turn limit",
            is_on=True,
            means=f"turns beyond the last {format_number(options.max_turns)} are left out, with a placeholder",
            decided=_SET_FOR_AGENT,
        )


def _describe_compaction(options: AgentOptions) -> str:
    compaction = options.compaction_options
    by = shorten(options.summarizer_model, _MAX_NAME_CHARS) or "the agent's own model"
    rules = ", by rules where it gives none" if compaction.extractive else ""
    return (
        f"histories are folded from {format_percent(compaction.compact_at_pct)} of the window on, less the answer's room; "
        f"the last {format_number(compaction.tail_keep_tokens)} tokens stay; {format_count(compaction.min_turns_between, 'turn')} at "
        f"least between two folds; summaries by {by}{rules}"
    )


def _list_counting_features(
    options: AgentOptions, agent_settings: AgentSettings | None, settings: Settings
) -> Iterator[AgentFeature]:
    counter, is_on = options.counter, options.token_counter
    asks = "; an upstream may be asked" if counter.use_endpoint else ""
    yield AgentFeature(
        name="Token counter",
        is_on=is_on,
        means=f"{counter.backend.value}: {_BACKEND_TEXTS[counter.backend]}{asks}"
        if is_on
        else "nothing is counted: the window is left to the provider, and caps refuse",
        decided=_decided_by(
            agent_settings is not None and agent_settings.context_optimization.token_counter is not None
        ),
    )
    yield AgentFeature(
        name="Long tool results",
        is_on=options.truncates_tool_results,
        means=f"cut where they are longer than {format_percent(options.tool_result_max_pct)} of the window"
        if options.truncates_tool_results
        else f"sent as they come, since {'compaction is off' if is_on else 'nothing is counted'}",
        decided=_SET_FOR_ALL,
    )
    own = agent_settings.context_optimization.workspace_cache if agent_settings is not None else None
    cache = settings.context_optimization.workspace_cache
    is_cached = cache.enabled if own is None else own
    age = f", and after {cache.max_age_seconds:g} s" if cache.max_age_seconds else ""
    yield AgentFeature(
        name="Workspace cache",
        is_on=is_cached,
        means=f"files are read again when they change{age}" if is_cached else "files are read for each request",
        decided=_decided_by(own is not None),
    )


def list_sections(options: SectionOptions | None) -> list[AgentFeature]:
    """What is put into an agent's requests, and what is not."""
    section_options = options or SectionOptions()
    workspace, memory, binding, time = (
        section_options.workspace,
        section_options.memory,
        section_options.binding,
        section_options.time,
    )
    skills = "" if section_options.skills is None else f"a line for each in {section_options.skills}"
    described = (
        ("Workspace", workspace is not None, "" if workspace is None else f"the files of {workspace.root}"),
        ("Skills", section_options.skills is not None, skills),
        ("Binding", binding is not None, "" if binding is None else _describe_binding(section_options)),
        (
            "Memory",
            memory is not None,
            ""
            if memory is None
            else f"{format_number(memory.limit_tokens)} tokens of notes at most, as {memory.format}",
        ),
        (
            "Time",
            time is not None and time.awareness,
            ""
            if time is None
            else f"{time.format.value}, {section_options.zone}; deadlines {time.warning_minutes} minutes before",
        ),
        ("Channel", section_options.channel, "where a request comes from, as it says"),
        ("Budget", section_options.budget, "how much of the window and of caps is left"),
    )
    return [
        AgentFeature(name=name, is_on=is_on, means=means if is_on else "not put into requests")
        for name, is_on, means in described
    ]


def _describe_binding(options: SectionOptions) -> str:
    binding = options.binding
    assert binding is not None
    known = [
        format_count(len(binding.peers), "peer") if binding.peers else "",
        format_count(len(binding.channels), "channel") if binding.channels else "",
        f"answers in {shorten(binding.language, _MAX_NAME_CHARS)}" if binding.language else "",
    ]
    return ", ".join(filter(None, known)) or "nothing is said in it"


def describe_ladder(ladder: Ladder) -> Sequence[str]:
    """What is done when sections do not fit, step by step."""
    return [_describe_rung(rung) for rung in ladder.rungs]


def _describe_rung(rung: Rung) -> str:
    named = ", ".join(rung.sections)
    match rung:
        case Truncate():
            return f"cut {named or 'sections, the lowest priority first'}"
        case Drop():
            return f"leave out {named or 'whole sections, the lowest priority first'}"
        case LastLines(lines=lines):
            return f"keep the last {format_count(lines, 'line')} of {named}"
        case Replace():
            return f"put a line in the place of {named}"


def list_section_rules(options: SectionOptions) -> list[SectionRuleRow]:
    """What the budget of an agent's sections says of each by name."""
    return [SectionRuleRow(section=name, said=rule) for name, rule in sorted(options.limits.sections.items())]


def _decided_by(is_agent_setting: bool) -> str:
    return _SET_FOR_AGENT if is_agent_setting else _SET_FOR_ALL
