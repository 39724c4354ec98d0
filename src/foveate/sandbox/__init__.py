"""A strict stand-in for the providers, for people and tests that have no key.

`accept` says whether a provider would take a request, without a server.
"""

from foveate.sandbox.accepting import accept
from foveate.wire.refusals import Refusal

__all__ = ["Refusal", "accept"]
