"""The names of models: one spelling for all that are used, and which parts of it may be the model's own."""

import re

from foveate.tokens.claude import normalize_claude_name

_MAX_NAME_CHARS = 128

# What may stand in front of a model's name without making it another one: regions, makers, hosts.
_NAME_PREFIX = re.compile(
    r"((us|eu|apac|au|jp|in|gov|global|regional|ft|azure|databricks|snowflake|fw|ai21|alibaba|amazon|anthropic"
    r"|cohere|deepseek|google|meta|minimax|mistral|mistralai|moonshot|moonshotai|nvidia|openai|qwen|writer|x-?ai"
    r"|z-?ai)-)*+"
)
# And what may stand behind it: a date, a size, how it is tuned, built and served.
_NAME_SUFFIX = re.compile(
    r"(-(\d{4}-\d\d-\d\d|\d\d-\d{4}|\d\d-\d\d|\d{8}|\d{6}|\d{4}|00\d|v\d+(-\d)?|1-0|[ae]?(\d+x)?\d+(-\d+)?[bekmt]"
    r"|base|basic|beta|chat|default|exp|experimental|extended|fast|high|highspeed|instant|instruct|it|latest"
    r"|lightning|low|preview|reasoning|non-reasoning|thinking|turbo|versatile|vision|awq|bf16|dynamic|fp16|fp4|fp8"
    r"|gguf|gptq|int4|int8|lora|mlx|mxfp4|nvfp4|batch|cloud|free|hf|maas|us)(?=-|$))*+"
)
# A version that goes on makes it another model: `gpt-5.9` is not a build of `gpt-5`.
_CONTINUED_VERSION = re.compile(r"-\d{1,2}(-|$)")


def normalize_model_name(model: str) -> str:
    """The name in one spelling, without the path to it: small letters and digits, a hyphen for all else."""
    name = normalize_claude_name(model.rpartition("/")[2][:_MAX_NAME_CHARS])
    name = re.sub(r"(?<=\d)p(?=\d)", "-", name)  # Fireworks writes 3p1 for 3.1
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def candidate_names(name: str) -> tuple[list[str], list[str]]:
    """The parts of a name that may be the model's own: those that are all of it, and the others."""
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
