"""Build the counter that the options ask for: a remote counter if there is one, with an offline counter as
fallback.
"""

from collections.abc import Callable
from types import TracebackType

from foveate.errors import BadOption
from foveate.http import JsonClient
from foveate.tokens.families import is_claude
from foveate.tokens.options import Backend, CounterOptions, offline_counter_factory
from foveate.tokens.remote.anthropic import ANTHROPIC_URL, AnthropicCounter
from foveate.tokens.remote.endpoints import EndpointCounter, EndpointRegistry, shared_endpoint_registry
from foveate.tokens.remote.fallback import FallbackCounter
from foveate.tokens.remote.gemini import GEMINI_URL, GeminiCounter
from foveate.tokens.remote.openai import OPENAI_URL, OpenAICounter
from foveate.tokens.remote.tokenize import TokenizeCounter


class ConnectedCounter:
    """A fallback counter with its connections: `async with ConnectedCounter(options) as counter`."""

    def __init__(self, options: CounterOptions, endpoints: EndpointRegistry | None = None) -> None:
        """`endpoints` is what is known about servers. Default: what the whole process knows."""
        self._options = options
        self._endpoints = endpoints or shared_endpoint_registry()
        self._client = JsonClient(timeout_seconds=options.timeout_ms / 1000)

    async def __aenter__(self) -> FallbackCounter:
        """Build the counter.

        Raises:
            BadOption: the backend lacks an address or a key, or the address is invalid.
        """
        options = self._options
        return FallbackCounter(
            offline_counter_factory(options),
            endpoint_for=_endpoint_selector(options, self._client, self._endpoints),
            endpoints=self._endpoints,
            capacity=options.cache_capacity,
        )

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()


def _endpoint_selector(
    options: CounterOptions, client: JsonClient, endpoints: EndpointRegistry
) -> Callable[[str], EndpointCounter | None]:
    endpoint = _build_endpoint(options, client, endpoints)
    if options.backend is Backend.AUTO and isinstance(endpoint, AnthropicCounter):
        return lambda model: endpoint if is_claude(model) else None
    return lambda _: endpoint


def _build_endpoint(
    options: CounterOptions, client: JsonClient, endpoints: EndpointRegistry
) -> EndpointCounter | None:
    key, url = options.api_key, options.endpoint_url
    if url and not url.startswith(("http://", "https://")):
        raise BadOption(f"the URL of a server must start with http:// or https://, not {url!r}")
    match options.backend:
        case Backend.OFFLINE | Backend.ESTIMATE:
            return None
        case Backend.AUTO if url and options.use_endpoint:
            return TokenizeCounter(client, url, _bearer_headers(key), endpoints)
        case Backend.AUTO:
            # With an address, the key belongs to that server and must not be sent to Anthropic.
            uses_anthropic = key and not url and options.vocabulary is None
            return AnthropicCounter(client, key) if uses_anthropic else None
        case Backend.ENDPOINT:
            if not url:
                raise BadOption("the backend `endpoint` needs the URL of a server")
            return TokenizeCounter(client, url, _bearer_headers(key), endpoints)
    if not key:
        raise BadOption(f"the backend `{options.backend}` needs an API key")
    match options.backend:
        case Backend.OPENAI_API:
            return OpenAICounter(client, key, url or OPENAI_URL)
        case Backend.GEMINI_API:
            return GeminiCounter(client, key, url or GEMINI_URL)
        case _:
            return AnthropicCounter(client, key, url or ANTHROPIC_URL)


def _bearer_headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
