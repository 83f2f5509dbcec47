"""What a script has of `DataLoader(ImageFolder(root, transform), ...)`, from this package's loader."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from fastimg.loaders.crop import Size, View, whole
from fastimg.loaders.decoder import Decoder
from fastimg.loaders.decoders.views import ViewDecoder
from fastimg.loaders.epochs.surroundings import ranks_here
from fastimg.loaders.loader import Loader
from fastimg.loaders.wording import plural

from .batches import Batches
from .dataloader import batching_of
from .filters import EitherFilter, decoder_of
from .finish import Finish, ViewFinishes
from .sources import source_of
from .transforms import ImageTransform, translated

_NO_ARGUMENTS = ("self", "by_place", "others", "__class__")


class ImageFolderLoader(Batches):
    """The batches of a script that has torchvision's ImageFolder and torch's DataLoader, with two lines changed.

        from fastimg.loaders import ImageFolderLoader  # was: from torch.utils.data import DataLoader
        dataset = datasets.ImageFolder("photos/train", transform)
        loader = ImageFolderLoader(dataset, batch_size=256, shuffle=True, num_workers=8)  # was: DataLoader(...)
        for images, targets in loader:
            ...

    Classes, files, their order and targets are torchvision's. Images are float32 [B, 3, H, W], scaled and normalised as
    the transform says, or uint8 where it has neither ToTensor nor ToDtype; targets are int64 [B]. Batches stay valid.

    data: an ImageFolder, or another of torchvision's datasets that read one file, or one array, for each class label;
        Hugging Face's Dataset with an Image column and a ClassLabel, whose images are RGB here; a Subset or
        ConcatDataset of such; or a folder with one subfolder per class. Its samples and transform are those
        that it has when the loader is made: if they are replaced later, iterating raises RuntimeError.
    transform: of torchvision, for data that has none: a Compose, an nn.Sequential or a list of RandomResizedCrop,
        RandomCrop (and Pad before it), CenterCrop, Resize((height, width)), or Resize(side) before a crop;
        RandomHorizontalFlip, RandomVerticalFlip, RandomRotation, TrivialAugmentWide, RandAugment, AutoAugment,
        ColorJitter, Grayscale(3), RandomGrayscale, GaussianBlur, RandomSolarize, RandomPosterize, RandomInvert,
        RandomEqualize, RandomAutocontrast, RandomAdjustSharpness, RandomApply and RandomChoice of these; ToTensor,
        Normalize, RandomErasing; and of v2 ToImage, ToDtype and RGB. Or `weights.transforms()`, or what timm's
        create_transform makes. Without a crop all images have to be of one size. Augmentation has the original's
        distribution, but that timm's auto_augment moves pixels without interpolating between them.
    batch_size, shuffle, drop_last: as of a DataLoader. Every epoch is shuffled anew, by `seed`; None: torch's initial
        seed, which `torch.manual_seed` sets, as it is when the first epoch begins, or 0 with several processes.
    num_workers: number of threads, which take the place of processes; 0 is one, None one for each core available to
        this process. There is nothing to pin, to keep alive or to seed: `pin_memory`, `persistent_workers`,
        `prefetch_factor`, `worker_init_fn` and the like are ignored, with one warning.
    sampler, batch_sampler: torch's own, whose meaning is taken over: RandomSampler, SubsetRandomSampler,
        WeightedRandomSampler, DistributedSampler (which is told the epoch as before) and BatchSampler. Samples that
        ranks cannot share evenly are left out where the DistributedSampler has drop_last; else no sample comes twice.
    generator: its initial seed is the seed.
    views: a transform for each of several crops of an image, in place of `transform` and of one that calls another
        twice (TwoCropTransform): images are then a list, of a tensor for each. An image is decoded once.
    then: a function of a batch's (images, targets), which returns what is handed out: in place of a `collate_fn`, such
        as `v2.MixUp(num_classes=10)`, and for what the transform does last and no policy does.
    device: where batches are handed out: "cpu", "cuda" or "cuda:N", to which uint8 is copied.
    on_error: "fail" raises DataError for a file that cannot be decoded; "skip" leaves it out of its batch, or a batch
        that has no other file, and lists it in `loader.unreadable`, but needs a single process.
    state_dict(), load_state_dict(): as of torchdata's StatefulDataLoader, to continue within an epoch.
    rank, world_size: in place of a DistributedSampler: this process's share of every batch. None: torch.distributed's
        where it is initialised, otherwise torchrun's RANK and WORLD_SIZE. All processes have equally many batches, and
        every sample comes once. They take turns, so that without `shuffle` each has what a DistributedSampler lists.
        Only where fewer samples than processes are left does a process get one that another has, too, as with a
        DistributedSampler. If there are fewer altogether, each process reads all of them, with a warning.

    It differs from torchvision where that reads what nobody meant: an EXIF orientation is applied, and of 16 bits the
    upper byte is kept. An image is resized as torch does it, within 1 of 255 of Pillow's values where both were
    compared. Crops and flips are functions of the seed, the epoch and the file, not of a global random state.

    Raises ValueError for a transform that it cannot take over, which is named, DataError for a folder without classes
    or images, and TypeError for arguments that contradict each other.
    """

    def __init__(
        self,
        data: Any,
        transform: Any = None,
        *by_place: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int | None = None,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        on_error: Literal["skip", "fail"] = "fail",
        rank: int | None = None,
        world_size: int | None = None,
        views: Sequence[Any] | None = None,
        then: Callable[[Any, torch.Tensor], tuple[Any, Any]] | None = None,
        **others: Any,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in _NO_ARGUMENTS} | others
        if by_place or isinstance(transform, int):  # in a DataLoader's order
            raise TypeError(
                "ImageFolderLoader: of its arguments only data and transform come without names; name the others, as "
                "in batch_size=256, shuffle=True"
            )
        if num_workers is not None and whole(num_workers, "num_workers") < 0:
            raise ValueError(f"num_workers={num_workers}: give a number of threads, 0 or more")
        if views is not None and (isinstance(views, str | Mapping) or not isinstance(views, Iterable)):
            raise TypeError(
                "ImageFolderLoader: views is a list with a transform for each, as in [transform, transform]"
            )
        source = source_of(data, transform)
        samples = len(source.dataset) if source.indices is None else len(source.indices)
        batching = batching_of(batch_size, shuffle, drop_last, seed, samples, others)
        sampled = batching.sampled
        if rank is None and world_size is None:
            rank, world_size = sampled.rank, sampled.world_size
        self._source = source
        self._given = [] if transform is None else [transform]
        self._views = None if views is None else list(views)
        self._transforms = self._translated()
        ids = source.indices
        if sampled.places is not None:
            ids = sampled.places if ids is None else ids[sampled.places]
        decoder: Decoder = decoder_of(self._transforms[0].crop)
        finish: Finish | ViewFinishes = self._transforms[0].finish
        if views is not None:
            if any(isinstance(each.crop, EitherFilter) for each in self._transforms):
                raise TypeError(
                    "ImageFolderLoader: views do not draw their interpolation; give bilinear or bicubic in place of "
                    "random"
                )
            decoder = ViewDecoder(tuple(View(crop=each.crop) for each in self._transforms))
            finish = ViewFinishes(tuple(each.finish for each in self._transforms))
        if rank is None and world_size is None:
            rank, world_size = _all_alone(samples if ids is None else len(ids))
        loader = Loader(
            source.dataset,
            decoder,
            device=device,
            indices=ids,
            batch_size=batching.batch_size,
            order="random" if sampled.shuffle else "sequential",
            sampling=sampled.sampling,
            padding="samples",
            drop_last=batching.drop_last,
            seed=batching.seed,
            workers=None if num_workers is None else max(1, num_workers),
            on_error=on_error,
            rank=rank,
            world_size=world_size,
        )
        if on_error == "skip" and loader.config.world_size > 1:
            raise TypeError(
                'ImageFolderLoader: on_error="skip" could leave a process without a batch that others have; give "fail"'
            )
        super().__init__(loader, finish, then=then)
        self._sampler = sampled.tells_epoch
        self._told = 0  # by the sampler, whose epochs begin with it, too

    def __iter__(self) -> Iterator[Any]:
        self._source.check_unchanged()
        if self._translated() != self._transforms:
            raise RuntimeError(
                "ImageFolderLoader: the dataset's transform was changed after the loader was made, which does what it "
                "was then; make a new loader"
            )
        if self._sampler is not None and self._sampler.epoch != self._told:
            self._told = self._sampler.epoch
            self.set_epoch(self._told)
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Its arguments and its position: for processes that are spawned, and for copies."""
        at = (self.state_dict(), self._loader.size, self._told, self._names)
        return _made_again, (type(self), self._arguments, *at)

    def _translated(self) -> list[ImageTransform]:
        """What the transform is now, or those of the views are."""
        given = [*self._given, *(each for each in self._source.transforms() if each is not None)]
        if self._views is not None:
            if given:
                raise TypeError("ImageFolderLoader: views have transforms of their own; leave out the other one")
            if not self._views:
                raise TypeError("ImageFolderLoader: views is empty; give a transform for each view")
            return [translated(each, self._source.first_size) for each in self._views]
        if not given:
            raise TypeError(
                "ImageFolderLoader: give the transform, such as Compose([RandomResizedCrop(224), ToTensor()]), here or "
                "to the dataset"
            )
        first, *others = [translated(each, self._source.first_size) for each in given]
        if any(other != first for other in others):
            raise TypeError("ImageFolderLoader: parts of the data have different transforms; make a loader for each")
        return [first]

    @property
    def dataset(self) -> Any:
        """The data as it was given; for a folder, its classes and samples as an ImageFolder has them."""
        return self._source.data

    @property
    def sampler(self) -> Any:
        """The DistributedSampler that was given, or one of this loader's own."""
        return super().sampler if self._sampler is None else self._sampler

    @property
    def classes(self) -> list[Any]:
        """The names of the classes."""
        return self._source.classes

    @property
    def class_to_idx(self) -> dict[Any, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def samples(self) -> list[tuple[str, int]]:
        """The path and the class of each sample of `dataset`; its name, where it is no file."""
        return self._source.samples

    @property
    def targets(self) -> list[int]:
        """The class of each sample of `dataset`."""
        return self._source.targets

    @property
    def unreadable(self) -> dict[str, str]:
        """Path -> reason, for every file that was left out so far."""
        return {self._source.dataset.sample_name(id): reason for id, reason in self._loader.unreadable.items()}


def _all_alone(samples: int) -> tuple[int, int] | tuple[None, None]:
    """The ranks of a loader whose few samples each process reads, which is said; otherwise None."""
    processes = ranks_here()[1]
    if not 0 < samples < processes:
        return None, None
    warnings.warn(
        f"ImageFolderLoader: {plural(samples, 'sample')} for {plural(processes, 'process')}, so each of them "
        "reads all; give rank=0 and world_size=1 if that is meant, as for what a DistributedSampler with drop_last "
        "has left over",
        stacklevel=3,
    )
    return 0, 1


def _made_again(
    kind: type[ImageFolderLoader],
    given: dict[str, Any],
    state: dict[str, Any],
    size: Size | None,
    told: int,
    names: tuple[str, str] | None,
) -> ImageFolderLoader:
    """A loader that was pickled. What is ignored has been said where it was made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = kind(**given)
    if size is not None:
        loader.set_size(size)
    loader.load_state_dict(state)
    loader._told = told
    return loader if names is None else loader.dicts(*names)
