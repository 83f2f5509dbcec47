"""The rules of the other commands."""

from typing import Any

from fastimg.config.intent import reads_text
from fastimg.config.rules import Check, Excludes, Idle, Needs, Range, Rule
from fastimg.config.searching import Search
from fastimg.config.values import trial_resources
from fastimg.loaders.remote.urls import url_of

from .clusters import CLUSTER, check_cluster_device, on_ray
from .elsewhere import (
    ELSEWHERE,
    FROM_STORE,
    LOADER_ELSEWHERE,
    RUN_FROM_STORE,
    check_cache_limit,
    check_loaders_elsewhere,
    check_storage_option,
    converts_urls,
    reads_shards_elsewhere,
    written_here,
)
from .ranges import DEVICE, at_least, is_share, is_size
from .training import AUGMENTATION, LOADER

_READING = (DEVICE, Range("batch_size", at_least(1), "1 or more"), Range("max_pixels", at_least(1), "1 or more"))


def _new_file(field: str) -> Check:
    """A file that is written, and does not replace another unless --overwrite is given."""

    def check(config: Any) -> str | None:
        file = getattr(config, field)
        if file is None or config.overwrite or url_of(file) is not None or str(file) == "-" or not file.is_file():
            return None
        return "exists already; add --overwrite, or give another file"

    return Check(field, check)


PICTURES = ("samples.png", "augmented.png", "trivial.png")  # what `inspect` draws


def _new_pictures(config: Any) -> str | None:
    """What is in a folder that the user named is not replaced unless --overwrite is given."""
    folder = config.output
    if folder is None or config.overwrite or config.no_pictures or url_of(folder) is not None:
        return None
    there = next((name for name in PICTURES if (folder / name).exists()), None)
    return None if there is None else f"{there} exists already there; add --overwrite, or give another folder"


EVAL: tuple[Rule, ...] = (
    _new_file("output"),
    Needs("overwrite", lambda c: c.output is not None, "--output"),
    *FROM_STORE,
    LOADER_ELSEWHERE,
    *_READING,
    *LOADER,
)

PREDICT: tuple[Rule, ...] = (
    _new_file("csv"),
    _new_file("sheet"),
    Needs("overwrite", lambda c: c.csv is not None or c.sheet is not None, "--csv or --sheet"),
    Range("topk", at_least(1), "1 or more"),
    Range("threshold", is_share, "a probability from 0 to 1"),
    Range("sheet", lambda file: file.suffix == ".png", "a name that ends in .png"),
    *FROM_STORE,
    *_READING,
)

EMBED: tuple[Rule, ...] = (
    *ELSEWHERE,
    *_READING,
    *CLUSTER,
    Check("device", check_cluster_device),
    Idle("img_size", reads_text, "on texts", "leave it out"),
    Idle("max_length", lambda c: not reads_text(c), "on images", "leave it out"),
    Idle("pretrained", reads_text, lambda c: f"with {c.arch}, which comes with its weights", "leave it out"),
    Excludes("pretrained", "weights"),
    Range("knn", at_least(1), "1 or more"),
    Range("img_size", at_least(1), "1 or more"),
)

EXPORT: tuple[Rule, ...] = FROM_STORE

PUSH: tuple[Rule, ...] = RUN_FROM_STORE

DOCTOR: tuple[Rule, ...] = FROM_STORE

INSPECT: tuple[Rule, ...] = (
    Check("output", _new_pictures),
    Needs("overwrite", lambda c: c.output is not None, "--output"),
    *FROM_STORE,
    Range("samples", lambda count: 1 <= count <= 400, "1 to 400"),
    Range("max_pixels", at_least(1), "1 or more"),
    Range("seed", at_least(0), "0 or more"),
    Range("img_size", is_size, "a size from 1 to 16384 pixels"),
)

VERIFY: tuple[Rule, ...] = (*FROM_STORE, Range("max_pixels", at_least(1), "1 or more"))

SUGGEST: tuple[Rule, ...] = (*FROM_STORE, DEVICE)

DEMO: tuple[Rule, ...] = (written_here("output"),)

CONVERT: tuple[Rule, ...] = (
    Needs("cache_dir", converts_urls, "a URL as SRC or DST"),
    Needs("cache_limit", reads_shards_elsewhere, "a URL as SRC, or as DST with --append"),
    Check("cache_limit", check_cache_limit),
    Needs("storage_option", converts_urls, "a URL as SRC or DST"),
    Check("storage_option", check_storage_option),
)

BENCH: tuple[Rule, ...] = (
    _new_file("output"),
    Needs("overwrite", lambda c: c.output is not None, "--output"),
    *FROM_STORE,
    LOADER_ELSEWHERE,
    DEVICE,
    Check("loaders", check_loaders_elsewhere),
    Excludes("quick", "full"),
    Needs("no_advice", lambda c: bool(c.full), "--full, which alone tries what would be faster"),
    *AUGMENTATION,
    *LOADER,
    *(Range(name, at_least(1), "1 or more") for name in ("batch_size", "img_size", "repeats", "images")),
)


def _parts_a_gpu(config: Search) -> bool:
    amounts = trial_resources.parse(config.resources_per_trial or "cpu=1")
    return amounts.get("GPU", 1) < 1


SEARCH: tuple[Rule, ...] = (
    *CLUSTER,
    *(Needs(name, on_ray, "--backend ray") for name in ("resources_per_trial", "limit_gpu_memory")),
    DEVICE,
    Check("device", check_cluster_device),
    Needs("limit_gpu_memory", _parts_a_gpu, "a part of a GPU, as in --resources-per-trial gpu=0.5"),
    Range("trials", at_least(1), "1 or more"),
    Range("jobs", at_least(1), "1 or more"),
    Range("seed", at_least(0), "0 or more"),
)
