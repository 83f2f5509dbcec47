"""`fastimg embed`: an embedding of every sample, with its key and label, for any use.

Embeddings are computed into the cache that `train --freeze backbone` uses, too, so each can reuse the other's, and an
interrupted run continues where it stopped. OUT/embeddings.json is written last.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from fastimg import notebook
from fastimg.cluster.connection import alive, check_installed, joined, usual
from fastimg.cluster.shared_places import ATTEMPTS, shared_places
from fastimg.cluster.tasks import ClusterTasks
from fastimg.config import intent
from fastimg.config.commands import Embed, Train
from fastimg.config.flag_types import parse_workers
from fastimg.config.rule_tables.reading import EMBED
from fastimg.config.rules import refuse
from fastimg.config.values.trial_resources import written
from fastimg.data.datasets import (
    DatasetPart,
    banded,
    build_loader,
    center_crop,
    check_classes,
    refuse_few_pixels,
    worker_count,
)
from fastimg.data.decoder_compilation import Say, compile_decoders
from fastimg.data.derived import cache_root
from fastimg.data.elsewhere import local_folder, setting_of, sources, with_local_data
from fastimg.embeddings.cache import Encoding, Keeper, array_loader, pixels_of
from fastimg.embeddings.encoder import why_not
from fastimg.embeddings.held_folders import held
from fastimg.embeddings.nodes import EncodingNodes, OpenedEncoding
from fastimg.embeddings.stored_results import StoredResults
from fastimg.errors import UsageError, UserError
from fastimg.loaders import BatchSource, DataError, Dataset, LoaderConfig, list_splits, open_dataset
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.decoders.arrays import MULTIPLE, TokenDecoder
from fastimg.loaders.errors import not_written
from fastimg.loaders.remote.origins import named_by_origins
from fastimg.loaders.remote.stores import url_of
from fastimg.models.input_size import check_input
from fastimg.models.precision import Precision, PrecisionName, choose_trained, set_backends
from fastimg.models.ranks import Ranks, choose_device, compute_here, start
from fastimg.models.registry import Model, Preprocessing, build, check_kwargs, parse_kwargs
from fastimg.system.rank_failures import first_rank
from fastimg.system.terminal import print_table, say
from fastimg.train.checkpoints.stored_models import with_local_models
from fastimg.train.choices import resolution as effective
from fastimg.train.choices.stated_weights import Stated, adopted
from fastimg.wording import plural, with_flags

from .embedding_files import Vectors, write_npy, write_parquet, write_tars
from .nearest_neighbours import knn_accuracy

DESCRIPTION = "embeddings.json"
_BEGUN = ".embedding"  # marks a folder that is not finished
_STAGED = ".replacement"  # the folder in OUT in which files are written, until all of them are complete
_WRITERS = {"shards": write_tars, "npy": write_npy, "parquet": write_parquet}


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A folder of embeddings: what embeddings.json in it says.

    splits: of each split the numbers of samples, of those left out and of those that were made now, and the files. knn:
        the accuracy of nearest neighbours, None where it was not asked for.
    """

    folder: str
    format: str
    dtype: str
    classes: list[str]
    splits: dict[str, dict[str, Any]]
    knn: dict[str, Any] | None

    def _repr_html_(self) -> str:
        columns = ("samples", "left out", "made now")
        rows = ((name, *(f"{split[column]:,}" for column in columns)) for name, split in self.splits.items())
        return notebook.page(
            notebook.facts({"embeddings": self.folder, "format": f"{self.format}, {self.dtype}"}),
            notebook.table(("split", *columns), rows),
            "" if self.knn is None else notebook.line(_knn_words(self.knn)),
        )


