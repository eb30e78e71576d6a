"""Who is answered: whoever knows the token or, where there is none, programs and pages of this machine.

Without a token any page in a browser on this machine could ask the server: by a name that its owner lets point to
127.0.0.1 (DNS rebinding), which the Host header shows, or from its own address, which the Origin header shows.
"""

import hashlib
import hmac
import ipaddress
import urllib.parse
from collections.abc import Iterable

from aiohttp import web

from official_bert.serving.json_api import RequestError

_DEFAULT_PORTS = (":80", ":443")


class Access:
    """Checks that requests carry the token or, where it is None, the hosts that they and their pages name.

    Attributes:
        token: The current token. It may be replaced.
    """

    def __init__(self, token: str | None, allowed_hosts: Iterable[str]) -> None:
        self.token = token
        self._allowed_hosts = {name.lower() for name in allowed_hosts}

    @property
    def needs_token(self) -> bool:
        """Whether requests must carry a token."""
        return self.token is not None

    def check(self, request: web.Request) -> None:
        """Raises a RequestError unless the request may be answered."""
        if self.token is not None:
            _check_token(request.headers.get("Authorization", ""), self.token)
            return
        self._check_host(request.headers.get("Host", ""))
        if "Origin" in request.headers:
            self._check_origin(request.headers["Origin"], request.headers.get("Host", ""))

    @staticmethod
    def check_json(request: web.Request) -> None:
        """Raises a RequestError if a page sends something other than JSON: a browser lets any page send plain text."""
        if "Origin" in request.headers and request.content_type != "application/json":
            raise RequestError(
                415, f"the content type is {request.content_type}; a page must send application/json to this server"
            )

    def _check_host(self, host: str) -> None:
        name = _without_port(host)
        if not is_loopback(name) and name not in self._allowed_hosts:
            raise RequestError(
                403,
                f"without a token this server answers to localhost alone, and the request is to {name[:100]!r}; start "
                "it with --allowed_hosts=NAME or with --token_file",
            )

    def _check_origin(self, origin: str, host: str) -> None:
        try:
            address = urllib.parse.urlsplit(origin).netloc.lower()
        except ValueError:  # half of brackets
            address = ""
        if _without_default_port(address) == _without_default_port(host.lower()) and address:
            return
        if _without_port(address) not in self._allowed_hosts:
            raise RequestError(
                403,
                f"a page of {origin[:100]!r} may not ask this server, which runs without a token; start it with "
                "--allowed_hosts=NAME or with --token_file",
            )


def _check_token(authorization: str, token: str) -> None:
    scheme, _, sent = authorization.partition(" ")
    # compare_digest takes as long for a wrong token as for the right one, and digests hide the token's length.
    is_right = hmac.compare_digest(_digest(sent.strip()), _digest(token))
    if scheme.lower() != "bearer" or not is_right:
        raise RequestError(401, "the bearer token is missing or wrong; send the header Authorization: Bearer TOKEN")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _without_port(host: str) -> str:
    """The name in a Host header: localhost:8501 to localhost, [::1]:8501 to ::1."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _without_default_port(address: str) -> str:
    return next((address.removesuffix(port) for port in _DEFAULT_PORTS if address.endswith(port)), address)


def is_loopback(name: str) -> bool:
    """Whether this is a name or number by which this machine alone is reached."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
