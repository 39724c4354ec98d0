"""Foveate decides what goes into a language model's context window, and what that costs.

This is the front door: what stands here is the library's public face, and importing it loads nothing heavy.

    >>> import foveate
    >>> foveate.count("How many tokens is this?", model="gpt-4o").tokens
    6
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from foveate.values import TokenCount

if TYPE_CHECKING:
    from foveate.tokens.counter import PartCount, RequestCount, RequestCounter

__all__ = ["PartCount", "RequestCount", "TokenCount", "count", "count_request"]


_counter_for: "Callable[[str], RequestCounter] | None" = None


def count(text: str, model: str = "gpt-4o") -> TokenCount:
    """How many tokens `text` is for `model`, offline.

    Never raises for a text: a model that is not known is estimated, and the count says so (`exact`, `upper`).
    """
    global _counter_for
    if not isinstance(text, str):
        raise TypeError(f"a text to be counted is a str, not {type(text).__name__}")
    if _counter_for is None:  # looked up once: an import statement would cost a short text a fifth of its time
        from foveate.tokens.families import counter_for

        _counter_for = counter_for
    return _counter_for(model).text(text)


def count_request(body: Mapping[str, Any] | str | bytes, model: str | None = None) -> "RequestCount":
    """How many input tokens a whole request body is: system, tools, messages, images and all that goes around.

    `body` is the JSON of an Anthropic Messages, OpenAI chat, OpenAI Responses, Gemini or Bedrock request, or a
    dict of the same; `model` stands for the one in the body.

        >>> import foveate
        >>> body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello!"}]}
        >>> foveate.count_request(body).total
        TokenCount(tokens=9, exact=True, upper=9)

    Raises:
        foveate.errors.MalformedRequest: not JSON, or none of these formats.
    """
    from foveate.tokens import count_body

    return count_body(body, model)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("foveate")
    if name in ("PartCount", "RequestCount"):
        from foveate.tokens import counter

        return getattr(counter, name)
    raise AttributeError(f"module 'foveate' has no attribute {name!r}")
