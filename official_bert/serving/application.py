"""The addresses of the server, and what is said there."""

import asyncio
import hmac
import importlib.resources
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from official_bert.serving import logs, openapi, protocol
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Model, Models, Version
from official_bert.serving.options import Options
from official_bert.serving.refused import RefusedError
from official_bert.serving.saved_model import DEFAULT_SIGNATURE

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
}
# Handlers that answer without the token: they tell nothing about the models.
_PUBLIC = {"page", "healthz", "readyz"}
# What a handler found out about a request, for the log: model, version, instances, refusal.
_FACTS = web.RequestKey("facts", dict[str, Any])
_CLIENT_HAS_GONE = 499  # nobody reads it; for the log and the metrics


class Application:
    """The handlers, with what they share.

    Attributes:
        draining: set when the server is about to stop: it answers, but asks not to be sent more.
        under_way: the requests that have begun to arrive and are not answered.
        heard: the connections that have sent a request; the server takes out those that are closed.
    """

    def __init__(self, models: Models, options: Options, metrics: Metrics, token: str | None) -> None:
        self._models, self._options, self._metrics = models, options, metrics
        self._token = token
        self._limits = protocol.Limits(options.max_instances, options.max_text_bytes)
        self.draining = False
        self.under_way = 0
        self.heard: set[Any] = set()

    def make(self) -> web.Application:
        """Returns it as aiohttp wants it."""
        application = web.Application(
            middlewares=[self._observed, self._refusals_as_json, self._guarded],
            client_max_size=self._options.max_body_bytes,
        )
        model = "/v1/models/{model:[^/:]+}"
        routes = [web.get(path, self.page) for path in _PAGE]
        for path in (model, model + "/versions/{version:[0-9]+}", model + "/labels/{label:[^/:]+}"):
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
        return application

    # What is asked of models.

    async def predict(self, request: web.Request) -> web.Response:
        self._named(request)  # to refuse before the body has been read
        body = await self._body(request)
        model, version = self._named(request)  # the newest may be another by now
        with model.in_use(version) as (saved_model, batcher):
            asked = protocol.parse(body, saved_model.signatures, self._limits, texts=bool(saved_model.description))
            request[_FACTS]["instances"] = asked.instances
            try:
                async with asyncio.timeout(self._options.timeout_seconds):
                    outputs = await batcher.predict(asked.signature, asked.inputs)
            except TimeoutError as error:
                seconds = self._options.timeout_seconds
                raise RefusedError(504, f"no answer within {seconds:g} seconds; send less at once") from error
        answer = protocol.render(outputs, asked)
        return web.Response(
            body=answer, content_type="application/json", headers={"X-Model-Version": str(version.number)}
        )

    async def other(self, request: web.Request) -> web.Response:
        self._named(request)
        raise RefusedError(400, f":{request.match_info['other']} is not offered; use :predict")

    async def status(self, request: web.Request) -> web.Response:
        model = self._models[request.match_info["model"]]
        request[_FACTS]["model"] = model.name
        if {"version", "label"} & request.match_info.keys():
            versions = [self._named(request)[1]]
        else:
            versions = [model.versions[number] for number in sorted(model.versions, reverse=True)]
        return _json({"model_version_status": [
            {
                "version": str(each.number),
                "state": each.state,
                "status": {"error_code": "UNKNOWN" if each.error else "OK", "error_message": each.error},
            }
            for each in versions
        ]})  # fmt: skip

    async def metadata(self, request: web.Request) -> web.Response:
        model, version = self._named(request)
        assert version.model
        return _json({
            "model_spec": {"name": model.name, "signature_name": "", "version": str(version.number)},
            "metadata": {"signature_def": {"signature_def": version.model.metadata()}},
        })  # fmt: skip

    async def models(self, _: web.Request) -> web.Response:
        """All models, with what each is: not of TensorFlow Serving, but the page needs it."""
        found = []
        for model in self._models:
            description: dict[str, Any] = {}
            for newest in model.available[-1:]:
                assert newest.model
                default = newest.model.signatures.get(DEFAULT_SIGNATURE)
                description = {"inputs": list(default.inputs) if default else []} | newest.model.description
                description["kind"] = newest.model.kind
            versions = [str(each.number) for each in reversed(model.available)]
            found.append({"name": model.name, "versions": versions, "labels_of_versions": model.labels, **description})
        return _json({"models": found})

    # What is asked of the server.

    async def page(self, request: web.Request) -> web.Response:
        name, content_type = _PAGE[request.path]
        text = (importlib.resources.files(__package__) / "page" / name).read_text("utf-8")
        return web.Response(text=text, content_type=content_type, charset="utf-8")

    async def healthz(self, _: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def readyz(self, _: web.Request) -> web.Response:
        if self.draining:
            raise RefusedError(503, "the server is about to stop")
        if not self._models.ready:
            raise RefusedError(503, "models are being loaded; try again later", retry_after=1)
        return _json({"status": "ready"})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def openapi(self, _: web.Request) -> web.Response:
        return _json(openapi.describe(self._models, self._options, with_token=self._token is not None))

    # What all requests pass through.

    @web.middleware
    async def _observed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        start = time.monotonic()
        self.heard.add(request.protocol)
        request[_FACTS] = {}
        action = request.match_info.handler.__name__ if not request.match_info.http_exception else "unknown"
        self.under_way += 1
        self._metrics.under_way.set(self.under_way)
        status = _CLIENT_HAS_GONE
        try:
            response = await handler(request)
            status = response.status
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            if self.draining:
                response.force_close()
            return response
        finally:
            seconds = time.monotonic() - start
            self.under_way -= 1
            self._metrics.under_way.set(self.under_way)
            facts = request[_FACTS]
            model = facts.pop("model", "")
            self._metrics.requests.labels(model, action, str(status)).inc()
            self._metrics.request_seconds.labels(model, action).observe(seconds)
            ms = round(1000 * seconds, 2)
            logs.info(
                "request", method=request.method, path=request.path, status=status, ms=ms, client=request.remote,
                model=model, **facts,
            )  # fmt: skip

    @web.middleware
    async def _refusals_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RefusedError as refusal:
            request[_FACTS]["refusal"] = refusal.message
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

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token is None or request.match_info.handler.__name__ in _PUBLIC:
            return await handler(request)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # compare_digest takes as long for a wrong token as for the right one, so that it cannot be guessed by the clock
        right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token.encode())
        if scheme.lower() != "bearer" or not right:
            raise RefusedError(401, "the bearer token is missing or wrong; send the header Authorization: Bearer TOKEN")
        return await handler(request)

    def _named(self, request: web.Request) -> tuple[Model, Version]:
        """The model and version that a request means."""
        asked = request.match_info
        model = self._models[asked["model"]]
        request[_FACTS]["model"] = model.name
        version = model.find(asked.get("version"), asked.get("label"))
        request[_FACTS]["version"] = version.number
        return model, version

    async def _body(self, request: web.Request) -> bytes:
        most = self._options.max_body_bytes
        too_large = f"the request is larger than {most} bytes; send less at once"
        if (request.content_length or 0) > most:
            raise RefusedError(413, too_large)
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                return await request.read()
        except TimeoutError as error:
            raise RefusedError(
                408, f"the request did not arrive within {self._options.timeout_seconds:g} seconds"
            ) from error
        except web.HTTPRequestEntityTooLarge as error:
            raise RefusedError(413, too_large) from error
        except (web.RequestPayloadError, ValueError) as error:  # cut short, or not compressed as it says
            raise RefusedError(400, f"the request's body cannot be read: {error}") from error


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(text=json.dumps(value), status=status, headers=headers, content_type="application/json")
