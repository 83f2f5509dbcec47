"""The study of a search, by Optuna: what is drawn for the next trial, and what the trials before have shown.

What is drawn depends only on the seed, the trial's number and the trials before it, so that a search that was
interrupted goes on as if it had not been.
"""

import hashlib
import itertools
import math
import random
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fastimg.errors import UsageError, UserError, reason_of
from fastimg.loaders.extras import install

from .parameters import Parameter, combinations
from .places.folder import STUDY
from .records import TrialRecord

if TYPE_CHECKING:
    import optuna

_NUMBER = "number"  # of a trial: Optuna's own counts one that is resumed anew
_RECORD = "record"
_REPORTED = "reported"
_PARTIAL = "cut"  # the record of a trial that the clock ended: it goes on when there is more time
_REASON = "reason"
_SECONDS = "seconds"
_QUEUED = "fixed_params"  # Optuna's: what a trial that was queued will try
_SPREAD = 16  # first trials of tpe, a power of two, which spread evenly
_CANDIDATES = 96  # drawn for each trial of tpe, of which it takes the most promising; Optuna's default is 24


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """How a study searches.

    sampler: tpe, random, grid or gp. pruner: hyperband, median or none. largest: by objective, whether more is better.
    """

    parameters: tuple[Parameter, ...]
    sampler: str
    pruner: str
    largest: tuple[bool, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A trial to be run."""

    number: int
    parameters: Mapping[str, Any]


class SearchStudy:
    """Optuna's study, asked and told by one process. Trials are numbered from 0, also over interruptions."""

    def __init__(self, folder: Path, storage: "str | optuna.storages.BaseStorage | None", plan: StudyPlan) -> None:
        """Open the study of a folder, or begin it. Raises UsageError for a storage that cannot be opened."""
        self._plan = plan
        self._optuna = library()
        self._open: dict[int, optuna.Trial] = {}  # by our number
        self._fixed = _fixed(plan)
        directions = ["maximize" if largest else "minimize" for largest in plan.largest]
        with quiet():
            try:
                self._study = self._optuna.create_study(
                    storage=storage or url(folder / STUDY),
                    study_name="search" if storage is None else folder.resolve().name,
                    directions=directions,
                    pruner=_pruner(self._optuna, plan.pruner),
                    load_if_exists=True,
                )
            except Exception as error:  # SQLAlchemy's and its drivers' have no common class that needs no import
                if storage is None:
                    raise
                raise refused(storage, error) from error
        if [direction.name.lower() for direction in self._study.directions] != directions:
            raise UsageError(f"{folder}: its study has other objectives; give the same again, or another --output")

    def recover(self) -> int:
        """Queue again what was running when a search was killed; complete what had ended. Returns how many go on."""
        trials = self._study.get_trials(deepcopy=False)
        queued = {trial.user_attrs.get(_NUMBER) for trial in trials if trial.state.name == "WAITING"}
        for trial in trials:
            if trial.state.name != "RUNNING":
                continue
            if (stated := trial.user_attrs.get(_RECORD)) is not None:
                self._tell(trial.number, _restored(stated))
                continue
            number = trial.user_attrs.get(_NUMBER)  # None: drawn, but never begun; the next draw is the same
            if number is not None and number not in queued:
                reported = trial.user_attrs.get(_REPORTED, {}) | {
                    str(k): v for k, v in trial.intermediate_values.items()
                }
                drawn = trial.system_attrs.get(_QUEUED, {}) | trial.params  # params fill one by one
                self._queue(drawn, number, reported, trial.user_attrs.get(_PARTIAL))
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        return self.waiting

    @property
    def records(self) -> list[TrialRecord]:
        """The trials that have ended, and those that the clock has ended, in the order of their numbers."""
        trials = [trial for trial in self._study.get_trials(deepcopy=False) if _counts(trial)]
        stated = (trial.user_attrs.get(_RECORD if _ended(trial) else _PARTIAL) for trial in trials)
        found = (_restored(record) for record in stated if record is not None)
        return sorted(found, key=lambda record: record.number)

    @property
    def begun(self) -> int:
        """How many trials have ended, run or wait."""
        return sum(_counts(trial) for trial in self._study.get_trials(deepcopy=False))

    @property
    def combinations(self) -> int:
        """How many there are; 0 of a range without steps."""
        return math.prod(len(parameter.values or ()) for parameter in self._plan.parameters)

    @property
    def exhausted(self) -> bool:
        """Whether every combination has been drawn: none is drawn twice, since a trial would come to the same."""
        return 0 < self.combinations <= self.begun and not self.waiting

    @property
    def waiting(self) -> int:
        """How many interrupted trials go on next."""
        states = [trial.state.name for trial in self._study.get_trials(deepcopy=False)]
        return states.count("WAITING")

    @property
    def seconds(self) -> float:
        """How long has been searched, as far as it was noted."""
        return float(self._study.user_attrs.get(_SECONDS, 0.0))

    def spend(self, seconds: float) -> None:
        """Note how long has been searched so far."""
        self._study.set_user_attr(_SECONDS, round(seconds, 3))

    def ask(self) -> Draw:
        """What the next trial tries: what was interrupted, or something new."""
        if not self.waiting and self.begun < len(self._fixed):
            self._study.enqueue_trial(self._fixed[self.begun], {_NUMBER: self.begun, _REPORTED: {}})
        queued = bool(self.waiting)
        number = self.begun
        with quiet():
            self._study.sampler = _sampler(self._optuna, self._plan, number)
            tried = set() if queued or not self.combinations else self._tried()
            trial = self._study.ask(_distributions(self._optuna, self._plan.parameters))
            if _key(trial.params) in tried:
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)  # it was never begun
                self._study.enqueue_trial(self._untried(number, tried), {_NUMBER: number, _REPORTED: {}})
                queued = True
                trial = self._study.ask(_distributions(self._optuna, self._plan.parameters))
            if queued:
                number = trial.user_attrs[_NUMBER]
                for epoch, value in trial.user_attrs[_REPORTED].items():
                    trial.report(value, int(epoch))
            else:
                trial.set_user_attr(_NUMBER, number)
        self._open[number] = trial
        return Draw(number=number, parameters=trial.params)

    def _tried(self) -> set[str]:
        """The combinations that trials have, in any state."""
        return {_key(trial.params) for trial in self._study.get_trials(deepcopy=False) if _counts(trial)}

    def _untried(self, number: int, tried: Collection[str]) -> dict[str, Any]:
        """A combination that no trial has, at random."""
        place = random.Random(f"{self._plan.seed} {number}").randrange(self.combinations)
        behind = itertools.islice(combinations(self._plan.parameters), place, None)
        every = itertools.chain(behind, combinations(self._plan.parameters))
        return next(drawn for drawn in every if _key(drawn) not in tried)

    def report(self, number: int, epoch: int, value: float) -> bool:
        """Note the first objective after an epoch. Returns whether the trial is not worth going on with."""
        if len(self._plan.largest) > 1:
            return False
        trial = self._open[number]
        with quiet():
            trial.report(value, epoch)
            return bool(trial.should_prune())

    def tell(self, record: TrialRecord) -> None:
        """A trial has ended. From here on it is never run again, unless the clock has ended it.

        To Optuna such a trial has failed, since its values say nothing about its parameters, and one with the same
        parameters waits.
        """
        trial = self._open.pop(record.number)
        stated = msgspec.to_builtins(record, enc_hook=str)
        with quiet():
            if record.reason is not None:
                trial.set_user_attr(_REASON, record.reason)
            if record.cut:
                reported = {str(epoch): value for epoch, value in record.reported.items()}
                self._queue(trial.params, record.number, reported, stated)
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
                return
            trial.set_user_attr(_RECORD, stated)
            self._tell(trial.number, record)

    def _queue(self, drawn: Mapping[str, Any], number: int, reported: Mapping[str, float], stated: Any) -> None:
        """A trial that was begun goes on before others are drawn."""
        attributes = {_NUMBER: number, _REPORTED: reported} | ({} if stated is None else {_PARTIAL: stated})
        self._study.enqueue_trial(dict(drawn), attributes)

    def _tell(self, number: int, record: TrialRecord) -> None:
        states = self._optuna.trial.TrialState
        if record.state == "complete":
            self._study.tell(number, list(record.values))
        else:
            self._study.tell(number, state=states.PRUNED)


