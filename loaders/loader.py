"""The native loader: a pool of threads fills the rows of preallocated slots; each batch is copied to the device once.

    Epochs -> this rank's ids of a batch -> Pool [thread: read, decode, crop, resize] -> slot -> Ring -> Batch

If a worker fails, the consumer gets its error. A consumer may stop early: no thread keeps running.
"""

import os
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Never, Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.inference_mode import outside_inference_mode
from fastimg.loaders.runtime.times import LoaderTimes, Tally, named

from .arguments import refuse_index, refuse_unknown, resolve
from .background import Background, look_again
from .batch import LABEL_FIELDS, Batch, Field, FieldSelection, HeldBatches, copied, host
from .compiling_ahead import compile_ahead, compile_for
from .crop import CropRule, Size, View
from .decoder import Decoder
from .epochs.config import LoaderConfig, Padding
from .epochs.epochs import Epochs
from .epochs.plan import EpochPlan
from .order import WINDOW, DropLast, Order, Sampling
from .pool import Job, Pool
from .preparation import WORDS, Preparation, PreparedBatch
from .random import keyed
from .ring import CudaRing, HostRing, Ring, Slot, SlotLayout
from .wording import plural

if TYPE_CHECKING:
    from .migration.batches import Batches

# What is not in Batch.fields, but an attribute.
_NAMED = frozenset({"inputs", WORDS, *(field.name for field in LABEL_FIELDS)})
_NO_WORDS = np.empty(0, np.int32)


