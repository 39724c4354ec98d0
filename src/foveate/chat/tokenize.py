"""Split a text into the tokens of a conversation's model."""

from dataclasses import dataclass

from foveate.chat.requests import ModelTarget
from foveate.config.load import LOCAL_UPSTREAM
from foveate.engine.counting.offline_counters import offline_counter
from foveate.errors import MalformedRequest, UpstreamError
from foveate.formats.json_text.parse import as_dict, as_list, parse_json, to_json
from foveate.gateway.routing import Upstream
from foveate.http import JsonClient
from foveate.model import TokenCount
from foveate.tokens.offline_counters import CounterOptions, find_vocabulary
from foveate.tokens.remote.endpoints import TokenizeServer
from foveate.tokens.remote.model_servers import TokenizeCounter
from foveate.tokens.tokenizers.bpe import split_into_tokens

_TIMEOUT_SECONDS = 5.0
_SERVER_TOKENIZER = "the model's own server"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """The number of tokens of a text and their bytes; `pieces` is None if no tokenizer can split it."""

    count: TokenCount
    pieces: tuple[bytes, ...] | None
    tokenizer: str


async def tokenize(text: str, model: str, target: ModelTarget, options: CounterOptions) -> TokenizedText:
    """Tokenize a text, on the model's own server if that is local or may be called."""
    upstream = target.upstream
    if text and (upstream.name == LOCAL_UPSTREAM or options.use_endpoint):
        tokenized = await _tokenize_by_server(text, model, upstream)
        if tokenized is not None:
            return tokenized
    counter = offline_counter(options, model)
    vocabulary = find_vocabulary(model)
    pieces = None if vocabulary is None else split_into_tokens(vocabulary, text)
    count = counter.text(text)
    tokenizer = "no public tokenizer" if vocabulary is None else vocabulary.name
    return TokenizedText(count=count, pieces=pieces, tokenizer=tokenizer)


async def _tokenize_by_server(text: str, model: str, upstream: Upstream) -> TokenizedText | None:
    headers = {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
    body = to_json({"content": text, "with_pieces": True})
    async with JsonClient(timeout_seconds=_TIMEOUT_SECONDS) as client:
        server = TokenizeCounter(client, upstream.base_url, headers)
        try:
            if await server.detect_server(model) is TokenizeServer.LLAMA_CPP:
                reply = await client.post_json(f"{server.url}/tokenize", body, headers)
                token_pieces = [
                    as_dict(token).get("piece") for token in as_list(parse_json(reply.get("tokens")))
                ]
                if token_pieces and all(piece is not None for piece in token_pieces):
                    count = TokenCount(len(token_pieces), True, len(token_pieces))
                    return TokenizedText(
                        count=count, pieces=tuple(map(_token_bytes, token_pieces)), tokenizer=_SERVER_TOKENIZER
                    )
            return TokenizedText(
                count=await server.fetch_count(server.text_query(text, model)),
                pieces=None,
                tokenizer=_SERVER_TOKENIZER,
            )
        except (UpstreamError, MalformedRequest):
            return None


def _token_bytes(piece: object) -> bytes:
    """Return a token's bytes; the server sends a list of numbers if they are not valid text."""
    if isinstance(piece, str):
        return piece.encode("utf-8", "replace")
    return bytes(number for number in as_list(piece) if isinstance(number, int) and 0 <= number < 256)
