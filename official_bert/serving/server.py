"""The server's life: start, serve, look for new versions, and stop without losing a request."""

import asyncio
import contextlib
import signal
from typing import Any

from aiohttp import web

from official_bert.errors import UserError
from official_bert.serving import logs
from official_bert.serving.application import Application
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Models
from official_bert.serving.options import Options

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Server:
    """A server that has not started yet.

    Args:
        options: what it is told.

    Raises:
        UserError: the options name a model or token that is not there.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._token = options.token()
        self._metrics = Metrics()
        self.models = Models(options, self._metrics)
        self._application = Application(self.models, options, self._metrics, self._token)
        self._stop = asyncio.Event()
        self._background: list[asyncio.Task[Any]] = []
        self.url = ""

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Asks the server to answer what is under way, and then to stop."""
        logs.info("draining")
        self._application.draining = True
        self._stop.set()

    async def run(self, started: asyncio.Event | None = None) -> None:
        """Serves until it is asked to stop.

        Args:
            started: set when all models answer.

        Raises:
            UserError: the address is taken, or a model cannot be loaded.
        """
        options = self._options
        runner = web.AppRunner(
            self._application.make(),
            access_log=None,
            handler_cancellation=True,  # what nobody waits for is not computed
            shutdown_timeout=1.0,  # all has been waited for by then
            keepalive_timeout=75.0,
            lingering_time=2.0,  # for clients that still send what has been refused
        )
        await runner.setup()
        try:
            await self._listen(runner)
            self._background.append(asyncio.create_task(self._close_silent_connections(runner)))
            loading = asyncio.create_task(self.models.load())
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                logs.info("ready", url=self.url, models=[model.name for model in self.models])
                if started:
                    started.set()
                self._background.append(asyncio.create_task(self.models.watch(options.reload_seconds)))
                await stopped
        finally:
            for task in self._background:
                task.cancel()
            await self._drain(runner)
            await runner.cleanup()
            self.models.pools.shut_down()
            logs.info("stopped")

    async def _drain(self, runner: web.AppRunner) -> None:
        """Takes no new connections, and waits for the requests under way: even for those still arriving, which the
        clean-up of aiohttp would not read to their end.
        """
        for site in list(runner.sites):
            await site.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_seconds):
                while self._application.under_way:
                    await asyncio.sleep(0.02)

    async def _listen(self, runner: web.AppRunner) -> None:
        options = self._options
        site = web.TCPSite(runner, options.host, options.port)
        try:
            await site.start()
        except OSError as error:
            raise UserError(
                f"cannot listen at {options.host}, port {options.port}: {error.strerror or error}; "
                "choose another --port"
            ) from error
        host, port = runner.addresses[0][:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        logs.info("listening", url=self.url)
        if options.host not in _LOOPBACK and self._token is None:
            logs.warning("other machines may reach this server, and no token is asked for; see --token_file")

    async def _close_silent_connections(self, runner: web.AppRunner) -> None:
        """Closes connections that take too long over their first line and headers; aiohttp would wait for ever."""
        loop = asyncio.get_running_loop()
        heard = self._application.heard
        since: dict[Any, float] = {}
        while runner.server:
            since = {each: since.get(each, loop.time()) for each in runner.server.connections}
            heard.intersection_update(since)
            for connection, first_seen in since.items():
                if connection not in heard and loop.time() - first_seen > self._options.timeout_seconds:
                    connection.force_close()
            await asyncio.sleep(1)


def serve(options: Options) -> None:
    """Serves until SIGTERM or Ctrl-C; a second one does not wait for requests under way.

    Raises:
        UserError: see Server.
    """
    logs.start()

    async def main() -> None:
        server = Server(options)
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task

        def asked() -> None:
            if server.stopping:
                task.cancel()
            else:
                server.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked)
        await server.run()

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())
