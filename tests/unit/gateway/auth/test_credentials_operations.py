"""Operations for which the gateway's credentials are used."""

import pytest

from foveate.gateway.auth.credentials import is_allowed
from foveate.gateway.request import parse_request
from foveate.gateway.routing import ALLOWED_OPERATIONS


def is_allowed_by_default(method: str, path: str) -> bool:
    request = parse_request({"method": method, "path": path, "query_string": b"", "headers": []})
    return is_allowed(request, ALLOWED_OPERATIONS)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models/gpt-5"),
        ("GET", "/openai/v1/models"),
        ("GET", "/v1beta/openai/models"),
        ("POST", "/v1beta/openai/chat/completions"),
        ("POST", "/v1beta/models/gemini-embedding-001:embedContent"),
        ("POST", "/v1/projects/p/locations/l/publishers/google/models/text-embedding-005:predict"),
        ("POST", "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict"),
        ("POST", "/model/amazon.titan-embed-text-v2:0/invoke"),
        ("POST", "/model/meta.llama4/invoke-with-response-stream"),
        ("POST", "/model/anthropic.claude-opus-5/count-tokens"),
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/completions"),
    ],
)
def test_generation_counts_embeddings_and_models_of_every_api_are_allowed(method: str, path: str) -> None:
    assert is_allowed_by_default(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"),
        ("DELETE", "/v1/models/ft:gpt-5"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1beta/models/veo:predictLongRunning"),
        ("POST", "/v1/projects/p/locations/l/publishers/google/models/imagen:predict"),
        ("GET", "/v1/organizations/api_keys"),
    ],
)
def test_other_operations_of_an_account_are_not_allowed(method: str, path: str) -> None:
    assert not is_allowed_by_default(method, path)
