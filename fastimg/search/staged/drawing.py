"""What the next classifier is tried with: drawn by Optuna's TPE from the trials of its encoder."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from fastimg.search.study import library, quiet

HEADS: tuple[Literal["linear", "mlp"], ...] = ("linear", "mlp")

_RATES = 30.0  # learning rates are drawn from so many times below the usual one to as many above it
LABELLED = ("top1", "top5", "balanced_accuracy")  # metrics of data whose only target is a class


class HeadDraws:
    """Settings of a classifier, drawn near those that did well. The first are those that `train` chooses itself.

    Two layers come before one: they were more accurate on the data where both were compared, and a short time may end
    after them. In memory: a search that goes on tells it the same trials again. `rates`: the usual learning rate of
    each kind of classifier. `given`: what the user has set for all trials, which is not drawn. `pairs`: of images with
    texts, which are combined in two ways.
    """

    def __init__(
        self,
        rates: Mapping[str, float],
        seed: int,
        metric: str,
        given: Mapping[str, Any] = MappingProxyType({}),
        pairs: bool = False,
    ) -> None:
        self._optuna: Any = library()
        kinds = self._optuna.distributions
        self._space = {
            "lr": kinds.FloatDistribution(rates["linear"] / _RATES, rates["linear"] * _RATES, log=True),
            "weight_decay": kinds.FloatDistribution(1e-4, 1.0, log=True),
            "smoothing": kinds.FloatDistribution(0.0, 0.2),
            "head": kinds.CategoricalDistribution(list(HEADS)),
        }
        usual: dict[str, Any] = {"weight_decay": 0.05, "smoothing": 0.1}
        if pairs:
            self._space["combiner"] = kinds.CategoricalDistribution(["gated", "concat"])
            usual["combiner"] = "gated"
        if metric not in LABELLED:  # smoothing is refused for numbers alone, and changes the loss of the rest
            given = {**given, "smoothing": None}
        self._space = {name: values for name, values in self._space.items() if name not in given}
        firsts = [
            {"lr": rates[head], **usual, "head": head} for head in reversed(HEADS) if given.get("head", head) == head
        ]
        with quiet():
            sampler = self._optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=6, multivariate=True, constant_liar=True
            )
            self._study = self._optuna.create_study(direction="maximize", sampler=sampler)
        for first in firsts:
            self._study.enqueue_trial({name: value for name, value in first.items() if name not in given})
        self._open: dict[str, Any] = {}  # by what was drawn

    def ask(self) -> dict[str, Any]:
        """The settings of the next trial."""
        with quiet():
            trial = self._study.ask(self._space)
        drawn = {name: _rounded(value) for name, value in trial.params.items()}
        self._open[_identity(drawn)] = trial
        return drawn

    def tell(self, drawn: Mapping[str, Any], height: float) -> None:
        """What a trial came to; more is better, and minus infinity stands for one that failed."""
        trial = self._open.pop(_identity(drawn))
        if math.isfinite(height):
            self._study.tell(trial, height)
        else:
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _identity(drawn: Mapping[str, Any]) -> str:
    return repr(sorted(drawn.items()))
