import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.model import Format, Image, MediaSource, Message, Text, Thinking, Tool, ToolCall
from foveate.tokens.rendering.chat_templates import ChatTemplateRules, find_template
from foveate.tokens.tokenizers.vocabularies import BUNDLED_VOCABULARIES
from tests.support.oracles.offline_count import count_offline

GROQ = "api.groq.com"
HUGGING_FACE = "router.huggingface.co"
BEDROCK = "bedrock-runtime.us-east-1.amazonaws.com"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CAPITAL = {
    "type": "function",
    "function": {
        "name": "final_result",
        "description": "The final response which ends this conversation",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
            "required": ["city", "country"],
            "additionalProperties": False,
        },
    },
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), "stream": False, **fields}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("model", "host", "text", "fields", "used_tokens"),
    [
        ("deepseek-chat", "api.deepseek.com", "What is OpenTelemetry?", {}, 9),
        ("llama-3.3-70b", "api.cerebras.ai", "What is 2 + 2?", {}, 43),
        ("mistral-tiny", "api.mistral.ai", "Tell me a joke about OpenTelemetry", {}, 11),
        ("zai-glm-4.7", "api.cerebras.ai", "What is 25 * 4? Think briefly first.", {}, 17),
        ("openai/gpt-oss-120b", GROQ, "What is 2+2? Reply with just the number.", {}, 84),
        (
            "qwen/qwen3-32b",
            GROQ,
            "What is 2+2? Reply with just the number.",
            {"reasoning_effort": "none"},
            25,
        ),
    ],
)
def test_plain_chats_match_recorded_usage(
    model: str, host: str, text: str, fields: dict[str, Any], used_tokens: int
) -> None:
    count = count_offline(chat(user(text), **fields), model, host)

    assert count.total.tokens == used_tokens
    assert count.total.exact


def test_gpt_oss_on_responses_matches_recorded_usage() -> None:
    body = {"input": [user("Reply with exactly OSS.")], "stream": False}

    assert count_offline(body, "openai.gpt-oss-120b", "bedrock-mantle.us-east-1.api.aws").total.tokens == 72


@pytest.mark.parametrize(
    ("model", "host", "body", "used_tokens"),
    [
        (
            "mistral-large-latest",
            "api.mistral.ai",
            chat(user("What's the weather in Paris?"), tools=[WEATHER], tool_choice="any"),
            70,
        ),
        (
            "meta-llama/llama-4-scout-17b-16e-instruct",
            GROQ,
            chat(user("What's the weather in Paris?"), tools=[WEATHER], tool_choice="required"),
            723,
        ),
        (
            "gpt-oss:20b",
            "ollama.com",
            chat(user("What is the capital of France?"), tools=[CAPITAL], tool_choice="auto"),
            134,
        ),
    ],
)
def test_tools_match_recorded_usage_and_are_not_exact(
    model: str, host: str, body: dict[str, Any], used_tokens: int
) -> None:
    count = count_offline(body, model, host)

    assert count.total.tokens == used_tokens
    assert not count.total.exact
    assert count.total.upper > used_tokens


def test_a_call_and_its_result_match_recorded_usage() -> None:
    """The recorded usage is 100 tokens."""
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}, "id": "KikbB849t"}
    function = {
        **WEATHER["function"],
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    body = chat(
        user("What's the weather in Paris?"),
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "content": "Sunny, 22C in Paris", "tool_call_id": "KikbB849t"},
        tools=[{"type": "function", "function": function}],
    )
    count = count_offline(body, "mistral-large-latest", "api.mistral.ai")

    assert count.total.tokens == 100
    assert not count.total.exact


def test_r1_does_not_see_tools() -> None:
    """The recorded usage is 19 tokens."""
    text = "What are the first three prime numbers? Return them as a list of integers."
    count = count_offline(chat(user(text), tools=[CAPITAL]), "deepseek-ai/DeepSeek-R1", HUGGING_FACE)

    assert (count.total.tokens, count.total.exact) == (19, True)


def test_on_bedrock_qwen_does_not_think_by_default() -> None:
    """The recorded usages are 19 and 15 tokens."""
    body = {"messages": [{"role": "user", "content": [{"text": "Reply with the single word: ok"}]}]}
    with_reasoning = {**body, "additionalModelRequestFields": {"reasoning_config": "high"}}

    assert count_offline(body, "qwen.qwen3-32b-v1:0", BEDROCK, Format.BEDROCK).total.tokens == 19
    assert count_offline(with_reasoning, "qwen.qwen3-32b-v1:0", BEDROCK, Format.BEDROCK).total.tokens == 15


def test_the_host_decides_between_templates_of_one_model() -> None:
    assert find_template("openai/gpt-oss-120b", GROQ).name == "gpt-oss on Groq"
    assert find_template("openai/gpt-oss-120b", "").name == "gpt-oss"


