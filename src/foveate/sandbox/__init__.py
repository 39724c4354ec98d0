"""A strict stand-in for the providers, for people and tests that have no key.

`accept` says whether a provider would take a request, without a server.
"""

from foveate.sandbox.accepting import validate_request
from foveate.wire.refusals import ErrorResponse

__all__ = ["ErrorResponse", "validate_request"]
