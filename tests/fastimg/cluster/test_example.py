"""What `fastimg cluster example` prints."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def example(cli):
    ran = cli("cluster", "example")
    assert ran.code == 0, ran.err
    return ran.out


def test_the_file_names_its_nodes(example):
    read = yaml.safe_load(example)
    assert read["head_node_type"] in read["available_node_types"]
    assert any("fastimg[ray" in command for command in read["setup_commands"])
    assert all("#" in line for line in example.splitlines() if "0123456789" in line or "FILE-SYSTEM" in line)


def test_ray_accepts_the_file(example):
    if find_spec("ray") is None or find_spec("jsonschema") is None:
        pytest.skip("Ray or jsonschema is not installed: CONTRIBUTING has the command")
    import jsonschema
    import ray

    read = yaml.safe_load(example)
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(read, schema)
    known = schema["properties"]["available_node_types"]["patternProperties"][".*"]["properties"]
    assert all(set(node) <= set(known) for node in read["available_node_types"].values())
