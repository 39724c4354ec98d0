"""The header `anthropic-beta`, as far as it concerns caching, which `ANTHROPIC_CACHE_BETA` overrides."""

import re

from foveate.errors import BadOption

VARIABLE = "ANTHROPIC_CACHE_BETA"
HEADER = "anthropic-beta"

# Anthropic's caching betas until 2025. Other hosts may still require or reject them.
_CACHING_BETA = re.compile(r"(prompt-caching|extended-cache-ttl)(-|$)")
_BETA = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def resolve_beta_header(override: str | None, client_value: str = "") -> str:
    """The value of the header to send; if empty, the header is left out.

    `override` is the value of the variable. If it is None, the client's value is sent unchanged, since
    Anthropic no longer requires a beta for caching. Otherwise its comma-separated betas replace the client's
    betas about caching; others stay. An empty override means none.

    Raises:
        BadOption: the override is not a valid header value.
    """
    if override is None:
        return client_value
    wanted = _split_betas(override)
    for beta in wanted:
        if not _BETA.fullmatch(beta):
            raise BadOption(f"{VARIABLE} is a list of betas with commas between them, not {override!r:.80}")
    others = [beta for beta in _split_betas(client_value) if not _CACHING_BETA.match(beta)]
    return ",".join(dict.fromkeys(others + wanted))


def _split_betas(text: str) -> list[str]:
    return [beta.strip() for beta in text.split(",") if beta.strip()]
