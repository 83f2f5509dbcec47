"""Tars of other writers: keys with dots, members that are not adjacent, and which member is the image and the label."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError, UserError
from fastimg.loaders import open_dataset
from fastimg.loaders.errors import DataError

from ..conversions import samples, stop_after


@pytest.fixture
def image(encode):
    return lambda seed=0, ext="jpg": encode((9 * seed, 90, 40), (16, 16), seed=seed, kind=FORMATS[ext])


FORMATS = {"jpg": "JPEG", "png": "PNG"}


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def said(src: Path, dst: Path, **flags) -> str:
    """What a conversion says."""
    console = Console(file=io.StringIO(), width=400)
    convert(Convert(src=src, dst=dst, tile="off", workers="1", **flags), console)
    return console.file.getvalue()


def labels(folder: Path, split: str = "train") -> dict[str, str]:
    """The class of each sample by its key."""
    dataset = open_dataset(folder, split)
    found = {
        dataset.sample_key(i): dataset.classes[label] if label >= 0 else "" for i, label in enumerate(dataset.labels)
    }
    dataset.close()
    return found


def kaggle(image) -> list[tuple[str, bytes]]:
    kinds = ("cat", "dog")
    return [(f"{kind}/{kind}.{i}.jpg", image(i)) for kind in kinds for i in range(12) if kinds[i % 2] == kind]


class TestNamesWithDots:
    """The key of a sample is its name up to the first dot, or to the last one."""

    def test_names_of_kaggle(self, tmp_path, image):
        src = write_tar(tmp_path / "in/train.tar", kaggle(image))
        with pytest.raises(DataError, match=r"12 images would be 2 samples.*cat/cat.0.jpg and cat/cat.2.jpg.*key_dots"):
            said(src, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        said(src, tmp_path / "out", key_dots="last", classes="leaf")
        assert labels(tmp_path / "out") == {f"{(k := ('cat', 'dog')[i % 2])}/{k}.{i}": k for i in range(12)}

    @pytest.mark.parametrize(
        "name",
        [
            "cam1.5_{:04}",
            "1.2.840.{}",
            "2024.01.{:02}_a",
            "cam1.front_{}",
            "cam{1}.5m_{0}",
            "view.of {}",
        ],
    )
    def test_other_names(self, name, tmp_path, image):
        keys = [name.format(i, i % 2) for i in range(8)]
        members = [
            (f"{key}.{ext}", data) for i, key in enumerate(keys) for ext, data in (("jpg", image(i)), ("cls", b"1"))
        ]
        src = write_tar(tmp_path / "in/a.tar", sorted(members))
        with pytest.raises(DataError, match="8 images would be"):
            said(src, tmp_path / "out")
        with pytest.raises(DataError, match="8 images would be"):
            open_dataset(src.parent)
        said(src, tmp_path / "out", key_dots="last")
        assert labels(tmp_path / "out") == dict.fromkeys(keys, "1")
        dataset = open_dataset(src.parent, key_dots="last")
        assert len(dataset) == 8 and set(dataset.labels.tolist()) == {1}
        dataset.close()

    def test_views_of_a_sample_are_not_taken_for_samples(self, tmp_path, image):
        members = [(f"{i}.{view}.jpg", image(i)) for i in range(3) for view in ("left", "right", "top")]
        src = write_tar(tmp_path / "in/a.tar", members)
        assert "3 samples with several images: .left.jpg is the image, not .right.jpg, .top.jpg; " in said(
            src, tmp_path / "out"
        )
        assert len(members_of(tmp_path / "out")) == 3

    def test_a_last_tar_of_two_samples_may_have_six_views(self, tmp_path, image):
        members = [(f"{i}.cam{view}.jpg", image(i)) for i in range(2) for view in range(6)]
        assert "2 samples with several images" in said(write_tar(tmp_path / "in/a.tar", members), tmp_path / "out")
        other = [(f"{i}.{'fg'[i]}{frame}.jpg", image(i)) for i in range(2) for frame in range(6)]
        with pytest.raises(DataError, match="12 images would be 2 samples"):
            said(write_tar(tmp_path / "other/a.tar", other), tmp_path / "other-out")

    def test_first_may_be_meant(self, tmp_path, image):
        src = write_tar(tmp_path / "in/a.tar", [(f"a.{i}.jpg", image(i)) for i in range(3)])
        assert "1 sample with several images: .0.jpg is the image" in said(src, tmp_path / "out", key_dots="first")

    def test_a_resume_and_an_append_read_tars_as_before(self, tmp_path, image, monkeypatch):
        src = write_tar(tmp_path / "in/train.tar", kaggle(image))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, 3)
            said(src, tmp_path / "out", key_dots="last", classes="leaf", shard_size="1")
        told = said(src, tmp_path / "out", resume=True, shard_size="1")
        assert "was made with --key-dots last --classes leaf" in told
        assert len(labels(tmp_path / "out")) == 12
        more = write_tar(tmp_path / "more/a.tar", [(f"cat/cat.{i}.jpg", image(i)) for i in range(20, 23)])
        assert "was made with --key-dots last --classes leaf" in said(more, tmp_path / "out", append=True)
        found = labels(tmp_path / "out")
        assert len(found) == 15 and found["cat/cat.22"] == "cat"
        with pytest.raises(UserError, match=r"how tars are read \(--key-dots"):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                stop_after(patch, 3)
                said(src, tmp_path / "other", key_dots="last", shard_size="1")
            said(src, tmp_path / "other", key_dots="first", resume=True, shard_size="1")


def members_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """The members of each sample, by its stem."""
    found: dict[str, dict[str, bytes]] = {}
    for tar in sorted(folder.glob("*.tar")):
        with tarfile.open(tar) as archive:
            for info in archive:
                stem, _, ext = info.name.partition(".")
                found.setdefault(stem, {})[ext] = archive.extractfile(info).read()
    return found


class TestMembersApart:
    """Members of a sample that do not follow one another."""

    @pytest.mark.parametrize("first", ["jpg", "cls"])
    def test_they_are_paired(self, first, tmp_path, image):
        members = [(f"{i}.jpg", image(i)) for i in range(12)] + [(f"{i}.cls", b"%d" % (i % 3)) for i in range(12)]
        src = write_tar(tmp_path / "in/a.tar", sorted(members, key=lambda member: not member[0].endswith(first)))
        assert "the members of 12 samples do not follow one another, and were paired" in said(src, tmp_path / "out")
        assert labels(tmp_path / "out") == {str(i): str(i % 3) for i in range(12)}
        pixels = {note["path"]: data for note, _, _, data in samples(tmp_path / "out").values()}
        assert pixels == {str(i): image(i) for i in range(12)}
        dataset = open_dataset(src.parent)
        assert (
            dataset.labels.tolist() == [i % 3 for i in range(12)] and "of 12 samples do not follow" in dataset.notes[0]
        )
        dataset.close()

    def test_samples_of_one_name_stay_apart(self, tmp_path, image):
        one = [(f"{i}.{ext}", data) for i in range(2) for ext, data in (("jpg", image(i)), ("cls", b"%d" % i))]
        src = write_tar(tmp_path / "in/a.tar", one * 2)
        said(src, tmp_path / "out")
        dataset = open_dataset(tmp_path / "out")
        assert dataset.labels.tolist() == [0, 1, 0, 1]
        dataset.close()

    def test_what_cannot_be_paired_is_refused(self, tmp_path, image):
        members = [("a.jpg", image(0)), ("b.jpg", image(1)), ("a.jpg", image(2)), ("b.cls", b"0"), ("a.cls", b"1")]
        src = write_tar(tmp_path / "in/a.tar", members)
        with pytest.raises(DataError, match=r"the members of a are in 3 places, and \.jpg is in 2 of them"):
            said(src, tmp_path / "out")

    def test_in_other_tars_or_folders(self, tmp_path, image):
        write_tar(tmp_path / "in/train-0.tar", [(f"{i}.jpg", image(i)) for i in range(3)])
        write_tar(tmp_path / "in/train-1.tar", [(f"{i}.cls", b"1") for i in range(3)])
        with pytest.raises(DataError, match="the members of 3 samples, such as 0, are in several tars"):
            said(tmp_path / "in", tmp_path / "out")
        members = [(f"images/{i}.jpg", image(i)) for i in range(3)] + [(f"labels/{i}.cls", b"1") for i in range(3)]
        with pytest.raises(
            DataError, match="3 samples without an image, such as labels/0, are named as images in other"
        ):
            said(write_tar(tmp_path / "two/a.tar", members), tmp_path / "out")


class TestImages:
    """Which of several images is a sample's image."""

    def test_one_is_chosen_for_all_samples_and_named(self, tmp_path, image):
        members = []
        for i in range(4):
            both = [(f"{i}.depth.png", image(i, "png")), (f"{i}.image.jpg", image(i)), (f"{i}.cls", b"0")]
            members += both if i % 2 == 0 else [both[1], both[0], both[2]]
        src = write_tar(tmp_path / "in/a.tar", members)
        told = said(src, tmp_path / "out")
        assert "4 samples with several images: .depth.png is the image, not .image.jpg; --image-member takes" in told
        assert "--key-dots" not in told  # the .cls would be left without an image
        assert all({"depth.png", "image.jpg"} <= found.keys() for found in members_of(tmp_path / "out").values())
        with pytest.raises(DataError, match=r"several images \(depth.png, image.jpg\); make .* with image_member=EXT"):
            open_dataset(src.parent)
        for number, member in enumerate(("image.jpg", ".image", "IMAGE.JPG")):
            out = tmp_path / f"out-{number}"
            assert "several images" not in said(src, out, image_member=member)
            dataset = open_dataset(out)
            assert all(dataset.sample_name(i).split(" ")[1].endswith(".image.jpg") for i in range(4))
            dataset.close()

    def test_a_sample_without_it_is_skipped_and_one_that_nobody_has_refused(self, tmp_path, image):
        members = [(f"{i}.{ext}", image(i)) for i in range(3) for ext in ("jpg", "left.jpg")][:-1]
        src = write_tar(tmp_path / "in/a.tar", members)
        said(src, tmp_path / "out", image_member="left.jpg")
        skipped = json.loads((tmp_path / "out/dataset.json").read_text())["skipped"]
        assert skipped == [{"split": "train", "path": "2", "reason": "a sample without the member .left.jpg"}]
        with pytest.raises(
            DataError, match=r"no sample of .* has it; members seen in samples: .jpg 3, .left.jpg 2; name"
        ):
            said(src, tmp_path / "other", image_member="right.jpg")

    def test_a_plain_extension_goes_first_and_is_named(self, tmp_path, image):
        src = write_tar(tmp_path / "in/a.tar", [("0.depth.png", image(1, "png")), ("0.jpg", image(0)), ("0.cls", b"0")])
        dataset = open_dataset(src.parent)
        assert dataset.notes == [
            f"{src.parent}: 1 sample with several images: .jpg is the image, not .depth.png; convert to choose another"
        ]
        dataset.close()
        assert "1 sample with several images: .jpg is the image, not .depth.png" in said(src, tmp_path / "out")


