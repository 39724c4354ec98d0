"""Whether a provider would take a request, told without a server: the rules of each format, by its name."""

from collections.abc import Collection
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.sandbox import anthropic_rules, chat_rules, gemini_rules, responses_rules
from foveate.values import Format, Request
from foveate.wire.body import TOO_DEEP
from foveate.wire.refusals import Refusal, unreadable

SPOKEN = (Format.ANTHROPIC, Format.CHAT, Format.RESPONSES, Format.GEMINI)


def accept(
    request: Request,
    *,
    prompt_tokens: int | None = None,
    counting: bool = False,
    betas: Collection[str] = (),
) -> Refusal | None:
    """Why the provider of a request's format would refuse it, or None where it would take it.

    Without `prompt_tokens` it is not asked whether the prompt fits. `counting` asks for Anthropic's
    `count_tokens`; `betas` are those of its header `anthropic-beta`.

    Raises:
        MalformedRequest: the request is in a format that the sandbox does not speak.
    """
    asked = decoded(request.format, request.body)
    if isinstance(asked, Refusal):
        return asked
    found = first_problem(request.format, asked, counting=counting, betas=betas, model=request.model)
    if found is not None or prompt_tokens is None or counting:
        return found
    return too_long(request.format, asked, prompt_tokens, model=request.model)


def first_problem(
    spoken: Format,
    asked: dict[str, Any],
    *,
    counting: bool = False,
    betas: Collection[str] = (),
    model: str = "",
) -> Refusal | None:
    """Why the provider of a format would refuse a body, whatever its size; Gemini has the `model` beside it.

    Raises:
        MalformedRequest: the sandbox does not speak that format.
    """
    match spoken:
        case Format.ANTHROPIC:
            return anthropic_rules.first_problem(asked, counting=counting, betas=betas)
        case Format.CHAT:
            return chat_rules.first_problem(asked)
        case Format.RESPONSES:
            return responses_rules.first_problem(asked)
        case Format.GEMINI:
            return gemini_rules.first_problem(asked, model, counting=counting)
        case other:
            raise MalformedRequest(f"the sandbox does not speak {other}")


def too_long(spoken: Format, asked: dict[str, Any], prompt_tokens: int, *, model: str = "") -> Refusal | None:
    """Why a body with which nothing else is wrong does not fit in its model's window."""
    match spoken:
        case Format.ANTHROPIC:
            return anthropic_rules.too_long(asked, prompt_tokens)
        case Format.CHAT:
            return chat_rules.too_long(asked, prompt_tokens)
        case Format.GEMINI:
            return gemini_rules.too_long(model, prompt_tokens)
        case _:
            return responses_rules.too_long(asked, prompt_tokens)


def decoded(spoken: Format, body: bytes) -> dict[str, Any] | Refusal:
    """A body as plain data; providers take no half emoji, and nothing else than JSON."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        return unreadable(spoken, str(error))
    except UnicodeDecodeError:
        return unreadable(spoken, "it is not UTF-8")
    except RecursionError:
        return unreadable(spoken, TOO_DEEP)
    if not isinstance(found, dict):
        return unreadable(spoken, "it is not an object")
    return gemini_rules.camel_case(found) if spoken is Format.GEMINI else found
