"""What an object store refuses, and a bad network: one sentence each, or the same samples."""

import http.server
import os
import re
import shutil
import threading

import pytest

from fastimg.loaders import DataError, Loader, ShardError, open_dataset
from fastimg.loaders.errors import UnavailableError
from fastimg.loaders.remote import fetching, stores
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.client.causes import cause_of, denied
from fastimg.loaders.remote.stores import DeniedError, RemoteFolder
from fastimg.loaders.remote.trees import StoredTree
from fastimg.loaders.runtime.stopping import Cancelled, cancelled_by

from .conftest import PER_SHARD
from .test_remote_batches import SETTINGS, assert_same, batches
from .test_remote_datasets import samples


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "sentence"),
        [
            ("expired", "the credentials have expired; renew them in the environment, and start again with resume=Tr"),
            ("skewed", "the clock of this machine differs too much from that of the store; set it, for example by NTP"),
            ("region", "the bucket is in another region; give its region in AWS_REGION, or as region with storage_op"),
            ("denied", "access denied; give credentials in the environment"),
        ],
    )
    def test_are_one_sentence_at_once(self, opened, server, kind, sentence):
        server.faults = [("dataset.json", kind)]
        with pytest.raises(DataError, match=rf"^s3://bucket/D/dataset.json: {sentence}"):
            opened()
        assert server.faults == [] and server.requests == ["D/dataset.json"]

    @pytest.mark.parametrize(
        ("kind", "sentence"),
        [
            ("expired", "the credentials have expired"),
            ("skewed", "the clock of this machine differs too much"),
            ("region", "the bucket is in another region"),
            ("denied", "access denied; give credentials"),
        ],
    )
    def test_are_explained_where_the_answer_to_head_has_no_body(self, server, kind, sentence):
        remote = RemoteFolder("s3://bucket/D", server.options)
        server.faults = [("train-00000.tar", kind)] * 2
        with pytest.raises(DeniedError, match=rf"^s3://bucket/D/train-00000.tar: {sentence}"):
            remote.look("train-00000.tar")
        assert server.requests == ["D/train-00000.tar"] * 2 and server.heads == ["D/train-00000.tar"]

    def test_credentials_that_expire_in_the_middle(self, opened, server):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        server.faults = [("train-00001.tar", "expired")]
        assert len(samples(dataset, range(PER_SHARD))) == PER_SHARD
        with pytest.raises(DataError, match=r"^s3://bucket/D/train-00001.tar: the credentials have expired; renew"):
            samples(dataset, [PER_SHARD])

    def test_a_bucket_that_vanishes_in_the_middle(self, opened, server, bucket):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        assert len(samples(dataset, range(PER_SHARD))) == PER_SHARD
        server.faults = [("train-00001.tar", "bucket")]
        with pytest.raises(DataError, match=r"^s3://bucket/D/train-00001.tar: no such bucket; check the URL and sto"):
            samples(dataset, [PER_SHARD])

    def test_nobody_answers(self, server, cache_dir):
        options = server.options
        server.close()
        with pytest.raises(DataError, match=r"tried 5 times: nobody answers at this address \(connection refused\); c"):
            open_dataset("s3://bucket/D", cache_dir=cache_dir, storage_options=options)

    def test_a_server_without_tls(self, server, cache_dir):
        options = server.options | {"endpoint": server.endpoint.replace("http:", "https:")}
        with pytest.raises(DataError, match=r"^s3://bucket/D/dataset.json: no secure connection could be made"):
            open_dataset("s3://bucket/D", cache_dir=cache_dir, storage_options=options)

    def test_a_host_without_an_address(self):
        chain = OSError("error sending request")
        chain.__cause__ = OSError("dns error: failed to lookup address information: Name or service not known")
        cause = cause_of(chain)
        assert cause is not None and cause.passes and "its host has no address" in cause.says

    def test_a_certificate_that_nobody_vouches_for(self):
        error = OSError(
            "HTTP error: error sending request\n\nDebug source:\n    error: InvalidCertificate(UnknownIssuer)"
        )
        cause = cause_of(error)
        assert cause is not None and not cause.passes and "its certificate is not accepted" in cause.says

    @pytest.mark.parametrize(
        ("kind", "sentence"),
        [
            ("expired", "the credentials have expired; renew them in the environment"),
            ("region", "the bucket is in another region; give its region in AWS_REGION"),
            ("skewed", "the clock of this machine differs too much from that of the store"),
            ("denied", "access denied; give credentials in the environment"),
        ],
    )
    def test_an_answer_without_a_body_is_explained(self, server, kind, sentence):
        server.faults = [("D/train-00000.tar", kind)] * 2
        with pytest.raises(DeniedError, match=rf"^s3://bucket/D/train-00000.tar: {sentence}"):
            RemoteFolder("s3://bucket/D", server.options).look("train-00000.tar")
        assert server.requests == ["D/train-00000.tar"] * 2  # HEAD, and GET of a byte

    def test_a_refusal_of_head_alone_stays_one(self, server):
        server.faults = [("D/train-00000.tar", "denied")]
        with pytest.raises(DeniedError, match="access denied"):
            RemoteFolder("s3://bucket/D", server.options).look("train-00000.tar")

    @pytest.mark.parametrize("key", ["D/a//b.jpg", "D/a/../b.jpg", "D/./b.jpg"])
    def test_a_key_that_cannot_be_a_path_is_named(self, server, monkeypatch, tmp_path, key):
        entry = (
            f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"
        )
        answer = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>".encode()
        monkeypatch.setattr(server, "_listing", lambda _: answer)
        for call in (
            RemoteFolder("s3://bucket/D", server.options).contents,
            lambda: StoredTree("s3://bucket/D", server.options, tmp_path / "listings"),
        ):
            server.requests.clear()
            with pytest.raises(
                DataError, match=rf"^s3://bucket/D/: the key {re.escape(repr(key))} cannot be the path of"
            ):
                call()
            assert len(server.requests) == 1

    @pytest.mark.parametrize(
        ("scheme", "names"),
        [
            ("s3", "(as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"),
            ("gs", "(as GOOGLE_APPLICATION_CREDENTIALS)"),
            ("az", "(as AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY)"),
        ],
    )
    def test_credentials_are_those_of_the_scheme(self, scheme, names):
        cause = cause_of(OSError("GET http://169.254.169.254/token: timed out"), scheme)
        assert cause is not None and cause.passes and names in cause.says and names in denied(scheme)
        assert "AWS" not in denied("https")


