import pathlib

from tests.serving import served_models
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
    assert "unknownunknown" not in text  # names sent by clients must not create time series


def test_texts_that_were_cut_are_counted(tmp_path: pathlib.Path):
    served_models.classifier(tmp_path / "length")
    with running({"length": tmp_path / "length"}) as (_, client):
        answers = client.predict("length", {"instances": ["x" * 99, "x" * 101, "x" * 200]}).json["predictions"]
        text = client.get("/metrics").body.decode()
    assert [answer["is_truncated"] for answer in answers] == [False, True, True]
    assert 'official_bert_texts_cut_total{model="length"} 2.0' in text
