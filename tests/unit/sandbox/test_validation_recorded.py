"""Recorded requests that the real providers accepted must be accepted by the sandbox."""

import gzip
import json
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from foveate import formats
from foveate.model import Format
from foveate.sandbox import validate_request

ROUTES = {
    "https://api.anthropic.com/v1/messages": Format.ANTHROPIC,
    "https://api.openai.com/v1/chat/completions": Format.CHAT,
    "https://api.openai.com/v1/responses": Format.RESPONSES,
}
# Only the signer can verify a signature.
INVALID_SIGNATURE = "Invalid `signature` in"


def test_recorded_requests_that_providers_charged_are_accepted(shared_data: Path) -> None:
    accepted: Counter[Format] = Counter()
    rejected = {}
    with gzip.open(shared_data / "usage_pairs.jsonl.gz") as rows:
        for row in map(json.loads, rows):
            url = urlsplit(row["uri"])
            api_format = ROUTES.get(f"{url.scheme}://{url.netloc}{url.path}")
            if api_format is None or not isinstance(row["request"], dict):
                continue
            error = validate_request(formats.parse_request(row["request"], api_format))
            if error is None:
                accepted[api_format] += 1
            elif INVALID_SIGNATURE not in error.message:
                rejected[row["file"], row["idx"]] = error.message

    assert not rejected
    assert all(accepted[api_format] > 200 for api_format in ROUTES.values())
