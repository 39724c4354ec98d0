"""A text with its tokens apart, as the model of a conversation reads it."""

from dataclasses import dataclass

from foveate.chat.requests import ModelTarget
from foveate.config.overrides import LOCAL_UPSTREAM
from foveate.engine.counting.offline import offline_counter
from foveate.errors import MalformedRequest, UpstreamError
from foveate.formats.json_text.parse import as_dict, as_list, parse_json, to_json
from foveate.gateway.routing import Upstream
from foveate.http import JsonClient
from foveate.model import TokenCount
from foveate.tokens.families import find_vocabulary
from foveate.tokens.options import CounterOptions
from foveate.tokens.remote.endpoints import TokenizeServer
from foveate.tokens.remote.tokenize import TokenizeCounter
from foveate.tokens.tokenizers.bpe import split_into_tokens

_TIMEOUT_SECONDS = 5.0
_SERVER_TOKENIZER = "the model's own server"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """How many tokens a text is, and the bytes of each; None where nobody here can tell them apart."""

    count: TokenCount
    pieces: tuple[bytes, ...] | None
    tokenizer: str


async def tokenize(text: str, model: str, target: ModelTarget, options: CounterOptions) -> TokenizedText:
    """The tokens of a text, by the server of its model if that is on this machine or may be asked."""
    upstream = target.upstream
    if text and (upstream.name == LOCAL_UPSTREAM or options.use_endpoint):
        found = await _tokenize_by_server(text, model, upstream)
        if found is not None:
            return found
    counter = offline_counter(options, model)
    vocabulary = find_vocabulary(model)
    pieces = None if vocabulary is None else split_into_tokens(vocabulary, text)
    count = counter.text(text)
    tokenizer = "no public tokenizer" if vocabulary is None else vocabulary.name
    return TokenizedText(count=count, pieces=pieces, tokenizer=tokenizer)


async def _tokenize_by_server(text: str, model: str, upstream: Upstream) -> TokenizedText | None:
    """What the server's own tokenizer says, with the pieces if it tells them; None if it says nothing."""
    headers = {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
    body = to_json({"content": text, "with_pieces": True})
    async with JsonClient(timeout_seconds=_TIMEOUT_SECONDS) as client:
        server = TokenizeCounter(client, upstream.base_url, headers)
        try:
            if await server.detect_server(model) is TokenizeServer.LLAMA_CPP:
                reply = await client.post_json(f"{server.url}/tokenize", body, headers)
                found = [as_dict(token).get("piece") for token in as_list(parse_json(reply.get("tokens")))]
                if found and all(piece is not None for piece in found):
                    count = TokenCount(len(found), True, len(found))
                    return TokenizedText(
                        count=count, pieces=tuple(map(_token_bytes, found)), tokenizer=_SERVER_TOKENIZER
                    )
            return TokenizedText(
                count=await server.fetch_count(server.text_query(text, model)),
                pieces=None,
                tokenizer=_SERVER_TOKENIZER,
            )
        except (UpstreamError, MalformedRequest):
            return None


def _token_bytes(piece: object) -> bytes:
    """A token's bytes, which come as a list of numbers where they are no text by themselves."""
    if isinstance(piece, str):
        return piece.encode("utf-8", "replace")
    return bytes(number for number in as_list(piece) if isinstance(number, int) and 0 <= number < 256)
