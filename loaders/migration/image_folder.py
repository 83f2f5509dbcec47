"""What a script has of `DataLoader(ImageFolder(root, transform), ...)`, from this package's loader."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Batch
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.loaders.folders.walk import relative
from fastimg.loaders.loader import Loader
from fastimg.loaders.random import uniforms

from .steps import augmentation
from .transforms import translated

# torchvision's, in its order
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_FLIP_STAGE = 0x1F


class ImageFolderLoader:
    """The batches of a script that has torchvision's ImageFolder and torch's DataLoader, with two lines changed.

        from fastimg.loaders import ImageFolderLoader  # was: from torch.utils.data import DataLoader
        dataset = datasets.ImageFolder("photos/train", transform)
        loader = ImageFolderLoader(dataset, batch_size=256, shuffle=True, num_workers=8)  # was: DataLoader(...)
        for images, targets in loader:
            ...

    Classes, files, their order and targets are torchvision's. Images are float32 [B, 3, H, W], scaled and normalised as
    the transform says, or uint8 where it has neither ToTensor nor ToDtype; targets are int64 [B]. Batches stay valid.

    data: an ImageFolder, whose transform is used; a Subset of one; or a folder with one subfolder per class.
    transform: of torchvision, for a folder: a Compose or a list of RandomResizedCrop, or Resize(side) and CenterCrop,
        or Resize((height, width)); RandomHorizontalFlip, RandomVerticalFlip, TrivialAugmentWide, RandAugment,
        AutoAugment, ColorJitter, RandomGrayscale; ToTensor, Normalize, RandomErasing; and of v2 ToImage and ToDtype.
        Augmentation has torchvision's distribution, but that ColorJitter changes brightness, contrast, saturation and
        hue in this order instead of a random one.
    batch_size, shuffle, drop_last: as of a DataLoader. Every epoch is shuffled anew, by `seed`.
    num_workers: number of threads, which take the place of processes; 0 is one, None one for each core available to
        this process. There is nothing to pin, to keep alive or to seed: `pin_memory`, `persistent_workers`,
        `prefetch_factor`, `worker_init_fn` and the like are ignored, with one warning.
    device: where batches are handed out: "cpu", "cuda" or "cuda:N", to which uint8 is copied.
    on_error: "fail" raises DataError for a file that cannot be decoded; "skip" leaves it out of its batch, or a batch
        that has no other file, and lists it in `loader.unreadable`, but needs a single process.
    state_dict(), load_state_dict(): as of torchdata's StatefulDataLoader, to continue within an epoch.
    rank, world_size: in place of a DistributedSampler: this process's share of every batch. All processes have equally
        many full batches: samples of the last one may be repeated.

    It differs from torchvision where that reads what nobody meant: an EXIF orientation is applied, and an image resized
    as torch does it, within 1 of 255 of Pillow's values where both were compared. Crops and flips are functions of the
    seed, the epoch and the file, not of a global random state.

    Raises ValueError for a transform that it cannot take over, which is named, DataError for a folder without classes
    or images, and TypeError for arguments that contradict each other.
    """

    def __init__(
        self,
        data: Any,
        transform: Any = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int | None = None,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        seed: int = 0,
        on_error: Literal["skip", "fail"] = "fail",
        rank: int = 0,
        world_size: int = 1,
        **others: Any,
    ) -> None:
        _check_others(others)
        if on_error == "skip" and world_size > 1:
            raise TypeError('ImageFolderLoader: on_error="skip" would make batches of unequal size; give "fail"')
        indices: npt.NDArray[np.int64] | None = None
        if hasattr(data, "dataset") and hasattr(data, "indices"):  # a Subset
            data, indices = data.dataset, np.asarray(data.indices, np.int64)
        if isinstance(data, str | os.PathLike):
            root = Path(data).expanduser()
            self.classes, samples = list_samples(root)
        else:
            root, samples, transform = _of_dataset(data, transform)
            self.classes = list(data.classes)
        if transform is None:
            raise TypeError(
                "ImageFolderLoader: give the transform, such as Compose([RandomResizedCrop(224), ToTensor()])"
            )
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = samples
        self.drop_last = drop_last
        self._transform = translated(transform)
        targets = [target for _, target in samples]
        self.dataset = FilesDataset(root, [relative(path, root) for path, _ in samples], tuple(self.classes), targets)
        config = LoaderConfig(
            batch_size=batch_size,
            order="random" if shuffle else "sequential",
            padding="samples",
            seed=seed,
            workers=None if num_workers is None else max(1, num_workers),
            on_error=on_error,
            rank=rank,
            world_size=world_size,
        )
        self._loader = Loader(self.dataset, ImageDecoder(self._transform.crop), config, device, indices)
        self._normalisation: torch.Tensor | None = None  # [2, C, 1, 1], mean and standard deviation
        if self._transform.mean is not None:
            values = torch.tensor([self._transform.mean, self._transform.std])
            self._normalisation = values.to(self._loader.device)[:, :, None, None]
        self._samples = len(samples) if indices is None else len(indices)
        self._start = 0  # in the order of the next iteration: where a state continues

    @property
    def targets(self) -> list[int]:
        """The class of each sample."""
        return [target for _, target in self.samples]

    @property
    def unreadable(self) -> dict[str, str]:
        """Path -> reason, for every file that was left out so far."""
        return {self.dataset.sample_name(index): reason for index, reason in self._loader.unreadable.items()}

    def __len__(self) -> int:
        return self._whole(0) if self.drop_last else len(self._loader)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        start, self._start = self._start, 0
        most = self._whole(start) if self.drop_last else len(self._loader)
        for number, batch in enumerate(self._loader):
            if number < most and (batch.samples or self._loader.config.world_size > 1):
                yield self._of(batch)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch's order, crops and flips, as a DistributedSampler's. By default
        epochs count up from 0."""
        self._loader.set_epoch(epoch)
        self._start = 0

    def state_dict(self) -> dict[str, int | str]:
        """The position after the last batch, for any batch size and number of threads or processes."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the next iteration where `state` was taken.

        Raises ValueError for another seed or order, and DataError for other files.
        """
        self._loader.load_state_dict(state)
        self._start = int(state["position"]) % self._samples  # at the end of an epoch the next one follows

    def close(self) -> None:
        """Stop the threads. Iterating starts new ones."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole(self, start: int) -> int:
        """The number of full batches in an epoch from position `start` on."""
        config = self._loader.config
        return (self._samples - start) // (config.batch_size * config.world_size)

    def _of(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and targets in memory of their own."""
        transform, config = self._transform, self._loader.config
        images, targets, ids = batch.inputs, batch.targets.clone(), batch.ids
        if batch.samples < len(ids) and config.world_size == 1:
            kept = batch.weight > 0  # neither padding nor left out
            images, targets, ids = images[kept], targets[kept], ids[kept.cpu()]
        if transform.flip:
            drawn = uniforms(config.seed, self._loader.epoch, ids.numpy(), _FLIP_STAGE, 1) < transform.flip  # [B, 1]
            flipped = torch.from_numpy(drawn).to(images.device, non_blocking=True)[:, :, None, None]
            images = torch.where(flipped, images.flip(3), images)
        draws = ids.numpy(), config.seed, self._loader.epoch  # what random numbers are functions of
        if transform.policies:
            images = augmentation().augmented(images, transform.policies, *draws)
        if not transform.scaled:
            return images.clone(memory_format=torch.contiguous_format), targets
        if transform.erasing is not None:
            return augmentation().erased(images, transform.erasing, *draws), targets
        images = images.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        if self._normalisation is not None:
            mean, std = self._normalisation
            images.sub_(mean).div_(std)
        return images, targets


