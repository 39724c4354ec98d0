"""Results of parallel calls are counted as one JSON list."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from foveate.formats import parse_request
from foveate.tokens import RequestCount, counter_for
from foveate.tokens.rendering.openai import split_list_entry

_WORDS = st.sampled_from(
    ("sunny", "It's 21.", "[one]", '"quoted"', "a\nb\n", "// end", "x_y", " ", "50 degrees", "{}")
)
_RESULTS = st.lists(st.builds(" ".join, st.lists(_WORDS, max_size=4)), min_size=2, max_size=5)


def tokens(text: str) -> int:
    return counter_for("gpt-4o").text(text).tokens


def chat(results: list[str], model: str = "gpt-4o", **more: Any) -> RequestCount:
    calls = [
        {"id": str(i), "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for i in range(len(results))
    ]
    messages = [
        {"role": "user", "content": "Look around."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": str(i), "content": text} for i, text in enumerate(results)),
    ]
    return counter_for(model).count_request(parse_request({"model": model, "messages": messages, **more}))


@given(results=_RESULTS)
@example(results=["The end.", "56"])
@example(results=["[a]", "[b]", "c!"])
@example(results=["", "", ""])
def test_list_entries_add_up_to_the_list(results: list[str]) -> None:
    entries = []
    for index, text in enumerate(results):
        inner, *ends = map(tokens, split_list_entry(text))
        end = 0 if index == 0 else 4 if index == len(results) - 1 else 2
        entries.append(inner + ends[end] + ends[end + 1])

    assert sum(entries) == tokens(json.dumps(results, ensure_ascii=False))


@given(results=_RESULTS)
def test_results_of_parallel_calls_count_as_list_entries(results: list[str]) -> None:
    plain = ["0"] * len(results)

    added_tokens = chat(results).total.tokens - chat(plain).total.tokens

    assert added_tokens == tokens(json.dumps(results)) - tokens(json.dumps(plain))


def test_the_bound_covers_escaped_non_ascii_letters() -> None:
    listed, alone = chat(["東京は晴れ"] * 2), chat(["東京は晴れ"])

    assert not listed.total.exact
    assert (
        listed.total.upper - listed.total.tokens
        >= tokens(json.dumps(["東京は晴れ"] * 2)) - tokens("東京は晴れ") * 2
    )
    assert alone.total.exact


def test_the_result_of_a_single_call_is_counted_unchanged() -> None:
    assert chat(["a\nb"]).total.tokens - chat(["c"]).total.tokens == tokens("a\nb") - tokens("c")


def test_newer_models_see_each_result_separately() -> None:
    added_tokens = chat(["a\nb", "c"], "gpt-5").total.tokens - chat(["c", "c"], "gpt-5").total.tokens

    assert added_tokens == tokens("a\nb") - tokens("c")


def test_long_runs_of_punctuation_take_linear_time() -> None:
    assert split_list_entry("=" * 100_000 + "x")[1] == '["' + "=" * 100_000


def test_parallel_calls_are_exact() -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {"type": "string", "description": "The city and state, e.g. Boston, MA"}
                },
                "required": ["location"],
                "additionalProperties": False,
            },
        },
    }

    assert chat(["50 degrees and raining", "70 degrees and sunny"], "gpt-4o-mini", tools=[tool]).total.exact
