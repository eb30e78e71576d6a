"""Limits the number of connections and the time for sending headers, and loses no request when the server stops.

aiohttp has neither limit. A few spare connections beyond the limit are reserved for health probes.
"""

import asyncio
import contextlib
import functools
import json
import resource
from typing import Any

from aiohttp import web

from official_bert.errors import UserError
from official_bert.serving import logs

SERVER_NAME = "official-bert"  # The Server header, without version numbers.
_QUEUE = 100  # Maximum number of connections that wait to be accepted.
_SPARE_CONNECTIONS, _SPARE_SECONDS = 16, 1.0  # Their maximum number, and their time for sending headers.
# File descriptors that models, logs, the listening sockets and spare connections need in addition to the connections.
_OTHER_DESCRIPTORS = 64 + _SPARE_CONNECTIONS
# Time in which a client must send its first bytes after connecting to a server that is stopping.
_FIRST_BYTES_SECONDS = 1.0
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
TOO_MANY_CONNECTIONS = "the server has too many connections; try again later"


def limit_by_descriptors(wanted: int) -> int:
    """Returns how many connections the process can have, at most `wanted`.

    Raises the process's limit of file descriptors if necessary and possible.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_DESCRIPTORS
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft < reachable:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
    return max(1, min(wanted, soft - _OTHER_DESCRIPTORS))


class Connection(web.RequestHandler):
    """A client's connection. It is closed if the headers of a request take too long to arrive.

    Attributes:
        is_spare: Whether the connection exceeds the limit. It then serves only one request of a health probe.
    """

    def __init__(self, server: web.Server, connections: "Connections") -> None:
        loop = asyncio.get_running_loop()
        # The application writes the access log. Lingering is for clients that keep sending a body that is refused.
        # Compressed bodies are refused. The parser would decompress them before a handler could do so.
        settings: dict[str, Any] = {"access_log": None, "keepalive_timeout": 75.0, "lingering_time": 2.0}
        super().__init__(server, loop=loop, auto_decompress=False, **settings)
        self._connections = connections
        self.opened = loop.time()
        self._request: web.BaseRequest | None = None  # The request that is being answered.
        self._timer: asyncio.TimerHandle | None = None  # Runs while headers are expected.
        self._has_sent = False  # Whether the client has sent bytes of these headers.
        self.is_spare = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.is_spare = self._connections.make_room()
        self._connections.open.add(self)
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.open.discard(self)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Other bytes belong to the body of the current request.
        if data and (self._request is None or self._request.content.is_eof()):
            self._has_sent = True
            self._start_timer()
        super().data_received(data)

    def handle_error(self, *args: Any, **kwargs: Any) -> web.StreamResponse:
        """Returns the response to a request that is not valid HTTP, and therefore reaches no handler."""
        response = super().handle_error(*args, **kwargs)
        response.headers["Server"] = SERVER_NAME
        return response

    def begin_request(self, request: web.BaseRequest) -> None:
        """Stops the timer for the headers of a request. Called when they have arrived."""
        self._request, self._has_sent = request, False
        self._stop_timer()

    def end_request(self) -> None:
        """Records that the current request has been answered."""
        self._request = None

    def refuse(self, message: str) -> None:
        """Closes the connection. If it is waiting for a request, it first sends status 503 with the message."""
        if self.transport is not None and self.can_be_refused:
            body = json.dumps({"error": message}).encode()
            self.transport.write(_REFUSAL % (len(body), body))
            client = self.transport.get_extra_info("peername")[0]
            logs.warning("a connection is refused", reason=message, limit=self._connections.limit, client=client)
        self._stop_timer()
        self.force_close()

    @property
    def can_be_refused(self) -> bool:
        """Whether the connection is waiting for the headers of a request."""
        return self._timer is not None and self._request is None

    @property
    def is_sending(self) -> bool:
        """Whether the client is sending headers, or connected less than a second ago and is expected to."""
        is_new = asyncio.get_running_loop().time() - self.opened < _FIRST_BYTES_SECONDS
        return self._timer is not None and (self._has_sent or is_new)

    def _start_timer(self) -> None:
        if self._timer is None:
            seconds, end = self._connections.seconds, self.force_close
            if self.is_spare:
                seconds, end = min(seconds, _SPARE_SECONDS), functools.partial(self.refuse, TOO_MANY_CONNECTIONS)
            self._timer = asyncio.get_running_loop().call_later(seconds, end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connections:
    """The connections of a server. Use it within one event loop.

    Args:
        limit: Maximum number of connections. Further ones become spare connections, or get status 503.
        seconds: Maximum time in which a client must send the headers of a request.

    Attributes:
        open: The current connections.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit, self.seconds = limit, seconds
        self.open: set[Connection] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self, server: web.Server, host: str, port: int) -> tuple[str, int]:
        """Starts listening for connections, and returns the host and the port.

        Args:
            server: Handles the requests.
            host: Address to listen on.
            port: Port to listen on. 0 selects a free port.

        Raises:
            UserError: If the address is in use or does not belong to this machine.
        """
        self._make_connection = functools.partial(Connection, server, self)
        try:
            # The backlog is also the number of connections that asyncio accepts before it closes refused ones.
            self._listener = await asyncio.get_running_loop().create_server(
                self._make_connection, host, port, backlog=_SPARE_CONNECTIONS
            )
            for listener in self._listener.sockets:
                with listener.dup() as queue:
                    queue.listen(_QUEUE)
        except OSError as error:
            raise UserError(
                f"cannot listen at {host}, port {port}: {error.strerror or error}; choose another --port"
            ) from error
        return self._listener.sockets[0].getsockname()[:2]

    @property
    def requests_arriving(self) -> bool:
        """Whether any client is sending headers, or connected less than a second ago and is expected to."""
        return any(connection.is_sending for connection in self.open)

    def make_room(self) -> bool:
        """Returns whether a new connection exceeds the limit and is a spare one.

        If there are too many spare connections already, the oldest one is closed.
        """
        if len(self.open) < self.limit:
            return False
        spare = sorted((each for each in self.open if each.is_spare), key=lambda each: each.opened)
        if len(spare) >= _SPARE_CONNECTIONS:
            next((each for each in spare if each.can_be_refused), spare[0]).refuse(TOO_MANY_CONNECTIONS)
        return True

    def refuse_arriving(self, message: str) -> None:
        """Sends status 503 with the message to clients that are still sending headers, and closes their connections."""
        for connection in [each for each in self.open if each.is_sending]:
            connection.refuse(message)

    async def stop_accepting(self) -> None:
        """Stops listening. Connections that are already in the system's queue are still accepted."""
        if self._listener is None:
            return
        loop = asyncio.get_running_loop()
        for listener in self._listener.sockets:
            loop.remove_reader(listener)
        await asyncio.sleep(0)  # asyncio creates transports for the connections that it has accepted.
        waiting = []  # Connections in the system's queue, which asyncio would drop.
        for listener in self._listener.sockets:
            with listener.dup() as queue, contextlib.suppress(OSError):
                while True:
                    waiting.append(queue.accept()[0])
        self._listener.close()
        for connection in waiting:
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # The client has gone.
                await loop.connect_accepted_socket(self._make_connection, connection)
        await asyncio.sleep(0)  # asyncio calls connection_made of the other connections.
