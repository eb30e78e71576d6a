"""Access control: requests must send the token. Without a token, their host must be this machine or an allowed host.

Without a token, any web page in a browser on this machine could send requests. The Origin header tells which site the
page is from. The Host header reveals foreign host names that resolve to 127.0.0.1 (DNS rebinding).
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
    """Checks the token of requests or, if the server has no token, their Host and Origin headers.

    Args:
        token: The bearer token that requests must send, or None.
        allowed_hosts: Host names that are allowed in addition to localhost.

    Attributes:
        token: The current token. It may be replaced while the server runs.
    """

    def __init__(self, token: str | None, allowed_hosts: Iterable[str]) -> None:
        self.token = token
        self._allowed_hosts = {name.lower() for name in allowed_hosts}

    def check(self, request: web.Request) -> None:
        """Raises a RequestError if the token is wrong or, without a token, the Host or Origin header is not allowed."""
        if self.token is not None:
            _check_token(request.headers.get("Authorization", ""), self.token)
            return
        self._check_host(request.headers.get("Host", ""))
        if "Origin" in request.headers:
            self._check_origin(request.headers["Origin"], request.headers.get("Host", ""))

    @staticmethod
    def check_json(request: web.Request) -> None:
        """Raises a RequestError if a web page (a request with an Origin header) does not send JSON.

        Browsers let any page send plain text without asking the server.
        """
        if "Origin" in request.headers and request.content_type != "application/json":
            raise RequestError(
                415, f"the content type is {request.content_type}; a web page must send application/json"
            )

    def _check_host(self, host: str) -> None:
        name = _remove_port(host)
        if not is_loopback(name) and name not in self._allowed_hosts:
            raise RequestError(
                403,
                f"without a token, this server only accepts requests to localhost, but the request is to "
                f"{name[:100]!r}; start it with --allowed_hosts=NAME or with --token_file",
            )

    def _check_origin(self, origin: str, host: str) -> None:
        try:
            address = urllib.parse.urlsplit(origin).netloc.lower()
        except ValueError:  # An unmatched bracket.
            address = ""
        if _remove_default_port(address) == _remove_default_port(host.lower()) and address:
            return
        if _remove_port(address) not in self._allowed_hosts:
            raise RequestError(
                403,
                f"web pages of {origin[:100]!r} may not use this server, because it runs without a token; start it "
                "with --allowed_hosts=NAME or with --token_file",
            )


def _check_token(authorization: str, token: str) -> None:
    scheme, _, sent = authorization.partition(" ")
    # compare_digest takes the same time for any token, and digests hide the token's length.
    is_right = hmac.compare_digest(_digest(sent.strip()), _digest(token))
    if scheme.lower() != "bearer" or not is_right:
        raise RequestError(401, "the bearer token is missing or wrong; send the header Authorization: Bearer TOKEN")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _remove_port(host: str) -> str:
    """Returns the host name in a Host header: "localhost" for "localhost:8501", "::1" for "[::1]:8501"."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _remove_default_port(address: str) -> str:
    return next((address.removesuffix(port) for port in _DEFAULT_PORTS if address.endswith(port)), address)


def is_loopback(name: str) -> bool:
    """Returns whether a host name or address, such as localhost or ::1, can only be reached from this machine."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
