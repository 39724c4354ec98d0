"""OpenAI's generations of models: overhead of messages, tools, calls and schemas.

Reconstructed from recorded chat completions and Responses and their usage (November 2026). There are two
renderings: the older one up to GPT-4.5, and `harmony` with channels from the o-series and GPT-5 on.
"""

import re
from dataclasses import dataclass, replace

from foveate.tokens.rendering.images import ImagePricing, PatchImagePricing, TileImagePricing


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLayout:
    """Text around function types. Each type is counted together with the separator before it.

    The pieces begin at a semicolon, since o200k takes `;`, the newlines and the `//` of a comment as one piece.
    """

    opening: str
    before_first: str
    between: str
    closing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIGeneration:
    name: str
    family: str  # its generations differ in image prices, and in how Responses render calls
    vocabulary: str
    images: ImagePricing
    layout: ToolLayout
    reply: int
    message: int = 4
    name_tokens: int = 0  # overhead of a name; 1 by OpenAI's cookbook for cl100k, 0 by recordings for o200k
    assistant: int = 0  # `<|channel|>final` before an assistant's text
    channels: bool = False  # harmony: every call is its own message, tools are never merged
    chat_tools: int
    responses_tools: int
    chat_call: int
    responses_call: int
    stored_call: int  # a call with the id of a stored item
    forced: int | None  # if only one function can be called
    schema_alone: int  # chat: the response schema without system message and tools
    schema_responses: int
    schema_name: bool = False  # chat: the response begins with the name of the schema
    is_2023: bool = False  # tools without titles, one property per line
    keeps_reasoning: bool = False
    known: bool = True


_BRACES_LAYOUT = ToolLayout(
    opening="# Tools\n\n## functions\n\nnamespace functions",
    before_first=" {\n\n",
    between=";\n\n",
    closing=";\n\n} // namespace functions",
)
_NAMESPACE_LAYOUT = ToolLayout(
    opening="## Namespace: functions\n\n### Target channel: commentary\n\n### Tool definitions",
    before_first="\n",
    between=";\n\n",
    closing=";",
)
BEDROCK_TOOLS_TOKENS = 6

_GPT_4O = OpenAIGeneration(
    name="gpt-4o",
    family="gpt-4o",
    vocabulary="o200k_base",
    images=TileImagePricing(85, 170),
    layout=_BRACES_LAYOUT,
    reply=3,
    chat_tools=3,
    responses_tools=-3,
    chat_call=5,
    responses_call=3,
    stored_call=3,
    forced=6,
    schema_alone=6,
    schema_name=True,
    schema_responses=1,
)
_GPT_5 = OpenAIGeneration(
    name="gpt-5",
    family="gpt-5",
    vocabulary="o200k_base",
    images=TileImagePricing(70, 140),
    layout=_NAMESPACE_LAYOUT,
    reply=2,
    assistant=2,
    channels=True,
    chat_tools=82,  # with a preamble about tools
    responses_tools=0,
    chat_call=11,
    responses_call=9,
    stored_call=3,
    forced=None,
    schema_alone=4,
    schema_responses=0,
)
_GPT_5_4 = replace(
    _GPT_5,
    name="gpt-5.4",
    images=PatchImagePricing(2500, 1.0),
    keeps_reasoning=True,
    responses_call=12,
    stored_call=0,
)
_CL100K = "cl100k_base"

# The first pattern that matches the name without its prefix applies.
_GENERATIONS: tuple[tuple[str, OpenAIGeneration], ...] = (
    (
        r"gpt-3\.?5|davinci|babbage|text-embedding-(3|ada)",
        replace(_GPT_4O, name="gpt-3.5", family="gpt-3.5", vocabulary=_CL100K, name_tokens=1),
    ),
    (
        r"gpt-4(-32k)?(-0[36]\d\d|$)",
        replace(
            _GPT_4O, name="gpt-4-0613", family="gpt-4-0613", vocabulary=_CL100K, name_tokens=1, is_2023=True
        ),
    ),
    (r"gpt-4(-|$)(?!o)", replace(_GPT_4O, name="gpt-4", family="gpt-3.5", vocabulary=_CL100K, name_tokens=1)),
    (r"gpt-4o-mini", replace(_GPT_4O, name="gpt-4o-mini", images=TileImagePricing(2833, 5667))),
    (r"(chatgpt|gpt)-4o", _GPT_4O),
    (
        r"gpt-4\.1-mini",
        replace(_GPT_4O, name="gpt-4.1-mini", family="gpt-4.1", images=PatchImagePricing(1536, 1.62)),
    ),
    (
        r"gpt-4\.1-nano",
        replace(_GPT_4O, name="gpt-4.1-nano", family="gpt-4.1", images=PatchImagePricing(1536, 2.46)),
    ),
    (r"gpt-4\.1", replace(_GPT_4O, name="gpt-4.1", family="gpt-4.1")),
    (r"gpt-4\.5", replace(_GPT_4O, name="gpt-4.5", family="gpt-4.5", images=TileImagePricing(75, 150))),
    (
        r"o1-(mini|preview)",
        replace(_GPT_5, name="o1-mini", family="o1-mini", message=8, assistant=0, known=False),
    ),
    (
        r"o4-mini",
        replace(_GPT_5, name="o4-mini", family="o4-mini", assistant=0, images=PatchImagePricing(1536, 1.72)),
    ),
    (
        r"o[134](-|$)|computer-use",
        replace(
            _GPT_5,
            name="o-series",
            family="o-series",
            assistant=0,
            chat_tools=1,
            chat_call=5,
            images=TileImagePricing(75, 150),
        ),
    ),
    (r"gpt-5-mini", replace(_GPT_5, name="gpt-5-mini", images=PatchImagePricing(1536, 1.62))),
    (r"gpt-5-nano", replace(_GPT_5, name="gpt-5-nano", images=PatchImagePricing(1536, 2.46))),
    (r"(gpt-5|chatgpt-5)(-|$|\.[0-3](?!\d))", _GPT_5),
    (r"gpt-5\.[4-6](?!\d)", _GPT_5_4),
    (r"codex|o\d|gpt-([5-9]|\d\d)", replace(_GPT_5_4, name="newer", family="newer", known=False)),
)
_UNKNOWN_GENERATION = replace(_GPT_4O, name="unknown", family="unknown", known=False)


def find_generation(model: str) -> OpenAIGeneration:
    """Return the generation of `model`. An unknown one inherits from a related one, and is not exact."""
    name = model.lower().strip().rpartition("/")[2]
    name = re.sub(r"^(us\.|eu\.|ft:)?(openai[.:-])?", "", name)
    for pattern, generation in _GENERATIONS:
        if re.match(pattern, name):
            return generation
    return _UNKNOWN_GENERATION
