"""Several views of each image, as DINO has them: 2 crops of 224 and 6 of 96, against torch's DataLoader and DALI.

    build/peers/bin/python -W ignore benchmarks/views.py --data FOLDER      # CONTRIBUTING.md: how to make build/peers

Every loader reads the same photographs (from a warm page cache), decodes each once, draws eight RandomResizedCrops, and
has the same number of threads or processes. Each runs in its own process, with interleaved epochs; results are medians
of n. The boxes of the first crop are compared: the mean of their areas.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from images import list_images
from loader_peers import INSTALL, make_tiled, tiled
from PIL import Image
from rich.console import Console

from fastimg.bench.peers.comparison import in_turn, make
from fastimg.bench.peers.data import Sources, write_gradients
from fastimg.bench.peers.pipelines import AHEAD, Batches, Peer, Workload
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
    config = LoaderConfig(batch_size=work.batch_size, workers=work.workers, on_error="fail")
    loader = Loader(data, ViewDecoder(tuple(views), dct_scaling=scaling), config)
    torch.set_num_threads(1)  # so that only the requested threads compute
    return lambda: (batch.views[0][: batch.samples] for batch in loader)


class MultiCrop(torch.utils.data.Dataset[list[torch.Tensor]]):
    """Files, decoded once, and eight RandomResizedCrops of torchvision v2."""

    def __init__(self, work: Workload, interpolation: str, decoder: str) -> None:
        from torchvision.transforms import InterpolationMode, v2

        mode = InterpolationMode(interpolation)
        self.files = work.sources.files
        self.decoder = decoder
        self.crops = [
            v2.RandomResizedCrop(size, scale=scale, interpolation=mode, antialias=True)
            for size, n, scale in RULES
            for _ in range(n)
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        if self.decoder == "pillow":
            with Image.open(self.files[index]) as image:
                upright = image.convert("RGB")
            return [torch.from_numpy(np.array(crop(upright))) for crop in self.crops]
        if self.decoder == "simplejpeg":
            import simplejpeg

            pixels = torch.from_numpy(simplejpeg.decode_jpeg(self.files[index].read_bytes(), "RGB")).permute(2, 0, 1)
        else:
            from torchvision.io import ImageReadMode, decode_image, read_file

            pixels = decode_image(read_file(str(self.files[index])), ImageReadMode.RGB)
        return [crop(pixels).permute(1, 2, 0).contiguous() for crop in self.crops]


def data_loader(work: Workload, interpolation: str, decoder: str) -> Batches:
    """torch's DataLoader with persistent workers."""
    loader = torch.utils.data.DataLoader(
        MultiCrop(work, interpolation, decoder),
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=work.workers,
        persistent_workers=True,
    )
    return lambda: (views[0].permute(0, 3, 1, 2) for views in loader)


