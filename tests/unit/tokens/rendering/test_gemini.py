import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Format, Image, MediaSource, Message, Text, Thinking, Tool, ToolCall, ToolResult
from foveate.tokens.rendering.gemini import build_gemini_rules
from tests.support.oracles.offline_count import STUDIO, VERTEX, count_offline

GET_WEATHER = {
    "description": "Get the current weather for a city.",
    "name": "get_weather",
    "parameters_json_schema": {
        "additionalProperties": False,
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "type": "object",
    },
}
GET_COUNTRY = {
    "description": "",
    "name": "get_country",
    "parameters_json_schema": {"additionalProperties": False, "properties": {}, "type": "object"},
}
FINAL_RESULT = {
    "description": "The final response which ends this conversation",
    "name": "final_result",
    "parameters_json_schema": {
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "type": "object",
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str, args: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, "id": "pyd_ai_631cce761e7a447c"}, **fields}


def function_result(name: str, response: dict[str, Any]) -> dict[str, Any]:
    function_response = {"name": name, "response": response, "id": "pyd_ai_631cce761e7a447c"}
    return {"role": "user", "parts": [{"functionResponse": function_response}]}


def functions(*declarations: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"functionDeclarations": list(declarations)}]


@pytest.mark.parametrize(
    ("name", "host", "text", "used_tokens"),
    [
        ("gemini-1.5-flash", STUDIO, "Hello!", 2),
        ("gemini-2.5-flash", STUDIO, "What is ai?", 5),
        ("gemini-2.5-flash", VERTEX, "Create a poem about Open Telemetry.", 8),
        ("gemini-3-pro-preview", STUDIO, "Hi", 2),
        ("gemini-3-flash-preview", VERTEX, "Reply with exactly: OK", 5),
    ],
)
def test_text_counts_match_recorded_usage_on_each_host(
    name: str, host: str, text: str, used_tokens: int
) -> None:
    count = count_offline({"contents": [user(text)]}, name, host)

    assert count.total.tokens == used_tokens
    assert count.total.exact


def test_an_unknown_host_is_assumed_to_be_ai_studio() -> None:
    body = {"contents": [user("What is ai?")]}

    assert count_offline(body, "gemini-2.5-flash", "") == count_offline(body, "gemini-2.5-flash", STUDIO)


def test_a_system_instruction_is_counted_in_addition_to_the_contents() -> None:
    body = {
        "contents": [user("What is the capital of France?")],
        "systemInstruction": {"parts": [{"text": "You are a helpful chatbot."}], "role": "user"},
    }

    assert count_offline(body, "gemini-2.0-flash", VERTEX).total.tokens == 13


def test_up_to_2_0_each_string_of_a_function_is_counted_on_its_own() -> None:
    """The recorded usage is 27 tokens."""
    bar = {"description": "", "name": "bar", "parameters": {"properties": {}, "type": "OBJECT"}}
    final_result = {
        "description": "The final response which ends this conversation",
        "name": "final_result",
        "parameters": {"properties": {"bar": {"type": "STRING"}}, "required": ["bar"], "type": "OBJECT"},
    }
    body = {
        "contents": [
            user("run bar for me please"),
            model(call("bar", {})),
            function_result("bar", {"return_value": "hello"}),
        ],
        "tools": functions(bar, final_result),
    }
    count = count_offline(body, "gemini-2.0-flash", STUDIO)

    assert count.total.tokens == 27
    assert count.total.exact


def test_on_vertex_a_json_schema_of_parameters_is_free() -> None:
    """The recorded usage is 19 tokens."""
    tool = {"name": "get_mixed_content", "description": "", "parametersJsonSchema": {"type": "object"}}
    text = "Call the get_mixed_content tool and describe what you received."
    count = count_offline(
        {"contents": [user(text)], "tools": functions(tool)}, "gemini-3-flash-preview", VERTEX
    )

    assert count.total.tokens == 19


