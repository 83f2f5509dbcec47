"""URLs as arguments of every command: unknown schemes and secrets are refused before anything is done."""

import re
from dataclasses import MISSING
from pathlib import Path
from typing import get_args

import pytest
import yaml

import fastimg
from fastimg.cli import _COMMANDS
from fastimg.config.commands import Train
from fastimg.config.flag_types import Flag, command_flags, options
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import refuse
from fastimg.errors import UsageError
from fastimg.publish.model_card import public_settings

KNOWN = re.compile(r"give one of s3://, gs://, az://, http://, https://( or|,) file://( or hf://)?, or the whole path")
UNKNOWN = ("s3a://bucket/D", "abfs://container/D", "s3:bucket/D", "hub://me/D", "ftp://host/D")
SECRETS = (
    "https://me:SECRET@host/photos.csv",
    "https://me:SE/SECRET@host/photos.csv",
    "https://host/photos.csv?X-Amz-Signature=SECRET",
    "https://me:SECRET@host/train-{00..01}.tar",
    "S3://AKIA:SECRET/C+@bucket/D",
    "s3://bucket/D?sig=SECRET",
    "http://me:SECRET@host/D.beton",
)


def _takes_paths(flag: Flag) -> bool:
    kinds = options(flag.hint)
    return (flag.field == "resume" and str in kinds) or any(Path in (kind, *get_args(kind)) for kind in kinds)


ARGUMENTS = [
    pytest.param(command, flag, id=f"{command}-{flag.field}")
    for command, kind in _COMMANDS.items()
    for flag in command_flags(kind)
    if _takes_paths(flag)
]

HERE = [param for param in ARGUMENTS if param.values[1].field in ("cache_dir", "scratch")]


def _arguments(command: str, flag: Flag, value: str) -> list[str]:
    """The shortest command line on which an argument has this value."""
    words = [command]
    for each in command_flags(_COMMANDS[command]):
        if not each.names and (each.default is MISSING or each == flag):
            choice = get_args(each.hint)[0] if each.choices else "D"
            words.append(value if each == flag else choice)
    return [*words, flag.names[0], value] if flag.names else words


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_the_arguments_are_all_commands():
    tested = {param.values[0] for param in ARGUMENTS}
    assert tested == set(_COMMANDS) - {"recipe", "cluster"}
    assert len(ARGUMENTS) > 40


@pytest.mark.parametrize(("command", "flag"), ARGUMENTS)
def test_an_unknown_scheme_is_a_usage_error(cli, nowhere, command, flag):
    for url in UNKNOWN:
        ran = cli(*_arguments(command, flag, url))
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"fastimg: error: {url}: ") and KNOWN.search(ran.err)
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(("command", "flag"), ARGUMENTS)
def test_a_secret_is_refused_and_not_repeated(cli, nowhere, command, flag):
    for url in SECRETS:
        ran = cli(*_arguments(command, flag, url))
        assert ran.code == 2 and "not belong in a URL" in ran.err
        assert "SECRET" not in ran.out + ran.err
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(("command", "flag"), HERE)
def test_what_is_here_alone_is_no_url(cli, nowhere, command, flag):
    for url in ("s3://bucket/D", "file:///D"):
        ran = cli(*_arguments(command, flag, url))
        assert ran.code == 2 and f"{flag.names[0]} {url}: is on this machine alone; give a path here" in ran.err
    assert list(nowhere.iterdir()) == []


def test_words_that_are_too_many_hold_no_secret(cli):
    for words in (("verify", "D", SECRETS[0]), (SECRETS[0],), ("train", "D", "--epochs", SECRETS[2])):
        ran = cli(*words)
        assert ran.code == 2 and "SECRET" not in ran.err


