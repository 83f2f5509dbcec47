"""TrivialAugment, flip and normalisation of a batch: fastimg against torchvision v2, Kornia and memory bandwidth.

    python benchmarks/augment.py                    # on the CPU: 256 x 224 x 224, uint8 -> float32
    python benchmarks/augment.py --device cuda      # on a GPU: 1024 x 224 x 224, uint8 -> bfloat16

Each variant draws the parameters and applies them, from uint8 images in memory to normalised ones. The cost depends on
the operations drawn, so every repeat is a new epoch. On a GPU fastimg and the floor are timed twice: the device alone,
between events that follow a long wait during which all launches are enqueued; and the time for which the host is busy
(`host`). Peers may synchronise with the device in the middle, so they are timed between events, including gaps that the
host leaves. Thread modes: fastimg uses --threads threads of its own. torchvision transforms image by image: once in a
loop with --threads threads inside each operation, and once in --threads Python threads with one thread per operation.
Kornia draws one operation for the whole batch and uses --threads threads inside each operation. fastimg and torchvision
draw from the same distribution; on tensors torchvision's pixels differ from Pillow's, on Pillow images they equal
fastimg's. Mixup and cutmix are timed on images that are normalised already.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
import torch
from PIL import Image
from rich.console import Console
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from fastimg.augment import Plan, Policy, apply, draw, reference
from fastimg.augment.mixing import mix_images, words_of
from fastimg.augment.plan import to_device

TRIVIAL = Policy(hflip=0.5, trivial=True)
FLIP = Policy(hflip=0.5)
MIXED = Policy(mixup=0.2, cutmix=1.0)
CPU_FLOOR = "floor: a conversion into preallocated memory"
GPU_FLOOR = "floor: a copy of the same number of bytes"

Call = Callable[[], object]


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--batch-size", type=int, help="256 on a CPU, 1024 on a GPU")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "augment.jsonl")
    args = parser.parse_args()
    gpu = args.device.type == "cuda"
    batch = args.batch_size or (1024 if gpu else 256)
    images = pictures(batch, args.size).to(args.device)
    torch.set_num_threads(args.threads)
    calls = on_gpu(images) if gpu else on_cpu(images, args.threads)
    with torch.inference_mode():
        variants = {name: lambda c=call: 1000 * measure.seconds(c, args.device) for name, call in calls.items()}
        if gpu:
            ours = {name: call for name, call in calls.items() if name.startswith(("fastimg", "floor"))}
            variants |= {name: lambda c=call: 1000 * device_seconds(c) for name, call in ours.items()}
            variants |= {f"host: {name}": lambda c=call: 1000 * host_seconds(c) for name, call in ours.items()}
        times = measure.interleaved(variants, args.repeats, warmups=2)
    title = f"{batch} x 3 x {args.size} x {args.size} uint8 -> {'bfloat16' if gpu else 'float32'} on {args.device}"
    report(args.out, title, times, {"batch_size": batch, "size": args.size, "threads": args.threads})


def device_seconds(call: Call, milliseconds: float = 20.0) -> float:
    """The time that a CUDA device alone needs for one call, which must not synchronise.

    The device first waits for `milliseconds`, while the host enqueues the whole call, so that it is never idle between
    the events. Raises RuntimeError if the host takes longer, since the gaps would be counted.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(milliseconds * 2e6))  # cycles, at 2 GHz or less
    start.record()
    call()
    end.record()
    if start.query():
        raise RuntimeError(f"the host took more than {milliseconds} ms to enqueue the call, or the call waits")
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def host_seconds(call: Call) -> float:
    """How long one call keeps the host busy if the device is idle beforehand."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def pictures(batch: int, size: int) -> torch.Tensor:
    """uint8 [B, 3, H, W], channels-last: smooth at large scales and noisy at small ones, like photographs."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(batch, 3, 7, 7, generator=random) * 220
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    noise = torch.randn(batch, 3, size, size, generator=random) * 8
    return (smooth + noise).clamp(0, 255).to(torch.uint8).contiguous(memory_format=torch.channels_last)