def embed(config: Embed, out: Console, err: Console) -> Embedded | None:
    """Compute embeddings, write them, and print a table. Returns what was written, and None on ranks that did not.

    Raises UsageError, UserError and DataError.
    """
    given = config.weights
    config, stated, origin = adopted(with_local_models(config, partial(say, err) if first_rank() else None))
    _check(config)
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(replace(config, weights=given), stated, err))
        ranks = stack.enter_context(start("cpu" if cluster else config.device))
        set_backends(ranks.device)
        precision = cluster.precision if cluster else choose_trained(ranks.device, config.amp, stated.precision)
        if config.amp is None and stated.precision not in (None, precision.name) and ranks.first:
            say(err, f"precision: {precision.reason}")
        config = with_local_data(config, partial(say, err))
        check_classes(config.data, config.classes)
        names = [config.split] if config.split else list(list_splits(config.data, config.classes))
        datasets = {name: open_dataset(config.data, name, config.classes) for name in names}
        for dataset in datasets.values():
            stack.callback(dataset.close)
        for line in sources(datasets.values()) if ranks.first else ():
            say(err, line)
        model, preprocessing = _model(config, next(iter(datasets.values())), stated)
        if cluster and preprocessing.field is not None:
            raise UsageError("--backend ray: a model of the bands of a field runs on one machine; leave it out")
        if origin and ranks.first:
            say(err, f"weights: {named_by_origins(origin)}")
        for remark in model.fitted if ranks.first else ():
            say(err, f"weights: {remark}")
        model.module.to(ranks.device)
        workers = worker_count(config.workers, replace(ranks, device=torch.device("cuda")))  # nothing else computes
        nodes = cluster.nodes if cluster else None
        keeper = Keeper(cache_root(config.data, config.cache_dir), ranks, workers, err, nodes)
        encoding = _encoding(config, model, preprocessing, precision, ranks, workers, keeper.say)
        config, stored = stack.enter_context(_destination(config, ranks))
        _before(config, encoding)  # what is refused is refused before anything is computed
        normalize = bool(model.text and model.text.settings.get("normalize"))
        for remark in (
            dict.fromkeys(remark for dataset in datasets.values() for remark in dataset.notes) if ranks.first else ()
        ):
            say(err, with_flags(remark))
        all_vectors: list[Vectors] = []
        made: dict[str, int] = {}
        for name, dataset in datasets.items():
            part = DatasetPart(dataset, None, name, split=name)
            if model.text is not None:
                part = replace(part, dataset=keeper.tokens(dataset, model.text.tokenizer))
            part = replace(part, dataset=banded(part.dataset, preprocessing))
            arrays, _, made[name] = keeper.arrays(part, encoding)
            stack.callback(arrays.close)
            if config.on_error == "fail" and (fault := arrays.first_fault()):
                raise DataError(f"{fault[0]}: {fault[1]}; repair or remove it, or use --on-error skip")
            all_vectors.append(Vectors(name, arrays, normalize))
        if ranks.first:
            return _write(config, encoding, all_vectors, made, stored, out, err)
    return None


@contextmanager
def _destination(config: Embed, ranks: Ranks) -> Iterator[tuple[Embed, StoredResults | None]]:
    """The settings with a folder here as OUT, and where it goes to if OUT is a URL. Errors name the URL."""
    url = url_of(config.dst)
    if url is None:
        yield config, None
        return
    options = dict(option.split("=", 1) for option in config.storage_option)
    stored = StoredResults(url, config.cache_dir, options, ranks.rank, (DESCRIPTION, _BEGUN))
    try:
        yield replace(config, dst=stored.folder), stored
    except (UsageError, UserError, DataError) as error:
        error.args = (str(error).replace(str(stored.folder), url), *error.args[1:])
        raise
    finally:
        stored.close()


def _check(config: Embed) -> None:
    refuse(config, EMBED)
    if not intent.reads_text(config) and not config.pretrained and config.weights is None:
        raise UsageError(f"--arch {config.arch}: an encoder needs weights; add --pretrained, or --weights FILE")


class _Cluster(NamedTuple):
    """Nodes that compute embeddings, and in which precision."""

    nodes: EncodingNodes
    precision: Precision


