"""Whether settings can train at all, found out before the first trial."""

from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console

from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError
from fastimg.models.ranks import start
from fastimg.train.patience import deciding
from fastimg.train.setup import build, check, open_inputs


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


def missing_embeddings(config: Train) -> int | None:
    """How many embeddings a run with these settings would compute: those that are not kept yet.

    None where all of them would be, where embeddings are not what it trains on, and of settings that cannot be trained:
    a trial says why.
    """
    nowhere = Console(quiet=True, force_terminal=False)
    try:
        with ExitStack() as stack:
            ranks = stack.enter_context(start(config.device))
            dry = replace(config, dry_run=True)
            opened = open_inputs(check(dry, ranks, nowhere), ranks, nowhere, stack)
            return build(opened, ranks, nowhere, stack).blueprint.parts.missing
    except (UserError, DataError):
        return None
