import pathlib

import numpy as np
import tensorflow as tf

from official_bert.export import warmup


def test_requests_of_others_to_warm_up_by_are_read(tmp_path: pathlib.Path):
    from tensorflow_serving.apis import prediction_log_pb2

    log = prediction_log_pb2.PredictionLog()
    log.log_metadata.sampling_config.sampling_rate = 0.5  # a number of fixed length, and messages that are not wanted
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.version.value = "m", 300
    request.model_spec.signature_name = "serving_ids"
    request.output_filter.append("logits")
    inputs = {"input_ids": np.arange(300, dtype=np.int32)[None], "texts": np.array([b"a", b"\xff"], object)}
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    plain = prediction_log_pb2.PredictionLog()
    plain.predict_log.request.model_spec.name = "m"
    other = prediction_log_pb2.PredictionLog()
    other.classify_log.request.model_spec.name = "m"
    path = str(tmp_path / "requests")
    with tf.io.TFRecordWriter(path) as writer:
        for each in (log, other, plain):
            writer.write(each.SerializeToString())
    first, second = warmup.read_requests(path)
    assert first[0] == "serving_ids"
    assert first[1].keys() == inputs.keys()
    for name, value in inputs.items():
        np.testing.assert_array_equal(first[1][name], value)
    assert second == ("serving_default", {})