def _key(drawn: Mapping[str, Any]) -> str:
    """What tells a combination from others; steps of a range are told apart, and not the last bits of a number."""
    return repr(sorted((name, f"{value:.9g}" if isinstance(value, float) else value) for name, value in drawn.items()))


def _restored(stated: Any) -> TrialRecord:
    return msgspec.convert(stated, TrialRecord, strict=False, str_keys=True, dec_hook=lambda kind, value: kind(value))


def _counts(trial: "optuna.trial.FrozenTrial") -> bool:
    """Whether it is a trial of its own: one that failed was queued again, or never begun."""
    return trial.state.name != "FAIL"


def _ended(trial: "optuna.trial.FrozenTrial") -> bool:
    return trial.state.name in ("COMPLETE", "PRUNED")


def refused(storage: Any, error: Exception) -> UsageError:
    """What to say about a --storage that cannot be opened."""
    return UsageError(f"--storage {storage}: {reason_of(error)}; give a URL that Optuna takes")


def library() -> Any:
    """Optuna. Raises UserError that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(f"search: Optuna is not installed; `{install('tune')}`") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's remarks on what it calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def url(file: Path) -> str:
    """Of a sqlite file, as Optuna takes it."""
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(file.resolve())).render_as_string()


def _distributions(optuna: Any, parameters: Sequence[Parameter]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for parameter in parameters:
        name, step = parameter.name, parameter.step
        if parameter.kind == "choice":
            found[name] = optuna.distributions.CategoricalDistribution(parameter.choices)
        elif parameter.kind == "integer":
            found[name] = optuna.distributions.IntDistribution(
                int(parameter.low), int(parameter.high), log=parameter.log, step=int(step or 1)
            )
        else:
            found[name] = optuna.distributions.FloatDistribution(
                parameter.low, parameter.high, log=parameter.log, step=step
            )
    return found


def _sampler(optuna: Any, plan: StudyPlan, number: int) -> Any:
    """A sampler for one trial, whose draws do not depend on what was drawn in this process before."""
    digest = hashlib.blake2b(f"{plan.seed} {number}".encode(), digest_size=4).digest()
    seed = int.from_bytes(digest, "little")
    if plan.sampler == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=_SPREAD, n_ei_candidates=_CANDIDATES, multivariate=True, constant_liar=True
        )
    if plan.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)  # of a grid everything is queued


def _fixed(plan: StudyPlan) -> list[dict[str, Any]]:
    """What the first trials try, whatever they come to: a grid's combinations, or for TPE a scrambled Sobol sequence.

    Points of the sequence are spread evenly over all parameters at once, where random ones leave gaps. The few trials
    that TPE begins with show more of the space so (docs/search.md has what it comes to).
    """
    if plan.sampler == "grid":
        return list(combinations(plan.parameters))
    if plan.sampler != "tpe":
        return []
    from torch.quasirandom import SobolEngine

    engine: Any = SobolEngine  # has no types
    points = engine(len(plan.parameters), scramble=True, seed=plan.seed).draw(_SPREAD).tolist()
    drawn = [
        {each.name: each.at(share) for each, share in zip(plan.parameters, point, strict=True)} for point in points
    ]
    return list({_key(values): values for values in drawn}.values())  # of a few choices, each once


def _pruner(optuna: Any, name: str) -> Any:
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner()
    return optuna.pruners.MedianPruner() if name == "median" else optuna.pruners.NopPruner()