class WholeFiles(http.server.SimpleHTTPRequestHandler):
    """As `python -m http.server` serves a folder: no part of a file, and a page for a folder."""

    asked: list[str]

    def log_message(self, *_):
        if self.command == "GET":
            self.asked.append(self.headers["Range"])


class TestServersOfWholeFiles:
    @pytest.fixture
    def remote(self, tmp_path, monkeypatch):
        monkeypatch.setattr(WholeFiles, "asked", [], raising=False)
        content = bytes(range(256)) * 40
        (tmp_path / "a.tar").write_bytes(content)
        (tmp_path / "page").mkdir()
        (tmp_path / "page/index.html").write_text("<html>Log in</html>")
        serve = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *each: WholeFiles(*each, directory=str(tmp_path))
        )
        thread = threading.Thread(target=serve.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield RemoteFolder(f"http://127.0.0.1:{serve.server_port}", {"allow_http": "true"}), content
        serve.shutdown()
        serve.server_close()
        thread.join()

    def test_parts_are_taken_of_the_whole_file(self, remote):
        folder, content = remote
        tag = folder.look("a.tar").tag
        assert folder.read_range("a.tar", 5000, 5100) == content[5000:5100]
        assert folder.read_range("a.tar", 0, len(content), tag) == content
        pieces = []
        folder.receive("a.tar", 300, 9000, tag, lambda: lambda piece: pieces.append(bytes(piece)))
        assert b"".join(pieces) == content[300:9000]
        assert WholeFiles.asked == ["bytes=5000-5099", None, None, None]

    def test_a_large_file_is_refused_at_once(self, remote, monkeypatch):
        monkeypatch.setattr(stores, "_MOST_WHOLE", 10_000)
        with pytest.raises(
            UnavailableError, match=r"a.tar: the server sends no parts .* has 10,240 bytes; up to 10,000"
        ):
            remote[0].read_range("a.tar", 0, 100)
        assert len(WholeFiles.asked) == 2

    def test_a_short_file_is_refused_at_once(self, remote):
        with pytest.raises(ShardError, match=r"a.tar: has 10,240 bytes where 20,000 are stated"):
            remote[0].receive("a.tar", 10, 20_000, "", lambda: bytes)
        assert len(WholeFiles.asked) == 2

    @pytest.mark.parametrize(
        "read", [lambda folder: folder.read("page/"), lambda folder: folder.read_range("page/", 0, 3)]
    )
    def test_a_page_instead_of_a_file_is_named_at_once(self, remote, read):
        with pytest.raises(UnavailableError, match=r"page/: the server answers with a web page \(text/html\) instead"):
            read(remote[0])
        assert len(WholeFiles.asked) <= 4


class TestBadNetworks:
    def test_one_request_in_a_hundred_of_each_kind_fails(self, server, bucket, cache_dir, monkeypatch):
        monkeypatch.setattr(fetching, "RANGE", 2000)  # many requests
        server.rates = dict.fromkeys(("busy", "cut", "flip"), 0.01)
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        here = Loader(bucket / "D", order="sequential", block="shard", **SETTINGS)
        want = batches(here)
        for number in range(6):
            there = Loader("s3://bucket/D", order="sequential", **options, **SETTINGS)
            assert_same(batches(there), want)
            if number < 5:
                shutil.rmtree(cache_dir)
        assert set(server.met) == {"busy", "cut", "flip"}

    def test_latencies_of_a_second(self, server, bucket, opened):
        dataset = opened()  # its index has been made
        shutil.rmtree(dataset.files()[0].parent)
        server.latency = 1.0
        assert samples(dataset, [0]) == samples(open_dataset(bucket / "D"), [0])

    def test_times_of_local_files_do_not_matter(self, opened, server, bucket, cache_dir):
        dataset = opened()
        want = samples(dataset)
        for file in [*(bucket / "D").iterdir(), *cache_dir.glob("D-*/train.fidx")]:  # written tomorrow
            os.utime(file, (4e9, 4e9))
        server.requests.clear()
        assert samples(opened()) == want and server.requests == ["D/dataset.json"]


class TestPauses:
    def test_end_when_nobody_needs_the_file_any_more(self, server, monkeypatch):
        monkeypatch.setattr(stores, "PAUSE", 3600.0)
        remote = RemoteFolder("s3://bucket/D", server.options)
        server.faults = [("train-00000.tar", "busy")]
        with pytest.raises(Cancelled), cancelled_by(lambda: not server.faults):
            remote.read_range("train-00000.tar", 0, 10)

    def test_of_threads_that_fetch_ranges_end_with_the_first_that_fails(self, server, bucket, monkeypatch, tmp_path):
        monkeypatch.setattr(stores, "PAUSE", 3600.0)
        monkeypatch.setattr(fetching, "RANGE", 1000)
        server.faults = [("train-00000.tar", "busy")] * 3 + [("train-00000.tar", "denied")]
        remote = RemoteFolder("s3://bucket/D", server.options)
        wanted = WantedFile("train-00000.tar", (bucket / "D/train-00000.tar").stat().st_size, "")
        with (tmp_path / "x").open("w+b") as file, pytest.raises(DeniedError):
            fetching.Fetching(remote).fetch(wanted, file.fileno())


class TestReplacedTars:
    def test_are_named(self, opened, bucket, images, server):
        (bucket / "D/dataset.json").unlink()
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        shutil.copy(bucket / "D/train-00000.tar", bucket / "D/train-00001.tar")
        assert len(samples(dataset, range(PER_SHARD))) == PER_SHARD
        with pytest.raises(ShardError, match=r"^s3://bucket/D/train-00001.tar: was replaced in the store while it was"):
            samples(dataset, [PER_SHARD])

    @pytest.mark.parametrize("size", [2000, 1 << 20], ids=["in ranges", "at once"])
    def test_by_shorter_ones_are_named(self, opened, bucket, monkeypatch, size):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        monkeypatch.setattr(fetching, "RANGE", size)
        shard = bucket / "D/train-00001.tar"
        shard.write_bytes(shard.read_bytes()[:3000])
        with pytest.raises(
            DataError, match=r"train-00001.tar: tried \d times: it is shorter than was stated: it was re"
        ):
            samples(dataset, [PER_SHARD])