@contextmanager
def _cluster(config: Embed, stated: Stated, err: Console) -> Iterator[_Cluster | None]:
    """The nodes of a Ray cluster; None for this machine. Raises UsageError, UserError."""
    if config.backend == "local":
        yield None
        return
    check_installed("embed")
    url = url_of(config.data)
    if url is not None and intent.reads_text(config):
        raise UsageError(f"--backend ray: texts of {url} become tokens on one machine; leave it out")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UsageError("--backend ray has no effect under torchrun; start embed without it, once")
    attempts = cache_root(local_folder(config.data, config), config.cache_dir).resolve() / ATTEMPTS
    with joined("embed", config.address) as ray, ExitStack() as stack:
        amounts = usual(alive(ray), config.device)
        device = "cuda" if "GPU" in amounts else "cpu"
        if config.device == "cuda" != device:
            raise UsageError("--device cuda: no node of the cluster has a GPU; leave it out")
        attempts.mkdir(parents=True, exist_ok=True)
        stack.callback(shutil.rmtree, attempts, ignore_errors=True)
        here = [path for path in (config.data, config.weights) if path is not None and path.exists()]
        places = stack.enter_context(shared_places("embedding", here, attempts if url is None else None))
        tasks = ClusterTasks(ray, places, amounts, partial(say, err), "the same command goes on")
        say(err, f"ray         {plural(tasks.slots, 'task')} at a time, each with {written(amounts)}")
        ((_, precision),) = tasks.results(_precision_on_node, (config.amp, stated.precision), [device], str, total=1)
        opener = partial(_open_on_node, config, stated, device, int(amounts["CPU"]))
        samples = partial(_samples_on_node, config)
        yield _Cluster(EncodingNodes(tasks, attempts, url is None, opener, samples), precision)


def _precision_on_node(wanted: tuple[bool | None, PrecisionName | None], devices: list[str]) -> Iterator[Precision]:
    for device in devices:
        yield choose_trained(choose_device(device), *wanted)


def _samples_on_node(config: Embed, split: str) -> Dataset:
    return open_dataset(local_folder(config.data, config), split, config.classes)


def _open_on_node(config: Embed, stated: Stated, device: str, cores: int, split: str) -> OpenedEncoding:
    """A split and its encoder, with as many threads as a task has cores."""
    config = with_local_data(with_local_models(config))
    ranks = Ranks(0, 1, 1, choose_device(device), None)
    if ranks.device.type == "cpu":
        compute_here(cores)
    else:
        torch.set_num_threads(cores)
    set_backends(ranks.device)
    dataset = open_dataset(config.data, split, config.classes)
    model, preprocessing = _model(config, dataset, stated)
    model.module.to(ranks.device)
    workers = parse_workers(config.workers, cores)
    precision = choose_trained(ranks.device, config.amp, stated.precision)
    encoding = _encoding(config, model, preprocessing, precision, ranks, workers, lambda _: None)
    part = DatasetPart(dataset, None, split, split=split)
    if model.text is not None:
        keeper = Keeper(cache_root(config.data, config.cache_dir), ranks, workers, Console(quiet=True))
        part = replace(part, dataset=keeper.tokens(dataset, model.text.tokenizer))
    return OpenedEncoding(replace(part, dataset=banded(part.dataset, preprocessing)), encoding)


def _model(config: Embed, dataset: Dataset, stated: Stated) -> tuple[Model, Preprocessing]:
    """The encoder, with an unused classifier, and its preprocessing."""
    texts = dataset.content == "text"
    if texts != intent.reads_text(config):
        others = "--arch hf:NAME" if texts else "a model of timm's or torchvision's"
        what = samples_of(dataset.content)
        raise UsageError(f"--arch {config.arch}: does not read {what}, which {config.data} holds; give {others}")
    torch.manual_seed(0)
    classes = max(1, len(dataset.classes))
    kwargs = parse_kwargs(config.model_kwargs)
    own = stated.kwargs.get("in_chans")  # of a checkpoint of bands
    check_kwargs({k: v for k, v in kwargs.items() if (k, v) != ("in_chans", own)}, config.img_size, "--img-size")
    model = build(
        config.arch or intent.ARCH,
        classes,
        pretrained=config.pretrained,
        weights=config.weights,
        kwargs=kwargs,
        img_size=config.img_size or stated.image_size(),
        blurpool=stated.blurpool,
        max_length=config.max_length,
        text=stated.text,
    )
    preprocessing = model.preprocessing
    size = MULTIPLE
    if not texts:
        preprocessing = effective.preprocessing(Train(img_size=config.img_size), model.preprocessing)
        size = preprocessing.val_size
        check_input(model, size, classes, "--img-size")
    if reason := why_not(model, model.example(size), trains=False):
        raise UsageError(f"--arch {config.arch}: {reason}, so it has no single embedding; choose another model")
    return model, preprocessing


