"""Print a container image with the current digest of its tag.

Without IMAGE, `tools/image_digest.py [IMAGE]` takes the base image of the Dockerfile. The digest is that of the
index of all platforms, fetched from the registry without a login:

    docker build --build-arg PYTHON_IMAGE="$(python3 tools/image_digest.py)" -t foveate .
"""

import json
import re
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

DOCKERFILE = Path(__file__).parents[1] / "Dockerfile"
HUB = "https://registry-1.docker.io"
KINDS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json,"
    " application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_SECONDS = 30


def base_image(dockerfile: str) -> str:
    """Return the base image that a Dockerfile names by default."""
    found = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    if found is None:
        raise SystemExit("the Dockerfile has no ARG PYTHON_IMAGE")
    return found[1]


def fetch_digest(image: str, *, registry: str = HUB) -> str:
    """Return the digest of an image of Docker Hub, e.g. `python:3.12-slim`."""
    name, _, tag = image.partition(":")
    repository = name if "/" in name else f"library/{name}"
    url = f"{registry}/v2/{repository}/manifests/{tag or 'latest'}"
    try:
        digest = _head(url, "")
    except HTTPError as error:
        if error.code != 401:
            raise
        digest = _head(url, _token(error.headers.get("www-authenticate", "")))
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise SystemExit(f"{url}: the registry gave no digest, but {digest!r}")
    return digest


def _head(url: str, token: str) -> str:
    headers = {"accept": KINDS} | ({"authorization": f"Bearer {token}"} if token else {})
    with urlopen(Request(url, headers=headers, method="HEAD"), timeout=_SECONDS) as response:
        return str(response.headers.get("docker-content-digest", ""))


def _token(challenge: str) -> str:
    """Return a read token from the service that the registry names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    with urlopen(f"{fields.get('realm', '')}?{query}", timeout=_SECONDS) as response:
        return str(json.load(response)["token"])


if __name__ == "__main__":
    image = sys.argv[1] if len(sys.argv) > 1 else base_image(DOCKERFILE.read_text(encoding="utf-8"))
    try:
        print(f"{image}@{fetch_digest(image)}")
    except (URLError, ValueError, KeyError) as error:
        raise SystemExit(f"the digest of {image} cannot be had: {error}") from None
