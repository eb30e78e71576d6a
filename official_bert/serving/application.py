"""The server's addresses, their handlers, and the middleware that all requests pass."""

import asyncio
import contextlib
import functools
import importlib.resources
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from official_bert.inference.predictor import Predictor
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.serving import json_api, logs, openapi
from official_bert.serving.access import Access
from official_bert.serving.connections import SERVER_NAME, TOO_MANY_CONNECTIONS, Connection
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Model, Models, Version
from official_bert.serving.options import Options

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PAGE = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css"),
         "/page.js": ("page.js", "text/javascript"), "/answers.js": ("answers.js", "text/javascript")}  # fmt: skip
_HEADERS = {
    # Nothing from elsewhere, nothing inline: what a text or a model says can never run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Server": SERVER_NAME,
}
# Handlers that answer everybody: they say nothing about the models.
_PUBLIC = {"page", "healthz", "readyz"}
# Handlers that spare connections may ask too. Their successful requests are not logged at info.
_PROBES = {"healthz", "readyz", "metrics"}
STOPPING = "the server is about to stop"
# What the log says of a request besides its address and status: model, version, instances, refusal.
_LOG_FIELDS = web.RequestKey("log_fields", dict[str, Any])
_CLIENT_HAS_GONE = 499  # no client gets it; for the log and the metrics
# JSON of more bytes than this is read by a thread, since requests of others would wait for it.
_SMALL_BODY = 1 << 16


