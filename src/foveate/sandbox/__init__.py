"""A strict stand-in for the providers, for people and tests that have no key.

`accept` says whether a provider would take a request, without a server.
"""

from foveate.formats.response.errors import ErrorResponse
from foveate.sandbox.validation.dispatch import validate_request

__all__ = ["ErrorResponse", "validate_request"]
