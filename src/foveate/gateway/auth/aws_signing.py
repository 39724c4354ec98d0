"""AWS signatures (SigV4) with the gateway's own credentials. botocore is an extra: `foveate[bedrock]`."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from foveate.errors import BadOption, KeyRefused
from foveate.extras import install_command

_SERVICE = "bedrock"
_REGION = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
# Headers that belong to the client's signature, which is replaced.
CLIENT_SIGNATURE_HEADERS = (b"x-amz-date", b"x-amz-content-sha256")


def check_installed(path: tuple[str, ...], package: str = "botocore") -> None:
    """Check that requests can be signed.

    Raises:
        BadOption: the package for it is not installed.
    """
    if find_spec(package) is None:
        raise BadOption(
            f"`sign: aws` needs a package that is not installed: {install_command()} 'foveate[bedrock]'",
            path=path,
        )


def find_region(base_url: str, environment: Mapping[str, str], path: tuple[str, ...]) -> str:
    """Return the region for signatures, from the host name or else from the environment.

    Raises:
        BadOption: neither names a region.
    """
    match = _REGION.match(urlsplit(base_url).hostname or "")
    region = match[1] if match else next(filter(None, map(environment.get, _REGION_VARIABLES)), None)
    if region is None:
        raise BadOption(
            "the AWS region is unknown: set AWS_REGION, or use a base_url that contains the region", path=path
        )
    return region


class AwsSigner:
    """Signs requests for Bedrock. Finds and renews credentials as AWS's own clients do."""

    def __init__(self) -> None:
        self._credentials: Any = None

    async def sign(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, region: str
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers to add to a request.

        Raises:
            KeyRefused: there are no credentials.
        """
        # Fetching credentials may call a server or a program.
        return await asyncio.to_thread(self._sign, method, url, dict(headers), body, region)

    def _sign(
        self, method: str, url: str, headers: Mapping[bytes, bytes], body: bytes, region: str
    ) -> list[tuple[bytes, bytes]]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        content_type = headers.get(b"content-type")
        signed_headers = {} if content_type is None else {"content-type": content_type.decode("latin-1")}
        request = AWSRequest(method=method, url=url, headers=signed_headers, data=body)
        SigV4Auth(self._load_credentials(), _SERVICE, region).add_auth(request)
        return [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.items()
            if name.lower() not in signed_headers
        ]

    def _load_credentials(self) -> Any:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            self._credentials = self._credentials or Session().get_credentials()
            if self._credentials is not None:
                return self._credentials.get_frozen_credentials()
            reason = "none are configured"
        except BotoCoreError as error:
            reason = str(error)
        raise KeyRefused(
            f"the gateway has no AWS credentials to sign with ({reason}): set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, or a profile, in the environment of the gateway",
            public="the gateway cannot sign this request",
        )
