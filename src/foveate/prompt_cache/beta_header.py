"""The header `anthropic-beta`, as far as it is about caching, which `ANTHROPIC_CACHE_BETA` overrides."""

import re

from foveate.errors import BadOption

VARIABLE = "ANTHROPIC_CACHE_BETA"
HEADER = "anthropic-beta"

# The betas that caching had at Anthropic until 2025. Hosts that came later may still want them, or refuse them.
_CACHING_BETA = re.compile(r"(prompt-caching|extended-cache-ttl)(-|$)")
_BETA = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def resolve_beta_header(override: str | None, client_value: str = "") -> str:
    """The value of the header that is sent; where it is empty, the header is left out.

    `override` is what the variable says, None where it is not set: then what the client has `given` is sent as
    it came, since Anthropic itself wants no beta for caching any more. Otherwise the betas in it, with commas
    between them, take the place of the client's own that are about caching; its others stay. An empty one means
    none.

    Raises:
        BadOption: an override that cannot stand in a header.
    """
    if override is None:
        return client_value
    wanted = _split_betas(override)
    for beta in wanted:
        if not _BETA.fullmatch(beta):
            raise BadOption(f"{VARIABLE} is a list of betas with commas between them, not {override!r:.80}")
    kept = [beta for beta in _split_betas(client_value) if not _CACHING_BETA.match(beta)]
    return ",".join(dict.fromkeys(kept + wanted))


def _split_betas(text: str) -> list[str]:
    return [beta.strip() for beta in text.split(",") if beta.strip()]
