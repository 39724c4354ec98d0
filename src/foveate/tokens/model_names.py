"""Names of models: one spelling for all hosts, and the parts that identify a model. Imports almost nothing."""

import re

_MAX_NAME_CHARS = 128
# Prefixes that do not change the model: regions, makers, hosts.
_NAME_PREFIX = re.compile(
    r"(?>((us|eu|apac|au|jp|in|gov|global|regional|ft|azure|databricks|snowflake|fw|ai21|alibaba|amazon|anthropic"
    r"|cohere|deepseek|google|meta|minimax|mistral|mistralai|moonshot|moonshotai|nvidia|openai|qwen|writer|x-?ai"
    r"|z-?ai)-)*)"
)
# Suffixes that do not change the model: dates, sizes, variants of tuning, quantization and serving.
_NAME_SUFFIX = re.compile(
    r"(?>(-(\d{4}-\d\d-\d\d|\d\d-\d{4}|\d\d-\d\d|\d{8}|\d{6}|\d{4}|00\d|v\d+(-\d)?|1-0|[ae]?(\d+x)?\d+(-\d+)?[bekmt]"
    r"|base|basic|beta|chat|default|exp|experimental|extended|fast|high|highspeed|instant|instruct|it|latest"
    r"|lightning|low|preview|reasoning|non-reasoning|thinking|turbo|versatile|vision|awq|bf16|dynamic|fp16|fp4|fp8"
    r"|gguf|gptq|int4|int8|lora|mlx|mxfp4|nvfp4|batch|cloud|free|hf|maas|us)(?=-|$))*)"
)
# A longer version number is another model: `gpt-5.9` is not a build of `gpt-5`.
_CONTINUED_VERSION = re.compile(r"-\d{1,2}(-|$)")


def normalize_claude_name(model: str) -> str:
    """Return the name in Anthropic's spelling: `claude-4.5-sonnet` is `claude-sonnet-4-5`."""
    name = re.sub(r"[._@ ]", "-", model.lower())
    return re.sub(r"claude-([4-9](?:-\d)?)-(opus|sonnet|haiku|fable|mythos)\b", r"claude-\2-\1", name)


def normalize_model_name(model: str) -> str:
    """Return the name without its path, in lower-case letters and digits separated by hyphens."""
    name = normalize_claude_name(model.rpartition("/")[2][:_MAX_NAME_CHARS])
    name = re.sub(r"(?<=\d)p(?=\d)", "-", name)  # Fireworks writes 3p1 for 3.1
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def tokenizer_name_candidates(name: str) -> tuple[list[str], list[str]]:
    """Return the parts of a name that may identify the model: those that cover all of it, and the others."""
    exact_names: list[str] = []
    related_names: list[str] = []
    hyphens = [position for position, char in enumerate(name) if char == "-"]
    for end in (*hyphens, len(name)):
        suffix = _NAME_SUFFIX.match(name, end)
        is_complete = suffix is not None and suffix.end() == len(name)
        continues = _CONTINUED_VERSION.match(name, suffix.end() if suffix else end)
        for start in (0, *(position + 1 for position in hyphens if position < end)):
            if is_complete and _NAME_PREFIX.fullmatch(name, 0, start):
                exact_names.append(name[start:end])
            elif not continues:
                related_names.append(name[start:end])
    return exact_names, related_names
