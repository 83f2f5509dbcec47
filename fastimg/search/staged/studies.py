"""The trials of a search by stages as Optuna has them: a study for each stage, which optuna-dashboard shows.

What is known stands in the journal, which is written first, and these studies are made of it: a trial is added in one
transaction when its line is there, and what a kill kept from being added is added when the search goes on.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from fastimg.errors import UsageError
from fastimg.search.places.folder import STUDY
from fastimg.search.records import TrialRecord
from fastimg.search.study import library, quiet, refused, url

from .rungs import StageName

if TYPE_CHECKING:
    import optuna

_NUMBER = "number"  # of a trial, over all stages
_FOLDER = "folder"  # of the search that a study belongs to
_RATE = (1e-6, 1.0)  # learning rates usually lie within
_NUMBERS: Mapping[str, tuple[float, float, bool]] = {  # parameters: from, to, by orders of magnitude
    "weight_decay": (1e-4, 1.0, True),
    "smoothing": (0.0, 0.2, False),
    "hflip": (0.0, 1.0, False),
    "layer_decay": (0.5, 1.0, False),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "head": ("linear", "mlp"),
    "combiner": ("gated", "concat"),
    "aa": ("none", "trivial"),
}


def opened(storage: "str | optuna.storages.BaseStorage") -> "optuna.storages.BaseStorage":
    """A storage, by its URL or as it is. Raises UsageError where it cannot be opened."""
    try:
        found: optuna.storages.BaseStorage = library().storages.get_storage(storage)
    except Exception as error:  # SQLAlchemy's and its drivers' have no common class that needs no import
        raise refused(storage, error) from error
    return found


class StageStudies:
    """The studies of a folder, by default in its study.db, named after their stages.

    In a storage that other searches use, too, the folder's name stands before the stage's. encoders: the names of all
    that are compared. metric: of the trials' values; largest: whether more of it is better.

    Raises UsageError for a storage that cannot be opened, or that has another folder's studies of these names.
    """

    def __init__(
        self,
        folder: Path,
        storage: "str | optuna.storages.BaseStorage | None",
        encoders: Sequence[str],
        metric: str,
        largest: bool,
    ) -> None:
        self._optuna = library()
        self._folder = str(folder.resolve())
        self._prefix = "" if storage is None else f"{folder.resolve().name}: "
        self._encoders = tuple(encoders)
        self._metric = metric
        self._direction = "maximize" if largest else "minimize"
        self._storage = opened(url(folder / STUDY) if storage is None else storage)
        self._studies = {stage: self._opened(stage) for stage in get_args(StageName)}

    def agree(self, records: Iterable[TrialRecord]) -> None:
        """Add what is missing; a study that has other trials than the records, or cannot hold them, is made anew."""
        by_stage: dict[str, list[TrialRecord]] = {stage: [] for stage in self._studies}
        for record in records:
            by_stage[record.stage].append(record)
        for stage, expected in by_stage.items():
            there = self._there(stage)
            if not there <= {record.number for record in expected if not record.cut} or self._encoders_differ(stage):
                self._optuna.delete_study(study_name=self._name(stage), storage=self._storage)
                self._studies[stage] = self._opened(stage)
                there = set()
            for record in expected:
                if record.number not in there and not record.cut:
                    self.add(record)

    def add(self, record: TrialRecord) -> None:
        """A trial has ended: complete, pruned, or failed, as Optuna has it, where the clock ended it."""
        states = self._optuna.trial.TrialState
        state = states.FAIL if record.cut else states.COMPLETE if record.state == "complete" else states.PRUNED
        drawn = {name: value for name, value in record.parameters.items() if value is not None}
        attributes = {
            _NUMBER: record.number,
            "arch": record.settings.get("arch"),
            "run": None if record.run is None else str(record.run),
            "seconds": round(record.seconds, 3),
            "epochs": record.epochs,
            **({} if record.reason is None else {"reason": record.reason}),
        }
        now = datetime.now()
        with quiet():
            trial = self._optuna.trial.create_trial(
                state=state,
                value=record.values[0] if state == states.COMPLETE else None,
                params=drawn,
                distributions={name: self._distribution(name, value) for name, value in drawn.items()},
                user_attrs=attributes,
                intermediate_values=dict(record.reported),
            )
            trial.datetime_start = now - timedelta(seconds=record.seconds)
            trial.datetime_complete = now
            self._studies[record.stage].add_trial(trial)

    def _name(self, stage: str) -> str:
        return f"{self._prefix}{stage}"

    def _opened(self, stage: str) -> "optuna.Study":
        study: optuna.Study = self._optuna.create_study(
            storage=self._storage, study_name=self._name(stage), direction=self._direction, load_if_exists=True
        )
        owner = study.user_attrs.get(_FOLDER)
        if owner is None:
            study.set_user_attr(_FOLDER, self._folder)
            with quiet():
                study.set_metric_names([self._metric])
        elif owner != self._folder:
            raise UsageError(
                f"--storage: it has a study {self._name(stage)} of another search, in {owner}; give an --output of "
                "another name"
            )
        return study

    def _there(self, stage: str) -> set[int]:
        """The numbers of the trials that a study has."""
        trials = self._studies[stage].get_trials(deepcopy=False)
        return {trial.user_attrs[_NUMBER] for trial in trials if trial.state.name != "FAIL"}

    def _encoders_differ(self, stage: str) -> bool:
        """Whether a study has trials of other encoders: Optuna keeps the choices that a parameter first had."""
        trials = self._studies[stage].get_trials(deepcopy=False)
        ours = self._distribution("encoder", None)
        return any(trial.distributions["encoder"] != ours for trial in trials)

    def _distribution(self, name: str, value: Any) -> Any:
        """Where a value is from, as far as pictures need it."""
        kinds = self._optuna.distributions
        if name == "encoder":
            return kinds.CategoricalDistribution(self._encoders)
        if isinstance(value, str):
            return kinds.CategoricalDistribution(_CHOICES[name])
        low, high, log = _NUMBERS.get(name, (*_RATE, True))
        return kinds.FloatDistribution(min(low, value), max(high, value), log=log)
