"""The web service of docs/serve.md, with the real FastAPI: its answers are those of `fastimg predict`."""

import fastapi
import numpy as np
from PIL import Image
from starlette.testclient import TestClient

import fastimg
from fastimg.predict.exporting import graph, interface
from fastimg.train.checkpoints.format import find, load_model

from ..docs.pages import ROOT, blocks_of


def test_the_service_answers_as_predict_does(tmp_path, image_folder, monkeypatch):
    result = fastimg.train(image_folder, arch="test_resnet", img_size=32, epochs=1, amp=False, output=tmp_path / "runs")
    model, card = load_model(result.run)
    graph.write("onnx", tmp_path / "model.onnx", find(result.run), interface.of(model, card))
    (code,) = (block.text for block in blocks_of(ROOT / "docs/serve.md") if block.language == "python")
    assert len([line for line in code.splitlines() if line]) <= 30
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "serve.py", "exec"), names)
    assert isinstance(names["app"], fastapi.FastAPI)
    client = TestClient(names["app"])

    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(image_folder / "red/000.jpg").save(turned, exif=exif)
    for file in (image_folder / "red/000.jpg", image_folder / "blue/003.png", turned):
        answered = client.post("/predict", content=file.read_bytes())
        (expected,) = fastimg.predict(result.checkpoint, file, topk=3)
        assert answered.status_code == 200 and set(answered.json()) == set(expected.classes)
        shares = [answered.json()[name] for name in expected.classes]
        np.testing.assert_allclose(
            shares, expected.probabilities, atol=0.02
        )  # Pillow's pixels differ by up to 2 of 255
    assert client.post("/predict", content=b"no image").status_code == 400
