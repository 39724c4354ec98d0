"""A text with its tokens apart, as the model of a conversation reads it."""

from dataclasses import dataclass

from foveate.chat.bodies import Speaking
from foveate.config.overriding import LOCAL
from foveate.engine.counters import offline_counter
from foveate.errors import MalformedRequest, UpstreamError
from foveate.gateway.routing import Upstream
from foveate.tokens.cutting import cut_by
from foveate.tokens.endpoints import Dialect
from foveate.tokens.families import vocabulary_of
from foveate.tokens.options import CounterOptions
from foveate.tokens.tokenize import TokenizeCounter
from foveate.upstream import Client
from foveate.values import TokenCount
from foveate.wire.body import as_list, as_record, compact, value

_PATIENCE_SECONDS = 5.0
_SERVER = "the model's own server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """How many tokens a text is, and the bytes of each; None where nobody here can tell them apart."""

    count: TokenCount
    pieces: tuple[bytes, ...] | None
    by: str


async def tokens_of(text: str, model: str, speaking: Speaking, options: CounterOptions) -> Tokens:
    """The tokens of a text, by the server of its model if that is on this machine or may be asked."""
    upstream = speaking.upstream
    if text and (upstream.name == LOCAL or options.use_endpoint):
        found = await _tokenize_by_server(text, model, upstream)
        if found is not None:
            return found
    counter = offline_counter(options, model)
    vocabulary = vocabulary_of(model)
    pieces = None if vocabulary is None else cut_by(vocabulary, text)
    count = counter.text(text)
    by = "no public tokenizer" if vocabulary is None else vocabulary.name
    return Tokens(count=count, pieces=pieces, by=by)


async def _tokenize_by_server(text: str, model: str, upstream: Upstream) -> Tokens | None:
    """What the server's own tokenizer says, with the pieces if it tells them; None if it says nothing."""
    headers = {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
    body = compact({"content": text, "with_pieces": True})
    async with Client(timeout_seconds=_PATIENCE_SECONDS) as client:
        server = TokenizeCounter(client, upstream.base_url, headers)
        try:
            if await server.dialect(model) is Dialect.LLAMA_CPP:
                reply = await client.post_json(f"{server.url}/tokenize", body, headers)
                found = [as_record(token).get("piece") for token in as_list(value(reply.get("tokens")))]
                if found and all(piece is not None for piece in found):
                    count = TokenCount(len(found), True, len(found))
                    return Tokens(count=count, pieces=tuple(map(_piece, found)), by=_SERVER)
            return Tokens(count=await server.answer(server.text(text, model)), pieces=None, by=_SERVER)
        except (UpstreamError, MalformedRequest):
            return None


def _piece(said: object) -> bytes:
    """A token's bytes, which come as a list of numbers where they are no text by themselves."""
    if isinstance(said, str):
        return said.encode("utf-8", "replace")
    return bytes(number for number in as_list(said) if isinstance(number, int) and 0 <= number < 256)
