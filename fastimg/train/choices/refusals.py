"""Configurations of `train` that are refused: by the rules between flags, or for what is not installed."""

from fastimg.config.commands import Train
from fastimg.config.rule_tables.conditions import check_frozen_epochs
from fastimg.config.rule_tables.training import OF_A_STEP, TRAIN, TRAIN_DEVICE
from fastimg.config.rules import refuse, refuse_device
from fastimg.data.datasets import check_backend, chosen_backend
from fastimg.errors import UsageError
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.extras import install
from fastimg.train.optimisers import catalogue
from fastimg.train.trackers import fanout


def check(config: Train) -> None:
    """Raises UsageError for values out of range, for flags without effect, and for a loader that is not installed."""
    refuse(config, TRAIN)
    catalogue.check(config)
    fanout.check(config)
    check_backend(chosen_backend(config.loader))


def check_resumed(config: Train) -> None:
    """Raises UsageError where another number of ranks divides a resumed run's steps as its settings do not allow."""
    refuse(config, OF_A_STEP)


def check_epochs(config: Train, epochs: int) -> None:
    """Raises UsageError where --freeze-epochs never ends in a run of so many epochs, known once the data is."""
    if config.freeze_epochs is not None and (fault := check_frozen_epochs(config, epochs)):
        raise UsageError(f"--freeze-epochs {config.freeze_epochs}: {fault}")


def check_device(config: Train, device: str) -> None:
    """Raises UsageError for what the run's device (its type) cannot do, or would do without effect."""
    refuse_device(config, device, TRAIN_DEVICE)
    if config.decode == "gpu" and not nvcodec.installed():
        raise UsageError(
            f"--decode gpu needs nvImageCodec, which is not installed: `{install('gpu')}`; or leave --decode out"
        )