def test_the_hub_is_a_source_alone(cli, nowhere):
    for words in (("photos", "hf://datasets/me/D"), ("--merge", "photos", "photos", "hf://datasets/me/D")):
        ran = cli("convert", *words)
        assert ran.code == 2 and "hf://datasets/me/D: URLs of hf are not known here" in ran.err
    ran = cli("convert", "hf://D", "E")
    assert ran.code == 2 and "hf://D: give hf://datasets/USER/NAME" in ran.err
    ran = cli("convert", "s3a://b/D", "E")
    assert ran.code == 2 and "https://, file:// or hf://, or" in ran.err
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize("url", ["s3a://bucket/D", "https://me:SECRET@host/D"])
def test_files_and_python_and_search(cli, nowhere, url):
    (nowhere / "D").mkdir()
    (nowhere / "c.yaml").write_text(yaml.safe_dump({"data": url}))
    for words in (("train", "--config", "c.yaml"), ("search", "D", "--trials", "1", "--", "--weights", url)):
        ran = cli(*words)
        assert ran.code == 2 and "SECRET" not in ran.err + ran.out
    for call in (
        lambda: fastimg.train(url),
        lambda: fastimg.train("D", output=url),
        lambda: fastimg.convert(url, "E"),
        lambda: fastimg.convert("D", url),
        lambda: fastimg.predict(url, ["a.jpg"]),
        lambda: fastimg.predict("runs/a", url),
    ):
        with pytest.raises(UsageError) as refused:
            call()
        assert "SECRET" not in str(refused.value)
    assert sorted(path.name for path in nowhere.iterdir()) == ["D", "c.yaml"]


WORDS = {
    **{command: ["s3://b/D"] for command in ("train", "verify", "inspect", "bench", "suggest")},
    "eval": ["runs/a", "s3://b/D"],
    "predict": ["runs/a", "s3://b/D"],
    "embed": ["s3://b/D", "E"],
    "convert": ["s3://b/F", "D"],
}


@pytest.mark.parametrize("command", WORDS)
def test_options_with_secrets_are_refused_and_not_repeated(cli, nowhere, command):
    (nowhere / "runs/a").mkdir(parents=True)
    for option in (
        "AWS_SECRET_ACCESS_KEY=VALUE",
        "Secret_Access_Key=VALUE",
        "SSE_CUSTOMER_KEY_BASE64=VALUE",
        "endpoint=http://me:VALUE@host",
        "endpoint=https://host?sig=VALUE",
        "proxy_url=http://me:VALUE@proxy",
        "secret_access_key:VALUE",
        "=VALUE",
    ):
        ran = cli(command, *WORDS[command], "--storage-option", "region=x", option)
        assert ran.code == 2 and "--storage-option" in ran.err and "VALUE" not in ran.err.replace("NAME=VALUE", "")
    assert [path.name for path in nowhere.iterdir()] == ["runs"]


def test_options_are_checked_before_a_run_is_fetched(cli, nowhere):
    for option in ("region", "secret_access_key=VALUE"):
        ran = cli("train", "--resume", "s3://b/r", "--storage-option", option)
        assert ran.code == 2 and "--storage-option" in ran.err and "VALUE" not in ran.err.replace("NAME=VALUE", "")
    with pytest.raises(UsageError, match="--storage-option: give NAME=VALUE"):
        fastimg.train("s3://b/D", storage_option=["region"])
    assert list(nowhere.iterdir()) == []


def test_a_published_run_does_not_say_how_its_store_was_reached(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("data: s3://bucket/D\nepochs: 2\nstorage_option: [endpoint=http://minio.internal:9000]\n")
    assert public_settings(config) == {"data": "D", "epochs": 2}


@pytest.mark.parametrize("name", ["a/b", "a?b", "50%", ".."])
def test_a_run_in_a_store_has_a_plain_name(name):
    config = Train(data=Path("D"), output=Path("s3://bucket/runs"), name=name)
    with pytest.raises(UsageError, match=r"a run in an object store has a name without /, \? and %"):
        refuse(config, TRAIN)
    refuse(Train(data=Path("D"), output=Path("s3://bucket/runs"), name="x #1"), TRAIN)
