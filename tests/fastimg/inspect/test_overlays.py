"""Boxes, points and masks of converted data: in batches from either container, and drawn over pictures."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from fastimg.augment import Policy, apply_boxes, draw
from fastimg.config.commands import Convert, Inspect
from fastimg.convert.pipeline import convert
from fastimg.inspect.images import inspect_data
from fastimg.loaders import CenterCrop, DataError, Loader, open_dataset
from fastimg.loaders.decoders.geometry import crop_boxes
from fastimg.train.reporting import sheets
from fastimg.train.reporting.overlays import Overlays, can_follow

QUIET = Console(quiet=True)
WHOLE = CenterCrop(size=40, resize=40)  # of an image of 80 x 40 pixels, the middle
BOX = [24, 8, 40, 20]  # in it, 4 to 20 from the left


@pytest.fixture(params=["tar", "beton"])
def shards(request, tmp_path):
    """Four grey images of 80 x 40 pixels with a box, its class, a mask of it, and its centre."""
    root = tmp_path / "source"
    root.mkdir()
    mask = np.zeros((40, 80), np.uint8)
    mask[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 3
    Image.fromarray(mask).save(root / "mask.png")
    rows = []
    for number in range(4):
        Image.new("RGB", (80, 40), (100, 100, 100 + number)).save(root / f"{number}.jpg", quality=95)
        fields = {"boxes": [BOX], "names": ["b"], "mask": "mask.png", "centres": [[32, 14]]}
        rows.append({"path": f"{number}.jpg", "label": "ab"[number % 2], **fields})
    (root / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = ("boxes:box", "names:labels@boxes", "mask:mask", "centres:keypoint")
    convert(Convert(src=root / "all.jsonl", dst=tmp_path / "D", field=fields, workers="1", format=request.param), QUIET)
    return tmp_path / "D"


def test_batches_of_shards(shards):
    names = ["boxes", "names", "mask", "centres"]
    with Loader(shards, crop=WHOLE, batch_size=4, order="sequential", fields=names, workers=1) as loader:
        batch = next(iter(loader))
        assert batch.samples == 4 and batch.counts["boxes"].tolist() == [1, 1, 1, 1]
        assert batch.fields["boxes"][0].tolist() == [[4, 8, 20, 20]] and batch.fields["names"].tolist() == [[0]] * 4
        assert batch.fields["centres"][0].tolist() == [[12, 14]]
        assert batch.boxes_of_crop[0].tolist() == [20, 0, 60, 40]
        inside = batch.fields["mask"][0] == 3
        assert inside.sum() == 16 * 12 and inside[8:20, 4:20].all()


def coloured(pixels):
    """Where a picture of a grey image is coloured: rows and columns from, to."""
    spread = pixels.astype(int).max(axis=2) - pixels.min(axis=2)
    rows, columns = np.nonzero(spread > 30)
    return [] if not len(rows) else [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


def test_what_is_drawn_over_a_picture_lies_where_its_boxes_do(shards):
    dataset = open_dataset(shards)
    plain = np.full((20, 40, 3), 100, np.uint8)  # half the size
    for names in (["boxes"], ["mask"], None):
        assert coloured(Overlays.of(dataset, names).over_whole(0, plain, 1 << 20)) == [12, 4, 20, 10]
    assert coloured(Overlays.of(dataset, ["centres"]).over_whole(0, plain, 1 << 20))[0] >= 14
    assert not Overlays.of(dataset, []) and Overlays.of(dataset, None)
    dataset.close()


def test_what_is_drawn_moves_with_augmentation(shards, tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(sheets, "save_sheet", lambda rows, names, side, file, *_: kept.update({file.name: rows}))
    dataset, ids = open_dataset(shards), np.arange(4)
    policy = Policy(hflip=0.5, vflip=0.5, mean=(0.5,) * 3, std=(0.5,) * 3)
    arguments = (dataset, ids, WHOLE, policy, None, 3, 4, 1 << 20)
    assert sheets.draw_augmented(*arguments, tmp_path / "a.png", Overlays.of(dataset, ["boxes"])) == []
    window = WHOLE.window(80, 40, ())
    there, _ = crop_boxes(window, (40, 40), np.array([BOX], np.float32))
    for epoch in range(4):
        moved = apply_boxes(draw(policy, ids, 3, epoch), torch.from_numpy(there).expand(4, 1, 4), None, 40)
        for row in range(4):
            assert coloured(kept["a.png"][row][epoch].pixels) == moved.boxes[row, 0].tolist()
    assert len({str(box) for box in moved.boxes.tolist()}) > 1
    mixed = Policy(mixup=1.0, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert not can_follow(draw(mixed, ids, 0, 0)) and not can_follow(draw(Policy(named="augmix-m3-w3"), ids, 0, 0))
    arguments = (dataset, ids, WHOLE, mixed, None, 3, 1, 1 << 20)
    (remark,) = sheets.draw_augmented(*arguments, tmp_path / "b.png", Overlays.of(dataset, None))
    assert "not drawn over images that are mixed" in remark and coloured(kept["b.png"][0][0].pixels) == []
    dataset.close()


def test_inspect_draws_what_is_asked_for(shards, tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(sheets, "save_sheet", lambda rows, names, side, file, *_: kept.update({file.name: rows}))
    settings = {"data": shards, "output": tmp_path / "p", "no_aug": True, "img_size": 40, "workers": "1"}
    boxes = {}
    for asked in (None, "boxes", "none"):
        inspect_data(Inspect(**settings, draw_fields=asked), QUIET, QUIET)
        boxes[asked] = coloured(kept["augmented.png"][0][0].pixels)
        assert bool(coloured(kept["samples.png"][0][0].pixels)) == bool(boxes[asked])
    assert boxes["boxes"] == boxes[None] != [] and boxes["none"] == []
    with pytest.raises(DataError, match="no boxes, points or masks called 'names'; it has boxes, mask, centres"):
        inspect_data(Inspect(**settings, draw_fields="names"), QUIET, QUIET)


def test_a_mask_that_does_not_fit_is_a_remark(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(sheets, "save_sheet", lambda *_: None)
    dataset, buffer = open_dataset(shards), io.BytesIO()
    Image.new("L", (3, 3)).save(buffer, "PNG")
    monkeypatch.setattr(type(dataset), "read_field", lambda self, name, index: buffer.getvalue())
    (remark,) = sheets.draw_samples(dataset, np.arange(1), 1 << 20, tmp_path / "a.png", Overlays.of(dataset, ["mask"]))
    assert "mask: 3 x 3 pixels; the image has 80 x 40" in remark
    dataset.close()
