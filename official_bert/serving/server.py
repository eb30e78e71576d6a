"""The serve command: starts the server, loads new versions while it runs, and stops without losing requests."""

import asyncio
import contextlib
import os
import signal
import stat
import sys

from aiohttp import web

from official_bert.inference import exports
from official_bert.inference.predictor import PARALLEL_BATCHES
from official_bert.serving import logs
from official_bert.serving.access import Access, is_loopback
from official_bert.serving.application import STOPPING, Application
from official_bert.serving.connections import Connections, limit_by_descriptors
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Models, find_versions
from official_bert.serving.options import ServingOptions
from official_bert.utils import files
from official_bert.utils.tensorflow_import import import_tensorflow


class Server:
    """An HTTP server for exported models. `run` starts it.

    Args:
        options: The options of the serve command.

    Raises:
        UserError: If a model's folder or the token file is missing or invalid.
    """

    def __init__(self, options: ServingOptions) -> None:
        self._options = options
        self._access = Access(options.token(), options.allowed_hosts)
        path = options.token_file
        if path and not files.is_remote(path) and os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
            logs.warning("other users can read the token; prevent it with chmod 600", file=path)
        self._connections = Connections(limit_by_descriptors(options.max_connections), options.timeout_seconds)
        metrics = Metrics()
        self.models = Models(options, metrics)
        self._application = Application(self.models, options, metrics, self._access)
        self._stop = asyncio.Event()
        self._reserve = min(1.0, options.drain_seconds / 2)  # Part of drain_seconds for sending the last responses.
        self._end: float | None = None
        self.url = ""

    @property
    def stopping(self) -> bool:
        """Whether `stop` has been called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Stops the server after it has answered the requests in flight. Call this method in the event loop."""
        logs.info("draining")
        self._end = asyncio.get_running_loop().time() + self._options.drain_seconds
        self._application.drain(self._end - self._reserve)
        self._stop.set()

    async def run(self) -> None:
        """Serves until `stop` is called.

        Raises:
            UserError: If the address is in use, or a model cannot be loaded.
        """
        runner = web.AppRunner(
            self._application.make(),
            handler_cancellation=True,  # Cancels requests whose client has gone.
            shutdown_timeout=self._reserve / 4,  # aiohttp may wait twice. All requests have been answered by then.
        )
        await runner.setup()
        watching = [asyncio.create_task(self._watch_token())]
        try:
            await self._listen(runner)
            loading = asyncio.create_task(self.models.load())
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                logs.info("ready", url=self.url, models=[model.name for model in self.models])
                watching.append(asyncio.create_task(self.models.watch()))
                await stopped
        finally:
            for task in watching:
                task.cancel()
            loop = asyncio.get_running_loop()
            end = self._end or loop.time() + self._options.drain_seconds
            # Requests that have reached this machine but have not been read yet are answered too.
            await self._connections.stop_accepting()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end - 3 / 4 * self._reserve):
                    while self._application.requests_in_flight or self._connections.requests_arriving:
                        await asyncio.sleep(0.02)
            self._connections.refuse_arriving(f"{STOPPING}; try again later")
            await runner.cleanup()
            if not self.models.pools.shut_down(max(0.1, end - self._reserve / 2 - loop.time())):
                logs.warning("a computation is abandoned")
            logs.info("stopped")

    async def _watch_token(self) -> None:
        """Reads the token file again periodically, because it may be replaced while the server runs."""
        loop, problem = asyncio.get_running_loop(), ""
        while self._options.token_file is not None:
            await asyncio.sleep(self._options.reload_seconds)
            try:
                token = await loop.run_in_executor(self.models.pools.loader, self._options.token)
            except Exception as error:
                if problem != str(error):
                    problem = str(error)
                    logs.warning("the token cannot be read again; the last one stays valid", error=problem)
                continue
            if token != self._access.token:
                logs.info("the token has changed")
            self._access.token, problem = token, ""

    async def _listen(self, runner: web.AppRunner) -> None:
        assert runner.server
        host, port = await self._connections.listen(runner.server, self._options.host, self._options.port)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        logs.info("listening", url=self.url)
        if not is_loopback(self._options.host) and self._access.token is None:
            logs.warning("other machines may reach this server, which needs no token; see --token_file")


def serve(options: ServingOptions) -> None:
    """Runs the server until SIGTERM, SIGHUP or Ctrl-C. A second signal stops it without waiting for requests in flight.

    Raises:
        UserError: If a folder or the file of access tokens is invalid, the address is in use, or a model cannot be
            loaded.
    """
    logs.start()
    # Each of these threads caches oneDNN's kernels for each input shape. Few threads save memory.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(PARALLEL_BATCHES))
    if options.threads is not None:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(options.threads)
    versions = [each for folder in options.folders().values() for each in find_versions(folder).values()]
    if not all(exports.is_onnx(version.folder) for version in versions):
        import_tensorflow()  # Suppresses messages that would appear between the lines of the log.
    server = Server(options)

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task

        def stop() -> None:
            if server.stopping:
                task.cancel()
            else:
                server.stop()

        hang_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []  # nohup ignores it.
        for number in (signal.SIGTERM, signal.SIGINT, *hang_up):
            loop.add_signal_handler(number, stop)
        await server.run()

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run())
    if not server.models.pools.shut_down(0.1):
        sys.stderr.flush()
        os._exit(0)  # Python would wait for the threads.
