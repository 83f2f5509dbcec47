"""Options of an object store as people give them: which are the connection's, and what is said of bad values."""

import pytest

from fastimg.loaders import DataError
from fastimg.loaders.remote.stores import RemoteFolder


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("allow_http", "maybe"), "allow_http: give true or false with storage_options="),
        (("AWS_ALLOW_HTTP", "maybe"), "AWS_ALLOW_HTTP: give true or false with storage_options="),
        (("skip_signature", "perhaps"), "skip_signature: give true or false with storage_options="),
        (("read_timeout", "5"), "read_timeout: give a time with its unit, as in 30s with storage_options="),
        (("pool_idle_timeout", "5"), "pool_idle_timeout: give a time with its unit, as in 30s with storage_options="),
        (("proxy_url", "::me:SECRET@"), "proxy_url is no address; check it, with storage_options="),
        (("nonsense", "1"), "Configuration key: 'nonsense' is not valid for store 'S3'; check the URL and storage_op"),
    ],
)
def test_a_value_that_cannot_be_is_named_at_once(server, option, sentence):
    with pytest.raises(DataError) as refused:
        RemoteFolder("s3://bucket/D", server.options | dict([option]))
    assert str(refused.value).startswith(f"s3://bucket/D: {sentence}") and "SECRET" not in str(refused.value)
    assert server.requests == []


@pytest.mark.parametrize("name", ["allow_http", "ALLOW_HTTP", "aws_allow_http"])
@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_names_in_capitals_and_with_a_prefix(server, name, value):
    options = {"ENDPOINT" if key == "endpoint" else key: each for key, each in server.options.items()}
    assert RemoteFolder("s3://bucket/D", options | {name: value}).look("dataset.json").size


def test_plain_http_that_is_not_allowed(server):
    folder = RemoteFolder("s3://bucket/D", server.options | {"allow_http": "false"})
    with pytest.raises(
        DataError, match=r"^s3://bucket/D/n: its address is http://; give allow_http=true with storage_"
    ):
        folder.read("n")
    assert server.requests == []


def test_a_password_in_the_address_is_not_repeated(monkeypatch, server):
    address = server.endpoint.replace("//", "//me:SECRET@")
    server.faults = [("D/n", "busy")] * 5
    with pytest.raises(DataError, match="tried 5 times") as refused:
        RemoteFolder("s3://bucket/D", server.options | {"endpoint": address}).read("n")
    assert "SECRET" not in str(refused.value)