def dali(work: Workload, interpolation: str) -> Batches:
    """DALI's CPU pipeline on the files. Epochs are scheduled by hand, so nothing is prepared beyond their end."""
    from nvidia.dali import fn, pipeline_def, types

    mode = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}[interpolation]
    files = [str(file) for file in work.sources.files]

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=work.batch_size, num_threads=work.workers, device_id=None, prefetch_queue_depth=AHEAD, seed=1
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

    pipe = pipeline()
    pipe.build()

    def batches() -> Iterator[torch.Tensor]:
        remaining = len(files)
        steps = -(-remaining // work.batch_size)
        for _ in range(min(AHEAD, steps)):
            pipe.schedule_run()
        for step in range(steps):
            views = [torch.utils.dlpack.from_dlpack(one.as_tensor()) for one in pipe.share_outputs()]  # no copy
            yield views[0][:remaining].permute(0, 3, 1, 2)
            pipe.release_outputs()
            remaining -= work.batch_size
            if step + AHEAD < steps:
                pipe.schedule_run()

    return batches


def peers(interpolation: str) -> dict[str, Peer]:
    """The loaders to compare; the others are compared with the first."""
    mine = partial(native, interpolation=interpolation)
    torchs = partial(data_loader, interpolation=interpolation)
    return {
        BASE: Peer(open=partial(mine, shards=True), make=make_tiled, about="fastimg's loader on tiled tar shards"),
        "native, scaled": Peer(open=partial(mine, shards=True, scaling=True), about="the same with dct_scaling"),
        "native, files": Peer(open=partial(mine, shards=False), about="fastimg's loader on the files"),
        "torch": Peer(
            open=partial(torchs, decoder="pillow"), about="DataLoader, Pillow, torchvision v2 on Pillow images"
        ),
        "torch, tensors": Peer(
            open=partial(torchs, decoder="torchvision"), about="DataLoader, torchvision.io, v2 on tensors"
        ),
        "torch, simplejpeg": Peer(
            open=partial(torchs, decoder="simplejpeg"), about="DataLoader, simplejpeg, v2 on tensors"
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--images", type=int, default=768, help="images per epoch; files are repeated as needed")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--interpolation", choices=("bilinear", "bicubic"), default="bilinear")
    parser.add_argument("--peers", nargs="+", default=list(peers("bilinear")), metavar="NAME")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards; default: the system's")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "views.jsonl")
    args = parser.parse_args()

    console = Console(width=150)
    wanted = {name: peer for name, peer in peers(args.interpolation).items() if name == BASE or name in args.peers}
    for name in [name for name, peer in wanted.items() if not peer.installed()]:
        console.print(f"{name}: {wanted.pop(name).module} is not installed; {INSTALL}", highlight=False)
    files = [Path(os.path.abspath(args.data / name)) for name in list_images(args.data)]
    count = max(1, args.images // args.batch_size) * args.batch_size  # whole batches, so that no loader pads
    faults: dict[str, str] = {}
    rows = []
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-views-") as scratch:

        def sources(name: str, files: list[Path], count: int) -> Workload:
            repeated = tuple((files * -(-count // len(files)))[:count])
            data = Sources(folder=Path(scratch) / name, files=repeated)
            return Workload(sources=data, crop="random", batch_size=args.batch_size, size=224, workers=args.workers)

        photographs = sources("photographs", files, count)
        gradients = sources("gradients", write_gradients(Path(scratch) / "drawn"), 6 * args.batch_size)
        with remotes(wanted, args.workers) as opened:
            make(opened, (photographs.sources, gradients.sources), BASE, faults)
            areas = {name: float(remote.boxes(gradients)[:, 0].mean()) for name, remote in opened.items()}
            measured = in_turn(opened, photographs, args.repeats, BASE, faults)
    base = next(one.speed.median for one in measured if one.name == BASE)
    for one in measured:
        ratio = base / one.speed.median
        row: dict[str, Any] = {"loader": one.name, "workers": args.workers}
        columns = {"CPU us/img": round(one.busy.median) if one.busy else "", f"x of {BASE}": f"{ratio:.2f}"}
        rows.append(row | one.speed.columns("img/s") | columns | {"mean area": f"{areas[one.name]:.3f}"})
        record = {
            "benchmark": "views",
            "images": count,
            "files": len(files),
            "bytes_per_image": round(sum(file.stat().st_size for file in files) / len(files)),
            "data": args.data.resolve().name,
            "batch_size": args.batch_size,
            "views": [{"crop": size, "n": n, "scale": list(scale)} for size, n, scale in RULES],
            "interpolation": args.interpolation,
            "environment": measure.environment(),
            **row,
            **one.speed.fields("images_per_second"),
            **(one.busy.fields("cpu_microseconds") if one.busy else {"cpu_microseconds": None}),
            "about": wanted[one.name].about,
            "base": BASE,
            "base_over_this": round(ratio, 3),
            "mean_area": round(areas[one.name], 4),
        }
        measure.append(args.out, record)
    title = f"{count} images of {args.data.resolve().name}, 2 x 224 and 6 x 96 of each, {args.interpolation}"
    measure.show(console, title, rows)
    if faults:
        raise SystemExit("\n".join(["failed:", *(f"{name}: {fault}" for name, fault in faults.items())]))


if __name__ == "__main__":
    main()
