"""Weights that are on this machine: in the caches of Hugging Face's hub and of torch. And how others are fetched."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
import torchvision
from huggingface_hub import constants

from fastimg.config.training import HF_PREFIX, HUB_PREFIX
from fastimg.errors import reason_of

# Published models that are fetched where the network allows and nothing else is at hand: for each kind of network a
# small one, in the order of their cost. The first three are for CPUs.
PUBLISHED = (
    "mobilenetv4_conv_small.e2400_r224_in1k",
    "resnet18.a1_in1k",
    "efficientnet_b0.ra_in1k",
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "convnext_tiny.in12k_ft_in1k",
)
ON_CPUS = 3
_TIMM_REPOS = "timm/"
_FILES = ("model.safetensors", "pytorch_model.bin")
_SECONDS = 10  # to wait for the hub's answer


@dataclass(frozen=True)
class KeptWeights:
    """An architecture by its name for --arch, and the file of its weights; a text encoder's are in its folder."""

    arch: str
    file: Path | None
    name: str  # to be shown


def kept_images() -> list[KeptWeights]:
    """The image models whose weights are in a cache, by their names; each model and each file once."""
    archs = {kept.arch: kept for kept in (*_of_torch(), *_of_hub())}
    files = {kept.file: kept for kept in archs.values()}  # of timm's names for a file of torchvision's, the last one
    return sorted(files.values(), key=lambda kept: kept.arch)


def kept_texts() -> list[KeptWeights]:
    """The text encoders in the hub's cache."""
    found = []
    for name, folder in _repositories():
        whole = (folder / "config.json").exists() and any((folder / file).exists() for file in _FILES)
        if whole and (folder / "tokenizer.json").exists():
            found.append(KeptWeights(f"{HF_PREFIX}{folder}", None, f"{HF_PREFIX}{name}"))
    return found


def fetched(archs: tuple[str, ...]) -> tuple[list[KeptWeights], str]:
    """Published weights of timm's models, downloaded into the hub's cache; and why the rest, or none, could be.

    Those of `hf-hub:` names are taken from the cache if they are there.
    """
    from huggingface_hub import get_session, hf_hub_download, try_to_load_from_cache

    found: list[KeptWeights] = []
    left: list[tuple[str, str, str | None]] = []  # the name, the repository and the revision of each
    for arch in archs:
        repository, revision = _repository(arch)
        kept = try_to_load_from_cache(repository, _FILES[0], revision=revision) if repository else None
        if arch.startswith(HUB_PREFIX) and isinstance(kept, str):
            found.append(KeptWeights(arch, Path(kept), arch))
        elif repository:
            left.append((arch, repository, revision))
    if not left:
        return found, ""
    if constants.HF_HUB_OFFLINE:
        return found, "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS).raise_for_status()
        for arch, repository, revision in left:
            found.append(KeptWeights(arch, Path(hf_hub_download(repository, _FILES[0], revision=revision)), arch))
    except Exception as error:  # noqa: BLE001 - depends on the HTTP library that the hub uses
        return found, reason_of(error)
    return found, ""


def _repository(arch: str) -> tuple[str, str | None]:
    """The repository of a model's weights, empty if it has none, and its revision."""
    if arch.startswith(HUB_PREFIX):
        repository, _, revision = arch.removeprefix(HUB_PREFIX).partition("@")
        return repository, revision or None
    config = timm.get_pretrained_cfg(arch)
    return ("" if config is None else str(config.hf_hub_id or "")), None


def _repositories() -> Iterator[tuple[str, Path]]:
    """The names of repositories in the hub's cache, and the folder of the newest snapshot of each."""
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        snapshots = sorted((folder / "snapshots").glob("*/"), key=lambda path: path.stat().st_mtime_ns)
        if snapshots:
            yield folder.name.removeprefix("models--").replace("--", "/"), snapshots[-1]


def _of_hub() -> Iterator[KeptWeights]:
    """timm's models in the hub's cache."""
    for name, folder in _repositories():
        arch = name.removeprefix(_TIMM_REPOS)
        file = next((folder / file for file in _FILES if (folder / file).exists()), None)
        if arch != name and file is not None and timm.is_model(arch):
            yield KeptWeights(arch, file, arch)


def _of_torch() -> Iterator[KeptWeights]:
    """timm's and torchvision's models in the folder that torch.hub downloads to."""
    files = {path.name: path for path in (Path(torch.hub.get_dir()) / "checkpoints").glob("*")}
    if not files:
        return
    for name in torchvision.models.list_models(module=torchvision.models):
        published = torchvision.models.get_model_weights(name).DEFAULT
        if (file := files.get(published.url.rpartition("/")[2])) is not None:
            yield KeptWeights(f"torchvision/{name}", file, f"torchvision/{name}")
    for arch in timm.list_pretrained():
        config = timm.get_pretrained_cfg(arch)
        url = "" if config is None else str(config.url or "")
        if (file := files.get(url.rpartition("/")[2])) is not None:
            yield KeptWeights(arch, file, arch)
