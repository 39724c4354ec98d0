"""Cache keys of sessions, for providers that route requests with the same key to the same machine."""

from blake3 import blake3

from foveate.formats.incremental.envelope import get_parameters
from foveate.model import Format, Request, SetParameter
from foveate.prompt_cache.rules import CacheRules

_KEY_BYTES = 16
_FORMATS_WITH_KEY = (Format.CHAT, Format.RESPONSES)


def derive_cache_key(session: str) -> str:
    """A session's key: the same for all its requests, and not reversible."""
    return blake3(b"cache key\0" + session.encode("utf-8", "replace")).hexdigest(_KEY_BYTES)


def set_cache_key(request: Request, rules: CacheRules, session: str) -> SetParameter | None:
    """The edit that sets a session's cache key, if provider and format accept one and the request has none."""
    if not rules.key_parameter or request.format not in _FORMATS_WITH_KEY:
        return None
    if rules.key_parameter in get_parameters(request):
        return None
    return SetParameter(
        path=(rules.key_parameter,),
        value=derive_cache_key(session),
        reason="requests with one key are sent to the machine that is warm",
    )


def cache_key_headers(rules: CacheRules, session: str) -> dict[str, str]:
    """The header with the session's key, for providers that read it from there."""
    return {rules.key_header: derive_cache_key(session)} if rules.key_header else {}
