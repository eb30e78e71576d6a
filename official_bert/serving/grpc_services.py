"""TensorFlow Serving's gRPC services, PredictionService and ModelService, and gRPC's own health service.

They have the models, batches, limits, token and metrics of HTTP. Where TensorFlow Serving asks for a signature of its
own, Classify and Regress go by what the model is: its inputs are the examples' features, each of one text.

B instances
"""

import functools
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from official_bert.errors import UserError
from official_bert.inference.exports import DEFAULT_SIGNATURE
from official_bert.modeling.task_models import CLASSIFICATION, MULTI_LABEL, REGRESSION
from official_bert.serving import logs
from official_bert.serving.access import Access
from official_bert.serving.in_flight import InFlight
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Model, Models, Version
from official_bert.serving.options import Options
from official_bert.serving.request_error import RequestError, check_text, refuse
from official_bert.serving.served_model import ServedModel
from official_bert.serving.signatures import Signature, Tensors

# The codes for the statuses of HTTP; TensorFlow Serving's REST side maps them the other way round.
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_SERVICES = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")
_SIGNATURES = "signature_def"  # the only metadata that there is


class GrpcServer:
    """A server of the services, which runs in the event loop of HTTP's.

    Args:
        models: the models.
        options: limits, address and port.
        metrics: where requests are counted.
        access: whom to answer.
        in_flight: what is in flight, HTTP's requests included.
    """

    def __init__(self, models: Models, options: Options, metrics: Metrics, access: Access, in_flight: InFlight) -> None:
        self._options = options
        self._services = _Services(models, options, metrics, access, in_flight)
        self._health = health.aio.HealthServicer()
        self._server: Any = None
        self.address = ""

    async def start(self) -> None:
        """Begins to listen; health says that nothing is served yet.

        Raises:
            UserError: the port is taken.
        """
        options = self._options
        server = self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", options.max_body_bytes), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=options.max_connections,
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_PredictionService(self._services), server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(_ModelService(self._services), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        host, port = options.host, options.grpc_port
        shown = f"[{host}]" if ":" in host else host
        try:
            port = server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise UserError(f"--grpc_port={port} of {host} cannot be listened at; is it taken?") from error
        await self.set_ready(False)
        await server.start()
        self.address = f"{shown}:{port}"
        logs.info("listening", grpc=self.address)

    async def set_ready(self, ready: bool) -> None:
        """Sets what the health service says."""
        statuses = health_pb2.HealthCheckResponse
        for service in _SERVICES:
            await self._health.set(service, statuses.SERVING if ready else statuses.NOT_SERVING)

    async def stop(self, seconds: float) -> None:
        """Refuses new requests, and waits for those in flight for at most so many seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(seconds)


class _Services:
    """What both services do with every request."""

    def __init__(self, models: Models, options: Options, metrics: Metrics, access: Access, in_flight: InFlight) -> None:
        self.models, self.options = models, options
        self._metrics, self._access, self._in_flight = metrics, access, in_flight

    async def answer(self, action: str, request: Any, context: Any, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the handler's answer; a RequestError becomes a status of gRPC."""
        start, code = time.monotonic(), grpc.StatusCode.CANCELLED
        name = request.model_spec.name
        model = name if name in self.models else ""
        try:
            with self._in_flight.request():
                try:
                    self._in_flight.add_bytes(request.ByteSize())
                    self._access.check_token(dict(context.invocation_metadata() or ()).get("authorization", ""))
                    answer = await handler()
                finally:
                    self._in_flight.remove_bytes(request.ByteSize())
            code = grpc.StatusCode.OK
            return answer
        except RequestError as refusal:
            code = _CODES.get(refusal.status, grpc.StatusCode.UNKNOWN)
            await context.abort(code, refusal.message)
        except Exception as error:
            code = grpc.StatusCode.INTERNAL
            logs.error("a request failed", error, action=action)
            await context.abort(code, "the server failed; its log has more")
        finally:
            seconds = time.monotonic() - start
            self._metrics.requests.labels(model, action, code.name).inc()
            self._metrics.request_seconds.labels(model, action).observe(seconds)
            logs.info(
                "request",
                grpc=action,
                status=code.name,
                ms=round(1000 * seconds, 2),
                client=context.peer(),
                model=model,
            )

    def find(self, spec: Any) -> tuple[Model, Version]:
        """Returns the model and version that a request names."""
        model = self.models[spec.name]
        number = str(spec.version.value) if spec.HasField("version") else None
        return model, model.find(number, spec.version_label or None)

    async def predict(
        self, spec: Any, read_inputs: Callable[[ServedModel, str], Tensors], kinds: Sequence[str] = ()
    ) -> tuple[Tensors, Any]:
        """Returns the outputs, and what the answer says of the model.

        Args:
            spec: which model, version and signature.
            read_inputs: from the model and the signature's name to its inputs.
            kinds: those that can answer; none for any.
        """
        model, version = self.find(spec)
        with model.in_use(version) as (served_model, batcher):
            name = spec.signature_name or DEFAULT_SIGNATURE
            if name not in served_model.signatures:
                refuse(f"there is no signature {name[:40]!r}; the model has {', '.join(served_model.signatures)}")
            if kinds and (served_model.kind not in kinds or name != DEFAULT_SIGNATURE):
                refuse(f"{model.name} is a model of {served_model.kind}; this wants {' or '.join(kinds)}; use Predict")
            outputs = await batcher.predict(name, read_inputs(served_model, name))
        return outputs, _spec_of(model, version, name)


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, services: _Services) -> None:
        self._services = services

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            read = functools.partial(_inputs_of_tensors, request.inputs, self._services.options)
            outputs, spec = await self._services.predict(request.model_spec, read)
            if unknown := set(request.output_filter) - outputs.keys():
                refuse(f"there is no output {min(unknown)[:40]!r}; the signature has {', '.join(outputs)}")
            response = predict_pb2.PredictResponse(model_spec=spec)
            for name, value in outputs.items():
                if not request.output_filter or name in request.output_filter:
                    dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
                    response.outputs[name].CopyFrom(tf.make_tensor_proto(value, dtype, value.shape))
            return response

        return await self._services.answer("predict", request, context, answer)

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            outputs, spec = await self._of_examples(request, (CLASSIFICATION, MULTI_LABEL))
            response = classification_pb2.ClassificationResponse(model_spec=spec)
            for labels, probabilities in zip(outputs["labels"], outputs["probabilities"], strict=True):
                classes = response.result.classifications.add().classes
                for label, probability in zip(labels, probabilities, strict=True):
                    classes.add(label=label.decode(), score=probability)
            return response

        return await self._services.answer("classify", request, context, answer)

    async def Regress(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            outputs, spec = await self._of_examples(request, (REGRESSION,))
            response = regression_pb2.RegressionResponse(model_spec=spec)
            for value in outputs["value"]:
                response.result.regressions.add(value=value)
            return response

        return await self._services.answer("regress", request, context, answer)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            if list(request.metadata_field) != [_SIGNATURES]:
                refuse(f"metadata_field is {list(request.metadata_field)[:3]}; expected [{_SIGNATURES!r}]")
            model, version = self._services.find(request.model_spec)
            assert version.model
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name, signature in version.model.metadata().items():
                json_format.ParseDict(signature, signatures.signature_def[name])
            response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec_of(model, version))
            response.metadata[_SIGNATURES].Pack(signatures)
            return response

        return await self._services.answer("metadata", request, context, answer)

    async def _of_examples(self, request: Any, kinds: Sequence[str]) -> tuple[Tensors, Any]:
        read = functools.partial(_inputs_of_examples, request.input, self._services.options)
        return await self._services.predict(request.model_spec, read, kinds)


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, services: _Services) -> None:
        self._services = services

    async def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            spec = request.model_spec
            versions = self._services.models[spec.name].versions
            numbers = sorted(versions, reverse=True)
            if spec.HasField("version") or spec.version_label:
                numbers = [self._services.find(spec)[1].number]
            response = get_model_status_pb2.GetModelStatusResponse()
            for number in numbers:
                status = response.model_version_status.add(
                    version=number, state=get_model_status_pb2.ModelVersionStatus.State.Value(versions[number].state)
                )
                if versions[number].error:
                    status.status.error_code, status.status.error_message = 2, versions[number].error  # UNKNOWN
            return response

        return await self._services.answer("status", request, context, answer)