def test_2_5_renders_functions_calls_and_results_as_python() -> None:
    """The recorded usage is 88 tokens; the signature is free."""
    body = {
        "contents": [
            user("What's the weather in Paris?"),
            model(call("get_weather", {"city": "Paris"}, thoughtSignature="CusBAXLI2nxj" * 27)),
            function_result("get_weather", {"return_value": "Sunny, 22C in Paris"}),
        ],
        "tools": functions(GET_WEATHER),
    }
    count = count_offline(body, "gemini-2.5-flash", STUDIO)

    assert count.total.tokens == 88
    assert count.total.exact


def test_a_python_declaration_has_a_class_for_each_nested_object() -> None:
    schema = {
        "type": "object",
        "properties": {
            "filter": {"$ref": "#/$defs/Filter", "description": "What to keep."},
            "sort_by": {"type": "string", "enum": ["year", "title"]},
        },
        "required": ["filter"],
        "$defs": {
            "Filter": {
                "type": "object",
                "properties": {"years": {"type": "array", "items": {"type": "integer"}}},
            }
        },
    }
    parameters = json.dumps(schema).encode()
    tool = Tool(kind="function", name="search", description="Search.", parameters=parameters, raw=b"{}")

    assert build_gemini_rules("gemini-2.5-pro", STUDIO).render_tool(tool, 0).texts == (
        '''@dataclasses.dataclass(kw_only=True)
class SearchFilter:
  """What to keep.

  Attributes:
    years:\x20
  """
  years: list[int] | None = None
def search(
    filter: SearchFilter,
    sort_by: Literal['year', 'title'] | None = None,
) -> dict:
  """Search.

  Args:
    filter: What to keep.
    sort_by:\x20
  """
''',
    )


def test_3_renders_functions_between_control_tokens() -> None:
    """The recorded usage is 29 tokens."""
    text = "What is the capital of the user country? Call the tool"
    body = {"contents": [user(text)], "tools": functions(GET_COUNTRY)}
    count = count_offline(body, "gemini-3-pro-preview", STUDIO)

    assert count.total.tokens == 29
    assert count.total.exact


def test_3_renders_calls_and_results_between_control_tokens() -> None:
    """The recorded usage is 107 tokens; such a short signature contains no thinking."""
    signature = "Y29udGV4dF9lbmdpbmVlcmluZ19pc190aGVfd2F5X3RvX2dv"
    body = {
        "contents": [
            user("What is the capital of the country?"),
            model(call("get_country", {}, thoughtSignature=signature)),
            function_result("get_country", {"return_value": "Mexico"}),
        ],
        "tools": functions(GET_COUNTRY, FINAL_RESULT),
    }
    count = count_offline(body, "gemini-3-pro-preview", STUDIO)

    assert count.total.tokens == 107
    assert count.total.exact


def test_thinking_of_a_signature_counts_until_the_next_user_text() -> None:
    turn = [user("Weather?"), model(call("get_weather", {"city": "Paris"}, thoughtSignature="A" * 1200))]
    turn.append(function_result("get_weather", {"sunny": True}))
    during = count_offline({"contents": turn}, "gemini-3-flash-preview", STUDIO)
    plain = [model(call("get_weather", {"city": "Paris"})) if c["role"] == "model" else c for c in turn]
    without = count_offline({"contents": plain}, "gemini-3-flash-preview", STUDIO)
    after = count_offline({"contents": [*turn, user("Thanks!")]}, "gemini-3-flash-preview", STUDIO)
    after_without = count_offline({"contents": [*plain, user("Thanks!")]}, "gemini-3-flash-preview", STUDIO)

    assert during.total.tokens - without.total.tokens == pytest.approx(0.2787 * 900 - 23.3, abs=1)
    assert not during.total.exact
    assert during.total.upper >= without.total.tokens + 0.31 * 900
    assert after.total == after_without.total
    assert after.total.exact


def test_visible_thinking_counts_as_text() -> None:
    rules = build_gemini_rules("gemini-2.5-flash", STUDIO)
    message = Message(role="model", parts=(Thinking("Let me see."), Text("Four.")))

    assert rules.render_message(message).texts == ("Let me see.", "Four.")