def on_cpu(images: torch.Tensor, threads: int) -> dict[str, Call]:
    """uint8 -> float32."""
    kept = torch.empty_like(images, dtype=torch.float32)
    each = list(images.unbind(0))
    pil = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in each]
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    normalise = v2.Normalize(TRIVIAL.mean, TRIVIAL.std)
    ending = [v2.ToDtype(torch.float32, scale=True), normalise]
    tensors = v2.Compose([v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(), *ending])
    pillow = v2.Compose([v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(), v2.PILToTensor(), *ending])
    flips = v2.Compose([v2.RandomHorizontalFlip(), *ending])
    calls: dict[str, Call] = {
        CPU_FLOOR: lambda: kept.copy_(images),
        "fastimg: trivial, flip, normalise": fastimg(TRIVIAL, images, torch.float32),
        "fastimg: trivial, flip, normalise, into preallocated memory": fastimg(TRIVIAL, images, torch.float32, kept),
        "fastimg: flip, normalise": fastimg(FLIP, images, torch.float32),
        "fastimg: flip, normalise, into preallocated memory": fastimg(FLIP, images, torch.float32, kept),
        **mixing(images, torch.float32),
        "torchvision v2, tensors: trivial, flip, normalise; loop": lambda: [tensors(image) for image in each],
        "torchvision v2, tensors: trivial, flip, normalise; pool": lambda: list(pool.map(tensors, each)),
        "torchvision v2, Pillow: trivial, flip, normalise; loop": lambda: [pillow(image) for image in pil],
        "torchvision v2, Pillow: trivial, flip, normalise; pool": lambda: list(pool.map(pillow, pil)),
        "torchvision v2, tensors: flip, normalise; pool": lambda: list(pool.map(flips, each)),
    }
    return calls | kornias(images, torch.float32)