def test_an_unknown_model_gets_the_last_template_and_is_not_exact() -> None:
    count = count_offline(chat(user("Hello")), "hal-9000", "discovery.example")

    assert find_template("hal-9000", "discovery.example").name == "generic"
    assert not count.total.exact
    assert count.total.upper > count.total.tokens


@pytest.mark.parametrize(
    "model",
    [
        "deepseek-v9",
        "deepseek-v3.9",
        "deepseek-r1:8b",
        "deepseek-r1-0528-qwen3-8b",
        "qwen9-7b",
        "qwen3.9-7b",
        "qwen2.5-72b-instruct",
        "llama-9",
        "llama-3.9-8b",
        "llama3-9",
        "my-llama-3-finetune",
        "acme/llama-3-8b-pirate",
        "llama-guard-3-8b",
        "glm-9",
        "glm-4.9",
        "glm-5.9",
        "gemma-9",
        "gemma-2-9b-it",
        "mistral-large-2030",
        "mistral-huge",
        "magistral-small-2030",
        "gpt-oss-9",
    ],
)
@pytest.mark.parametrize("host", ["", GROQ, HUGGING_FACE, BEDROCK, "acme.snowflakecomputing.com"])
def test_an_unknown_version_uses_a_related_template_and_is_not_exact(model: str, host: str) -> None:
    template = find_template(model, host)

    assert template.name.startswith("kin of ")
    assert (template.exact, template.spread) == (False, 0.15)
    assert not foveate.count("Hello there!", model).exact
    assert not foveate.count_request(chat(user("Hello there!")), model).total.exact


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama3.1:8b", "Llama 3.1 to 3.3"),
        ("llama3.1:8b-instruct-q4_K_M", "Llama 3.1 to 3.3"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama 3.1 to 3.3"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", "Llama 3.1 to 3.3"),
        ("us.meta.llama3-2-1b-instruct-v1:0", "Llama 3.1 to 3.3"),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "Llama 3.1 to 3.3"),
        ("ollama/llama3:70b", "Llama 3"),
        ("llama3-8b-8192", "Llama 3"),
        ("Qwen/Qwen3-32B", "Qwen 3"),
        ("qwen3:8b", "Qwen 3"),
        ("ollama/qwen3:8b", "Qwen 3"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M", "Qwen 3"),
        ("qwen/qwen3-30b-a3b-instruct-2507", "Qwen 3"),
        ("deepseek-chat", "DeepSeek V3"),
        ("deepseek/deepseek-chat-v3-0324:free", "DeepSeek V3"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek R1"),
        ("us.deepseek.r1-v1:0", "DeepSeek R1"),
        ("deepseek-r1:671b", "DeepSeek R1"),
        ("deepseek-r1-distill-llama-70b", "DeepSeek R1 distilled into Llama"),
        ("mistral-large", "Mistral"),
        ("mistral-large-latest", "Mistral"),
        ("us.mistral.pixtral-large-2502-v1:0", "Mistral"),
        ("magistral-small-latest", "Mistral with model settings"),
        ("zai-org/GLM-4.6", "GLM 4.5 and 4.6"),
        ("zai.glm-4.7-flash", "GLM 4.7"),
        ("glm-5.2", "GLM 5"),
        ("google/gemma-3-27b-it", "Gemma"),
        ("gemma3:27b", "Gemma"),
        ("openai.gpt-oss-120b-1:0", "gpt-oss"),
        ("openai/gpt-oss-20b:free", "gpt-oss"),
    ],
)
def test_a_known_model_is_recognized_under_every_served_name(model: str, name: str) -> None:
    template = find_template(model, "")

    assert (template.name, template.exact) == (name, True)


@pytest.mark.parametrize(
    "model",
    ["llama-3.1-8b", "qwen3", "mistral", "kimi-k2", "glm-5", "gemma-3", "nova-lite", "grok-4", "mixtral-8x7b"],
)
def test_every_template_has_an_existing_vocabulary_and_evidence(model: str) -> None:
    template = find_template(model, "")

    assert template.name != "generic"
    assert template.vocabulary in BUNDLED_VOCABULARIES
    assert template.as_of
    assert template.evidence


def test_looking_up_a_name_takes_linear_time() -> None:
    for name in ("deepseek" * 100_000 + "qwen", "qwen3" + "-q4_0_k" * 100_000 + "!", "." * 1_000_000):
        assert not find_template(name, "").exact


def test_thinking_in_earlier_responses_is_stripped_if_the_template_does_so() -> None:
    response_message = Message(role="assistant", parts=(Text("<think>2 and 2</think>\n\nFour."),))

    assert ChatTemplateRules(find_template("qwen3-32b", "")).render_message(response_message).texts == (
        "Four.",
    )
    assert (
        "<think>" in ChatTemplateRules(find_template("kimi-k2", "")).render_message(response_message).texts[0]
    )
    assert not ChatTemplateRules(find_template("qwen3-32b", "")).render_message(response_message).certain


