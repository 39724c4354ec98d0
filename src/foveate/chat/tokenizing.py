"""A text with its tokens apart, as the model of a conversation reads it."""

from dataclasses import dataclass

from foveate.chat.bodies import Speaking
from foveate.config.overriding import LOCAL
from foveate.engine.counters import offline_counter
from foveate.errors import MalformedRequest, UpstreamError
from foveate.tokens.cutting import cut_by
from foveate.tokens.families import vocabulary_of
from foveate.tokens.options import CounterOptions
from foveate.upstream import Client
from foveate.values import TokenCount
from foveate.wire.body import as_list, as_record, compact, value

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """How many tokens a text is, and the bytes of each; None where nobody here can tell them apart."""

    count: TokenCount
    pieces: tuple[bytes, ...] | None
    by: str


async def tokens_of(text: str, model: str, speaking: Speaking, options: CounterOptions) -> Tokens:
    """The tokens of a text; the model on this machine is asked itself, since it is nobody else's."""
    if text and speaking.upstream.name == LOCAL:
        asked = await _asked(text, speaking.upstream.base_url)
        if asked is not None:
            count = TokenCount(len(asked), True, len(asked))
            return Tokens(count=count, pieces=asked, by="the model's own server")
    counter = offline_counter(options, model)
    vocabulary = vocabulary_of(model)
    pieces = None if vocabulary is None else cut_by(vocabulary, text)
    count = counter.text(text)
    by = "no public tokenizer" if vocabulary is None else vocabulary.name
    return Tokens(count=count, pieces=pieces, by=by)


async def _asked(text: str, url: str) -> tuple[bytes, ...] | None:
    """What llama.cpp's own tokenizer says; None where it says nothing."""
    body = compact({"content": text, "with_pieces": True})
    async with Client(timeout_seconds=_PATIENCE_SECONDS) as client:
        try:
            reply = await client.post_json(f"{url.rstrip('/')}/tokenize", body)
            found = [as_record(token).get("piece") for token in as_list(value(reply.get("tokens")))]
        except (UpstreamError, MalformedRequest):
            return None
    return tuple(map(_piece, found)) if found and all(piece is not None for piece in found) else None


def _piece(said: object) -> bytes:
    """A token's bytes, which come as a list of numbers where they are no text by themselves."""
    if isinstance(said, str):
        return said.encode("utf-8", "replace")
    return bytes(number for number in as_list(said) if isinstance(number, int) and 0 <= number < 256)