@pytest.mark.parametrize("host", [STUDIO, VERTEX])
def test_google_tools_are_free_up_to_2_5_and_unexplained_from_3_on(host: str) -> None:
    """The recorded usage of 2.5 on AI Studio is 11 tokens, with 1 token of overhead for a content."""
    text = "What is the weather in San Francisco right now?"
    body = {"contents": [user(text)], "tools": [{"googleSearch": {}}]}
    before = count_offline(body, "gemini-2.5-flash", host)
    since = count_offline(body, "gemini-3-flash-preview", host)

    assert before.total.tokens == (11 if host == STUDIO else 10)
    assert (before.total.exact, before.unexplained) == (True, ())
    assert since.unexplained == ("googleSearch",)
    assert not since.total.exact


def test_an_unknown_tool_is_unexplained() -> None:
    body = {"contents": [user("Hi")], "tools": [{"crystalBall": {}}]}

    assert count_offline(body, "gemini-2.5-flash", STUDIO).unexplained == ("crystalBall",)


def test_cached_content_is_unexplained() -> None:
    body = {"contents": [user("Hi")], "cachedContent": "cachedContents/abc"}

    assert count_offline(body, "gemini-2.5-flash", STUDIO).unexplained == ("cachedContent",)


def test_an_unknown_part_is_unexplained() -> None:
    body = {"contents": [model({"executableCode": {"language": "PYTHON", "code": "print(1)"}})]}

    assert count_offline(body, "gemini-2.5-flash", STUDIO).unexplained == ("executableCode",)


def test_a_response_schema_counts_up_to_2_0_and_is_a_margin_later() -> None:
    schema = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}
    body = {"contents": [user("Where?")], "generationConfig": {"responseSchema": schema}}
    bare = {"contents": [user("Where?")]}
    old, new = (count_offline(body, name, STUDIO).total for name in ("gemini-2.0-flash", "gemini-2.5-flash"))

    assert old.tokens > count_offline(bare, "gemini-2.0-flash", STUDIO).total.tokens
    assert old.exact
    assert new.tokens == count_offline(bare, "gemini-2.5-flash", STUDIO).total.tokens
    assert new.upper > new.tokens
    assert not new.exact


def test_a_response_json_schema_is_free() -> None:
    config = {"responseJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    body = {"contents": [user("What is ai?")], "generationConfig": config}
    count = count_offline(body, "gemini-2.5-flash", STUDIO)

    assert (count.total.tokens, count.total.exact) == (5, True)


def test_an_unrecorded_form_of_schema_is_not_exact() -> None:
    schema = {"type": "object", "properties": {"city": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    tool = {**GET_WEATHER, "parameters_json_schema": schema}
    body = {"contents": [user("Hi")], "tools": functions(tool)}

    for name in ("gemini-2.5-flash", "gemini-3-flash-preview"):
        count = count_offline(body, name, STUDIO)
        assert not count.total.exact
        assert count.total.upper > count.total.tokens


def test_a_recursive_schema_terminates() -> None:
    schema = {
        "type": "object",
        "properties": {"value": {"$ref": "#/$defs/Json"}},
        "$defs": {
            "Json": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"$ref": "#/$defs/Json"}},
                    {"type": "object", "properties": {"inner": {"$ref": "#/$defs/Json"}}},
                ]
            }
        },
    }
    body = {"contents": [user("Hi")], "tools": functions({**GET_WEATHER, "parameters_json_schema": schema})}

    for name in ("gemini-2.0-flash", "gemini-2.5-flash", "gemini-3-flash-preview"):
        assert count_offline(body, name, STUDIO).total.tokens > 0


def test_absurdly_nested_arguments_are_counted_as_raw_json() -> None:
    deep = "[" * 2000 + "]" * 2000
    nested = ToolCall(name="f", arguments='{"a":' + deep + "}", format=Format.GEMINI)
    message = Message(role="model", parts=(nested,))

    for name in ("gemini-2.0-flash", "gemini-2.5-flash", "gemini-3-flash-preview"):
        rendering = build_gemini_rules(name, STUDIO).render_message(message)
        assert deep in "".join(rendering.texts)
        assert not rendering.certain


