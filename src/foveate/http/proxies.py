"""HTTP proxies on the way to upstreams: which requests use one, and how it is reached."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote, urlsplit

from foveate.errors import BadOption

_DEFAULT_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "http://user:password@proxy.example:3128"


@dataclass(frozen=True, slots=True)
class Proxy:
    scheme: str
    host: str
    port: int
    authorization: bytes | None = field(default=None, repr=False)
    """Value of the header proxy-authorization."""

    @property
    def url(self) -> str:
        """The URL without credentials, for messages."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_proxy(url: str) -> Proxy:
    """Parse the URL of a proxy. Without a scheme it is `http`. The user and the password are percent-encoded.

    Raises:
        BadOption: not a URL, or a proxy of another kind, such as SOCKS. The message does not contain the URL.
    """
    not_a_url = BadOption(
        f"expected the URL of a proxy, such as {_EXAMPLE}; write special characters of a password as %XX"
    )
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        default_port = _DEFAULT_PORTS[parts.scheme]
        host, port = parts.hostname or "", parts.port or default_port
    except KeyError:
        raise BadOption(f"proxies must speak HTTP, as in {_EXAMPLE}; SOCKS is not supported") from None
    except ValueError:
        raise not_a_url from None
    if not host or not host.isprintable() or " " in host:
        raise not_a_url
    authorization = None
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Basic " + b64encode(credentials.encode())
    return Proxy(parts.scheme, host, port, authorization)


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """The URLs of the proxies for http and https upstreams, and the hosts that are reached without them."""

    http: str = field(default="", repr=False)
    https: str = field(default="", repr=False)
    no_proxy: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], configured: str | None = None) -> "ProxyRules":
        """Read the usual variables, in lower case first.

        `configured` replaces the proxies in them; empty means none. `NO_PROXY` applies in both cases.
        """

        def read(name: str) -> str:
            return environment.get(name.lower(), environment.get(name, "")).strip()

        if configured is not None:
            return cls(configured, configured, read("NO_PROXY"))
        default = read("ALL_PROXY")
        return cls(read("HTTP_PROXY") or default, read("HTTPS_PROXY") or default, read("NO_PROXY"))

    def find_proxy(self, scheme: str, host: str, port: int) -> Proxy | None:
        """Return the proxy for an upstream. Loopback is always reached directly.

        Raises:
            BadOption: the URL of the proxy is invalid.
        """
        url = self.https if scheme == "https" else self.http
        if not url or self._is_direct(host.rstrip("."), port):
            return None
        return parse_proxy(url)

    def _is_direct(self, host: str, port: int) -> bool:
        address = _parse_address(host)
        if address.is_loopback if address is not None else f".{host}".endswith(".localhost"):
            return True
        entries = self.no_proxy.lower().replace(",", " ").split()
        return any(_matches(entry, host, address, port) for entry in entries)


def _matches(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    """Return whether an entry of `NO_PROXY` names a host.

    An entry is `*`, an address, a network such as `10.0.0.0/8`, or a domain, which includes its subdomains and
    may begin with `.` or `*.`. Addresses and domains may have a port.
    """
    if entry == "*":
        return True
    if address is not None and "/" in entry:
        try:
            return address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, port_text = entry, ""
    if entry.startswith("[") or entry.count(":") == 1:
        name, _, port_text = entry.rpartition(":") if not entry.endswith("]") else (entry, "", "")
    if port_text and port_text != str(port):
        return False
    if address is not None:
        return _parse_address(name.strip("[]")) == address
    domain = name.removeprefix("*").strip(".")
    return bool(domain) and f".{host}".endswith(f".{domain}")


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
