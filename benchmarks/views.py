"""Several views of each image, as DINO has them: 2 crops of 224 and 6 of 96, against torch's DataLoader and DALI.

    build/peers/bin/python -W ignore benchmarks/views.py --data FOLDER      # CONTRIBUTING.md: how to make build/peers

Every loader reads the same photographs (from a warm page cache), decodes each once, draws eight RandomResizedCrops, and
has the same number of threads or processes. Each runs in its own process, with interleaved epochs; results are medians
of n. The boxes of the first crop are compared: the mean of their areas.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import comparisons
import measure
import torch
from comparisons import repeated
from loader_peers import INSTALL
from loader_peers.decoders import Decode, pillow, pixels, simplejpeg, torchvision
from loader_peers.tiled import make_tiled, tiled
from rich.console import Console

from fastimg.bench.peers.comparison import in_turn, make
from fastimg.bench.peers.data import Sources, write_gradients
from fastimg.bench.peers.pipelines import AHEAD, Batches, Peer, Workload, dali_batches, data_loader, first_of
from fastimg.bench.peers.processes import remotes
from fastimg.loaders import FilesDataset, Loader, LoaderConfig, View, ViewDecoder, open_dataset
from fastimg.loaders.containers.datasets import Dataset

RULES = ((224, 2, (0.4, 1.0)), (96, 6, (0.05, 0.4)))  # size, number, scale: DINO's
BASE = "native"


def native(work: Workload, interpolation: str, shards: bool, scaling: bool = False) -> Batches:
    """fastimg's loader on tiled tar shards, or on the files."""
    data: Dataset = FilesDataset(Path("/"), [str(file) for file in work.sources.files])
    if shards:
        data = open_dataset(tiled(work.sources))
    views = [View(crop=size, n=n, scale=scale, interpolation=interpolation) for size, n, scale in RULES]  # type: ignore[arg-type]
    config = LoaderConfig(batch_size=work.batch_size, workers=work.threads, on_error="fail")
    loader = Loader(data, ViewDecoder(tuple(views), dct_scaling=scaling), config)
    torch.set_num_threads(1)  # so that only the requested threads compute
    return lambda: (batch.views[0][: batch.samples] for batch in loader)


class MultiCrop(torch.utils.data.Dataset[list[torch.Tensor]]):
    """Files, decoded once, and eight RandomResizedCrops of torchvision v2."""

    def __init__(self, work: Workload, interpolation: str, decode: Decode) -> None:
        from torchvision.transforms import InterpolationMode, v2

        mode = InterpolationMode(interpolation)
        self.files = work.sources.files
        self.decode = decode
        self.crops = [
            v2.RandomResizedCrop(size, scale=scale, interpolation=mode, antialias=True)
            for size, n, scale in RULES
            for _ in range(n)
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        image = self.decode(self.files[index])
        return [pixels(crop(image)) for crop in self.crops]


def torch_views(work: Workload, interpolation: str, decode: Decode) -> Batches:
    """torch's DataLoader with persistent workers."""
    return first_of(data_loader(work, MultiCrop(work, interpolation, decode)))


def dali(work: Workload, interpolation: str) -> Batches:
    """DALI's CPU pipeline on the files."""
    from nvidia.dali import fn, pipeline_def, types

    mode = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}[interpolation]
    files = [str(file) for file in work.sources.files]

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=work.batch_size, num_threads=work.threads, device_id=None, prefetch_queue_depth=AHEAD, seed=1
    )
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=files, labels=[0] * len(files), shuffle_after_epoch=True, name="files")
        images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        return tuple(
            fn.random_resized_crop(
                images, size=size, random_area=list(scale), random_aspect_ratio=[3 / 4, 4 / 3], interp_type=mode
            )
            for size, n, scale in RULES
            for _ in range(n)
        )

    return dali_batches(work, pipeline())


def peers(interpolation: str) -> dict[str, Peer]:
    """The loaders to compare; the others are compared with the first."""
    mine = partial(native, interpolation=interpolation)
    torchs = partial(torch_views, interpolation=interpolation)
    return {
        BASE: Peer(open=partial(mine, shards=True), make=make_tiled, about="fastimg's loader on tiled tar shards"),
        "native, scaled": Peer(open=partial(mine, shards=True, scaling=True), about="the same with dct_scaling"),
        "native, files": Peer(open=partial(mine, shards=False), about="fastimg's loader on the files"),
        "torch": Peer(open=partial(torchs, decode=pillow), about="DataLoader, Pillow, torchvision v2 on Pillow images"),
        "torch, tensors": Peer(
            open=partial(torchs, decode=torchvision), about="DataLoader, torchvision.io, v2 on tensors"
        ),
        "torch, simplejpeg": Peer(
            open=partial(torchs, decode=simplejpeg), about="DataLoader, simplejpeg, v2 on tensors"
        ),
        "dali": Peer(
            open=partial(dali, interpolation=interpolation),
            about=f"CPU pipeline: decoders.image, 8 x random_resized_crop; {AHEAD} batches ahead",
            module="nvidia.dali",
            install=INSTALL,
        ),
    }


def main() -> None:
    """Measure, print, and append the results."""
    parser = comparisons.parser(__doc__, "views.jsonl", peers("bilinear"), images=768, batch_size=64)
    parser.add_argument("--interpolation", choices=("bilinear", "bicubic"), default="bilinear")
    args = parser.parse_args()

    console = Console(width=150)
    wanted = comparisons.installed(peers(args.interpolation), args.peers, console)
    files = comparisons.files_of(args)
    shared = comparisons.setting("views", args, files)
    shared["views"] = [{"crop": size, "n": n, "scale": list(scale)} for size, n, scale in RULES]
    shared["interpolation"] = args.interpolation
    faults: dict[str, str] = {}
    rows = []
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-views-") as scratch:
        photographs = repeated(Path(scratch) / "photographs", files, comparisons.whole_batches(args))
        gradients = repeated(Path(scratch) / "gradients", write_gradients(Path(scratch) / "drawn"), 6 * args.batch_size)

        def work(sources: Sources, workers: int) -> Workload:
            return Workload(
                sources=sources, crop="random", batch_size=args.batch_size, size=RULES[0][0], workers=workers
            )

        with remotes(wanted, max(1, *args.workers)) as opened:
            make(opened, (photographs, gradients), BASE, faults)
            first = work(gradients, args.workers[0])
            areas = {name: float(remote.boxes(first)[:, 0].mean()) for name, remote in opened.items()}
            for workers in args.workers:
                measured = in_turn(opened, work(photographs, workers), args.repeats, BASE, faults)
                for name, row, record in comparisons.told(measured, wanted):
                    rows.append({**row, "mean area": f"{areas[name]:.3f}"})
                    measure.append(args.out, {**shared, **record, "mean_area": round(areas[name], 4)})
    title = f"{shared['images']} images of {shared['data']}, 2 x 224 and 6 x 96 of each, {args.interpolation}"
    measure.show(console, title, rows)
    comparisons.finish(faults)


if __name__ == "__main__":
    main()
