"""What is switched on for an agent, in words: what each mechanism does for it, and who decided that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foveate.budget.budgets import SectionRule
from foveate.budget.ladders import Drop, Ladder, LastLines, Replace, Rung, Truncate
from foveate.config.settings import Agent, Settings
from foveate.engine.injecting.options import SectionOptions
from foveate.engine.options import AgentOptions
from foveate.fold.overflow import OnOverflow
from foveate.tokens.options import Backend
from foveate.web.words import counted, number, percent, short

_FOR_IT = "set for this agent"
_FOR_ALL = "as for all agents"

_OVERFLOW = {
    OnOverflow.MAKE_ROOM: "old tool results are cleared, then the oldest turns go, each with a placeholder",
    OnOverflow.REFUSE: "it is refused, where the count is sure that it does not fit",
    OnOverflow.PASS: "it is passed, and the provider decides",
}
_BACKENDS = {
    Backend.AUTO: "counted here, corrected by bills; where that is not sure enough, by the upstream",
    Backend.OFFLINE: "counted here, corrected by bills; nobody is asked",
    Backend.ESTIMATE: "counted here by classes of characters, corrected by bills; nobody is asked",
    Backend.ENDPOINT: "counted by the upstream's /tokenize, each time",
    Backend.ANTHROPIC_API: "counted by Anthropic's count_tokens, each time",
    Backend.OPENAI_API: "counted by OpenAI's input_tokens, each time",
    Backend.GEMINI_API: "counted by Gemini's countTokens, each time",
}
_LONGEST = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
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
class Rule:
    """What the budget says of a section by its name."""

    section: str
    said: SectionRule


def switches(options: AgentOptions, said: Agent | None, settings: Settings) -> list[Switch]:
    """Every mechanism of an agent; `said` is what the configuration says of it alone."""
    return [*_cache(options, said), *_folds(options, said), *_counting(options, said, settings)]


def _cache(options: AgentOptions, said: Agent | None) -> Iterator[Switch]:
    is_on = options.prompt_cache
    ttl = options.layout.ttl
    long = ", ".join(sorted(options.long_ttl_providers)) or "no provider"
    lives = "five minutes or an hour, by each session's rhythm" if ttl is None else f"always {ttl.value}"
    tools = "one of them may go to the tools" if options.layout.cache_tools else "none goes to the tools"
    yield Switch(
        name="Prompt cache",
        is_on=is_on,
        means=f"marks where they pay, {tools}; they live {lives} (an hour only on {long})"
        if is_on
        else "no marks are placed",
        decided=_decided(said is not None and said.context_optimization.prompt_cache is not None),
    )
    pings = options.pings
    yield Switch(
        name="Pings",
        is_on=options.sends_pings,
        means=f"at most {pings.most_in_a_row} in a row, in {counted(pings.most_sessions, 'session')} at once"
        if options.sends_pings
        else "no reads keep what is cached from dying",
        decided=_FOR_ALL,
    )


def _folds(options: AgentOptions, said: Agent | None) -> Iterator[Switch]:
    is_on = options.compaction
    means = _folded(options) if is_on else "histories are sent as they come"
    yield Switch(
        name="Compaction",
        is_on=options.compacts,
        means=means if options.token_counter or not is_on else "nothing is folded, since nothing is counted",
        decided=_decided(said is not None and said.context_optimization.compaction is not None),
    )
    wish = options.overflow.wish
    usual = f"usual {'with' if is_on else 'without'} compaction"
    yield Switch(
        name="What does not fit",
        is_on=options.token_counter and wish is not OnOverflow.PASS,
        means=_OVERFLOW[wish] if options.token_counter else "left to the provider, since nothing is counted",
        decided=usual if options.on_overflow is None else _FOR_IT,
        chosen=wish.value,
    )
    if options.max_turns is not None:
        yield Switch(
            name="Turn limit",
            is_on=True,
            means=f"turns beyond the last {number(options.max_turns)} are left out, with a placeholder",
            decided=_FOR_IT,
        )


def _folded(options: AgentOptions) -> str:
    fold = options.fold
    by = short(options.summarizer_model, _LONGEST) or "the agent's own model"
    rules = ", by rules where it gives none" if fold.extractive else ""
    return (
        f"histories are folded from {percent(fold.compact_at_pct)} of the window on, less the answer's room; "
        f"the last {number(fold.tail_keep_tokens)} tokens stay; {counted(fold.min_turns_between, 'turn')} at "
        f"least between two folds; summaries by {by}{rules}"
    )


def _counting(options: AgentOptions, said: Agent | None, settings: Settings) -> Iterator[Switch]:
    counter, is_on = options.counter, options.token_counter
    asks = "; an upstream may be asked" if counter.use_endpoint else ""
    yield Switch(
        name="Token counter",
        is_on=is_on,
        means=f"{counter.backend.value}: {_BACKENDS[counter.backend]}{asks}"
        if is_on
        else "nothing is counted: the window is left to the provider, and caps refuse",
        decided=_decided(said is not None and said.context_optimization.token_counter is not None),
    )
    yield Switch(
        name="Long tool results",
        is_on=options.cuts_tool_results,
        means=f"cut where they are longer than {percent(options.tool_result_max_pct)} of the window"
        if options.cuts_tool_results
        else f"sent as they come, since {'compaction is off' if is_on else 'nothing is counted'}",
        decided=_FOR_ALL,
    )
    own = said.context_optimization.workspace_cache if said is not None else None
    cache = settings.context_optimization.workspace_cache
    is_kept = cache.enabled if own is None else own
    age = f", and after {cache.max_age_seconds:g} s" if cache.max_age_seconds else ""
    yield Switch(
        name="Workspace cache",
        is_on=is_kept,
        means=f"files are read again when they change{age}" if is_kept else "files are read for each request",
        decided=_decided(own is not None),
    )


def sections(options: SectionOptions | None) -> list[Switch]:
    """What is put into an agent's requests, and what is not."""
    found = options or SectionOptions()
    workspace, memory, binding, time = found.workspace, found.memory, found.binding, found.time
    skills = "" if found.skills is None else f"a line for each in {found.skills}"
    said = (
        ("Workspace", workspace is not None, "" if workspace is None else f"the files of {workspace.root}"),
        ("Skills", found.skills is not None, skills),
        ("Binding", binding is not None, "" if binding is None else _binding(found)),
        (
            "Memory",
            memory is not None,
            ""
            if memory is None
            else f"{number(memory.limit_tokens)} tokens of notes at most, as {memory.format}",
        ),
        (
            "Time",
            time is not None and time.awareness,
            ""
            if time is None
            else f"{time.format.value}, {found.zone}; deadlines {time.warning_minutes} minutes before",
        ),
        ("Channel", found.channel, "where a request comes from, as it says"),
        ("Budget", found.budget, "how much of the window and of caps is left"),
    )
    return [
        Switch(name=name, is_on=is_on, means=means if is_on else "not put into requests")
        for name, is_on, means in said
    ]


