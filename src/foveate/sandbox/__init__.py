"""A strict imitation of the providers' APIs, for people and tests without a key.

`validate_request` checks without a server whether a provider would accept a request.
"""

from foveate.formats.response.errors import ErrorResponse
from foveate.sandbox.validation import validate_request

__all__ = ["ErrorResponse", "validate_request"]