def _spec_of(model: Model, version: Version, signature: str = "") -> Any:
    spec = model_pb2.ModelSpec(name=model.name, signature_name=signature)
    spec.version.value = version.number
    return spec


def _inputs_of_tensors(tensors: Any, options: Options, model: ServedModel, signature_name: str) -> Tensors:
    """Reads the inputs of a signature from TensorProtos by name."""
    signature = model.signatures[signature_name]
    _check_names(tensors, signature)
    inputs = {name: _array(tensors[name], name, signature, options) for name in signature.inputs}
    return _checked(inputs, options, bool(model.export_metadata))


def _array(tensor: Any, name: str, signature: Signature, options: Options) -> Any:
    spec = signature.inputs[name]
    sizes = [dimension.size for dimension in tensor.tensor_shape.dim]
    if tensor.dtype != tf.as_dtype(spec.dtype).as_datatype_enum:
        given = "none" if not tensor.dtype else tf.as_dtype(tensor.dtype).name
        refuse(f"{name} is of type {given}; expected {spec.dtype}")
    if (
        tensor.tensor_shape.unknown_rank
        or min(sizes, default=0) < 0
        or not tf.TensorShape(spec.shape).is_compatible_with(sizes)
    ):
        refuse(f"{name} has shape {sizes[:8]}; expected {list(spec.shape or ())}")
    # A single value may stand for all of them, so that few bytes would become many.
    if math.prod(sizes) > options.max_body_bytes or (sizes and sizes[0] > options.max_instances):
        refuse(f"{name} has shape {sizes}; at most {options.max_instances} instances are taken at once")
    try:
        return tf.make_ndarray(tensor)
    except (ValueError, TypeError) as error:
        raise RequestError(400, f"{name} has shape {sizes}, but other values: {error}") from error