def _encoding(
    config: Embed,
    model: Model,
    preprocessing: Preprocessing,
    precision: Precision,
    ranks: Ranks,
    workers: int,
    tell: Say,
) -> Encoding:
    if model.convolutional:
        model.module.to(memory_format=torch.channels_last)
    settings = LoaderConfig(
        batch_size=intent.BATCH[ranks.device.type], order="sequential", workers=workers, on_error=config.on_error
    )
    crop = center_crop(preprocessing)

    def open_(part: DatasetPart) -> BatchSource:
        if model.text is not None:
            return array_loader(part, TokenDecoder(model.text.tokenizer.length), settings, ranks.device)
        refuse_few_pixels(config.max_pixels, crop, "--img-size")
        if not preprocessing.is_deep:
            compile_decoders(part.dataset, part.indices, tell)
        return build_loader(part, crop, settings, config.max_pixels, ranks.device, seen=preprocessing)

    return Encoding(
        model=model,
        ranks=ranks,
        precision=precision,
        policy=preprocessing.policy,
        dtype={"fp16": "float16", "fp32": "float32"}[config.dtype],
        reads=pixels_of(crop, preprocessing, "native", "cpu", config.max_pixels),
        open_=open_,
    )


def _before(config: Embed, encoding: Encoding) -> dict[str, Any]:
    """The splits described in OUT by an earlier run with the same settings; this run keeps those it does not write.

    Raises UsageError if OUT holds anything else, finished or not.
    """
    folder = config.dst
    if not folder.exists():
        return {}
    if not folder.is_dir():
        raise UsageError(f"{folder}: a file; give a folder")
    if config.overwrite or all(entry.name == _STAGED for entry in folder.iterdir()):
        return {}
    begun = (folder / _BEGUN).exists()
    try:
        description = json.loads((folder / (_BEGUN if begun else DESCRIPTION)).read_text(encoding="utf-8"))
        same = all(description[name] == value for name, value in _settings(config, encoding).items())
        splits: dict[str, Any] = dict(description["splits"])
    except (OSError, ValueError, KeyError, TypeError):
        if begun:
            return {}
        raise UsageError(f"{folder}: contains other files; give an empty folder, or add --overwrite") from None
    if not same and not begun:
        raise UsageError(
            f"{folder}: contains embeddings made with other settings; give another folder, or add --overwrite"
        )
    return splits if same else {}


def _settings(config: Embed, encoding: Encoding) -> dict[str, Any]:
    """The settings that distinguish two folders of embeddings."""
    about: dict[str, Any] = json.loads(json.dumps(encoding.about()))
    return {"data": setting_of(config.data), "format": config.format, "encoder": about}


def _clear(folder: Path, made: Collection[str], kept: Collection[str]) -> None:
    """Delete an earlier run's description and its files of the splits that are not kept."""
    file = folder / DESCRIPTION
    with suppress(OSError, ValueError, KeyError, TypeError):
        made = {*made, *json.loads(file.read_text(encoding="utf-8"))["splits"]} - set(kept)
    file.unlink(missing_ok=True)
    names = "|".join(re.escape(split) for split in made)
    for path in sorted(folder.iterdir()):
        if re.fullmatch(rf"({names})(-[0-9]{{5}}\.(tar|idx)|(\.labels)?\.npy|\.keys\.json|\.parquet)", path.name):
            path.unlink()


def _write(
    config: Embed,
    encoding: Encoding,
    all_vectors: list[Vectors],
    made: dict[str, int],
    stored: StoredResults | None,
    out: Console,
    err: Console,
) -> Embedded:
    """Write everything, and print what was written. Raises UserError, and UsageError as `_before`."""
    folder = config.dst
    try:
        with nullcontext() if stored else held(folder):  # `stored` holds its folder from the start
            result = _filled(config, encoding, all_vectors, made, stored, err)
    except OSError as error:
        raise UserError(f"{folder}: {not_written(error, 'give another folder')}") from error
    if config.json:
        print(json.dumps(result))
    else:
        _print(result, stored.url if stored else folder, out)
    return Embedded(
        folder=str(stored.url if stored else folder),
        knn=result.get("knn"),
        **{name: result[name] for name in ("format", "dtype", "classes", "splits")},
    )


