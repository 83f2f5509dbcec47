"""The public interface of the two packages."""

from importlib import resources

import fastimg.augment
import fastimg.loaders


def test_the_loaders_names():
    assert fastimg.loaders.__all__ == [
        *("Batch", "BatchSource", "Batches", "CenterCrop", "Crop", "DataError", "Dataset", "Decoder", "FFCVLoader"),
        *("Field", "FieldSelection", "FieldsDecoder", "FilesDataset"),
        *(
            "ImageDecoder",
            "ImageError",
            "ImageFolderLoader",
            "Letterbox",
            "Loader",
            "LoaderConfig",
            "LongestSide",
            "RandomCrop",
            "RandomResizedCrop",
        ),
        *("Sampling", "ShardError", "UnavailableError", "View", "ViewDecoder", "WorkerError"),
        *("create_loader", "list_splits", "open_dataset", "ray_dataset"),
    ]


def test_the_augment_names():
    assert fastimg.augment.__all__ == [
        *("MovedBoxes", "Plan", "Policy"),
        *("apply", "apply_boxes", "apply_keypoints", "apply_masks", "draw", "mix", "operation"),
    ]


def test_every_name_exists():
    for package in (fastimg.loaders, fastimg.augment):
        assert all(hasattr(package, name) for name in package.__all__)


def test_type_checkers_read_the_annotations():
    """PEP 561: without the marker, type checkers ignore an installed package."""
    assert (resources.files("fastimg") / "py.typed").is_file()


def test_errors_are_caught_as_data_errors():
    """A caller that catches DataError gets errors of shards and images; an internal error is not a DataError."""
    loaders = fastimg.loaders
    assert issubclass(loaders.ShardError, loaders.DataError) and issubclass(loaders.ImageError, loaders.DataError)
    assert not issubclass(loaders.WorkerError, loaders.DataError)
