"""Properties of injected sections, for any files, requests and windows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.budget.budget import Budget, SectionRule
from foveate.budget.ladder import BUILT_IN_LADDERS, LadderName, parse_ladder
from foveate.budget.sections import Priority, Section, Stability
from foveate.context.workspace import ROLE_FILES, Workspace
from foveate.engine.options import AgentOptions, MemoryOptions, SectionInputs, SectionOptions
from foveate.engine.sections.fit import (
    FittedSections,
    fit_in_room,
    fit_sections,
    prepare_sections,
    round_stable_size,
)
from foveate.errors import BudgetExceeded
from foveate.model import Format
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.injected_sections import SectionInjection, garden_sections, sent_body

SECRET = "xyzzy"
MODELS = {
    Format.ANTHROPIC: ("claude-sonnet-4-5", "claude-opus-5-5"),
    Format.CHAT: ("gpt-4.1", "gpt-5.6"),
    Format.RESPONSES: ("gpt-4.1",),
}


@st.composite
def notes(draw: st.DrawFn) -> str:
    """A tree of headings, in Org or Markdown, whose private notes contain the secret word."""
    is_org = draw(st.booleans())
    star = "*" if is_org else "#"
    lines: list[str] = []
    hidden_level: int | None = None
    for number in range(draw(st.integers(1, 8))):
        level = draw(st.integers(1, 4))
        if hidden_level is not None and level <= hidden_level:
            hidden_level = None
        is_private = draw(st.booleans())
        if is_private and hidden_level is None:
            hidden_level = level
        tag = draw(st.sampled_from([" :private:", " :PRIVATE:", " :@personal:x:"])) if is_private else ""
        word = SECRET if hidden_level is not None else "open"
        lines += [f"{star * level} {word} {number}{tag}", draw(st.sampled_from(["", f"{word} text {number}."]))]
    return "\n".join(lines)


@dataclass(frozen=True)
class AgentSetup:
    """An agent's sections, and the step that injects them."""

    sections: SectionOptions
    injection: SectionInjection


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentSetup]:
    setup = AgentSetup(garden_sections(tmp_path_factory.mktemp("garden")), SectionInjection())
    yield setup
    setup.injection.sources.close()


def make_request(api_format: Format, model: str, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "input" if api_format is Format.RESPONSES else "messages": messages}


@settings(max_examples=limit_examples(15))
@given(
    texts=st.lists(notes(), min_size=1, max_size=4),
    api_format=st.sampled_from([Format.ANTHROPIC, Format.CHAT, Format.RESPONSES]),
    names=st.permutations(ROLE_FILES),
    focus=st.sampled_from([None, f"{SECRET} 0", "open 0"]),
    data=st.data(),
)
def test_private_notes_are_never_sent(
    texts: list[str], api_format: Format, names: list[str], focus: str | None, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(MODELS[api_format]))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        skills = root / "skills"
        skills.mkdir()
        for number, text in enumerate(texts):
            (root / names[number]).write_text(text if text.startswith("#") else text.replace("*", "#"))
            (root / f"n{number}.{'org' if text.startswith('*') else 'md'}").write_text(text)
            (skills / f"s{number}.md").write_text(f"---\ntags: [private]\nname: {SECRET}\n---\n{SECRET}\n")
        if data.draw(st.booleans()):  # ends in the middle of a character
            (root / names[0]).write_bytes((root / names[0]).read_bytes() + b"\xe2\x82")
        options = SectionOptions(
            workspace=Workspace(root),
            skills=str(skills),
            memory=MemoryOptions(paths=(str(root),)),
            budget=True,
        )
        injection = SectionInjection()
        inputs = SectionInputs(focus=focus, scope=data.draw(st.sampled_from([None, f"{SECRET} 0"])))

        context = injection.apply(
            make_request(api_format, model, "what is open?"),
            api_format,
            AgentOptions(sections=options),
            inputs=inputs,
        )

        injection.sources.close()
        assert SECRET.encode() not in context.request.body
        assert not any(SECRET in applied.edit.reason for applied in context.applied_edits)


def do_required_sections_fit(sections: list[Section], limit: int, model: str) -> bool:
    needed = [section for section in sections if section.priority is Priority.REQUIRED]
    return sum(counter_for(model).text(section.text).upper for section in needed) < limit - 40


