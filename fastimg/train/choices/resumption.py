"""What a resumed run keeps where no flag says otherwise: its batch, and a learning rate that was found.

And what it cannot keep: how ranks shared the work, where one process goes on alone.
"""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.yaml_file import load
from fastimg.models.ranks import Ranks
from fastimg.system.terminal import say
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.wording import plural

from . import refusals
from .resolution import scaling_rule


def with_rate(config: Train, resumed: Path | None, console: Console) -> Train:
    """`config`, where --lr find on a run that is `resumed` is that run's own rate: it is not searched for again."""
    if config.lr != "find" or resumed is None:
        return config
    kept = load(resumed / rundir.CONFIG, Train).lr
    say(console, f"--resume: the run's own learning rate, {kept:g}, is kept, not searched for again")
    return replace(config, lr=kept, lr_scale="none")


def without_exchange(config: Train, ranks: Ranks, console: Console) -> Train:
    """`config` without those of the run's own settings that need several ranks, where one process resumes it by path.

    Other values than the run's were asked for, and stay: they are refused by name.
    """
    run = intent.named_run(config.resume)
    if ranks.world_size > 1 or run is None or not (run / rundir.CONFIG).exists():
        return config
    before = load(run / rundir.CONFIG, Train)
    needs_ranks = {
        f"--strategy {config.strategy}": ("strategy", config.strategy == "fsdp" and ranks.backend is None),
        f"--grad-compression {config.grad_compression}": ("grad_compression", config.grad_compression is not None),
        "--sync-bn": ("sync_bn", config.sync_bn),
    }
    own = {
        words: name
        for words, (name, there) in needs_ranks.items()
        if there and getattr(config, name) == getattr(before, name)
    }
    if not own:
        return config
    say(console, f"--resume: one process goes on without the run's {', '.join(own)}: there are no others to share with")
    return replace(config, **{name: getattr(Train(), name) for name in own.values()})


def with_batch(config: Train, resumed: Path | None, ranks: Ranks, console: Console) -> tuple[Train, bool]:
    """`config` with a batch size, which may be `auto`, and whether it is the default of the device.

    A run that is `resumed` keeps its batch where no flag gives another one.
    """
    if resumed is not None:
        if config.batch_size == "auto":  # the rate was scaled with the batch that was found, and still is
            config = replace(config, lr_scale=scaling_rule(config))
        config = _resumed_batch(config, resumed, ranks, console)
        refusals.check_resumed(config)
    return replace(config, batch_size=intent.batch(config, ranks.device.type)), config.batch_size is None


def _resumed_batch(config: Train, directory: Path, ranks: Ranks, console: Console) -> Train:
    """The batch of the run that is resumed, divided among the ranks that there are now."""
    batch_size, accumulated = rundir.batch_of_before(directory, config, ranks.world_size)
    asked = intent.batch(config, ranks.device.type)
    if (batch_size, accumulated) != (asked, config.grad_accum_steps):
        say(
            console,
            f"--resume: {plural(batch_size, 'image')} x {accumulated} accumulated on each of "
            f"{plural(ranks.world_size, 'rank')}, which keeps the number of images per step",
        )
    return replace(config, batch_size=batch_size, grad_accum_steps=accumulated)
