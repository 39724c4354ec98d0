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
FIELD_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
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


def field_values(inputs: type[PrefixInputs] | type[ContextInputs], name: str) -> st.SearchStrategy[Any]:
    """Any value of the field `name`."""
    return FIELD_STRATEGIES[name] if name in FIELD_STRATEGIES else st.from_type(get_type_hints(inputs)[name])


def any_inputs(inputs: type[Inputs]) -> st.SearchStrategy[Inputs]:
    return st.builds(inputs, **{name: field_values(inputs, name) for name in FIELDS[inputs]})


def describe_inputs(inputs: ContextInputs) -> str:
    """A text that contains every input, the same for equal inputs."""
    values_by_name = {name: getattr(inputs, name) for name in FIELDS[ContextInputs]}
    return repr(values_by_name | {"privacy_tags": sorted(inputs.privacy_tags)})


class FakeMemory:
    """Returns the given results one by one, then descriptions of its inputs. Records its calls."""

    def __init__(self, *results: str | Exception | None) -> None:
        self.calls: list[ContextInputs] = []
        self._results = iter(results)

    def __call__(self, inputs: ContextInputs) -> str | None:
        self.calls.append(inputs)
        result = next(self._results, describe_inputs(inputs))
        if isinstance(result, Exception):
            raise result
        return result
