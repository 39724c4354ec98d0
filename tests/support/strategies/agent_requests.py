"""Random requests like those of agents."""

import json

from hypothesis import strategies as st

MODELS = (
    "gpt-4o",
    "gpt-4",
    "gpt-5",
    "claude-sonnet-4-5",
    "claude-opus-5",
    "gemini-2.5-flash",
    "gemini-3-flash",
    "qwen3-32b",
)

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAoAAAAHgCAIAAAC6s0uz"
words = st.text(max_size=30) | st.sampled_from(
    ("Hello!", "What is the weather in Bonn?", "It's 21 °C.", "东京")
)
arguments = st.dictionaries(st.sampled_from(("city", "days")), words | st.integers(), max_size=2)

_text_blocks = st.builds(lambda text: {"type": "text", "text": text}, words)
_seen = st.just({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PNG}"}})
_call = st.builds(
    lambda given: {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": json.dumps(given)},
    },
    arguments,
)
chat_messages = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, words),
    st.builds(lambda text: {"role": "user", "name": "ada", "content": text}, words),
    st.builds(lambda parts: {"role": "user", "content": parts}, st.lists(_text_blocks | _seen, max_size=3)),
    st.builds(lambda text: {"role": "assistant", "content": text}, words),
    st.builds(
        lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
        st.none() | words,
        st.lists(_call, min_size=1, max_size=3),
    ),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "c1", "content": text}, words),
    st.builds(lambda text: {"role": "system", "content": text}, words),
)
_properties = st.dictionaries(
    st.sampled_from(("city", "days", "unit")),
    st.builds(lambda text: {"type": "string", "description": text}, words),
    max_size=3,
)
_tool = st.builds(
    lambda name, description, properties: {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties},
        },
    },
    st.sampled_from(("weather", "search", "final_result")),
    words,
    _properties,
)
chat_bodies = st.builds(
    lambda messages, tools: {"n": 1, "messages": messages, **({"tools": tools} if tools else {})},
    st.lists(chat_messages, max_size=8),
    st.lists(_tool, max_size=3),
)

_block = st.one_of(
    _text_blocks,
    st.builds(lambda given: {"type": "tool_use", "id": "t", "name": "weather", "input": given}, arguments),
    st.builds(lambda text: {"type": "tool_result", "tool_use_id": "t", "content": text}, words),
    st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}}),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s" * 60}, words),
    st.builds(
        lambda text: {
            "type": "search_result",
            "title": "t",
            "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
        },
        words,
    ),
    st.just(
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "tool_reference", "tool_name": "weather"}],
        }
    ),
)
_deferred = {
    "name": "weather",
    "description": "Tells the weather of a city, and how it will be.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "defer_loading": True,
}
anthropic_bodies = st.builds(
    lambda system, tools, messages: {"system": system, "max_tokens": 1, "tools": tools, "messages": messages},
    words,
    st.sampled_from(([], [_deferred], [_deferred, {**_deferred, "name": "now", "defer_loading": False}])),
    st.lists(
        st.builds(
            lambda role, content: {"role": role, "content": content},
            st.sampled_from(("user", "assistant")),
            words | st.lists(_block, min_size=1, max_size=3),
        ),
        max_size=8,
    ),
)
