"""What `search` is asked for, checked before anything starts. Nothing here imports torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fastimg.cluster.connection import check_installed
from fastimg.config import yaml_file
from fastimg.config.command_line.parsing import parse
from fastimg.config.commands import Train
from fastimg.config.rule_tables.conditions import caches
from fastimg.config.rule_tables.elsewhere import uses_store
from fastimg.config.rule_tables.reading import SEARCH
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import Excludes, Range, refuse
from fastimg.config.searching import Search
from fastimg.config.url_arguments import refuse_urls
from fastimg.config.values import durations, trial_resources
from fastimg.data.elsewhere import local_folder, setting_of
from fastimg.errors import UsageError, nearest
from fastimg.loaders.containers.datasets import refuse_no_folder
from fastimg.loaders.remote.listing import named_tars
from fastimg.loaders.remote.stores import shown, url_of
from fastimg.train.checkpoints.stored_runs import options_of

from .parameters import OURS, Parameter, combinations, differing, merged, read
from .places.stored_search import SearchStore, folder_here

OBJECTIVES = ("accuracy", "speed")
# What is searched where only a number of trials is given.
USUAL = ("lr=log:1e-4:1e-1", "weight-decay=log:1e-5:1e-1", "smoothing=0:0.2", "aa=none,trivial")
_OF_A_RUN = ("data", "output", "name", "resume", "config")


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A search that is possible, as far as its words tell.

    parameters: none where stages decide what is tried. shared: settings of Train that all trials have, with YAML's
    values. seconds: None where only the number of trials ends it. amounts: what a trial takes of a Ray cluster, by its
    names; empty for the usual. base: the same settings for `parameters`, a recipe by its name. folder: on this machine;
    store: where it is uploaded to.
    """

    data: Path
    folder: Path
    store: SearchStore | None
    parameters: tuple[Parameter, ...]
    shared: Mapping[str, Any]
    trials: int | None
    seconds: float | None
    objectives: tuple[str, ...]
    archs: tuple[str, ...]
    amounts: Mapping[str, float]
    base: Mapping[str, Any]
    asked: Search

    @property
    def place(self) -> str:
        """The folder, as users call it."""
        return str(self.folder) if self.store is None else self.store.url

    @property
    def remembered(self) -> dict[str, Any]:
        """What has to be the same when an interrupted search goes on. Its end may be another one."""
        asked = self.asked
        return {
            "data": setting_of(self.data),
            "param": [str(parameter) for parameter in self.parameters],
            "arch": list(self.archs),
            "weights": [str(path) for path in asked.weights],
            "settings": dict(self.shared),
            "metric": asked.metric,
            "objective": list(self.objectives),
            "sampler": asked.algorithm if self.parameters else None,
            "pruner": pruner_of(self) if self.parameters else None,
            "seed": asked.seed,
            # Paths below it are in the settings of trials.
            **({} if self.store is None else {"cache_dir": str(self.folder.parents[2])}),
        }


def request(asked: Search) -> SearchRequest:
    """Check what is asked. Raises UserError and DataError, each with a sentence."""
    refuse(asked, SEARCH)
    url = url_of(asked.data)
    if url is None:
        refuse_no_folder(asked.data)
    seconds = None if asked.max_time is None else durations.limit(asked.max_time, "--max-time")
    archs = tuple(name.strip() for name in (asked.arch or "").split(",") if name.strip())
    texts = asked.param or (USUAL if asked.trials is not None else ())
    if not texts and seconds is None:
        raise UsageError(
            "search: say when it ends: --max-time 20m finds the best model by stages; --param with --trials N searches "
            "values of flags"
        )
    given = _base(asked, archs, bool(texts))
    base = _of_trials(given, asked)
    shared = merged(base, {})
    if not texts and shared.in_chans not in (None, 3):
        raise UsageError(
            f"--in-chans {shared.in_chans}: a search by stages compares encoders of RGB images; give --param, to "
            "search values of flags, or leave it out"
        )
    if not texts and (shared.image_field is not None or shared.depth == 16):
        flag = f"--depth {shared.depth}" if shared.depth == 16 else f"--image-field {shared.image_field}"
        raise UsageError(
            f"{flag}: a search by stages compares encoders of RGB images of 8 bits; give --param, to search values of "
            "flags, or leave it out"
        )
    parameters = read(texts, base)
    if parameters and asked.algorithm == "grid":
        list(combinations(parameters))  # refuses a range without steps
    if parameters and asked.algorithm != "grid" and asked.trials is None and seconds is None:
        raise UsageError("search: say when it ends, by --trials N or --max-time 20m")
    name = os.path.basename(os.path.abspath(asked.data)) if url is None else named_tars(url)[0].rpartition("/")[2]
    output = asked.output or Path("searches") / (name or "data")
    place = url_of(output)
    stored = merged(given, {})
    store = None if place is None else SearchStore(place, stored.cache_dir, options_of(stored))
    return SearchRequest(
        data=local_folder(asked.data, stored),
        folder=output if store is None else folder_here(store),
        store=store,
        parameters=parameters,
        shared=as_yaml(shared),
        trials=asked.trials,
        seconds=seconds,
        objectives=_objectives(asked.objective),
        archs=archs,
        amounts=_amounts(asked),
        base=base,
        asked=asked,
    )


