"""A local object store with the S3 protocol, and what tests do with it."""

import contextlib
import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def running() -> Iterator["ObjectStore"]:
    """Starts the store and makes this process and its child processes use it as S3."""
    from moto.server import ThreadedMotoServer  # in functions, since only slow tests have these packages

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # no log line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"ENDPOINT_URL": f"http://{host}:{port}", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
            patch.setenv(f"AWS_{name}", value)
        try:
            yield ObjectStore()
        finally:
            server.stop()


class ObjectStore:
    """The running object store."""

    def __init__(self) -> None:
        import boto3

        self._client: Any = boto3.client("s3")

    def bucket(self) -> str:
        """Makes a bucket and returns its address: s3://NAME."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        self._client.create_bucket(Bucket=name)
        return f"s3://{name}"

    def names(self, bucket: str) -> list[str]:
        """Returns the names of all objects in a bucket, without any cache of this process."""
        listed = self._client.list_objects_v2(Bucket=bucket.removeprefix("s3://"))
        return [each["Key"] for each in listed.get("Contents", [])]

    @contextlib.contextmanager
    def before_storing(self, pattern: str, act: Callable[[], object]) -> Iterator[None]:
        """Calls `act` when the first object whose name matches the regular expression arrives, and drops it."""
        from moto.s3.exceptions import S3AccessDeniedError
        from moto.s3.models import S3Backend

        put, arrived = S3Backend.put_object, threading.Event()

        def put_object(backend: Any, bucket_name: str, key_name: str, *arguments: Any, **settings: Any) -> Any:
            if re.fullmatch(pattern, key_name) and not arrived.is_set():
                arrived.set()
                act()
                raise S3AccessDeniedError
            return put(backend, bucket_name, key_name, *arguments, **settings)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(S3Backend, "put_object", put_object)
            yield
            assert arrived.is_set()

    def refuse(self, bucket: str) -> None:
        """Makes a bucket refuse to read or write its objects from now on."""
        name = bucket.removeprefix("s3://")
        resources = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
        statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": resources}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        self._client.put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
