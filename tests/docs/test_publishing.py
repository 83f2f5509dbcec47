"""What a person needs who builds on fastimg: the licence in full, how to cite it, and what package indexes show."""

import hashlib
import tomllib

import yaml

from .pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of https://www.apache.org/licenses/LICENSE-2.0.txt


def test_the_licence_is_apaches_to_the_byte():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE
    assert PROJECT["license"] == "Apache-2.0" and PROJECT["license-files"] == ["LICENSE"]


def test_the_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_what_an_index_shows():
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    assert versions <= set(PROJECT["classifiers"]) and PROJECT["keywords"]
    assert not any(entry.startswith("License ::") for entry in PROJECT["classifiers"])  # replaced by `license`