def pruner_of(request: SearchRequest) -> str:
    """What ends trials early: nothing can where there are several objectives."""
    several = len(request.objectives) > 1
    if several and request.asked.pruner not in (None, "none"):
        raise UsageError(f"--pruner {request.asked.pruner}: trials with several objectives cannot be ended early")
    return request.asked.pruner or ("none" if several else "median")


def _amounts(asked: Search) -> dict[str, float]:
    if asked.backend == "ray":
        check_installed("search")
    return {} if asked.resources_per_trial is None else trial_resources.parse(asked.resources_per_trial)


def as_yaml(config: Train) -> dict[str, Any]:
    """The settings that differ from their defaults, with YAML's values."""
    values: dict[str, Any] = msgspec.to_builtins(differing(config), enc_hook=shown)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _base(asked: Search, archs: tuple[str, ...], by_parameters: bool) -> dict[str, Any]:
    """The settings that all trials share: what stands behind `--`, over the file of --config. Raises UsageError."""
    given = parse("train", Train, asked.shared, {})
    refuse_urls(given)
    for name in (*OURS, "device", "seed"):
        if name in given:
            flag = f"--{name.replace('_', '-')}"
            ours = name in ("data", "output", "config", "metric", "device", "seed")
            remedy = "put it in front of `--`" if ours else "a search sets it for each trial; leave it out"
            raise UsageError(f"{'DATA' if name == 'data' else flag} stands behind `--`: {remedy}")
    for name in ("arch", "weights"):
        if name in given:
            raise UsageError(f"--{name} stands behind `--`: put it in front")
    if by_parameters:
        if len(archs) > 1:
            raise UsageError(f"--arch {asked.arch}: with --param one model is trained; compare with --param arch=a,b")
        if len(asked.weights) > 1:
            raise UsageError("--weights: with --param all trials start from one file; give one")
        given |= {"arch": archs[0]} if archs else {}
        given |= {"weights": asked.weights[0]} if asked.weights else {}
    if asked.metric is not None:
        given["metric"] = asked.metric
    if asked.config is not None:
        given["config"] = asked.config
    settings = yaml_file.settings_of(given | ({} if url_of(asked.data) is None else {"data": asked.data}))
    base = yaml_file.combined(settings)
    elsewhere = [path for path in asked.weights if url_of(path) is not None]  # flags of the store have an effect
    ruled = replace(base, weights=elsewhere[0]) if elsewhere else base
    if asked.output is not None and url_of(asked.output) is not None:
        ruled = replace(ruled, output=asked.output, name="search")
    refuse(ruled, TRAIN if ruled.weights is None else [rule for rule in TRAIN if isinstance(rule, Range | Excludes)])
    # What a file says of one run is not for all of them.
    settings = {name: value for name, value in settings.items() if name not in _OF_A_RUN}
    return settings if url_of(asked.data) is None else settings | {"data": asked.data}  # other flags have an effect


def _of_trials(given: dict[str, Any], asked: Search) -> dict[str, Any]:
    """The settings without those of the store that only the folder of the search needs: trials would refuse them."""
    elsewhere = [path for path in asked.weights if url_of(path) is not None]
    if asked.output is None or url_of(asked.output) is None:
        return given
    used = merged(given, {})
    used = replace(used, weights=elsewhere[0]) if elsewhere else used
    useful = {"cache_dir": caches(used), "storage_option": uses_store(used)}
    return {name: value for name, value in given.items() if useful.get(name, True)}


def _objectives(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"--objective {text}: give {' or '.join(OBJECTIVES)}{nearest(name, OBJECTIVES)}")
    if names not in (OBJECTIVES[:1], OBJECTIVES):
        raise UsageError(f"--objective {text}: give accuracy, or accuracy,speed")
    return names