def _filled(
    config: Embed,
    encoding: Encoding,
    all_vectors: list[Vectors],
    made: dict[str, int],
    stored: StoredResults | None,
    err: Console,
) -> dict[str, Any]:
    """The description of a folder that nobody else writes to, once its files are written.

    They are written beside what is there, which they replace when all are complete.
    """
    folder = config.dst
    # Read only now: others may have written splits while these embeddings were computed.
    splits = {name: split for name, split in _before(config, encoding).items() if name not in made}
    begun = json.dumps({**_settings(config, encoding), "splits": splits}).encode()
    kept = list(splits)
    staged = folder / _STAGED
    shutil.rmtree(staged, ignore_errors=True)  # of a run that was killed
    staged.mkdir()
    try:
        for vectors in all_vectors:
            files = _WRITERS[config.format](staged, vectors)
            for index, reason in list(vectors.left_out.items())[:5]:
                say(err, f"left out {vectors.name_of(index)}: {reason}")
            splits[vectors.split] = {
                "samples": len(vectors),
                "left out": len(vectors.left_out),
                "made now": made[vectors.split],
                "files": [file.name for file in files],
            }
        if not any(split["samples"] for split in splits.values()):
            raise UserError(f"{config.data}: none of its samples could be decoded; see the reasons above")
        result: dict[str, Any] = {
            **_settings(config, encoding),
            "dtype": config.dtype,
            "normalized": bool(encoding.model.text and encoding.model.text.settings.get("normalize")),
            "classes": list(all_vectors[0].classes),
            "splits": splits,
        }
        if config.knn is not None:
            result["knn"] = _knn(config.knn, all_vectors)
        replace_file(folder / _BEGUN, begun)
        if stored:
            stored.begin(_BEGUN)
        _clear(folder, made, kept)
        for file in sorted(staged.iterdir()):
            file.replace(folder / file.name)
        staged.rmdir()
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    replace_file(folder / DESCRIPTION, (json.dumps(result, indent=1) + "\n").encode())
    (folder / _BEGUN).unlink(missing_ok=True)
    if stored:
        stored.finish(_BEGUN, DESCRIPTION)
    return result


def _knn(k: int, all_vectors: list[Vectors]) -> dict[str, Any]:
    """Accuracy of the validation split, with neighbours in the training split, or of each sample among all others."""
    by_split = {vectors.split: vectors for vectors in all_vectors}
    query_split = next((name for name in ("val", "test") if name in by_split), None)
    known = "train" if "train" in by_split else all_vectors[0].split
    values, labels = _arrays(by_split[known])
    queries, truth = (None, labels) if query_split in (None, known) else _arrays(by_split[str(query_split)])
    neighbours = len(values) - (queries is None)
    if neighbours < k:
        raise UserError(f"--knn {k}: there are only {neighbours} neighbours; give a smaller number, or leave --knn out")
    if (labels < 0).any() or (truth < 0).any():
        raise UserError(f"--knn {k}: not every sample has a label; leave --knn out")
    top1 = knn_accuracy(values, labels, queries, truth, k)
    return {"k": k, "known": known, "asked": known if queries is None else query_split, "n": len(truth), "top1": top1}


def _arrays(vectors: Vectors) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rows = [(row.values.reshape(-1).astype(np.float32), row.label) for row in vectors]
    return np.stack([values for values, _ in rows]), np.array([label for _, label in rows], np.int64)


def _print(result: dict[str, Any], folder: Path | str, out: Console) -> None:
    table = Table()
    for column in ("split", "samples", "left out", "made now", "files"):
        table.add_column(column, overflow="fold", justify="left" if column in ("split", "files") else "right")
    for split, counts in result["splits"].items():
        files = counts["files"]
        names = ", ".join(files[:3]) + (f", ... ({len(files)})" if len(files) > 3 else "")
        table.add_row(split, *(f"{counts[key]:,}" for key in ("samples", "left out", "made now")), names)
    print_table(out, table, f"embeddings in {folder}")
    if "knn" in result:
        out.print(_knn_words(result["knn"]), highlight=False)


def _knn_words(knn: dict[str, Any]) -> str:
    among = f"among {knn['known']}" if knn["asked"] != knn["known"] else "among all others"
    return f"kNN (k {knn['k']}, cosine): top-1 {knn['top1']:.2%} of {knn['n']} of {knn['asked']}, {among}"
