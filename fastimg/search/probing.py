"""Whether settings can train at all, found out before the first trial."""

from contextlib import ExitStack

from rich.console import Console

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.models.ranks import start
from fastimg.train.patience import deciding
from fastimg.train.setup import check, open_inputs


def metric_of(config: Train) -> str:
    """The metric that decides on the best checkpoint of a run with these settings.

    Raises UsageError, UserError and DataError for what cannot be trained, and where nothing is held out to validate on.
    """
    nowhere = Console(quiet=True, force_terminal=False)
    with ExitStack() as stack:
        ranks = stack.enter_context(start(config.device, config.numa_binding))
        opened = open_inputs(check(config, ranks, nowhere), ranks, nowhere, stack)
        if opened.val_part is None:
            raise UsageError("search compares validations, and these settings leave nothing to validate on")
        return deciding(opened.checked.config, opened.targets.tasks)