def on_gpu(images: torch.Tensor) -> dict[str, Call]:
    """uint8 -> bfloat16."""
    dtype = torch.bfloat16
    moved = images.numel() * 3  # one byte read, two written
    source, kept = (torch.zeros(moved // 2, dtype=torch.uint8, device=images.device) for _ in range(2))
    trivial = v2.TrivialAugmentWide()

    def torchvision(images: torch.Tensor) -> torch.Tensor:
        """torchvision v2 on the whole batch: one operation for all images."""
        scaled = tv.to_dtype(trivial(tv.horizontal_flip(images)), dtype, scale=True)
        normalised: torch.Tensor = tv.normalize(scaled, list(TRIVIAL.mean), list(TRIVIAL.std), inplace=True)
        return normalised

    calls: dict[str, Call] = {
        GPU_FLOOR: lambda: kept.copy_(source),
        "fastimg: trivial, flip, normalise": fastimg(TRIVIAL, images, dtype),
        "fastimg: flip, normalise": fastimg(FLIP, images, dtype),
        "fastimg: normalise": lambda: apply(None, images, FLIP, dtype),
        **mixing(images, dtype),
        "torchvision v2: trivial, flip of all, normalise": lambda: torchvision(images),
    }
    return calls | kornias(images, dtype) | dalis(images)


def fastimg(policy: Policy, images: torch.Tensor, dtype: torch.dtype, kept: torch.Tensor | None = None) -> Call:
    """Draw and apply a plan; every call is a new epoch."""
    ids = torch.arange(len(images))
    epochs = itertools.count()
    return lambda: apply(draw(policy, ids, 0, next(epochs)), images, policy, dtype, out=kept)


def mixing(images: torch.Tensor, dtype: torch.dtype) -> dict[str, Call]:
    """Mixup and cutmix of normalised images in one pass, and by the operations of torch that specify it."""
    normalised, ids = apply(None, images, FLIP, dtype).clone(), torch.arange(len(images))
    epochs = itertools.count()
    room = torch.empty_like(normalised)

    def drawn() -> Plan:
        return draw(MIXED, ids, 0, next(epochs))

    def by_torch() -> object:
        plan = drawn()
        assert plan.mixing is not None
        words = to_device(words_of(plan.mixing, *images.shape[2:]), images.device)
        return reference.mix(words, normalised, None)

    return {
        "fastimg: mixup and cutmix alone": lambda: mix_images(drawn(), normalised),
        "fastimg: mixup and cutmix alone, into preallocated memory": lambda: mix_images(drawn(), normalised, out=room),
        "torch: the same, by its operations": by_torch,
    }


def kornias(images: torch.Tensor, dtype: torch.dtype) -> dict[str, Call]:
    """Kornia's TrivialAugment, if installed: one operation for the whole batch, on floats."""
    try:
        import kornia.augmentation as K
        from kornia.augmentation.auto import TrivialAugment
    except ImportError:
        return {}
    normalise = K.Normalize(torch.tensor(TRIVIAL.mean), torch.tensor(TRIVIAL.std))
    chain = torch.nn.Sequential(TrivialAugment(), normalise).to(images.device)
    flips = torch.nn.Sequential(K.RandomHorizontalFlip(p=0.5), normalise).to(images.device)
    return {
        "kornia: trivial, normalise": lambda: chain(images.float() / 255).to(dtype),
        "kornia: flip, normalise": lambda: flips(images.float() / 255).to(dtype),
    }


def dalis(images: torch.Tensor) -> dict[str, Call]:
    """DALI's TrivialAugmentWide, if installed: per image, to float16, since DALI has no bfloat16."""
    try:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.auto_aug import trivial_augment
    except ImportError:
        return {}
    batch, _, height, width = images.shape
    gpu = images.device.type == "cuda"
    rows = images.permute(0, 2, 3, 1).contiguous()

    @pipeline_def(batch_size=batch, num_threads=torch.get_num_threads(), device_id=0 if gpu else None, seed=0)
    def flip_and_normalise(trivial: bool) -> Any:
        taken = fn.external_source(name="images", device="gpu" if gpu else "cpu", layout="HWC")
        taken = fn.flip(taken, horizontal=fn.random.coin_flip())
        if trivial:
            taken = trivial_augment.trivial_augment_wide(taken, shape=[height, width], fill_value=0)
        mean, std = ([255 * v for v in values] for values in (TRIVIAL.mean, TRIVIAL.std))
        return fn.crop_mirror_normalize(taken, dtype=types.FLOAT16, output_layout="HWC", mean=mean, std=std)

    def call(trivial: bool) -> Call:
        pipeline = flip_and_normalise(trivial, enable_conditionals=True)
        pipeline.build()

        def run() -> object:
            pipeline.feed_input("images", rows if gpu else rows.numpy())
            made = pipeline.run()
            if gpu:  # DALI uses its own stream
                torch.cuda.synchronize()
            return made

        return run

    return {"dali: trivial, flip, normalise": call(True), "dali: flip, normalise": call(False)}


def report(out: Path, title: str, times: dict[str, measure.Spread], setting: dict[str, Any]) -> None:
    """Write one record and one row per variant, with its time relative to fastimg and to the floor."""
    floor = next(spread.median for name, spread in times.items() if name.startswith("floor"))
    ours = times["fastimg: trivial, flip, normalise"].median
    environment = measure.environment()
    rows = []
    for name, spread in times.items():
        ratios = {"times_fastimg": round(spread.median / ours, 2), "times_floor": round(spread.median / floor, 2)}
        rows.append({"what": name, **spread.columns("ms"), **ratios})
        record = {"benchmark": "augment", "what": name, **spread.fields("milliseconds"), **ratios, **setting}
        measure.append(out, {**record, "title": title, "environment": environment})
    measure.show(Console(width=150), title, rows)


if __name__ == "__main__":
    main()
