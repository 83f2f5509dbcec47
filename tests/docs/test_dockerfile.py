"""scripts/check parses the Dockerfile, and finds what docker would refuse."""

import importlib.util

import pytest

from .pages import ROOT

spec = importlib.util.spec_from_file_location("dockerfile", ROOT / "scripts/dockerfile.py")
dockerfile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dockerfile)
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_it_can_be_built_as_far_as_can_be_told():
    assert list(dockerfile.faults(TEXT, ROOT)) == []
    assert "dockerfile.py" in (ROOT / "scripts/check").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("theirs", "ours", "fault"),
    [
        ("FROM nvidia/cuda:13.0.1-base-ubuntu24.04", "FROM nvidia/cuda", "name an image with its tag"),
        ("COPY . .", "COPY nothing .", "COPY: nothing does not exist"),
        ("COPY . .", "COPPY . .", "COPPY: no such instruction"),
        ("--extra tune", "--extra tunes", "RUN: no extra tunes"),
        ('"doctor"]', '"doctor"', "not a list in JSON"),
        ("update && \\", "update && ( \\", "RUN: bash"),
    ],
)
def test_what_is_wrong_is_found(theirs, ours, fault):
    assert theirs in TEXT
    (found,) = dockerfile.faults(TEXT.replace(theirs, ours), ROOT)
    assert fault in found