some_sections = st.lists(
    st.builds(
        lambda name, text, priority, stability: Section(
            f"s{name}", "word \n" * text, priority=priority, stability=stability
        ),
        st.integers(0, 99),
        st.integers(1, 400),
        st.sampled_from(Priority),
        st.sampled_from(Stability),
    ),
    max_size=6,
    unique_by=lambda section: section.name,
)
RANKS = {priority: rank for rank, priority in enumerate(Priority)}


def section_texts(fitted: FittedSections) -> dict[str, str]:
    return {section.name: section.text for part in (fitted.stable, fitted.turn) for section in part.sections}


@settings(max_examples=limit_examples(150))
@given(
    sections=some_sections,
    limit=st.integers(0, 900),
    model=st.sampled_from(["gpt-4o", "claude-sonnet-4-5"]),
    ladder=st.sampled_from(["truncate_low_priority", "drop_low_priority"]),
)
def test_sections_are_fitted_by_priority_wherever_they_are_placed(
    sections: list[Section], limit: int, model: str, ladder: str
) -> None:
    meter = counter_for(model).text_meter
    prepared = prepare_sections(sections, Budget(), limit)
    try:
        fitted = fit_sections(prepared, parse_ladder(ladder), limit_tokens=limit, meter=meter)
    except BudgetExceeded:
        assert not do_required_sections_fit(sections, limit - 4 * len(sections), model)
        return

    assert fitted.count.upper <= limit or not (fitted.stable.sections or fitted.turn.sections)
    texts = section_texts(fitted)
    for place, section in enumerate(prepared):
        if section.priority is Priority.REQUIRED:
            assert texts[section.name] == section.text
        elif texts.get(section.name) != section.text:
            for other_place, other in enumerate(prepared):
                if (RANKS[other.priority], other_place) > (RANKS[section.priority], place):
                    assert other.name not in texts
    fitted_sections = (*fitted.stable.sections, *fitted.turn.sections)
    reported = " ".join(
        (*fitted.stable.left_out, *fitted.turn.left_out, *(section.reason for section in fitted_sections))
    )
    assert all(section.name in reported for section in sections)


FILES = {"IDENTITY.md": "identity", "SOUL.md": "soul", "MEMORY.md": "memory"}
PLACES = [*(f"workspace/{name}" for name in FILES), "context"]


@settings(max_examples=limit_examples(25))
@given(
    text=st.fixed_dictionaries({name: st.integers(1, 300) for name in PLACES}),
    priorities=st.fixed_dictionaries({name: st.sampled_from(Priority) for name in PLACES}),
    total=st.integers(60, 2_000),
    ladder=st.sampled_from(["truncate_low_priority", "drop_low_priority"]),
)
def test_required_sections_are_complete_and_the_lowest_priorities_are_cut_first(
    text: dict[str, int], priorities: dict[str, Priority], total: int, ladder: LadderName
) -> None:
    kinds = {**{f"workspace/{name}": kind for name, kind in FILES.items()}, "context": "note"}
    with TemporaryDirectory() as folder:
        root, notes = Path(folder) / "root", Path(folder) / "notes"
        root.mkdir()
        notes.mkdir()
        lines = {name: "\n".join(f"{kinds[name]}x{number}x" for number in range(text[name])) for name in PLACES}
        for name in FILES:
            (root / name).write_text(lines[f"workspace/{name}"])
        (notes / "n.org").write_text(f"* Bed\n{lines['context']}\n")
        rules = {name: SectionRule(priority=priority) for name, priority in priorities.items()}
        options = SectionOptions(
            workspace=Workspace(root),
            memory=MemoryOptions(paths=(str(notes),), limit_tokens=10_000),
            limits=Budget(total_tokens=total, ladder=ladder, sections=rules),
        )
        injection = SectionInjection()
        body = make_request(Format.CHAT, "gpt-4.1", "How is the bed?")
        try:
            request_text = injection.apply(
                body, Format.CHAT, AgentOptions(sections=options), inputs=SectionInputs(focus="Bed")
            ).request.body.decode()
        except BudgetExceeded as error:
            required = [size for size in error.sections if size.priority == "required"]
            assert sum(size.after for size in required) > total - 80
            return
        finally:
            injection.sources.close()

    line_counts = {
        name: sum(f"{kinds[name]}x{number}x" in request_text for number in range(text[name])) for name in PLACES
    }
    for name, priority in priorities.items():
        if priority is Priority.REQUIRED:
            assert line_counts[name] == text[name]
        elif line_counts[name] < text[name]:
            lower = [other for other in PLACES if RANKS[priorities[other]] > RANKS[priority]]
            assert not any(line_counts[other] for other in lower)