@pytest.mark.parametrize(
    ("name", "width", "height", "tokens"),
    [
        ("gemini-2.5-flash", 300, 200, 258),
        ("gemini-2.5-flash", 960, 540, 258 * 6),
        ("gemini-3-flash-preview", 300, 200, 1120),
    ],
)
def test_image_counts_match_the_documentation(name: str, width: int, height: int, tokens: int) -> None:
    image = Image(source=MediaSource.INLINE, width=width, height=height)
    rendering = build_gemini_rules(name, STUDIO).render_message(Message(role="user", parts=(image,)))

    assert rendering.image_tokens == tokens
    assert not rendering.certain


def test_a_file_by_url_is_unexplained() -> None:
    data = {"fileData": {"mimeType": "video/mp4", "fileUri": "https://example.org/film"}}
    count = count_offline({"contents": [{"role": "user", "parts": [data]}]}, "gemini-2.5-flash", STUDIO)

    assert count.unexplained == ("video/mp4 whose length cannot be seen",)


def test_a_request_in_another_format_uses_the_same_rules_and_is_not_exact() -> None:
    body = {
        "model": "google/gemini-2.5-flash",
        "messages": [
            {"role": "system", "content": "You are a helpful chatbot."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
    }
    native = {
        "contents": [user("What is the capital of France?")],
        "systemInstruction": {"parts": [{"text": "You are a helpful chatbot."}]},
    }
    count = count_offline(body, "google/gemini-2.5-flash", "openrouter.ai").total

    assert count.tokens == count_offline(native, "gemini-2.5-flash", STUDIO).total.tokens
    assert not count.exact
    assert count.upper >= count.tokens * 1.05


def test_a_result_that_is_not_an_object_is_wrapped() -> None:
    result = ToolResult(parts=(Text("Sunny"),), name="get_weather")
    rendering = build_gemini_rules("gemini-2.5-flash", STUDIO).render_message(
        Message(role="tool", parts=(result,))
    )

    assert rendering.texts == ('{"get_weather_response": {"result": "Sunny"}}',)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(schema=JSON, name=st.sampled_from(["gemini-2.0-flash", "gemini-2.5-flash", "gemini-3-flash"]))
def test_any_schema_and_arguments_can_be_counted(schema: Any, name: str) -> None:
    parameters = {"type": "object", "properties": schema, "items": schema, "anyOf": schema, "enum": schema}
    raw = json.dumps(parameters).encode()
    rules = build_gemini_rules(name, STUDIO)

    tool = Tool(kind="function", name="f", description="", parameters=raw, raw=b"{}")
    assert rules.render_tool(tool, 0).texts
    call_part = ToolCall(name="f", arguments=raw.decode(), format=Format.GEMINI)
    assert rules.render_message(Message(role="model", parts=(call_part,))).texts


@pytest.mark.parametrize(
    ("model", "image", "unexplained"),
    [
        ("gemini-2.5-pro", Image(source=MediaSource.INLINE), ("image whose size cannot be seen",)),
        (
            "gemini-2.5-pro",
            Image(source=MediaSource.INLINE, detail="high"),
            ("image whose size cannot be seen",),
        ),
        ("gemini-2.5-pro", Image(source=MediaSource.INLINE, detail="low"), ()),
        ("gemini-2.5-pro", Image(source=MediaSource.INLINE, detail="medium"), ()),
        ("gemini-2.5-pro", Image(source=MediaSource.INLINE, width=4_000, height=4_000), ()),
        ("gemini-2.5-pro", Image(source=MediaSource.URL), ("image by reference",)),
        ("gemini-3-pro-preview", Image(source=MediaSource.INLINE), ()),
    ],
)
def test_an_image_of_unknown_size_is_unexplained_if_its_size_matters(
    model: str, image: Image, unexplained: tuple[str, ...]
) -> None:
    """Regression: a HEIC image was counted as one tile, whatever its size."""
    rendering = build_gemini_rules(model, STUDIO).render_message(Message(role="user", parts=(image,)))

    assert rendering.unexplained == unexplained
