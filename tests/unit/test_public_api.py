"""The public API of the package `foveate`."""

import doctest
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate
from foveate import errors, formats
from foveate.budget.ladder import BUILT_IN_LADDERS
from foveate.budget.sections import Keep, Priority, Stability
from foveate.errors import MalformedRequest
from foveate.memory.views.view import ViewFormat
from foveate.model import Format
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.agent_requests import chat_bodies
from tests.support.strategies.texts import any_texts

MODELS = ("gpt-4o", "gpt-4", "claude-sonnet-4-5", "gemini-2.5-flash", "llama-3.3-70b", "nobody/knows-this", "")


def test_the_examples_in_the_docstring_of_the_package_work() -> None:
    results = doctest.testmod(foveate)

    assert results.attempted >= 4
    assert results.failed == 0


def test_every_name_in_all_can_be_imported() -> None:
    assert all(getattr(foveate, name) is not None for name in foveate.__all__)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = foveate.nothing_like_this


def test_dir_lists_the_public_names_and_no_modules() -> None:
    import foveate.cost.pricing.rates  # adds submodules to the package

    assert dir(foveate) == sorted([*foveate.__all__, "__version__"])
    assert foveate.__all__ == sorted(foveate.__all__)


@pytest.mark.process
@pytest.mark.parametrize(
    "statements",
    [
        "import foveate, foveate.cost.money; print(foveate.cost({}, model='gpt-4o'))",
        "import foveate.cost.money; import foveate; print(foveate.cost({}, model='gpt-4o'))",
        "from foveate import cost; print(cost({}, model='gpt-4o'))",
        "from foveate.cost.call_cost import Cost; from foveate import cost; print(cost({}, model='gpt-4o'))",
    ],
)
def test_cost_is_the_function_although_a_subpackage_has_its_name(statements: str) -> None:
    result = subprocess.run([sys.executable, "-c", statements], capture_output=True, text=True, check=True)

    assert result.stdout == "None\n"


def test_errors_that_users_catch_are_at_top_level() -> None:
    names = ("BadOption", "BudgetExceeded", "FoveateError", "InputError", "MalformedRequest", "UnreadableInput")

    assert all(getattr(foveate, name) is getattr(errors, name) for name in names)


@pytest.mark.parametrize(
    ("names", "choices"),
    [
        (foveate.ApiFormat, Format),
        (foveate.KeepName, Keep),
        (foveate.LadderName, BUILT_IN_LADDERS),
        (foveate.PriorityName, Priority),
        (foveate.StabilityName, Stability),
        (foveate.ViewFormatName, ViewFormat),
    ],
    ids=str,
)
def test_literal_types_have_the_values_that_are_accepted(names: Any, choices: Iterable[str]) -> None:
    assert list(get_args(names)) == [str(choice) for choice in choices]


TYPED_CALLS = """from typing import reveal_type
import foveate
foveate.Section("a", "b", priority="high", keep="head", stability="static")
foveate.Section("a", "b", priority="hgih")
foveate.Section("a", "b", keep="tail")
foveate.Section("a", "b", stability="sesion")
foveate.SectionRule(priority="lowest")
foveate.Budget(ladder="progresive")
foveate.assemble([], "truncate_low_priority").as_messages(api_format="openai")
foveate.trim([{"role": "user"}], limit_tokens=1, model="m", api_format="open-ai")
foveate.Memory.load("notes").render(format="markdwon")
foveate.assemble([], budget="drop_low")
messages: list[dict[str, str]] = foveate.trim([{"role": "user"}], limit_tokens=1, model="m").messages
dollars = foveate.cost({}, model="m")
reveal_type(dollars)
"""


@pytest.mark.process
def test_a_type_checker_finds_typos(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED_CALLS, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pyrefly", "check", "--preset", "strict", "--output-format", "min-text"),
        *("--search-path", str(Path(foveate.__file__).parents[1]), "--python-interpreter-path", sys.executable),
        "typed.py",
    ]

    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    lines = [
        int(line.split(":")[1]) for line in result.stdout.splitlines() if line.startswith("ERROR typed.py")
    ]

    assert lines == list(range(4, 13)), result.stdout
    assert "revealed type: Cost | None" in result.stdout


@given(text=any_texts, model=st.sampled_from(MODELS))
def test_counting_a_text_never_raises(text: str, model: str) -> None:
    count = foveate.count(text, model=model)

    assert count.upper >= count.tokens
    assert (count.tokens == 0) == (text == "")


def test_a_known_model_is_counted_exactly() -> None:
    assert foveate.count("How many tokens is this?") == foveate.TokenCount(6, True, 6)
    assert foveate.count("", model="nobody/knows-this").tokens == 0