@given(sections=some_sections, room=st.integers(0, 900), ladder=st.sampled_from(list(BUILT_IN_LADDERS)))
def test_a_small_window_keeps_required_sections(sections: list[Section], room: int, ladder: str) -> None:
    limit = 5_000
    prepared = prepare_sections(sections, Budget(), limit)

    fitted = fit_in_room(
        prepared,
        parse_ladder(ladder),
        limit_tokens=limit,
        room_tokens=room,
        meter=counter_for("gpt-4o").text_meter,
    )

    texts = section_texts(fitted)
    required = [section for section in sections if section.priority is Priority.REQUIRED]
    assert all(texts[section.name] == section.text for section in required)
    assert fitted.count.upper <= room or set(texts) == {section.name for section in required}


@settings(max_examples=limit_examples(40))
@given(
    window=st.integers(120, 3_000),
    text=st.integers(1, 400),
    api_format=st.sampled_from([Format.ANTHROPIC, Format.CHAT, Format.RESPONSES]),
    data=st.data(),
)
def test_optional_sections_never_make_a_request_too_large(
    agent: AgentSetup, window: int, text: int, api_format: Format, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(MODELS[api_format]))
    optional = Budget(sections={"workspace/IDENTITY.md": SectionRule(priority=Priority.HIGH)})
    options = AgentOptions(sections=replace(agent.sections, limits=optional), window_tokens=window)
    body = make_request(api_format, model, "water " * text)

    context = agent.injection.apply(body, api_format, options)

    before = context.counter.count_request(context.original).total
    after = context.counter.count_request(context.request).total
    assert context.count.total is not None
    if before.tokens > window:
        assert context.request.body == context.original.body
    elif context.request is not context.original:
        assert after.tokens <= context.count.total.upper <= window
    if context.request is context.original:
        assert context.problems


@settings(max_examples=limit_examples(30))
@given(
    texts=st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=6),
    api_format=st.sampled_from([Format.ANTHROPIC, Format.CHAT, Format.RESPONSES]),
    data=st.data(),
)
def test_injection_only_inserts_into_what_the_client_sent(
    agent: AgentSetup, texts: list[str], api_format: Format, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(MODELS[api_format]))
    key = "input" if api_format is Format.RESPONSES else "messages"
    roles = ("user", "assistant")
    body: dict[str, Any] = {
        "model": model,
        key: [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)],
    }

    context = agent.injection.apply(body, api_format, AgentOptions(sections=agent.sections))

    sent_messages = [message for message in sent_body(context)[key] if message["role"] != "system"]
    for sent_message, original in zip(sent_messages, body[key], strict=True):
        sent_text = (
            sent_message["content"]
            if isinstance(sent_message["content"], str)
            else sent_message["content"][0]["text"]
        )
        assert sent_text.startswith(original["content"])
    assert compute_chain(context.original) == compute_chain(
        formats.parse_request(context.incoming.body, api_format)
    )


@given(tokens=st.integers(0, 100_000), limit=st.integers(0, 100_000))
def test_a_truncated_stable_section_has_one_of_few_sizes(tokens: int, limit: int) -> None:
    size = round_stable_size(tokens, limit)

    assert size <= tokens
    step = limit // 8
    assert size in {0, *(step >> halves for halves in range(9))} or size % step == 0


def test_a_rule_applies_to_its_section(agent: AgentSetup) -> None:
    options = replace(agent.sections, limits=Budget(sections={"context": SectionRule(enabled=False)}))

    context = agent.injection.apply(
        make_request(Format.ANTHROPIC, "claude-sonnet-4-5", "Hello"),
        Format.ANTHROPIC,
        AgentOptions(sections=options),
    )

    assert b"## Memory" not in context.request.body
    assert b"Time: " in context.request.body
