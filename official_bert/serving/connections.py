"""The server's connections: no more than a limit, none that sends its request too slowly, none lost at the end.

asyncio's own listener has no limit, and when it closes its socket, the connections in the socket's queue are lost with
their requests. So connections are accepted here and handed to aiohttp's handlers.
"""

import asyncio
import contextlib
import ctypes
import functools
import resource
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from aiohttp import web

from official_bert.errors import UserError
from official_bert.serving import logs

# File descriptors that models, logs and the listening sockets need beside the connections.
_OTHER_DESCRIPTORS = 64
_QUEUE = 128  # connections that the system completes and keeps until they are accepted
_ACCEPTED_AT_ONCE = 16  # of the queue, before requests go on
_PAUSE_SECONDS = 1.0  # after the system has refused to accept
# A client that has just connected has so long to send its first bytes when the server is about to stop.
_FIRST_BYTES_SECONDS = 1.0
# A program for the system's packet filter, by which a listening socket drops packets that open a connection: those
# with the flag SYN, 2 in byte 13. Their clients send them again, and by then are refused.
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python's module lacks
_LOAD_BYTE, _TEST_BITS, _RETURN, _WHOLE_PACKET = 0x30, 0x45, 0x06, 0xFFFFFFFF
_NO_SYN = struct.pack(
    "HBBI" * 4, _LOAD_BYTE, 0, 0, 13, _TEST_BITS, 0, 1, 2, _RETURN, 0, 0, 0, _RETURN, 0, 0, _WHOLE_PACKET
)
_TOO_MANY = b'{"error": "the server has too many connections; try again later"}'
_TOO_MANY_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b"
) % (len(_TOO_MANY), _TOO_MANY)


def limit_by_descriptors(wanted: int) -> int:
    """Returns how many connections the process may have, having asked the system for as many as are wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_DESCRIPTORS
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft < reachable:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
    return max(1, min(wanted, soft - _OTHER_DESCRIPTORS))


def _let_nobody_connect(listener: socket.socket) -> None:
    """Ends new connections to a listening socket, as far as the system can: one that came now would be lost."""
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(_NO_SYN)
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 4, ctypes.addressof(program)))


class _Connection(asyncio.Protocol):
    """Passes a connection's events on to aiohttp's handler, and notes since when a request is awaited."""

    def __init__(self, handler: Any, connections: dict[Any, "_Connection"], opened: Callable[[], None]) -> None:
        self.handler, self._connections = handler, connections  # the connections that are open
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self.request: web.BaseRequest | None = None  # that is being answered
        # When the client connected or began to send another request; None while none is awaited.
        self.awaited_since: float | None = self._loop.time()
        self.has_sent = False  # bytes of the request that is awaited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections[self.handler] = self
        self._opened()
        self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self.handler, None)
        self.handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.request is None or self.request.content.is_eof():  # else they are of its body
            self.has_sent = True
            if self.awaited_since is None:
                self.awaited_since = self._loop.time()
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()


class Connections:
    """The connections of a server. To be used within one event loop.

    Args:
        limit: the most connections at a time; further ones are answered 503 and closed.
        seconds: how long a client may take to send a request's first line and headers.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds
        self._server: web.Server | None = None
        self._listeners: list[socket.socket] = []
        self._open: dict[Any, _Connection] = {}  # by aiohttp's handlers
        self._opening: set[asyncio.Task[Any]] = set()  # connections that have been accepted and are not open yet

    def __len__(self) -> int:
        return len(self._open) + len(self._opening)

    async def listen(self, server: web.Server, host: str, port: int) -> tuple[str, int]:
        """Listens with the server's handlers at a port, 0 for a free one, and returns the address.

        Raises:
            UserError: the address is taken or is not this machine's.
        """
        loop = asyncio.get_running_loop()
        self._server = server
        try:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in dict.fromkeys(addresses):
                listener = socket.create_server(address[:2], family=family, backlog=_QUEUE)
                listener.setblocking(False)
                self._listeners.append(listener)
        except OSError as error:
            self._close_listeners()
            raise UserError(
                f"cannot listen at {host}, port {port}: {error.strerror or error}; choose another --port"
            ) from error
        for listener in self._listeners:
            loop.add_reader(listener, self._accept_some, listener)
        return self._listeners[0].getsockname()[:2]

    def begin_request(self, request: web.BaseRequest) -> None:
        """Notes that a request's headers have arrived."""
        connection = self._open.get(request.protocol)
        if connection:
            connection.request, connection.awaited_since, connection.has_sent = request, None, False

    def end_request(self, request: web.BaseRequest) -> None:
        """Notes that a request is answered."""
        connection = self._open.get(request.protocol)
        if connection and connection.request is request:
            connection.request = None

    def _accept_some(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory is left
                logs.warning("cannot accept a connection", error=error.strerror or str(error), connections=len(self))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_PAUSE_SECONDS, self._go_on_accepting, listener)
                return
            self._take(connection, address)

    def _go_on_accepting(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept_some, listener)

    def _take(self, connection: socket.socket, address: Any) -> None:
        connection.setblocking(False)
        if len(self) >= self._limit:
            with contextlib.suppress(OSError):
                connection.send(_TOO_MANY_ANSWER)
            connection.close()
            logs.warning("a connection is refused", reason="too many connections", limit=self._limit, client=address[0])
            return
        opening = asyncio.create_task(self._open_connection(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open_connection(self, connection: socket.socket) -> None:
        assert self._server
        handler = self._server()
        # Once it is open it is no longer opening, although this task ends later: it would be counted twice.
        opened = functools.partial(self._opening.discard, asyncio.current_task())
        with contextlib.suppress(OSError):  # the client has gone already
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(handler, self._open, opened), connection
            )

    async def close_slow_ones(self) -> None:
        """For ever closes connections whose request's first line and headers take too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self._seconds / 4))
            for connection in list(self._open.values()):
                if connection.awaited_since is not None and loop.time() - connection.awaited_since > self._seconds:
                    connection.handler.force_close()

    async def stop_accepting(self) -> None:
        """Accepts what waits in the sockets' queues, and closes them."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            _let_nobody_connect(listener)
            with contextlib.suppress(OSError):
                while True:
                    self._take(*listener.accept())
        self._close_listeners()
        if self._opening:
            await asyncio.wait(self._opening)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    @property
    def requests_arriving(self) -> bool:
        """Whether a client has begun to send a request, or has only just connected to do so."""
        now = asyncio.get_running_loop().time()
        return any(
            each.awaited_since is not None and (each.has_sent or now - each.awaited_since < _FIRST_BYTES_SECONDS)
            for each in self._open.values()
        )