def test_the_count_of_an_unknown_model_is_an_estimate() -> None:
    count = foveate.count("How many tokens is this?", model="nobody/knows-this")
    request = foveate.count_request(
        {"model": "nobody/knows-this", "messages": [{"role": "user", "content": "How many tokens is this?"}]}
    )

    assert not count.exact
    assert count.upper > count.tokens
    assert not request.total.exact
    assert request.total.upper > request.total.tokens > count.tokens


@settings(max_examples=limit_examples(50))
@given(body=chat_bodies, model=st.sampled_from(MODELS))
def test_a_request_is_counted_for_every_model(body: dict[str, Any], model: str) -> None:
    count = foveate.count_request(body, model=model or None)

    assert count.total.upper >= count.total.tokens
    assert sum(part.tokens for part in count.parts) == count.total.tokens


@settings(max_examples=limit_examples(50))
@given(body=chat_bodies, model=st.sampled_from(MODELS))
def test_a_list_of_messages_counts_as_a_request_with_only_them(body: dict[str, Any], model: str) -> None:
    messages = body["messages"]

    count = foveate.count_request(messages, model=model or None)

    if messages and formats.parse_request({"messages": messages, "model": model}).format is Format.CHAT:
        assert count.total == foveate.count_request({"messages": messages}, model=model or None).total
    assert foveate.count_request(tuple(messages), model=model or None) == count


def test_the_format_of_a_list_of_messages_is_detected() -> None:
    contents = [{"role": "user", "parts": [{"text": "Hello!"}]}]
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}]

    gemini = foveate.count_request(contents, model="gemini-2.5-flash")
    responses = foveate.count_request(items, model="gpt-4o")

    assert gemini.total == foveate.count_request({"contents": contents}, model="gemini-2.5-flash").total
    assert responses.total == foveate.count_request({"input": items}, model="gpt-4o").total
    assert foveate.count_request([], model="gpt-4o").total.tokens < 5


@pytest.mark.parametrize("body", ["", "[]", "{}", b"\xff", {"messages": object()}, ["text"], [5], [None]])
def test_a_malformed_request_is_rejected(body: Any) -> None:
    with pytest.raises(MalformedRequest):
        foveate.count_request(body)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "claude-sonnet-4-5", "gemini-2.5-flash", "llama-3.3-70b"])
@pytest.mark.parametrize("depth", [300, 700, 900, 960, 100_000])
def test_deeply_nested_arguments_and_schemas_are_counted_or_rejected(model: str, depth: int) -> None:
    """Arguments of a tool call are counted as text; the request's own JSON may be rejected."""
    nested_list = "[" * depth + "]" * depth
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": nested_list}}
    arguments_count = foveate.count_request(
        {"messages": [{"role": "assistant", "tool_calls": [call]}]}, model=model
    )
    assert arguments_count.total.tokens > 4

    schema = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
    body = f'{{"messages":[],"tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]}}'
    try:
        counted = foveate.count_request(body, model=model).total.tokens
    except MalformedRequest:
        counted = None
    assert counted is None or counted > 4


@pytest.mark.process
def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "splintr", "aiohttp", "rich", "msgspec", "yaml", "numpy", "pydantic", "foveate.tokens"
    script = f"import foveate, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


@pytest.mark.process
def test_help_loads_no_unneeded_modules() -> None:
    heavy = ["foveate.model", "httpx2", "numpy", "prompt_toolkit", "pydantic", "rich"]
    script = (
        "import sys\nfrom foveate.cli import main\ntry:\n    main(['--help'])\n"
        f"finally:\n    print([name for name in {heavy} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert "spending caps and cost tracking" in " ".join(printed.split())
    assert printed.splitlines()[-1] == "[]"


@pytest.mark.process
@pytest.mark.parametrize("command", ["cost", "config show"])
def test_commands_that_do_not_use_numpy_do_not_load_it(command: str, tmp_path: Path) -> None:
    script = (
        f"import sys\nfrom foveate.cli import main\ntry:\n    main({command.split()})\n"
        "finally:\n    print('numpy' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"FOVEATE_HOME": str(tmp_path)},
    ).stdout

    assert printed.splitlines()[-1] == "False"


@pytest.mark.parametrize("value", [None, b"bytes", 5])
def test_a_value_that_is_not_a_string_is_rejected_with_its_type(value: Any) -> None:
    with pytest.raises(TypeError, match=f"a str, not {type(value).__name__}"):
        foveate.count(value)


def test_the_package_has_a_version() -> None:
    assert foveate.__version__.count(".") == 2
