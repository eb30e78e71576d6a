"""The description of the server's addresses, for people and programs: OpenAPI 3.1."""

from typing import Any

from official_bert.inference import exports
from official_bert.serving.models import Model, Models
from official_bert.serving.options import Options
from official_bert.serving.served_model import ServedModel
from official_bert.serving.signatures import BOOL, STRING, Tensor
from official_bert.version import __version__

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": _STRING}}
_WRONG = {
    400: "The request cannot be read; the error says what was expected.",
    403: "The Host or Origin is not allowed.",
    404: "There is no such model or version.",
    408: "The request did not arrive in time.",
    413: "The request is too large.",
    415: "A page must send application/json.",
    429: "Too many requests wait; try again after the time in Retry-After.",
    500: "The server failed.",
    503: "The model is being loaded, or too much is in flight; try again after the time in Retry-After.",
    504: "The answer was not ready in time.",
}


def describe(models: Models, options: Options, with_token: bool) -> Schema:
    """Returns the description of a server with these models, as they are now."""
    paths: Schema = {
        "/v1/models": {"get": _operation("All models, what each is and takes", _MODELS)},
        "/healthz": {"get": _operation("Whether the server is alive", _STATUS) | {"security": []}},
        "/readyz": {"get": _operation("Whether all models answer", _STATUS, 503) | {"security": []}},
        "/metrics": {"get": _operation("What the server counts, for Prometheus", _STRING, content="text/plain")},
        "/openapi.json": {"get": _operation("This description", {"type": "object"})},
    }
    for model in models:
        paths |= _paths_of(model, options)
    description: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "official-bert",
            "version": __version__,
            "description": "TensorFlow Serving's REST API. In place of a string, "
            '{"b64": "..."} with its UTF-8 in base64 is taken as well.',
        },
        "paths": paths,
    }
    if with_token:
        description["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        description["security"] = [{"token": []}]
        for path in paths.values():
            for operation in path.values():
                if operation.get("security") != []:
                    operation["responses"]["401"] = _response("The token is missing or wrong.", _ERROR)
    return description


def _paths_of(model: Model, options: Options) -> Schema:
    paths = {}
    addresses = [("", model.available[-1:])]
    addresses += [(f"/versions/{each.number}", [each]) for each in model.available]
    for suffix, versions in addresses:
        path = f"/v1/models/{model.name}{suffix}"
        paths[path] = {"get": _operation("Versions and their states", _VERSIONS, 404)}
        paths[path + "/metadata"] = {"get": _operation("Signatures", {"type": "object"}, 404, 503)}
        for version in versions:
            assert version.model
            paths[path + ":predict"] = {"post": _predict(version.model, options)}
    return paths


def _predict(model: ServedModel, options: Options) -> Schema:
    signature = model.signatures.get(exports.DEFAULT_SIGNATURE)
    others = ", ".join(name for name in model.signatures if name != exports.DEFAULT_SIGNATURE)
    body: Schema = {"type": "object"}
    if signature and signature.takes_rows:
        row = {name: _value(spec, 1, options) for name, spec in signature.inputs.items()}
        column = {name: _value(spec, 0, options) for name, spec in signature.inputs.items()}
        rows, columns = [_object(row)], [_object(column)]
        if len(row) == 1:
            rows += row.values()
            columns += column.values()
        trained = exports.trained_columns(model.export_metadata.get("table") or {})
        if set(trained) - set(row):  # the server joins them
            rows.append(_object({name: next(iter(row.values())) for name in trained}))
            columns.append(_object({name: next(iter(column.values())) for name in trained}))
        name = {"signature_name": {"const": exports.DEFAULT_SIGNATURE}}
        body = {"anyOf": [
            _object({"instances": _list({"anyOf": rows}, 1, options.max_instances)}, name),
            _object({"inputs": {"anyOf": columns}}, name),
        ]}  # fmt: skip
    answer: Schema = {"type": "object", "properties": {"predictions": {"type": "array"}, "outputs": {}}}
    operation = _operation("Answers", answer, *_WRONG)
    operation["description"] = f"This is {exports.DEFAULT_SIGNATURE}" + (
        f"; for {others}, named by signature_name, see /metadata." if others else "."
    )
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _value(spec: Tensor, dimension: int, options: Options) -> Schema:
    """The nested lists of a tensor, from one of its dimensions on."""
    sizes = list(spec.shape or ())[dimension:]
    if sizes:
        most = sizes[0] if dimension else options.max_instances
        least = (sizes[0] or 0) if dimension else 1
        return _list(_value(spec, dimension + 1, options), least, most)
    if spec.dtype == STRING:
        # In bytes of UTF-8, which JSON Schema cannot count: of ASCII exactly, of other text less characters.
        size = options.max_text_bytes
        return {"type": "string", "maxLength": size, "description": f"At most {size:,} bytes in UTF-8."}
    if spec.dtype == BOOL:
        return {"type": "boolean"}
    if spec.is_integer:
        least, greatest = spec.range
        return {"type": "integer", "minimum": least, "maximum": greatest}
    return {"type": "number"}


def _list(items: Schema, least: int, most: int | None) -> Schema:
    return {"type": "array", "items": items, "minItems": least} | ({} if most is None else {"maxItems": most})


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def _operation(summary: str, answer: Schema, *wrong: int, content: str = "application/json") -> Schema:
    responses = {"200": _response(summary, answer, content)}
    responses |= {str(status): _response(_WRONG[status], _ERROR) for status in wrong}
    return {"summary": summary, "responses": responses}


def _response(description: str, schema: Schema, content: str = "application/json") -> Schema:
    return {"description": description, "content": {content: {"schema": schema}}}


_STATUS = _object({"status": _STRING})
_MODELS = _object({
    "models": {"type": "array", "items": {
        "type": "object",
        "required": ["name", "kind", "versions"],
        "properties": {
            "name": _STRING, "kind": _STRING, "versions": {"type": "array", "items": _STRING},
            "inputs": {"type": "array", "items": _STRING}, "labels": {"type": ["array", "null"], "items": _STRING},
        },
    }},
})  # fmt: skip
_VERSIONS = _object({
    "model_version_status": {"type": "array", "items": _object({
        "version": _STRING,
        "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
        "status": _object({"error_code": _STRING, "error_message": _STRING}),
    })},
})  # fmt: skip
