import pathlib

from tests.serving.serving_client import running


def test_metrics_count_by_model_and_status(exports: pathlib.Path):
    with running({"size": exports / "size"}) as (_, client):
        client.predict("size", {"instances": ["ab"]})
        client.predict("size", {"instances": [3]})
        client.predict("unknown" * 3, {"instances": ["ab"]})
        text = client.get("/metrics").body.decode()
    assert 'official_bert_requests_total{action="predict",model="size",status="200"} 1.0' in text
    assert 'official_bert_requests_total{action="predict",model="size",status="400"} 1.0' in text
    assert 'official_bert_version{model="size"} 1.0' in text
    assert "unknownunknown" not in text  # names that anyone may send make no series
