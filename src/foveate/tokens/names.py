"""The names of models: one spelling for all that are used, and which parts of it may be the model's own."""

import re

from foveate.tokens.claude import spelled

_LONGEST_NAME_CHARS = 128

# What may stand in front of a model's name without making it another one: regions, makers, hosts.
_BEFORE = re.compile(
    r"((us|eu|apac|au|jp|in|gov|global|regional|ft|azure|databricks|snowflake|fw|ai21|alibaba|amazon|anthropic"
    r"|cohere|deepseek|google|meta|minimax|mistral|mistralai|moonshot|moonshotai|nvidia|openai|qwen|writer|x-?ai"
    r"|z-?ai)-)*+"
)
# And what may stand behind it: a date, a size, how it is tuned, built and served.
_BEHIND = re.compile(
    r"(-(\d{4}-\d\d-\d\d|\d\d-\d{4}|\d\d-\d\d|\d{8}|\d{6}|\d{4}|00\d|v\d+(-\d)?|1-0|[ae]?(\d+x)?\d+(-\d+)?[bekmt]"
    r"|base|basic|beta|chat|default|exp|experimental|extended|fast|high|highspeed|instant|instruct|it|latest"
    r"|lightning|low|preview|reasoning|non-reasoning|thinking|turbo|versatile|vision|awq|bf16|dynamic|fp16|fp4|fp8"
    r"|gguf|gptq|int4|int8|lora|mlx|mxfp4|nvfp4|batch|cloud|free|hf|maas|us)(?=-|$))*+"
)
# A version that goes on makes it another model: `gpt-5.9` is not a build of `gpt-5`.
_MORE_VERSION = re.compile(r"-\d{1,2}(-|$)")


def plain_name(model: str) -> str:
    """The name in one spelling, without the path to it: small letters and digits, a hyphen for all else."""
    name = spelled(model.rpartition("/")[2][:_LONGEST_NAME_CHARS])
    name = re.sub(r"(?<=\d)p(?=\d)", "-", name)  # Fireworks writes 3p1 for 3.1
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def stretches_of(name: str) -> tuple[list[str], list[str]]:
    """The parts of a name that may be the model's own: those that are all of it, and the others."""
    known: list[str] = []
    kin: list[str] = []
    hyphens = [at for at, char in enumerate(name) if char == "-"]
    for end in (*hyphens, len(name)):
        behind = _BEHIND.match(name, end)
        whole = behind is not None and behind.end() == len(name)
        reads_on = _MORE_VERSION.match(name, behind.end() if behind else end)
        for start in (0, *(at + 1 for at in hyphens if at < end)):
            if whole and _BEFORE.fullmatch(name, 0, start):
                known.append(name[start:end])
            elif not reads_on:
                kin.append(name[start:end])
    return known, kin
