"""The HTTP routes of the server and their handlers."""

import asyncio
import contextlib
import functools
import importlib.resources
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.serving import json_api, logs, openapi
from official_bert.serving.access import Access
from official_bert.serving.batching import run_in_pool
from official_bert.serving.connections import SERVER_NAME, TOO_MANY_CONNECTIONS, Connection
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Model, Models, Version
from official_bert.serving.options import ServingOptions

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PAGE = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css"),
         "/page.js": ("page.js", "text/javascript"), "/answers.js": ("answers.js", "text/javascript")}  # fmt: skip
_HEADERS = {
    # Only files of this server, and no inline scripts: code in a text or in a model's answer never runs.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Server": SERVER_NAME,
}
# Handlers that need no token, because they return nothing about the models.
_PUBLIC = {"page", "healthz", "readyz"}
# Handlers that spare connections may call too. Their requests are not logged, except errors.
_PROBES = {"healthz", "readyz", "metrics"}
STOPPING = "the server is about to stop"
# Fields of a request's log line that handlers add: model, version, instances and refusal.
_LOG_FIELDS = web.RequestKey("log_fields", dict[str, Any])
_CLIENT_CLOSED_REQUEST = 499  # As nginx logs it. It is not sent.
# Maximum size in bytes of JSON that the event loop parses. A thread parses larger requests.
_SMALL_BODY = 1 << 16


