"""Writes the texts of web archives (WET) or of TFRecord files of tf.train.Examples as JSON lines.

python texts_to_json_lines.py OUTPUT.jsonl INPUT.warc.wet.gz ... INPUT.tfrecord ...
"""

import gzip
import json
import sys

import tensorflow as tf


def read_wet(path):
    with gzip.open(path) as file:
        while file.readline().startswith(b"WARC/"):
            fields = dict(line.strip().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
            content = file.read(int(fields[b"Content-Length"]) + 4)[:-4]
            if fields[b"WARC-Type"] == b"conversion":
                yield content


def read_tfrecord(path, feature="text"):
    for record in tf.data.TFRecordDataset(path):
        yield tf.train.Example.FromString(record.numpy()).features.feature[feature].bytes_list.value[0]


with open(sys.argv[1], "w", encoding="utf-8") as output:
    for path in sys.argv[2:]:
        for text in read_wet(path) if path.endswith(".wet.gz") else read_tfrecord(path):
            output.write(json.dumps({"text": text.decode("utf-8", "replace")}) + "\n")
