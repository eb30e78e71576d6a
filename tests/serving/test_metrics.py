import pathlib

from tests.serving.serving_client import read_metric, running


def test_metrics_count_by_model_and_status(exports: pathlib.Path):
    with running({name: exports / name for name in ("size", "length")}) as (_, client):
        client.predict("size", {"instances": ["ab"]})
        client.predict("size", {"instances": [3]})
        client.predict("unknown" * 3, {"instances": ["ab"]})
        answers = client.predict("length", {"instances": ["x" * 99, "x" * 101, "x" * 200]}).json["predictions"]
        text = client.get("/metrics").body.decode()
        assert read_metric(client, "official_bert_version", "size") == 1
        assert read_metric(client, "official_bert_texts_cut_total", "length") == 2
    for status in (200, 400):
        assert f'official_bert_requests_total{{action="predict",model="size",status="{status}"}} 1.0' in text
    assert "unknownunknown" not in text  # names sent by clients must not create time series
    assert [answer["is_truncated"] for answer in answers] == [False, True, True]
