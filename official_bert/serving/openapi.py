"""The OpenAPI 3.1 description of the server's routes."""

from typing import Any

from official_bert.inference.exports import list_trained_columns
from official_bert.inference.predictor import BOOL, STRING, Tensor
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.serving.models import Models, Version
from official_bert.serving.options import ServingOptions
from official_bert.version import __version__

Schema = dict[str, Any]

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}


def describe(models: Models, options: ServingOptions, needs_token: bool) -> Schema:
    """Returns the OpenAPI description of a server, with the inputs of the current versions of its models.

    Args:
        models: The models of the server.
        options: The options of the server, with its limits.
        needs_token: Whether requests must send a token.
    """
    public: Schema = {"security": []}
    paths = {
        "/v1/models": {"get": _operation("All models, with their kinds and inputs")},
        "/healthz": {"get": _operation("Whether the server is alive") | public},
        "/readyz": {"get": _operation("Whether all models can answer") | public},
        "/metrics": {"get": _operation("Metrics", "text/plain") | (public if options.public_metrics else {})},
        "/openapi.json": {"get": _operation("This description")},
    }
    for model in models:
        for version in model.available:  # The newest one is last, and describes the model.
            for path in (f"/v1/models/{model.name}", f"/v1/models/{model.name}/versions/{version.number}"):
                paths[path] = {"get": _operation("Versions and their states")}
                paths[f"{path}/metadata"] = {"get": _operation("Names, types and shapes of inputs and outputs")}
                paths[f"{path}:predict"] = {"post": _predict(version, options)}
    description = {"openapi": "3.1.0", "info": {"title": "official-bert", "version": __version__}, "paths": paths}
    token = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    return description | ({"components": token, "security": [{"token": []}]} if needs_token else {})


def _predict(version: Version, options: ServingOptions) -> Schema:
    signature = version.model.signatures.get(DEFAULT_SIGNATURE)
    if not (signature and signature.takes_rows):
        return _operation("Answers of the signatures in the metadata")
    row = {name: _value(spec, options) for name, spec in signature.inputs.items()}
    column = {name: _list(value, 1, options.max_instances) for name, value in row.items()}
    metadata = version.model.metadata  # Empty for a SavedModel of another tool, which accepts no other columns.
    trained = list_trained_columns(metadata.get("table") or {})
    rows, columns = (_forms(each, trained, bool(metadata)) for each in (row, column))
    rows = _list(rows, 1, options.max_instances)
    name = {"const": DEFAULT_SIGNATURE}
    forms = [_object({key: value}, signature_name=name) for key, value in (("instances", rows), ("inputs", columns))]
    body = {"required": True, "content": {"application/json": {"schema": {"anyOf": forms}}}}
    return _operation(f"Answers: {', '.join(signature.outputs)}") | {"requestBody": body}


def _forms(values: Schema, trained: list[str], accepts_others: bool) -> Schema:
    """Returns the JSON schema of a row ("instances") or of all columns ("inputs") of a request.

    The values may be named by the model's inputs or by the columns of the training table. A single input needs no name.

    Args:
        values: The schema of the value of each input.
        trained: The columns of the training table.
        accepts_others: Whether a request may have further columns.
    """
    by_column = [dict.fromkeys(trained, next(iter(values.values())))] if set(trained) - set(values) else []
    objects = [_object(each) | {"additionalProperties": accepts_others} for each in (values, *by_column)]
    return {"anyOf": [*objects, *(values.values() if len(values) == 1 else ())]}


def _value(spec: Tensor, options: ServingOptions) -> Schema:
    """Returns the JSON schema of an input for one instance."""
    schema: Schema = {"type": "boolean" if spec.dtype == BOOL else "number"}
    if spec.dtype == STRING:
        schema = {"type": "string", "maxLength": options.max_text_bytes}
    elif spec.is_integer:
        schema = {"type": "integer", "minimum": spec.range[0], "maximum": spec.range[1]}
    for size in reversed((spec.shape or ())[1:]):
        schema = _list(schema, size or 0, size or options.max_body_bytes)
    return schema


def _list(items: Schema, min_items: int, max_items: int) -> Schema:
    return {"type": "array", "items": items, "minItems": min_items, "maxItems": max_items}


def _object(required: Schema, **optional: Schema) -> Schema:
    return {"type": "object", "required": [*required], "properties": required | optional, "additionalProperties": False}


def _operation(summary: str, content: str = "application/json") -> Schema:
    error = {"description": "Why the request failed", "content": {"application/json": {"schema": _ERROR}}}
    answer = {"description": summary, "content": {content: {}}}
    return {"summary": summary, "responses": {"200": answer, "default": error}}
