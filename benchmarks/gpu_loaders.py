"""Loaders to the device: compiled decoding alone, the trainer's loader by threads, and DALI's."""

import threading
import time
from functools import partial

import measure
import numpy as np
import numpy.typing as npt
from bench import Bench
from gpu_plan import Variant
from gpu_steps import config_of
from images import dataset, list_images, untiled_beside

from fastimg.bench.rig import Rig, build, loader_rate, with_loader
from fastimg.loaders import Loader, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.epochs.config import slots_for
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.decoding.region import scaling_of
from fastimg.loaders.random import uniforms
from fastimg.loaders.runtime.scratch import MOST, Encoded, Scratch


def decoding_alone(bench: Bench) -> None:
    """Crops a second of the compiled decoder in as many threads as there are: from memory, without a loader.

    A thread decodes MOST images in a call, between two of which Python runs for a few microseconds.
    """
    sizes = bench.sizes
    rows = []
    for threads in dict.fromkeys((1, sizes.threads[-1])):
        speed = measure.interleaved({"": partial(_decoded, bench, threads)}, sizes.repeats)[""]
        each = round(speed.median / threads, 1)
        rows.append({"threads": threads, "images_per_second": speed, "per_thread": each})
    bench.report(f"compiled decoding alone, {sizes.crop} px", rows)


def _decoded(bench: Bench, count: int) -> float:
    """Crops a second of `count` threads together."""
    paths = [bench.folder / name for name in list_images(bench.folder)]
    images = [(paths * -(-MOST // len(paths)))[i].read_bytes() for i in range(MOST)]
    crops = [0] * count
    begin = threading.Barrier(count + 1)
    over = threading.Event()

    def work(number: int) -> None:
        crop = RandomResizedCrop(size=bench.sizes.crop)
        encoded, queue, scratch = Encoded(), CropQueue(), Scratch()
        encoded.begin(MOST)
        for place, image in enumerate(images):
            encoded.grow(place, len(image))[: len(image)] = np.frombuffer(image, np.uint8)
        encoded.take(np.array([len(image) for image in images]), np.ones(MOST, np.bool_))
        draws = uniforms(number, 0, np.arange(MOST), 0, crop.draws)
        out = np.empty((MOST, bench.sizes.crop, bench.sizes.crop, 3), np.uint8)

        def call() -> int:
            left = queue.add_group(encoded, crop, draws, MAX_PIXELS)
            undecoded = queue.run(crop, scaling_of(True), scratch, out)
            return 0 if left is None else MOST - len(left) - len(undecoded)

        call()  # it allocates
        begin.wait()
        while not over.is_set():
            crops[number] += call()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    begin.wait()
    began = time.perf_counter()
    time.sleep(bench.sizes.seconds)
    over.set()
    for worker in workers:
        worker.join()
    return sum(crops) / (time.perf_counter() - began)


def by_threads(bench: Bench) -> None:
    """The trainer's loader to the device by source and number of threads, interleaved."""
    sizes = bench.sizes
    first = real_rig(bench, plain(bench, sizes.real_archs[-1]), "files", sizes.loader_batches, str(sizes.threads[0]))
    rigs = {("files", sizes.threads[0]): first}
    count = len(indices_of(first))
    for threads in sizes.threads[1:]:
        rigs["files", threads] = with_loader(first, first.loader.dataset, indices_of(first), workers=str(threads))
    others: dict[str, Dataset] = {}
    if bench.shards.is_dir():
        others["shards"] = open_dataset(bench.shards)
    if untiled_beside(bench.folder).is_dir():
        others["untiled files"] = dataset(untiled_beside(bench.folder), count)
    for source, data in others.items():
        workers = sizes.threads[-1]
        rigs[source, workers] = with_loader(first, data, repeated(data, count), workers=str(workers))
    names = {f"{source}, {threads}": (source, threads) for source, threads in rigs}
    try:
        speeds = measure.interleaved(
            {name: partial(loader_rate, rigs[key]) for name, key in names.items()}, sizes.repeats
        )
    finally:
        for rig in rigs.values():
            rig.close()
    rows = []
    for name, speed in speeds.items():
        source, threads = names[name]
        each = round(speed.median / threads, 1)
        rows.append({"source": source, "threads": threads, "images_per_second": speed, "per_thread": each})
    bench.report(f"the loader alone, to the device, batch {sizes.batch}, {sizes.crop} px", rows)


def real_rig(bench: Bench, variant: Variant, source: str, batches: int, workers: str = "auto") -> Rig:
    """The trainer's run over an epoch of `batches` batches of the section's files or shards, which repeat."""
    count = batches * bench.sizes.batch
    data: Dataset = open_dataset(bench.shards) if source == "shards" else dataset(bench.folder, count)
    config = config_of(bench, variant, loader="auto", workers=workers)
    return build(config, data, repeated(data, count), bench.ranks)


def warm_steps(rig: Rig) -> int:
    """The steps that use up what was read before the first."""
    return (rig.loader.config.prefetch or slots_for(rig.device.type)) + 2


def plain(bench: Bench, arch: str) -> Variant:
    """A model that is neither compiled nor replayed."""
    dtype = "fp16" if bench.device.type == "cuda" else "float32"
    return Variant(arch, dtype, None, bench.sizes.batch)  # type: ignore[arg-type]


def repeated(data: Dataset, count: int) -> npt.NDArray[np.int64]:
    """`count` samples of a dataset, which come again where it has fewer."""
    return np.resize(np.arange(len(data)), count)


def indices_of(rig: Rig) -> npt.NDArray[np.int64]:
    """The samples that a rig's loader reads."""
    indices = rig.loader.indices
    assert indices is not None
    return indices


def epoch_rate(loader: Loader) -> float:
    """Images per second of one epoch."""
    began = time.perf_counter()
    count = sum(batch.samples for batch in loader)
    measure.synchronise(loader.device)
    return count / (time.perf_counter() - began)


def dali(bench: Bench) -> None:
    """DALI's loader compared with fastimg's, to the device. DALI may crash, so this section has its own process."""
    bench.need_cuda()
    sizes = bench.sizes
    ours = real_rig(bench, plain(bench, sizes.real_archs[-1]), "files", sizes.loader_batches)
    theirs = with_loader(ours, ours.loader.dataset, indices_of(ours), loader="dali")
    speeds = measure.interleaved(
        {"fastimg": partial(loader_rate, ours), "DALI": partial(loader_rate, theirs)}, sizes.repeats
    )
    rigs = {"fastimg": ours, "DALI": theirs}
    rows = [
        {"loader": name, "images_per_second": speeds[name], "how": rig.loader.describe()} for name, rig in rigs.items()
    ]
    for rig in rigs.values():
        rig.close()
    bench.report(f"loaders alone, to the device, batch {sizes.batch}", rows)
