"""Access with and without a token."""

import contextlib
import hmac
import logging
import os
import pathlib

import pytest
from aiohttp.test_utils import make_mocked_request

from official_bert.serving import access, json_api, server
from official_bert.serving.options import TOKEN_VARIABLE, ServingOptions
from tests.make import assert_rejected, write_text
from tests.serving.serving_client import Client, eventually, running

BODY = {"instances": ["ab"]}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(exports: pathlib.Path):
    with running({"size": exports / "size"}, allowed_hosts=["BERT.example.com", "::5"]) as (_, client):
        yield client


def test_requests_to_this_machine_or_an_allowed_host_are_answered(client: Client):
    for host in "LOCALHOST.:8501 127.8.9.1:1 [::1]:8501 bert.example.com:443 Bert.Example.com. [::5]".split():
        assert client.predict("size", BODY, Host=host).status == 200, host
    for host in ("localhost.evil.example:8501", "example.com", "10.0.0.1", "[::2]", "127.0.0.1@evil.x", ""):
        for answer in (client.predict("size", BODY, Host=host), client.get("/v1/models", Host=host)):
            answer.assert_rejected(403, "--allowed_hosts=NAME", "--token_file")
        for path in ("/healthz", "/readyz", "/"):
            assert client.get(path, Host=host).status == 200


def test_cross_origin_and_non_json_requests_are_rejected(client: Client):
    near = f"http://{client.address}.evil.example"
    for origin in ("http://evil.example", "null", "", near, "http://localhost:1", "http://["):
        refused = client.predict("size", BODY, Origin=origin, **JSON)
        refused.assert_rejected(403, repr(origin), "--allowed_hosts=NAME", "--token_file")
    for origin in (client.url, client.url.upper(), "https://bert.example.com", "https://bert.example.com:444"):
        assert client.predict("size", BODY, Origin=origin, **JSON).status == 200
    for host, origin in (("localhost:80", "http://localhost"), ("LocalHost", "https://localhost:443")):
        assert client.predict("size", BODY, Host=host, Origin=origin, **JSON).status == 200
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        refused = client.predict("size", BODY, Origin=client.url, **{"Content-Type": content_type})
        refused.assert_rejected(415, content_type, "application/json")
        assert client.predict("size", BODY, **{"Content-Type": content_type}).status == 200  # curl, for example


def test_allowed_hosts_must_be_plain_host_names():
    for name in ("http://bert.example.com", "bert.example.com:80", "a b", ""):
        assert_rejected(("--allowed_hosts", repr(name)), ServingOptions, model=["a=b"], allowed_hosts=[name])


@pytest.mark.parametrize(("mode", "warned"), [(0o604, True), (0o640, True), (0o600, False)])
def test_a_token_file_that_others_can_read_causes_a_warning(mode, warned, exports, tmp_path, caplog):
    token = write_text(tmp_path / "token", "s3cret")
    os.chmod(token, mode)
    with caplog.at_level(logging.WARNING, "official_bert.serving"):
        server.Server(ServingOptions([f"size={exports / 'size'}"], token_file=token))
    assert ("other users can read the token; prevent it with chmod 600" in caplog.messages) == warned


def test_everything_except_health_checks_and_the_page_needs_the_token(exports: pathlib.Path, tmp_path: pathlib.Path):
    with running({"size": exports / "size"}, token_file=write_text(tmp_path / "token", "s3cret\n")) as (_, client):
        for path in ("/healthz", "/readyz", "/", "/page.js"):
            assert client.get(path).status == 200
        for path in ("/v1/models", "/v1/models/size", "/metrics", "/openapi.json"):
            assert (client.get(path).status, client.get(path).headers["WWW-Authenticate"]) == (401, "Bearer")
            assert client.get(path, Authorization="Bearer s3cret").status == 200
        assert client.get("/openapi.json", Authorization="Bearer s3cret").json["security"] == [{"token": []}]
        for header in ("s3cret", "Bearer s3cret2", "Bearer \xe9"):
            answer = client.predict("size", BODY, Authorization=header)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        headers = {"Host": "bert.example.com", "Origin": "https://other.example", **JSON}  # any name is answered
        assert client.predict("size", BODY, **headers).status == 401
        assert client.predict("size", BODY, Authorization="Bearer s3cret", **headers).status == 200


@pytest.mark.parametrize(("has_token", "status"), [(False, 403), (True, 401)])
def test_public_metrics_need_no_token(has_token: bool, status: int, exports: pathlib.Path, tmp_path, caplog):
    options = {"token_file": write_text(tmp_path / "token", "s3cret")} if has_token else {}
    with running({"size": exports / "size"}, public_metrics=True, host="0.0.0.0", **options) as (_, client):
        assert client.get("/metrics", Host="10.0.0.1:8501").status == 200
        assert client.get("/v1/models", Host="10.0.0.1:8501").status == status
    warning = "other machines may reach this server, which needs no token; see --token_file"
    assert (warning in caplog.messages) == (not has_token)


def test_a_rotated_token_is_read_again(exports: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    path = pathlib.Path(write_text(tmp_path / "token", "first"))
    problem, change = "the token cannot be read again; the last one stays valid", "the token has changed"
    serving = running({"size": exports / "size"}, token_file=str(path))
    with caplog.at_level(logging.INFO, "official_bert.serving"), serving as (_, client):

        def status(token: str) -> int:
            return client.get("/v1/models", Authorization=f"Bearer {token}").status

        assert (status("first"), status("second")) == (200, 401)
        path.write_text("second")
        assert eventually(lambda: status("second") == 200)
        assert status("first") == 401
        path.write_text(" ")
        assert eventually(lambda: problem in caplog.messages)
        path.unlink()
        assert eventually(lambda: caplog.messages.count(problem) == 2)
        assert status("second") == 200
        path.write_text("third")
        assert eventually(lambda: status("third") == 200)
    assert caplog.messages.count(change) == 2


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    compare, compared = hmac.compare_digest, list[tuple[int, int]]()
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or compare(a, b))
    wrong = ("Basic s3cret", "Bearer S3cret", "Bearer s3cre", "Bearer " + "s3cret" * 1000, "")
    for sent in ("Bearer s3cret", "bearer s3cret", *wrong):
        request = make_mocked_request("GET", "/v1/models", {"Authorization": sent})
        with pytest.raises(json_api.RequestError, match="Bearer") if sent in wrong else contextlib.nullcontext():
            access.Access("s3cret", []).check(request)
    assert compared == [(32, 32)] * 7  # every byte is compared, whatever was sent


def test_the_token_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    monkeypatch.setenv(TOKEN_VARIABLE, "abc")
    assert ServingOptions(model=["a=b"]).token() == "abc"
    assert ServingOptions(model=["a=b"], token_file=write_text(tmp_path / "token", "file")).token() == "file"
    for text in ("", " ", "a b", "é"):
        monkeypatch.setenv(TOKEN_VARIABLE, text)
        assert_rejected(TOKEN_VARIABLE, ServingOptions(model=["a=b"]).token)