def _binding(options: SectionOptions) -> str:
    binding = options.binding
    assert binding is not None
    known = [
        counted(len(binding.peers), "peer") if binding.peers else "",
        counted(len(binding.channels), "channel") if binding.channels else "",
        f"answers in {short(binding.language, _LONGEST)}" if binding.language else "",
    ]
    return ", ".join(filter(None, known)) or "nothing is said in it"


def rungs(ladder: Ladder) -> Sequence[str]:
    """What is done when sections do not fit, step by step."""
    return [_rung(rung) for rung in ladder.rungs]


def _rung(rung: Rung) -> str:
    named = ", ".join(rung.sections)
    match rung:
        case Truncate():
            return f"cut {named or 'sections, the lowest priority first'}"
        case Drop():
            return f"leave out {named or 'whole sections, the lowest priority first'}"
        case LastLines(lines=lines):
            return f"keep the last {counted(lines, 'line')} of {named}"
        case Replace():
            return f"put a line in the place of {named}"


def rules(options: SectionOptions) -> list[Rule]:
    """What the budget of an agent's sections says of each by name."""
    return [Rule(section=name, said=rule) for name, rule in sorted(options.limits.sections.items())]


def _decided(by_it: bool) -> str:
    return _FOR_IT if by_it else _FOR_ALL