class Application:
    """The handlers, with what they share.

    Attributes:
        draining: Whether the server is about to stop. It still answers, but closes connections and is not ready.
        requests_in_flight: Number of requests that have begun to arrive and are not answered yet.
    """

    def __init__(self, models: Models, options: Options, metrics: Metrics, access: Access) -> None:
        self._models, self._options, self._metrics, self._access = models, options, metrics, access
        self.draining = False
        self.requests_in_flight = 0
        self._bytes_in_flight = 0
        self._public = _PUBLIC | ({"metrics"} if options.public_metrics else set())
        self._deadlines: set[asyncio.Timeout] = set()  # of the requests in flight
        self._end: float | None = None

    def drain(self, end: float) -> None:
        """Prepares for the server's stop: requests in flight get status 503 at `end`, a time of the event loop."""
        self.draining, self._end = True, end
        for deadline in self._deadlines:
            deadline.reschedule(end)

    def make(self) -> web.Application:
        """Returns aiohttp's application of these handlers."""
        application = web.Application(middlewares=[self._observed, self._refusals_as_json])
        model = "/v1/models/{model:[^/:]+}"
        routes = [web.get(path, self.page) for path in _PAGE]
        for path in (model, model + "/versions/{version:[0-9]+}"):
            routes += [
                web.get(path, self.status),
                web.get(path + "/metadata", self.metadata),
                web.post(path + ":predict", self.predict),
                web.post(path + ":{other:classify|regress}", self.other),
            ]
        routes += [
            web.get("/v1/models", self.models),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/openapi.json", self.openapi),
        ]
        application.add_routes(routes)
        application.on_response_prepare.append(_add_headers)
        return application

    # Handlers of models.

    async def predict(self, request: web.Request) -> web.Response:
        self._find(request)  # to refuse before the body has been read
        self._access.check_json(request)
        async with self._read_body(request) as body:
            model, version = self._find(request)  # the newest may be another by now
            with model.in_use(version) as (predictor, batcher):
                predict_request = await self._parse(body, predictor)
                request[_LOG_FIELDS]["instances"] = predict_request.instances
                outputs = await batcher.predict(predict_request.signature, predict_request.inputs)
        answer = json_api.render(outputs, predict_request)
        headers = {"X-Model-Version": str(version.number)}
        return web.Response(body=answer, content_type="application/json", headers=headers)

    async def _parse(self, body: bytes, model: Predictor) -> json_api.PredictRequest:
        parse = functools.partial(json_api.parse, body, model.signatures, self._options, model.metadata)
        if len(body) <= _SMALL_BODY:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._models.pools.parsing, parse)

    async def other(self, request: web.Request) -> web.Response:
        self._find(request)
        raise RequestError(400, f":{request.match_info['other']} is not offered; use :predict")

    async def status(self, request: web.Request) -> web.Response:
        model = self._models[request.match_info["model"]]
        request[_LOG_FIELDS]["model"] = model.name
        if "version" in request.match_info:
            versions = [self._find(request)[1]]
        else:
            versions = [model.versions[number] for number in sorted(model.versions, reverse=True)]
        return _json({"model_version_status": [
            {"version": str(each.number), "state": each.state,
             "status": {"error_code": "UNKNOWN" if each.error else "OK", "error_message": each.error}}
            for each in versions
        ]})  # fmt: skip

    async def metadata(self, request: web.Request) -> web.Response:
        model, version = self._find(request)
        assert version.model
        return _json({
            "model_spec": {"name": model.name, "signature_name": "", "version": str(version.number)},
            "metadata": {"signature_def": {"signature_def": version.model.describe()}},
        })  # fmt: skip

    async def models(self, _: web.Request) -> web.Response:
        """All models, with what each is. TensorFlow Serving has no such address; the page needs it."""
        models = []
        for model in self._models:
            about_newest: dict[str, Any] = {}
            for newest in model.available[-1:]:
                assert newest.model
                default = newest.model.signatures.get(DEFAULT_SIGNATURE)
                about_newest = {"inputs": list(default.inputs) if default else []} | dict(newest.model.metadata)
                about_newest["kind"] = newest.model.kind
                if default and "endings" in default.inputs:
                    about_newest["num_choices"] = (default.inputs["endings"].shape or ())[1]
            versions = [str(each.number) for each in reversed(model.available)]
            models.append({"name": model.name, "versions": versions, **about_newest})
        return _json({"models": models})

    # Handlers of the server.

    async def page(self, request: web.Request) -> web.Response:
        name, content_type = _PAGE[request.path]
        text = (importlib.resources.files(__package__) / "page" / name).read_text("utf-8")
        return web.Response(text=text, content_type=content_type, charset="utf-8")

    async def healthz(self, _: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def readyz(self, _: web.Request) -> web.Response:
        if self.draining:
            raise RequestError(503, STOPPING)
        if not self._models.ready:
            raise RequestError(503, "models are being loaded; try again later", retry_after=1)
        return _json({"status": "ready"})

    async def metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.text(), headers=headers)

    async def openapi(self, _: web.Request) -> web.Response:
        return _json(openapi.describe(self._models, self._options, with_token=self._access.needs_token))

    # Middleware.

    @web.middleware
    async def _observed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        start = time.monotonic()
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin_request(request)
        request[_LOG_FIELDS] = {}
        action = request.match_info.handler.__name__ if not request.match_info.http_exception else "unknown"
        status = _CLIENT_HAS_GONE
        self._count_request(1)
        try:
            response = await handler(request)
            status = response.status
            if self.draining or connection.is_spare:
                response.force_close()
            return response
        finally:
            seconds = time.monotonic() - start
            self._count_request(-1)
            connection.end_request()
            fields = request[_LOG_FIELDS]
            model = fields.pop("model", "")
            self._metrics.requests.labels(model, action, str(status)).inc()
            self._metrics.request_seconds.labels(model, action).observe(seconds)
            ms = round(1000 * seconds, 2)
            log = logs.debug if action in _PROBES and status in (200, 503) else logs.info
            line = functools.partial(
                log, "request", method=request.method, path=request.path, status=status, ms=ms,
                client=request.remote, model=model, **fields,
            )  # fmt: skip
            asyncio.get_running_loop().call_soon(line)  # when the answer has been sent, which need not wait for it

    def _count_request(self, change: int) -> None:
        self.requests_in_flight += change
        self._metrics.in_flight.set(self.requests_in_flight)

    @web.middleware
    async def _refusals_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with self._until_end():
                name = request.match_info.handler.__name__
                assert isinstance(request.protocol, Connection)
                if name not in _PROBES and request.protocol.is_spare:
                    raise RequestError(503, TOO_MANY_CONNECTIONS, retry_after=1)
                if name not in self._public:
                    self._access.check(request)
                return await handler(request)
        except RequestError as refusal:
            if refusal.status != 400:  # whose message shows what was wrong in the body
                request[_LOG_FIELDS]["refusal"] = refusal.message
            headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
            if refusal.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            response = _json({"error": refusal.message}, refusal.status, headers)
            if not request.content.is_eof():
                response.force_close()  # the rest of its body is not read
            return response
        except web.HTTPException as error:  # the library's own: no such address, or not by this method
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            message = {
                404: f"there is nothing at {request.path}; see /openapi.json",
                405: f"{request.method} is not for {request.path}; use {headers.get('Allow')}",
            }.get(error.status, error.reason)
            return _json({"error": message}, error.status, headers)
        except Exception as error:
            logs.error("a request failed", error, path=request.path)
            return _json({"error": "the server failed; its log has more"}, 500)

    @contextlib.asynccontextmanager
    async def _until_end(self) -> AsyncIterator[None]:
        """Raises a RequestError if the block still runs when the server has to stop."""
        deadline = asyncio.timeout_at(self._end)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RequestError(503, f"{STOPPING}; try again later", retry_after=1) from error
        finally:
            self._deadlines.discard(deadline)

    def _find(self, request: web.Request) -> tuple[Model, Version]:
        """The model and version that a request's address names."""
        match = request.match_info
        model = self._models[match["model"]]
        request[_LOG_FIELDS]["model"] = model.name
        version = model.find(match.get("version"))
        request[_LOG_FIELDS]["version"] = version.number
        return model, version

    @contextlib.asynccontextmanager
    async def _read_body(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yields the body; while the block runs, its bytes count among those in flight."""
        body, seconds = bytearray(), self._options.timeout_seconds
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._read_into(body, request)
            except TimeoutError as error:
                raise RequestError(408, f"the request did not arrive within {seconds:g} seconds") from error
            yield bytes(body)
        finally:
            self._bytes_in_flight -= len(body)

    async def _read_into(self, body: bytearray, request: web.Request) -> None:
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise RequestError(415, "compressed requests are not accepted; send the body without Content-Encoding")
        most, too_large = self._options.max_body_bytes, "the request is larger than {} bytes; send less at once"
        if (request.content_length or 0) > most:
            raise RequestError(413, too_large.format(most))
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                self._bytes_in_flight += len(chunk)
                if self._bytes_in_flight > self._options.max_in_flight_bytes:
                    raise RequestError(503, "too many bytes are in flight; try again later", retry_after=1)
                if len(body) > most:
                    raise RequestError(413, too_large.format(most))
        except (web.RequestPayloadError, ValueError) as error:  # cut short, or its chunks are malformed
            raise RequestError(
                400, "the request's body cannot be read: it is cut short, or not encoded as its headers say"
            ) from error


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(text=json.dumps(value), status=status, headers=headers, content_type="application/json")