class Loader(Epochs):
    """Iterate over a dataset: each `for batch in loader` is one epoch of `len(loader)` batches.

    `Loader("D", batch_size=256, crop=224, device="cuda")` gives `Batch`es whose `inputs` are uint8 [256, 3, 224, 224]
    on the device, not yet normalised, channels-last in memory; `targets` int64 [256], -1 without a label; `ids` int64
    [256] on the host; and `weight` float32 [256], which is 0 for rows that pad the last batch and for images that could
    not be decoded. A batch is valid until the next one is requested, unless `copy` is set.

    data: a Dataset, or the path of shards, a `.beton` or an image folder, whose `split` (default: "train") is opened.
        The loader closes what it has opened. Or the URL of shards or a folder in an object store, "s3://bucket/D": see
        `open_dataset` for `cache_dir`, `cache_limit` and `storage_options`.
    decoder: a custom decoder, instead of `crop`, `views`, `max_pixels`, `channels` and `depth` (see
        `loaders.decoder.Decoder`). The fields that it fills in addition to `inputs` are in `batch.fields`.
    config: a LoaderConfig, instead of `batch_size` and the arguments after it. Its ranks and its seed are as it says.
    device: where batches are handed out: "cpu", "cuda" or "cuda:N".
    indices: the ids of the samples that are read, whole numbers [n]: an array, a tensor, a list or a range; None: all.
    crop: the size of images in pixels, a side or (height, width): RandomResizedCrop with torchvision's defaults, or
        with `order="sequential"` CenterCrop after a resize that covers crop / 0.875. Or a crop object, such as
        CenterCrop(size=224, resize=256) or Crop.letterbox(640).
    views: several crops of each image, from one decode: `views=[View(crop=224, n=2, scale=(0.4, 1)), View(crop=96,
        n=6, scale=(0.05, 0.4))]` gives `batch.views`, a list of 8 tensors like `inputs`, which is the first of them.
        They are drawn in every order, also "sequential".
    max_pixels: images with more pixels than this (width x height; default: 89,478,485) are not decoded.
    channels: 3 for RGB, or 1 for gray: `inputs` are then uint8 [batch_size, 1, crop, crop]. Of a JPEG only the luma is
        made then, which takes less time; other images are converted as Pillow converts to "L". None: 3.
    depth: 16 gives uint16 `inputs`: PNG and TIFF files of 16 bits as they are, all others with their levels times 257.
        None: 8, for which images of 16 bits lose their lower byte.
    fields: names of further fields of the samples, or a FieldSelection: boxes, key points and masks move with the crop.
        They are in `batch.fields`, how many items of each are real in `batch.counts`, and in `batch.boxes_of_crop` the
        crop's own box. [] gives only the latter.
    batch_size: number of samples in a batch of this rank.
    order: "random" is for training; "quasi-random" is for data larger than memory: it reads blocks of `block` samples
        that are stored together, or whole shards with `block="shard"`, and draws batches from `window` samples at a
        time; "sequential" is for evaluation; "length" is for tokens. None: random, in blocks of 32 if there are any;
        from an object store quasi-random, by shards.
    sampling: how often each sample is drawn, with the random order: an epoch then has as many samples as before, some
        of them several times, with crops of their own (`batch.keys`). None: each once.
    together: number of consecutive texts of similar length; None: one batch over all ranks.
    padding: what fills the last batch: "samples" (real ones, with weight 0) or "zeros"; None: zeros if the order is
        sequential.
    drop_last: leave out a last batch that is not full; "uneven": leave out only the last samples, fewer than there are
        ranks, that these cannot share evenly, so that each rank reads equally many.
    seed: determines the order and the crops. The pixels of a sample depend only on the seed, the epoch and its id.
        None: torch's initial seed, which `torch.manual_seed` sets, as it is when the first epoch begins; a state has
        it. With several ranks, which need the same one, 0, as of a DistributedSampler.
    crop_epochs: number of epochs with crops of their own: epoch e has those of epoch e modulo crop_epochs, in an order
        of its own. None: every epoch has.
    workers: number of threads that decode; None: one for each core available to this process.
    prefetch: number of batches in host memory, including the one in use; 2 or more. None: 3, or 6 for a GPU.
    on_error: "skip" gives an image that cannot be decoded the weight 0 and lists it in `unreadable`; "fail" raises.
    rank, world_size: this process's share of every global batch. None: those of torch.distributed where it is
        initialised, otherwise torchrun's RANK and WORLD_SIZE, as they are when an epoch begins. Where only one rank
        reads, as in a validation on rank 0, give 0 and 1.
    copy: give each batch memory of its own, so that it stays valid for as long as you hold it, as in `list(loader)`. By
        default the loader reuses the memory of `prefetch` batches, which saves a copy per batch.

    The loader takes the memory of `prefetch` batches; `set_size` makes the images of later epochs smaller or larger,
    but not those of views. A
    `state_dict()` taken after a batch can be given to `load_state_dict` of a loader over the same data, with any number
    of workers or ranks, which continues with the next sample. `close`, the end of a `with` block or garbage collection
    ends the threads and closes what the loader has opened. Pickled, as for a process that is spawned, a loader is its
    arguments and its position; an open Dataset cannot be pickled, so give its path.

    Raises TypeError for missing, unknown or contradictory arguments (such as a `config` together with a keyword that
    differs from its default) and for those of another type, ValueError for invalid values, and DataError for data that
    cannot be used. Iterating raises DataError if the data changes or cannot be read, WorkerError for an internal error
    of the loader, and RuntimeError if you hold on to batches whose memory has been reused, if the process has got other
    ranks since it has read, in a worker process of a DataLoader, and in a process that was forked while threads read.
    """

    def __init__(
        self,
        data: Dataset | str | PathLike[str],
        decoder: Decoder | None = None,
        config: LoaderConfig | None = None,
        device: torch.device | str = "cpu",
        indices: npt.ArrayLike | None = None,
        *,
        crop: CropRule | Size | None = None,
        views: Sequence[View] | None = None,
        split: str | None = None,
        max_pixels: int | None = None,
        channels: int | None = None,
        depth: int | None = None,
        fields: Sequence[str] | FieldSelection | None = None,
        batch_size: int | None = None,
        order: Order | None = None,
        block: int | Literal["shard"] | None = None,
        window: int = WINDOW,
        sampling: Sampling | None = None,
        together: int | None = None,
        padding: Padding | None = None,
        drop_last: DropLast = False,
        seed: int | None = None,
        crop_epochs: int | None = None,
        workers: int | None = None,
        prefetch: int | None = None,
        on_error: Literal["skip", "fail"] = "skip",
        rank: int | None = None,
        world_size: int | None = None,
        copy: bool = False,
        cache_dir: str | PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        storage_options: Mapping[str, str] | None = None,
        **others: Never,
    ) -> None:
        refuse_unknown(others)
        self._given = {name: value for name, value in locals().items() if name not in ("self", "others", "__class__")}
        device = _checked_device(device)
        _refuse_no_data(data)
        if max_pixels is not None:
            from .decoders.images import pixel_limit  # here, because text datasets do not need the JPEG decoder

            max_pixels = pixel_limit(max_pixels)
        settings = {
            "batch_size": batch_size,
            "order": order,
            "block": block,
            "window": window,
            "sampling": sampling,
            "together": together,
            "padding": padding,
            "drop_last": drop_last,
            "seed": seed,
            "crop_epochs": crop_epochs,
            "workers": workers,
            "prefetch": prefetch,
            "on_error": on_error,
            "rank": rank,
            "world_size": world_size,
        }
        elsewhere = {"cache_dir": cache_dir, "cache_limit": cache_limit, "storage_options": storage_options}
        dataset, opened, decoder, config, follows = resolve(
            data, decoder, config, crop, views, split, max_pixels, channels, depth, fields, settings, elsewhere
        )
        self._opened = (
            weakref.finalize(self, dataset.close) if opened else None
        )  # finalizers run in reverse order: this one comes after the threads
        super().__init__(dataset, config, indices, config.workers or available_cpus(), device, follows)
        self._process = os.getpid()
        self._copy = copy
        self._decoder = decoder  # that others are made of, by their size
        self._next = decoder  # for the next iteration
        self._compiled_for: Decoder | None = None
        self._background = Background()
        self._handed_out = 0  # rows of batches, of all iterations
        self.size: Size | None = None  # as `set_size` was told last
        self._preparation: Preparation | None = None
        self._take_memory(decoder)
        self._tally = Tally(self.workers)
        self._pool: Pool | None = None
        self._stop: Callable[[], object] = lambda: None

    @outside_inference_mode
    def __iter__(self) -> Generator[Batch, None, None]:
        if self._opened is not None and not self._opened.alive:
            raise RuntimeError("the loader was closed, together with the data that it had opened; create a new one")
        self._refuse_inherited_locks()
        if self._layout(self._next).nbytes > self.slot_bytes:  # images are larger than any before
            self._take_other_memory(self._next)
        plan = self.begin()
        self._compile_ahead()
        pool = self._ready_pool()
        ring, slots = self._ring, self._slots  # others may be taken before this iteration is closed
        known = plan.again is None  # one that comes again has other crops
        draw = partial(self._next.draw, self.config.seed, plan.crop_epoch) if known else None
        job = pool.begin(self._next, draw, min(len(slots) - 1, plan.steps))
        job.loading = not self._handed_out
        ring.release()  # the previous iteration may not have been finished
        layout = self._layout(job.decoder)
        for slot in slots:  # every time: an interrupt may have stopped this loop halfway
            slot.view(layout)
        ring.view(layout)
        held = HeldBatches()
        views = job.decoder.view_fields
        attributes = _NAMED.union(views.values())
        kind = Batch if self._preparation is None else PreparedBatch
        try:
            for step in range(min(len(slots), plan.steps)):
                self._dispatch(pool, job, plan, step, slots[step])
            for step in range(plan.steps):
                slot = slots[step % len(slots)]
                self.waits.begin()
                pool.wait(slot, job)
                tensors = ring.hand_over(slot)
                self.waits.end()
                self._collect(slot)
                self.passed(plan, step)
                self._handed_out += self.config.batch_size
                job.loading = False
                batch = kind(
                    inputs=job.decoder.present(tensors["inputs"], slot.arrays),
                    targets=tensors["targets"],
                    ids=torch.from_numpy(slot.arrays["ids"].copy()),
                    weight=tensors["weight"],
                    samples=int(np.count_nonzero(slot.arrays["weight"])),
                    ready=ring.ready,
                    fields={name: tensor for name, tensor in tensors.items() if name not in attributes},
                    repeats=host(plan.repeats(step)),
                    by_view={name: tensors[field].permute(1, 0, 4, 2, 3) for name, field in views.items()},
                )
                if isinstance(batch, PreparedBatch):
                    batch.made = slot.made
                    batch.words = tensors[WORDS].view(-1) if WORDS in tensors else None
                held.add(batch)
                yield copied(batch) if self._copy else batch
                held.refuse_overwritten()
                self._background.look(self, compiles=self._compiled_for is not job.decoder)
                job.check()  # before writing to slots that may belong to another iteration by now
                ring.reclaim()
                if step + len(slots) < plan.steps:
                    self._dispatch(pool, job, plan, step + len(slots), slot)
        finally:
            if pool.cancel(job):  # otherwise the slots belong to another iteration by now
                ring.release()

    def compile(self) -> None:
        """Compile the decoders that this loader's threads can use, once per machine, and say so by logging.

        They take less time for each crop. By itself a loader compiles them only before an epoch, and where it reads so
        much that this makes up for it; in other cases it decodes to the same pixels without them.
        """
        compile_for(self._next, self.dataset, self.indices)
        self._compiled_for = self._next

    def tuples(
        self,
        policy: Any = None,
        *,
        num_classes: int | None = None,
        smoothing: float = 0.0,
        dtype: torch.dtype = torch.float32,
        then: Callable[[Any, torch.Tensor], tuple[Any, Any]] | None = None,
    ) -> "Batches":
        """This loader as `(images, targets)`, which may be iterated over again and again.

            for images, targets in Loader("D", batch_size=256, crop=224).tuples(Policy(hflip=0.5)):

        Rows of weight 0 are left out: each sample comes once. Images and targets are on the loader's device, and stay
        valid. What is drawn depends on the loader's seed, the epoch and the sample.

        policy: a Policy of `fastimg.augment`, by which images are augmented and normalised; Policy() normalises only.
            None: uint8 as it is. Of a loader with views, images are a list of their crops.
        num_classes: targets are float32 [B, num_classes], for losses of probabilities; None: int64 [B], or, with mixup
            or cutmix in the policy, as many as the data has classes.
        smoothing: of targets that are float32.
        dtype: float32, bfloat16 or float16, of images after the policy.
        then: a function of images and targets, which returns the two that are handed out.

        Raises TypeError for what is no Policy, and ValueError for settings that do not fit together.
        """
        from .migration.batches import batches_of  # here, because it needs augment, in the end

        return batches_of(
            self,
            policy,
            None,
            num_classes=num_classes,
            smoothing=smoothing,
            dtype=dtype,
            then=then,
        )

    def dicts(
        self,
        images: str = "pixel_values",
        targets: str = "labels",
        policy: Any = None,
        *,
        num_classes: int | None = None,
        smoothing: float = 0.0,
        dtype: torch.dtype = torch.float32,
        then: Callable[[Any, torch.Tensor], tuple[Any, Any]] | None = None,
    ) -> "Batches":
        """This loader as dicts of images and targets by these names, which are those of transformers: see `tuples`."""
        from .migration.batches import batches_of

        return batches_of(
            self,
            policy,
            (images, targets),
            num_classes=num_classes,
            smoothing=smoothing,
            dtype=dtype,
            then=then,
        )

    @property
    def batch_size(self) -> int:
        """The number of rows of each batch."""
        return self.config.batch_size

    @property
    def has_views(self) -> bool:
        """Whether batches have several crops of each image."""
        return bool(self._decoder.view_fields)

    def spent(self) -> LoaderTimes:
        """See `BatchSource`."""
        files = fetched_files(self.dataset)
        tally = self._tally
        times = LoaderTimes(self.waits.seconds, self._ring.copy_seconds, sum(tally.read), sum(tally.busy))
        if files is None:
            return times
        spent = files.mirror.cache.spent
        return replace(times, network=spent.waited, fetched=spent.bytes, again=spent.bytes_again)

    def set_size(self, size: Size) -> None:
        """See `BatchSource`. Any size: for images larger than any before, new memory is taken; otherwise the same
        threads fill smaller views of the same slots.
        """
        self._next = self._decoder.sized(size)
        self.size = size

    def prepare(self, preparation: Preparation) -> None:
        """See `BatchSource`."""
        if self._handed_out or self._pool is not None:
            raise RuntimeError("the loader has begun to read: prepare comes before the first iteration")
        self._preparation = preparation
        if self._layout(self._decoder).nbytes > self.slot_bytes:
            self._take_other_memory(self._decoder)

    def _collect(self, slot: Slot) -> None:
        """Record the rows that the ring reports as failed or rerouted."""
        ids = slot.arrays["ids"]
        for row, reason in slot.failed.items():
            self.faults.add(int(ids[row]), reason)
        for row, reason in slot.rerouted.items():
            self.rerouted[int(ids[row])] = reason

    def describe(self) -> str:
        """See `BatchSource`."""
        return f"native, {plural(self.workers, 'thread')}, {self._decoder.describe()}"

    def close(self) -> None:
        """Stop the threads and the iteration in progress. With a Dataset as `data`, iterating starts new threads."""
        self._pool = None
        self._stop()
        if self._opened is not None:
            self._opened()

    def __getitem__(self, index: object) -> Never:
        refuse_index(self, index)

    def another(self) -> "Loader":
        """A loader with these arguments, which begins where this one's next iteration would."""
        other = _made_again(type(self), self._given, self.state_dict(), self.size)
        if self._resume is None:
            other.set_epoch(self.epoch + 1)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """Its arguments and its position: for processes that are spawned, and for copies."""
        return _made_again, (type(self), self._given, self.state_dict(), self.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_inherited_locks(self) -> None:
        """Raises RuntimeError in a forked process that would wait forever for threads which it does not have."""
        if self._process == os.getpid():
            return
        if fetched_files(self.dataset) is not None or (self._pool is not None and self._pool.in_use):
            raise RuntimeError(
                f"{self.dataset.name}: this process was forked while the loader's threads were at work, and might wait "
                "for them; create the loader in this process, or start processes by spawn"
            )

    def _compile_ahead(self) -> None:
        if self._compiled_for is not self._next:
            ranks, read = self.config.world_size, self._handed_out
            if self._background.running:
                read //= 8  # what it gets done beside a busy training, it gets done by then
            if compile_ahead(self._next, self.dataset, self.indices, ranks, self.workers, read):
                self._compiled_for = self._next
            else:
                look_again()

    def for_compiling(self) -> tuple[type["Loader"], dict[str, Any]]:
        """Its type, and arguments of a loader on the CPU that has the same to compile."""
        given = {"device": "cpu", "workers": 1, "prefetch": 2, "rank": 0, "world_size": 1}
        return type(self), self._given | given

    def _ready_pool(self) -> Pool:
        if self._pool is None or not self._pool.usable:
            self._stop()
            self._pool = Pool(self.dataset, self.faults, self.workers, self._ring.begin, self._tally)
            self._stop = weakref.finalize(self, _end, self._pool, self._ring)
        return self._pool

    def _take_memory(self, decoder: Decoder) -> None:
        """Take the memory of batches of what `decoder` fills."""
        layout = self._layout(decoder)
        pinned = self.device.type == "cuda"
        with torch.inference_mode(False):  # memory that is written into outside of it, too
            self._ring: Ring = _ring(decoder, layout, self.device)
            self._slots = [Slot(layout, pinned) for _ in range(self.slots)]
        self.slot_bytes = layout.nbytes

    def _take_other_memory(self, decoder: Decoder) -> None:
        """Take memory for larger batches, in place of what there is."""
        self._stop()
        self._pool = None
        self._slots = []
        self._take_memory(decoder)

    def _layout(self, decoder: Decoder) -> SlotLayout:
        rows = self.config.batch_size
        fields = (*decoder.fields, *LABEL_FIELDS)
        if self._preparation is None:
            return SlotLayout(fields, rows)
        count = self._preparation.count_words(rows, _shape(decoder))
        words = (Field(WORDS, (-(-count // rows),), np.dtype(np.int32)),) if count else ()
        return SlotLayout((*fields, *words), rows)

    def _dispatch(self, pool: Pool, job: Job, plan: EpochPlan, step: int, slot: Slot) -> None:
        """Have batch `step` made in `slot`: by a thread, so that the consumer only asks for it.

        A consumer of tiny rows that does nothing but read makes it itself: to wake a thread takes as long.
        """
        fill = partial(self._fill, pool, job, plan, step, slot)
        if job.tiny and self._preparation is None:
            fill()
        else:
            pool.make(slot, job, fill)

    def _fill(self, pool: Pool, job: Job, plan: EpochPlan, step: int, slot: Slot) -> None:
        """Write what is known of a batch's samples, draw their crops, and have the threads fill the rows."""
        with named("work out a batch"):
            ids, weight, decoded = rows = plan.rows(step)
            slot.number = step
            slot.arrays["ids"][:] = ids
            slot.arrays["targets"][:] = self.dataset.labels[ids]
            slot.arrays["weight"][:] = weight
            slot.failed.clear()
            slot.rerouted.clear()
            if decoded < len(ids):
                for name, blank in job.blanks.items():
                    slot.arrays[name][decoded:] = blank
            keys = keyed(ids, plan.repeats(step))
            if self._preparation is not None:
                words = slot.arrays[WORDS].reshape(-1) if WORDS in slot.arrays else _NO_WORDS
                shape = _shape(job.decoder)
                slot.made = self._preparation.make(keys, self.config.seed, plan.crop_epoch, shape, words)
            draws = job.decoder.draw(self.config.seed, plan.crop_epoch, keys)[:decoded]
            pool.fill(slot, job, draws, plan.prefetch_ids(step, rows))


def _shape(decoder: Decoder) -> tuple[int, ...]:
    """The shape of a row of `inputs`."""
    return next(field.shape for field in decoder.fields if field.name == "inputs")


def _made_again(kind: type[Loader], given: dict[str, Any], state: dict[str, Any], size: Size | None) -> Loader:
    """A loader that was pickled."""
    loader = kind(**given)
    if size is not None:
        loader.set_size(size)
    loader.load_state_dict(state)
    return loader


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f'device {device!r}: give "cpu", "cuda" or "cuda:N"') from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device {found}: the loader supports only cpu and cuda")
    return found


def _refuse_no_data(data: object) -> None:
    """Raises TypeError for what is neither a path nor a Dataset, such as a list or torch's datasets."""
    if not isinstance(data, str | PathLike) and not (hasattr(data, "read") and hasattr(data, "sample_name")):
        raise TypeError(
            f"Loader: data is of type {type(data).__name__}; give a path of shards, a .beton or an image folder, or "
            "what open_dataset has opened"
        )


def _ring(decoder: Decoder, layout: SlotLayout, device: torch.device) -> Ring:
    """The decoder's own ring if it has one, otherwise one that copies slots as they are."""
    custom = decoder.ring(layout, device)
    if custom is not None:
        return custom
    if "inputs" not in layout.fields:
        raise ValueError(f"Loader: {type(decoder).__name__} has no field called inputs; rename its first field")
    if layout.objects:
        raise ValueError(
            f"the field {layout.objects[0]!r} is of type object, which only a decoder with its own ring can use"
        )
    return CudaRing(layout, device) if device.type == "cuda" else HostRing(layout)


def _end(pool: Pool, ring: Ring) -> None:
    pool.stop()
    ring.release()