def test_thinking_counts_until_the_next_user_message_unless_the_template_keeps_it() -> None:
    with_thinking = [
        user("What is 2 + 2?"),
        {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two make four."},
    ]
    without_thinking = [user("What is 2 + 2?"), {"role": "assistant", "content": "Four."}]

    def thinking_tokens(model: str, *later: dict[str, Any]) -> int:
        total = count_offline(chat(*with_thinking, *later), model).total.tokens
        return total - count_offline(chat(*without_thinking, *later), model).total.tokens

    assert thinking_tokens("qwen3-32b") > 0
    assert thinking_tokens("qwen3-32b", user("Sure?")) == 0
    assert thinking_tokens("glm-5", user("Sure?")) > 0


def test_deepseek_renders_calls_in_its_own_markup() -> None:
    call = ToolCall(name="read", arguments='{"path":"a","lines":3}', format=Format.CHAT)
    rules = ChatTemplateRules(find_template("deepseek-v4", ""))
    rendering = rules.render_message(Message(role="assistant", parts=(call,)))

    assert "".join(rendering.texts) == (
        '\n\n<tool_calls>\n<invoke name="read">\n'
        '<parameter name="path" string="true">a</parameter>\n'
        '<parameter name="lines" string="false">3</parameter>\n'
        "</invoke>\n</tool_calls>"
    )


@pytest.mark.parametrize("model", ["deepseek-v4", "gpt-oss-120b", "llama-4", "mistral", "command-r"])
@given(schema=JSON)
def test_any_schema_and_arguments_can_be_counted(model: str, schema: Any) -> None:
    raw = json.dumps({"type": "object", "properties": schema, "enum": schema, "anyOf": schema}).encode()
    rules = ChatTemplateRules(find_template(model, ""))
    tool = Tool(kind="function", name="f", description="", parameters=raw, raw=b"{}")
    call = ToolCall(name="f", arguments=raw.decode(), format=Format.CHAT)

    assert rules.render_tool(tool, 0).texts
    assert rules.render_message(Message(role="assistant", parts=(call,))).texts


def test_arguments_that_are_not_json_are_counted() -> None:
    for arguments in ("", "{", "[" * 5000, "\ud83d"):
        call = ToolCall(name="f", arguments=arguments, format=Format.CHAT)
        message = Message(role="assistant", parts=(call,))

        for model in ("deepseek-v4", "mistral"):
            assert ChatTemplateRules(find_template(model, "")).render_message(message).texts


def test_a_response_schema_is_a_margin_unless_the_model_sees_it() -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "City", "schema": {"type": "object"}}}
    plain, with_schema = chat(user("Where?")), chat(user("Where?"), response_format=response_format)
    groq = count_offline(with_schema, "gpt-oss-120b", GROQ).total
    other = count_offline(with_schema, "gpt-oss-120b").total

    assert groq.tokens > count_offline(plain, "gpt-oss-120b", GROQ).total.tokens + 28
    assert other.tokens == count_offline(plain, "gpt-oss-120b").total.tokens
    assert other.upper > other.tokens
    assert not other.exact


def test_a_provider_tool_is_unexplained() -> None:
    body = chat(user("Hi"), tools=[{"type": "openrouter:web_search"}])

    assert count_offline(body, "qwen3-32b", "openrouter.ai").unexplained == ("openrouter:web_search",)


def test_an_image_is_guessed_by_its_size() -> None:
    rules = ChatTemplateRules(find_template("qwen3-vl", ""))
    image = Image(source=MediaSource.INLINE, width=280, height=56)
    rendering = rules.render_message(Message(role="user", parts=(image, Image(source=MediaSource.URL))))

    assert rendering.image_tokens == 10 * 2 + 1024
    assert rendering.unexplained == ("image",)
    assert not rendering.certain


def test_an_image_of_unknown_size_has_a_margin() -> None:
    rules = ChatTemplateRules(find_template("qwen3-vl", ""))
    for image in (Image(source=MediaSource.URL), Image(source=MediaSource.INLINE)):
        rendering = rules.render_message(Message(role="user", parts=(image,)))

        assert rendering.image_margin_tokens >= rendering.image_tokens
        assert not rendering.certain


def test_a_named_file_is_unexplained() -> None:
    file = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}

    assert count_offline(chat({"role": "user", "content": [file]}), "qwen3-32b").unexplained == (
        "application/pdf",
    )


def test_a_message_of_only_thinking_has_no_overhead() -> None:
    rules = ChatTemplateRules(find_template("deepseek-v4", ""))

    assert rules.render_message(Message(role="assistant", parts=(Thinking("Hm."),))).fixed_tokens == 0