class Application:
    """The handlers of all routes, and the state that they share.

    Attributes:
        draining: Whether the server is stopping. It then still answers requests, but closes connections and reports
            that it is not ready.
        requests_in_flight: Number of requests whose headers have arrived and that have not been answered yet.
    """

    def __init__(self, models: Models, options: ServingOptions, metrics: Metrics, access: Access) -> None:
        self._models, self._options, self._metrics, self._access = models, options, metrics, access
        self.draining = False
        self.requests_in_flight = 0
        metrics.in_flight.set_function(lambda: self.requests_in_flight)
        self._bytes_in_flight = 0
        self._public = _PUBLIC | ({"metrics"} if options.public_metrics else set())
        self._deadlines: set[asyncio.Timeout] = set()  # Of the requests in flight.
        self._end: float | None = None

    def drain(self, end: float) -> None:
        """Starts draining: requests are still answered, but connections are closed, and the server is not ready.

        Requests that are still in flight at the end get status 503.

        Args:
            end: Time of the event loop at which draining ends.
        """
        self.draining, self._end = True, end
        for deadline in self._deadlines:
            deadline.reschedule(end)

    def make(self) -> web.Application:
        """Creates the aiohttp application with all routes."""
        application = web.Application(middlewares=[self._handle])
        model = "/v1/models/{model:[^/:]+}"
        routes = [web.get(path, self.page) for path in _PAGE]
        for path in (model, model + "/versions/{version:[0-9]+}"):
            routes += [
                web.post(path + ":predict", self.predict),  # The first one is found fastest.
                web.get(path, self.status),
                web.get(path + "/metadata", self.metadata),
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

    async def predict(self, request: web.Request) -> web.Response:
        self._find_version(request)  # Refuses a wrong path before the body arrives.
        self._access.check_json(request)
        async with self._read_body(request) as body:
            model, version = self._find_version(request)  # A new version may have been loaded meanwhile.
            with model.hold(version) as (predictor, batcher):
                pool = self._models.pools.parsing if len(body) > _SMALL_BODY else None
                predict_request = await run_in_pool(
                    pool, json_api.parse, body, predictor.signatures, self._options, predictor.metadata
                )
                request[_LOG_FIELDS]["instances"] = predict_request.instances
                outputs = await batcher.predict(predict_request.signature, predict_request.inputs)
        answer = json_api.render(outputs, predict_request)
        headers = {"X-Model-Version": str(version.number)}
        return web.Response(body=answer, content_type="application/json", headers=headers)

    async def status(self, request: web.Request) -> web.Response:
        model = self._models[request.match_info["model"]]
        request[_LOG_FIELDS]["model"] = model.name
        if "version" in request.match_info:
            versions = [self._find_version(request)[1]]
        else:
            versions = [model.versions[number] for number in sorted(model.versions, reverse=True)]
        return web.json_response({"model_version_status": [
            {"version": str(each.number), "state": each.state,
             "status": {"error_code": "UNKNOWN" if each.error else "OK", "error_message": each.error}}
            for each in versions
        ]})  # fmt: skip

    async def metadata(self, request: web.Request) -> web.Response:
        model, version = self._find_version(request)
        signatures = {name: signature.describe() for name, signature in version.model.signatures.items()}
        return web.json_response({
            "model_spec": {"name": model.name, "signature_name": "", "version": str(version.number)},
            "metadata": {"signature_def": {"signature_def": signatures}},
        })  # fmt: skip

    async def models(self, _: web.Request) -> web.Response:
        """Returns all models with their metadata, for the web page. TensorFlow Serving does not have this route."""
        models = []
        for model in self._models:
            about_newest: dict[str, Any] = {}
            for newest in model.available[-1:]:
                default = newest.model.signatures.get(DEFAULT_SIGNATURE)
                about_newest = {"inputs": list(default.inputs) if default else []} | dict(newest.model.metadata)
                about_newest["kind"] = newest.model.kind
                if default and "endings" in default.inputs:
                    about_newest["num_choices"] = (default.inputs["endings"].shape or ())[1]
            versions = [str(each.number) for each in reversed(model.available)]
            models.append({"name": model.name, "versions": versions, **about_newest})
        return web.json_response({"models": models})

    async def page(self, request: web.Request) -> web.Response:
        name, content_type = _PAGE[request.path]
        text = (importlib.resources.files(__package__) / "page" / name).read_text("utf-8")
        return web.Response(text=text, content_type=content_type, charset="utf-8")

    async def healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def readyz(self, _: web.Request) -> web.Response:
        if self.draining:
            raise RequestError(503, STOPPING)
        if not self._models.ready:
            raise RequestError(503, "models are being loaded; try again later", retry_after=1)
        return web.json_response({"status": "ready"})

    async def metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.text(), headers=headers)

    async def openapi(self, _: web.Request) -> web.Response:
        return web.json_response(openapi.describe(self._models, self._options, bool(self._access.token)))

    # All requests.

    @web.middleware
    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers a request, counts and logs it, and closes its connection if it must not be reused."""
        start, connection, log_fields = time.monotonic(), request.protocol, dict[str, Any]()
        assert isinstance(connection, Connection)
        connection.begin_request(request)
        request[_LOG_FIELDS] = log_fields
        action = request.match_info.handler.__name__ if not request.match_info.http_exception else "unknown"
        status = _CLIENT_CLOSED_REQUEST
        self.requests_in_flight += 1
        try:
            response = await self._respond(request, handler, action, connection)
            status = response.status
            if self.draining or connection.is_spare or not request.content.is_eof():
                response.force_close()  # Also if the rest of the body has not been read.
            return response
        finally:
            seconds = time.monotonic() - start
            self.requests_in_flight -= 1
            connection.end_request()
            model = log_fields.pop("model", "")
            self._metrics.requests.labels(model, action, str(status)).inc()
            self._metrics.request_seconds.labels(model, action).observe(seconds)
            if action not in _PROBES or status not in (200, 503):
                line = functools.partial(
                    logs.info, "request", method=request.method, path=request.path, status=status,
                    ms=round(1000 * seconds, 2), client=request.remote, model=model, **log_fields,
                )  # fmt: skip
                asyncio.get_running_loop().call_soon(line)  # The response is sent first.

    async def _respond(
        self, request: web.Request, handler: Handler, action: str, connection: Connection
    ) -> web.StreamResponse:
        """Calls the handler of a request, and converts its errors to JSON responses."""
        deadline = asyncio.timeout_at(self._end)
        self._deadlines.add(deadline)
        try:
            async with deadline:
                if action not in _PROBES and connection.is_spare:
                    raise RequestError(503, TOO_MANY_CONNECTIONS, retry_after=1)
                if action not in self._public:
                    self._access.check(request)
                return await handler(request)
        except RequestError as error:
            if error.status != 400:  # The message of status 400 could repeat the client's data.
                request[_LOG_FIELDS]["refusal"] = error.message
            return _make_error_response(error)
        except TimeoutError:  # Other timeouts are RequestErrors.
            return _make_error_response(RequestError(503, f"{STOPPING}; try again later", retry_after=1))
        except web.HTTPException as error:  # Raised by aiohttp for an unknown path or method.
            allowed = error.headers.get("Allow")
            message = {
                404: f"there is nothing at {request.path}; see /openapi.json",
                405: f"{request.method} is not for {request.path}; use {allowed}",
            }.get(error.status, error.reason)
            headers = {"Allow": allowed} if allowed else {}
            return web.json_response({"error": message}, status=error.status, headers=headers)
        except Exception as error:
            logs.error("a request failed", error, path=request.path)
            return web.json_response({"error": "the server failed; see its log"}, status=500)
        finally:
            self._deadlines.discard(deadline)

    def _find_version(self, request: web.Request) -> tuple[Model, Version]:
        """Returns the model and the version that are named in a request's path."""
        match = request.match_info
        model = self._models[match["model"]]
        request[_LOG_FIELDS]["model"] = model.name
        version = model.find(match.get("version"))
        request[_LOG_FIELDS]["version"] = version.number
        return model, version

    @contextlib.asynccontextmanager
    async def _read_body(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yields the body of a request. Its bytes count as in flight until the context ends."""
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise RequestError(415, "compressed requests are not accepted; send the body without Content-Encoding")
        body, most, seconds = bytearray(), self._options.max_body_bytes, self._options.timeout_seconds
        too_large = RequestError(413, f"the request is larger than {most} bytes; send less")
        if (request.content_length or 0) > most:
            raise too_large
        try:
            try:
                async with asyncio.timeout(None if request.content.is_eof() else seconds):
                    async for chunk in request.content.iter_any():
                        body += chunk
                        self._bytes_in_flight += len(chunk)
                        if self._bytes_in_flight > self._options.max_in_flight_bytes:
                            raise RequestError(503, "too many bytes are in flight; try again later", retry_after=1)
                        if len(body) > most:
                            raise too_large
            except TimeoutError as error:
                raise RequestError(408, f"the request did not arrive within {seconds:g} seconds") from error
            except (web.RequestPayloadError, ValueError) as error:
                raise RequestError(
                    400, "the request's body cannot be read: it is incomplete, or not encoded as its headers say"
                ) from error
            yield bytes(body)
        finally:
            self._bytes_in_flight -= len(body)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _make_error_response(error: RequestError) -> web.Response:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response({"error": error.message}, status=error.status, headers=headers)