# Arguments of a DataLoader about processes and pinned memory, which this loader does not have.
_WITHOUT_EFFECT = (
    *("pin_memory", "pin_memory_device", "persistent_workers", "prefetch_factor", "worker_init_fn"),
    *("multiprocessing_context", "timeout", "in_order"),
)
_INSTEAD = {
    "collate_fn": "batches are (images, targets): call it on what the loader yields, or decode with a Loader",
    "sampler": "give shuffle=True, a Subset as data, or rank and world_size in place of a DistributedSampler",
    "batch_sampler": "give batch_size, shuffle and drop_last, or a Subset as data",
    "generator": "give seed",
}


def _check_others(others: dict[str, Any]) -> None:
    """One warning for arguments without effect here. Raises TypeError for others, with the way out."""
    for name, given in others.items():
        if name in _INSTEAD and given is not None:
            raise TypeError(f"ImageFolderLoader cannot take {name}: {_INSTEAD[name]}")
        if name not in _WITHOUT_EFFECT and name not in _INSTEAD:
            raise TypeError(f"ImageFolderLoader has no argument {name!r}")
    ignored = [name for name in others if name in _WITHOUT_EFFECT]
    if ignored:
        warnings.warn(
            f"ImageFolderLoader ignores {', '.join(ignored)}: it decodes in threads, and pins its own memory",
            stacklevel=3,
        )


_TORCHVISIONS = ("torchvision.datasets.folder", "default_loader")


def list_samples(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """The classes of a folder, and (path, class) of every image, as torchvision's ImageFolder has them.

    Hidden folders are classes, too. Raises DataError for a folder without classes, and for a class without images.
    """
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise DataError(f"{root}: {error.strerror}; check the path") from error
    if not classes:
        raise DataError(f"{root}: has no class folders; put the images of each class into a subfolder named after it")
    samples = []
    for number, name in enumerate(classes):
        folders = sorted(os.walk(os.path.join(root, name), followlinks=True))
        files = [os.path.join(folder, file) for folder, _, files in folders for file in sorted(files)]
        images = [(file, number) for file in files if file.lower().endswith(EXTENSIONS)]
        if not images:
            raise DataError(f"{root / name}: the class has no images ({', '.join(EXTENSIONS)}); remove the folder")
        samples += images
    return classes, samples


def _of_dataset(data: Any, transform: Any) -> tuple[Path, list[tuple[str, int]], Any]:
    """Root, samples and transform of an ImageFolder."""
    if not hasattr(data, "samples") or not hasattr(data, "classes"):
        raise TypeError(f"ImageFolderLoader: give an ImageFolder or a folder, not {type(data).__name__}")
    if transform is not None:
        raise TypeError("ImageFolderLoader: the ImageFolder has a transform; leave out this one")
    if getattr(data, "target_transform", None) is not None:
        raise TypeError("ImageFolderLoader: leave out target_transform, and apply it to the batches' targets")
    loader = getattr(data, "loader", None)
    if loader is not None and (loader.__module__, loader.__name__) != _TORCHVISIONS:
        raise TypeError("ImageFolderLoader: decodes files itself, as RGB; leave the dataset's own loader out")
    return Path(data.root), list(data.samples), data.transform