def _inputs_of_examples(examples: Any, options: Options, model: ServedModel, signature_name: str) -> Tensors:
    """Reads the inputs of a signature from the features of tf.train.Examples."""
    signature = model.signatures[signature_name]
    kind = examples.WhichOneof("kind")
    shared: dict[str, Any] = {}
    if kind == "example_list_with_context":
        shared = dict(examples.example_list_with_context.context.features.feature)
    if kind is None or not (rows := getattr(examples, kind).examples):
        refuse("the input has no examples; expected one or more")
    if len(rows) > options.max_instances:
        refuse(f"the request has {len(rows)} examples; at most {options.max_instances} are taken at once")
    columns: dict[str, list[bytes]] = {name: [] for name in signature.inputs}
    for number, row in enumerate(rows):
        features = shared | dict(row.features.feature)
        _check_names(features, signature)
        for name, column in columns.items():
            values = features[name].bytes_list.value
            if len(values) != 1:
                refuse(f"{name} has {len(values)} texts in example {number}; expected one")
            column.append(values[0])
    inputs = {name: np.array([*column, None], object)[:-1] for name, column in columns.items()}
    return _checked(inputs, options, bool(model.export_metadata))


def _checked(inputs: Tensors, options: Options, texts: bool) -> Tensors:
    """Refuses inputs of several numbers of instances, or of none, and texts that are too long or not UTF-8."""
    counts = {name: len(value) for name, value in inputs.items() if value.ndim}
    if len(set(counts.values())) != 1 or not next(iter(counts.values())):
        refuse(f"the inputs have these numbers of instances: {counts}; expected one or more, the same for all")
    for name, value in inputs.items():
        for text in value.flat if value.dtype == object else ():
            check_text(text, f"{name} has a text", texts, options)
    return inputs


def _check_names(values: Any, signature: Signature) -> None:
    expected = ", ".join(signature.inputs)
    for name in signature.inputs:
        if name not in values:
            refuse(f"the input {name} is missing; expected {expected}")
    for name in values:
        if name not in signature.inputs:
            refuse(f"there is no input {name[:40]!r}; expected {expected}")
