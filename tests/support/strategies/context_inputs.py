"""Inputs of prompts: random ones, and a few fixed ones."""

from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from hypothesis import strategies as st

from foveate.context import ContextInputs, PrefixInputs, ToolText

Inputs = TypeVar("Inputs", PrefixInputs, ContextInputs)

FIELDS: dict[type[PrefixInputs] | type[ContextInputs], list[str]] = {
    inputs: [field.name for field in fields(inputs)] for inputs in (PrefixInputs, ContextInputs)
}
# For fields whose type is not enough; others are drawn by type.
NARROWER: dict[str, st.SearchStrategy[Any]] = {
    "limit_tokens": st.none() | st.integers(0, 5000),
    "semantic_threshold": st.none() | st.floats(0, 1),
    "memory_version": st.integers() | st.text() | st.tuples(st.integers(), st.text()),
}

READ = ToolText(name="read_file", description="Reads a file.", schema='{"type": "object"}')
WRITE = ToolText(name="write_file", description="Writes a file.")
PREFIX = PrefixInputs(
    identity="You are Ana.",
    feedback=("Too long.", "Better."),
    mandates=("Ask before you delete.", "Answer in English."),
    tools=(WRITE, READ),
)
CONTEXT = ContextInputs(
    agent="ana",
    format="org",
    privacy_tags=frozenset({"private", "@personal"}),
    memory_version=1,
    focus="garden",
    scope="home",
    query="roses",
    limit_tokens=800,
)


def values(inputs: type[PrefixInputs] | type[ContextInputs], name: str) -> st.SearchStrategy[Any]:
    """Any value of the field `name`."""
    return NARROWER[name] if name in NARROWER else st.from_type(get_type_hints(inputs)[name])


def any_inputs(inputs: type[Inputs]) -> st.SearchStrategy[Inputs]:
    return st.builds(inputs, **{name: values(inputs, name) for name in FIELDS[inputs]})


def shown(inputs: ContextInputs) -> str:
    """A text that contains every input, the same for equal inputs."""
    seen = {name: getattr(inputs, name) for name in FIELDS[ContextInputs]}
    return repr(seen | {"privacy_tags": sorted(inputs.privacy_tags)})


class FakeMemory:
    """Returns the given texts one by one, then texts of its inputs. Records its calls."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.asked: list[ContextInputs] = []
        self._answers = iter(answers)

    def __call__(self, inputs: ContextInputs) -> str | None:
        self.asked.append(inputs)
        answer = next(self._answers, shown(inputs))
        if isinstance(answer, Exception):
            raise answer
        return answer