class TestLabels:
    def test_a_class_that_only_another_split_has_is_named(self, tmp_path, image):
        for split, first in (("train", 0), ("val", 1)):
            members = [x for i in range(3) for x in ((f"{i}.jpg", image(i)), (f"{i}.cls", str(first + i).encode()))]
            write_tar(tmp_path / f"in/{split}-0.tar", members)
        told = said(tmp_path / "in", tmp_path / "out")
        assert "val has 1 class that no sample of train has ('3')" in told

    """Labels from members other than .cls, and from folders."""

    @pytest.mark.parametrize(
        ("ext", "content", "flag"),
        [
            ("json", '{{"caption": "x", "label": {0}}}', "json:label"),
            ("json", '{{"meta": {{"label": "{0}"}}}}', "json:meta.label"),
            ("json", "{0}", "json"),
            ("meta.json", '{{"id": {0}.0}}', ".meta.json:id"),
            *((ext, "{0}\n", ext) for ext in ("txt", "label", "class", "target", "fine.cls")),
        ],
    )
    def test_of_a_member(self, ext, content, flag, tmp_path, image):
        members = [
            (f"{i}.{e}", d) for i in range(4) for e, d in (("jpg", image(i)), (ext, content.format(i % 2).encode()))
        ]
        src = write_tar(tmp_path / "in/a.tar", members)
        told = said(src, tmp_path / "none")
        assert "no labels (no .cls); members seen in samples: .jpg 4" in told and f".{ext}" in told
        if "meta" not in flag and flag != "json":
            assert f"--label-member {flag}" in told
        dataset = open_dataset(src.parent)
        assert f"no labels, which are taken from .cls members: there are jpg, {ext}" in dataset.notes[-1]
        dataset.close()
        said(src, tmp_path / "out", label_member=flag)
        assert labels(tmp_path / "out") == {str(i): str(i % 2) for i in range(4)}
        kept = {"jpg", "cls", "json"} | ({ext} if ext == "meta.json" else set())
        assert all(found.keys() == kept for found in members_of(tmp_path / "out").values())

    @pytest.mark.parametrize(
        ("flag", "message"),
        [
            (
                "json:lable",
                r"no sample of .* has a label there; did you mean label\?; members seen .*keys: label, tags",
            ),
            ("json:tags", r'0.json: the label \["a"\] in its .json is not one class'),
            ("json", "holds an object with the keys label, tags; name one, as in --label-member json:label"),
            ("lbl", "no sample of .* has a label there"),
        ],
    )
    def test_a_member_without_labels_is_refused(self, flag, message, tmp_path, image):
        note = b'{"label": 1, "tags": ["a"]}'
        src = write_tar(tmp_path / "in/a.tar", [("0.jpg", image()), ("0.json", note)])
        with pytest.raises(DataError, match=message):
            said(src, tmp_path / "out", label_member=flag)

    @pytest.mark.parametrize("ext", ["cls", "txt"])
    def test_a_byte_order_mark_is_no_part_of_a_label(self, ext, tmp_path, image):
        texts = [b"cat", b"\xef\xbb\xbfcat\r\n", b"dog"]
        members = [(f"{i}.{e}", data) for i, text in enumerate(texts) for e, data in (("jpg", image(i)), (ext, text))]
        src = write_tar(tmp_path / "in/a.tar", members)
        said(src, tmp_path / "out", label_member=None if ext == "cls" else ext)
        assert labels(tmp_path / "out") == {"0": "cat", "1": "cat", "2": "dog"}

    def test_keys_that_are_hardly_labels_are_not_advised(self, tmp_path, image):
        members = [("0.jpg", image()), ("0.json", b'{"caption": "a cat", "width": 1}')]
        told = said(write_tar(tmp_path / "in/a.tar", members), tmp_path / "out")
        assert "keys: caption, width" in told and "--label-member json" not in told

    def test_captions_are_no_classes(self, tmp_path, image):
        members = [(f"{i}.{e}", d) for i in range(24) for e, d in (("jpg", image()), ("txt", b"photo number %d" % i))]
        src = write_tar(tmp_path / "in/a.tar", members)
        with pytest.raises(DataError, match=r"the labels in txt look like identifiers.* --labels-are-classes"):
            said(src, tmp_path / "out", label_member="txt")
        assert "makes a class of each of 24" in said(src, tmp_path / "out", label_member="txt", labels_are_classes=True)

    @pytest.mark.parametrize("level", ["top", "leaf"])
    @pytest.mark.parametrize("layout", ["{split}/{kind}", "{kind}/{split}", "./root/{split}/{kind}"])
    def test_of_folders_that_may_be_below_splits(self, level, layout, tmp_path, image):
        members = [
            (f"{layout.format(split=split, kind=kind)}/{i}.jpg", image(i))
            for split in ("train", "valid")
            for kind in ("003", "007")
            for i in range(2)
        ]
        src = write_tar(tmp_path / "in/a.tar", members)
        told = said(src, tmp_path / "none")
        assert "folders train, valid, which are not taken as splits" in told and "give --classes leaf" in told
        said(src, tmp_path / "out", classes=level)
        for split, folder in (("train", "train"), ("val", "valid")):
            found = labels(tmp_path / "out", split)
            assert len(found) == 4 and all(f"/{folder}/" in f"/{key}" and name in key for key, name in found.items())

    def test_top_and_leaf(self, tmp_path, image):
        members = [(f"{name}/{i}.jpg", image(i)) for name in ("pets/cat", "pets/dog", "birds/owl") for i in range(2)]
        src = write_tar(tmp_path / "in/a.tar", members)
        said(src, tmp_path / "top", classes="top")
        said(src, tmp_path / "leaf", classes="leaf")
        assert set(labels(tmp_path / "top").values()) == {"pets", "birds"}
        assert labels(tmp_path / "leaf") == {name[:-4]: name.split("/")[1] for name, _ in members}

    @pytest.mark.parametrize("stray", ["0.jpg", "more/0.jpg", "train/0.jpg"])
    @pytest.mark.parametrize("level", ["top", "leaf"])
    def test_splits_that_some_samples_lack_are_neither_mixed_nor_classes(self, level, stray, tmp_path, image):
        members = [(f"{split}/{kind}/{i}.jpg", image(i)) for split in ("train", "val") for kind in "ab" for i in (1, 2)]
        src = write_tar(tmp_path / "in/a.tar", [*members, (stray, image())])
        with pytest.raises(DataError, match=f"folders train, val, which look like splits, and {stray[:-4]} is not in"):
            said(src, tmp_path / "out", classes=level)

    def test_folders_of_splits_beside_labels_are_named_also_where_tars_are_opened(self, tmp_path, image):
        members = [
            (f"{split}/{i}.{ext}", data)
            for split in ("train", "val")
            for i in range(2)
            for ext, data in (("jpg", image(i)), ("cls", b"%d" % i))
        ]
        src = write_tar(tmp_path / "in/a.tar", members)
        for _ in range(2):
            dataset = open_dataset(src.parent)
            assert "folders train, val, which are not taken as splits" in " ".join(dataset.notes)
            dataset.close()
        stray = write_tar(tmp_path / "other/a.tar", [("README.md", b"x"), *members])
        assert "folders train, val, which are not taken as splits" in said(stray, tmp_path / "out")
        for split in ("train", "val"):
            write_tar(tmp_path / f"two/{split}.tar", [each for each in members if each[0].startswith(split)])
        assert "not taken as splits" not in said(tmp_path / "two", tmp_path / "apart")

    def test_labels_that_give_way_to_folders_are_counted(self, tmp_path, image):
        members = [(f"{kind}/{kind}.{ext}", data) for kind in "ab" for ext, data in (("jpg", image()), ("cls", b"7"))]
        src = write_tar(tmp_path / "in/a.tar", members)
        assert "the .cls of 2 samples is left out: --classes leaf" in said(src, tmp_path / "out", classes="leaf")
        assert labels(tmp_path / "out") == {"a/a": "a", "b/b": "b"}

    def test_a_split_of_the_tar_that_its_folders_contradict(self, tmp_path, image):
        for split, folder in (("train", "train"), ("val", "train")):
            write_tar(tmp_path / f"in/{split}-0.tar", [(f"{folder}/{k}/{split}{k}.jpg", image()) for k in "ab"])
        with pytest.raises(DataError, match="is in a tar of val and in a folder of train"):
            said(tmp_path / "in", tmp_path / "out", classes="leaf")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"label_member": "json:a", "classes": "top"}, "both say where labels are"),
        ({"label_member": "txt:a"}, "only .json members have keys; leave out :a"),
        ({"label_member": "json:"}, "give the extension of a member"),
        ({"image_member": " "}, "give the extension of a member"),
        ({"key_dots": "last"}, "--key-dots last has no effect: .* has no tars of other writers"),
    ],
)
def test_flags_that_cannot_be(flags, message, config):
    with pytest.raises(UsageError, match=message):
        convert(replace(config, **flags), Console(quiet=True))
