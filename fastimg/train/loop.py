"""Training: `train` prepares the run, `_epoch` is the hot loop, `_end_of_epoch` validates and saves.

A run that is interrupted anywhere and resumed does the same arithmetic as one that is not: order, crops, augmentation
and dropout are functions of the step.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from fastimg import notebook
from fastimg.config.commands import Train
from fastimg.config.values.durations import limit
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.loaders.remote.stores import url_of
from fastimg.models.compilation import compiling
from fastimg.models.freezing import train_mode
from fastimg.models.precision import refused_operation
from fastimg.models.ranks import Ranks, agree_on_buffers, start
from fastimg.system.memory import advice, ran_out
from fastimg.system.progress import Display, telling_live
from fastimg.system.signals import SAVE, TIME_UP, Interrupt, TimeLimit
from fastimg.system.terminal import say as print_line
from fastimg.train.checkpoints.format import MODEL
from fastimg.train.checkpoints.run_directory import CURVES
from fastimg.train.checkpoints.run_uploads import RunUploads
from fastimg.train.checkpoints.saving import save, save_epoch
from fastimg.train.checkpoints.stored_runs import options_of
from fastimg.train.reporting.first_shards import first_shards
from fastimg.train.reporting.lines import Lines, nothing_decoded
from fastimg.train.reporting.summary import Curves, print_summary
from fastimg.train.reporting.waiting import verdict
from fastimg.wording import plural

from .augment_stream import AugmentStream
from .graphs import why_not
from .metrics import evaluate
from .patience import stopped
from .run import Run
from .setup import prepare
from .step import optimiser_step
from .tasks.lookup import TargetLookup
from .tasks.score import AnyScore, TargetScores, shown_scores
from .wrapping import compile_ahead, unfreeze, warm_augmentation


@dataclass(frozen=True)
class Result:
    """How a run ended.

    run: its directory, with config.yaml, metrics.jsonl, results.csv, curves.png and the checkpoints; None for a dry
        run. With --backend ray and a URL as --output it is the run's URL: the directory is on a node.
    signal: the signal that stopped it; 0 where none did.
    out_of_time: whether --max-time stopped it; `resume` goes on from there.
    best: the best validation; None without one. Of a class: `loss`, `top1`, `top5`, `balanced_accuracy`, `samples`. Of
        several targets, or others: `loss`, `samples`, and `values` by name, such as `age.mae`.
    epochs, steps: how far it has come, what was resumed included.
    unreadable: the number of samples that could not be read, and were left out.
    """

    run: Path | None
    signal: int
    best: AnyScore | None
    epochs: int = 0
    steps: int = 0
    unreadable: int = 0
    out_of_time: bool = False

    @property
    def checkpoint(self) -> Path | None:
        """The weights of the best epoch, a safetensors file with classes and preprocessing; None for a dry run."""
        return None if self.run is None else self.run / "best" / MODEL

    def _repr_html_(self) -> str:
        best = {} if self.best is None else shown_scores(self.best)
        return notebook.page(
            notebook.facts(
                {"run": self.run, "epochs": f"{self.epochs:,}", "steps": f"{self.steps:,}"}
                | {f"best {name}": value for name, value in best.items()}
                | {"not readable": self.unreadable or None, "ended": "by the time limit" if self.out_of_time else None}
            ),
            notebook.picture(None if self.run is None else self.run / CURVES),
        )


Watch = Callable[[int, Mapping[str, float]], bool]  # (epochs done, the validation's values) -> whether to stop
Begun = Callable[[Path], None]  # (the run's directory) -> nothing


def train(
    config: Train,
    console: Console,
    signals: bool | Interrupt = True,
    watch: Watch | None = None,
    summary: bool = True,
    begun: Begun | None = None,
) -> Result:
    """Train as `config` says. Raises UsageError, UserError and DataError, each with a sentence for the user.

    With `signals`, Ctrl-C and SIGTERM stop the run after a step, with a checkpoint, and so does what an `Interrupt` is
    told. `watch` is called after each validation, on rank 0, and may end the run there, as --patience does. `begun` is
    called on rank 0 once the run can be resumed. Without `summary`, the curves are not drawn: they are when the
    finished run is resumed.
    """
    time_limit = TimeLimit(None if config.max_time is None else limit(config.max_time, "--max-time"))
    with ExitStack() as stack:
        ranks = stack.enter_context(start(config.device, config.numa_binding))
        stack.enter_context(compiling(config.compile))
        run = prepare(config, ranks, console, stack)
        if run is None:
            return Result(None, 0, None)
        if begun is not None and ranks.first:
            begun(run.setup.directory)
        say = partial(print_line, console) if ranks.first else _silent
        uploads = _uploads(run, say, stack)
        try:
            with telling_live(console, "preparing the first step") if ranks.first else nullcontext():
                compile_ahead(run, say)
                warm_augmentation(run, say)
            listening = Interrupt(signals) if isinstance(signals, bool) else signals
            signal = _all_epochs(run, console, listening, time_limit, watch, summary)
        except Exception as error:
            if (sentence := _sentence(error, run)) is not None:
                raise sentence from error
            raise
        run.accounting.out_of_time = signal == TIME_UP
        signal = 0 if run.accounting.out_of_time else signal
        unreadable = [_total(len(loader.unreadable), ranks) for loader in run.setup.data.loaders]
        if ranks.first and summary:
            print_summary(run, console, unreadable, signal, None if signal else verdict(run))
        if uploads is not None:
            uploads.finish(say)
        return Result(
            run=run.setup.directory,
            signal=signal,
            best=run.best.score if run.best else None,
            epochs=run.progress.epoch,
            steps=run.progress.step,
            unreadable=sum(unreadable),
            out_of_time=run.accounting.out_of_time,
        )


def _uploads(run: Run, say: Callable[[str], None], stack: ExitStack) -> RunUploads | None:
    """The uploads of the run, if --output is a URL; only rank 0 has them. `stack` ends them."""
    setup = run.setup
    url = url_of(setup.config.output)
    if url is None or not setup.ranks.first:
        return None
    uploads = RunUploads(f"{url}/{setup.directory.name}", setup.directory, options_of(setup.config), say)
    stack.callback(uploads.close)
    run.progress.writer.saved = uploads.note
    say(f"output      checkpoints go from {setup.directory} to {uploads.url}")
    return uploads


def _all_epochs(
    run: Run, console: Console, listening: Interrupt, time_limit: TimeLimit, watch: Watch | None, draws: bool
) -> int:
    """Train until the last epoch, a signal, or the end of time or patience. Returns the signal or TIME_UP, else 0."""
    setup = run.setup
    progress = run.progress
    # When the writer is left, all checkpoints are on disk.
    with listening as interrupt, progress.writer, ExitStack() as stack:
        display = None
        curves = None
        if run.accounting.timeline is not None:
            stack.enter_context(run.accounting.timeline)
        if setup.ranks.first:
            display = stack.enter_context(Display(console, setup.epochs, setup.optimisation.steps_per_epoch))
            stack.enter_context(first_shards(run, display.say))
            progress.work.tell(display.say)
            curves = Curves(run, display.say) if draws else None
        while progress.epoch < setup.epochs and not run.out_of_patience:
            # Also if no step is left of a resumed epoch: ranks agree on the statistics of norms that train.
            unfreeze(run, display.say if display is not None else _silent)
            if run.step_in_epoch < run.steps_of_epoch:
                signal = _epoch(run, interrupt, time_limit, display)
                if signal:
                    return signal
            score = _end_of_epoch(run, display)
            if curves is not None:
                curves.renew()
            if watch is not None and score is not None and _ends(run, watch, score):
                if progress.pace.left_out:
                    save(run)
                break
        if run.stopped_early and display is not None:
            why = stopped(progress.standing, setup.patience_metric, progress.epoch, setup.metric)
            stale = progress.standing.stale
            again = f"--resume {setup.directory} with a --patience above {stale}"
            display.say(f"stopped: {why}; {again} goes on from here")
    return 0


def _epoch(run: Run, interrupt: Interrupt, time_limit: TimeLimit, display: Display | None) -> int:
    """Train to the end of the epoch, from wherever the run is. Returns what stopped it, else 0."""
    setup = run.setup
    progress = run.progress
    accounting = run.accounting
    config = setup.config
    loader = setup.data.loader
    accumulate = setup.config.grad_accum_steps

    train_mode(setup.trained)
    if setup.input.progressive is not None:
        loader.set_size(setup.input.progressive.size(progress.epoch))
    if run.step_in_epoch == 0:
        loader.set_epoch(progress.epoch)
    accounting.account.begin()
    accounting.trace.begin(progress.step, progress.meter)
    progress.counts.forget()
    left = len(loader) - run.step_in_epoch * accumulate
    batches = iter(loader)
    lines = Lines(run, display)
    if display is not None:
        display.advance(progress.epoch, run.step_in_epoch)  # nothing is saved or validated from here on
    stream = AugmentStream(setup.ranks.device, config.augment_stream)
    began = time.perf_counter()

    def asked() -> int:
        if interrupt.signal or not setup.ranks.first:
            return interrupt.signal
        return TIME_UP if time_limit.over() else SAVE if progress.pace.overdue() else 0

    while run.step_in_epoch < run.steps_of_epoch:
        # Sync point between ranks: gradients, the true batch and requests are exchanged. On a GPU the host goes on.
        request = optimiser_step(run, batches, min(accumulate, left), stream, asked)
        left -= accumulate
        if accounting.timeline is not None:
            accounting.timeline.step()
        if display is not None:
            display.advance(progress.epoch, run.step_in_epoch)
            lines.glance()

        ended = run.step_in_epoch == run.steps_of_epoch
        due = progress.pace.at(progress.step)
        accounting.trace.note(progress.step, progress.meter, ended or due or request > 0)
        if run.step_in_epoch % config.log_interval == 0 or ended:
            request = max(request, lines.add(asked(), at_once=ended))  # on a GPU it shows the line before

        stop = request if request > SAVE else 0
        if stop or ((due or request) and not ended):
            stop = max(stop, _save_within(run, lines))
            began = accounting.spend(began)
        if stop:
            return stop
    accounting.spend(began)
    return 0


def _save_within(run: Run, lines: Lines) -> int:
    """Save in the middle of an epoch. Returns the signal that a line on its way to the host brings, else 0."""
    request = lines.settle()
    run.progress.counts.forget()
    run.accounting.trace.note(run.progress.step, run.progress.meter, due=True)
    lines.record()  # sync point: a run that has diverged is not saved
    save(run)
    return request if request > SAVE else 0


def _sentence(error: Exception, run: Run) -> UserError | None:
    """An error of torch's in a user's words: memory that ran out, or what --deterministic refuses. None for others."""
    setup = run.setup
    if setup.config.deterministic and (operation := refused_operation(error)) is not None:
        return UserError(
            f"--deterministic: torch's {operation}, which this model needs, gives other bits in each run on "
            f"{setup.ranks.device}; leave --deterministic out, or choose another --arch"
        )
    if not ran_out(error):
        return None
    what = f"images of {setup.input.preprocessing.train_size} pixels"
    if setup.model.text is not None:
        what = f"texts of up to {plural(setup.model.text.tokenizer.length, 'token')}"
    graphs = "" if setup.ranks.device.type != "cuda" or why_not(setup) else "; --cuda-graphs off takes less, too"
    return UserError(
        f"out of memory on {setup.ranks.device} in step {run.progress.step + 1}, with batches of {setup.batch_size} "
        f"{what}: {advice(setup.config)}{graphs}"
    )


def _ends(run: Run, watch: Watch, score: AnyScore) -> bool:
    """Whether the one who watches ends the run; ranks agree on rank 0's answer."""
    ranks = run.setup.ranks
    return (
        ranks.broadcast("1" if ranks.first and watch(run.progress.epoch, run.setup.tasks.record(score)) else "") == "1"
    )


def _end_of_epoch(run: Run, display: Display | None) -> AnyScore | None:
    """Validate, save, and move on to the next epoch. Returns the validation, if there was one."""
    setup = run.setup
    progress = run.progress
    accounting = run.accounting
    ended = time.perf_counter()
    progress.epoch += 1
    progress.meter.reset()
    agree_on_buffers(setup.model.module, setup.ranks)
    score: AnyScore | None = None
    is_best = setup.data.val_loader is None
    due = progress.epoch % setup.config.val_interval == 0 or progress.epoch == setup.epochs
    if setup.data.val_loader is not None and due:
        score = _evaluate(run, setup.data.val_loader, setup.data.val_targets, "validation", display)
        if isinstance(score, TargetScores):
            progress.thresholds = dict(score.thresholds)
        counts = not setup.changing(progress.epoch - 1)
        progress.standing = progress.standing.after(
            score, progress.epoch, setup.patience_metric, counts=counts, decides=setup.metric
        )
        is_best = run.best is not None and run.best.epoch == progress.epoch
        _report_evaluation(run, display, "val", f"{_trained(run)}validation", score, "  (best)" if is_best else "")
    elif display is not None and (trained := _trained(run)):
        display.say(f"epoch {progress.epoch}/{setup.epochs}  {trained.rstrip()}")
    if setup.data.train_eval_loader is not None and due:
        own = _evaluate(run, setup.data.train_eval_loader, setup.data.targets, "training", display)
        _report_evaluation(run, display, "train_eval", "training split", own)
    evaluated = time.perf_counter()
    if display is not None:
        display.note("saving")
    if progress.epoch < setup.epochs and not run.out_of_patience:
        save_epoch(run, is_best)
    else:
        save(run, best=is_best)
    if accounting.log is not None:
        spent = {"train": accounting.epoch_seconds, "val": evaluated - ended, "save": time.perf_counter() - evaluated}
        values = {f"{name}_seconds": round(value, 4) for name, value in spent.items()}
        values |= accounting.account.read_between().counts()
        accounting.log.add("epoch", epoch=progress.epoch, step=progress.step, **values)
    accounting.epoch_seconds = 0.0
    accounting.epoch_loss = None
    return score


def _trained(run: Run) -> str:
    """The loss of training in the epoch that has ended, a part of its line; empty if all of it was trained before."""
    loss = run.accounting.epoch_loss
    return "" if loss is None else f"training loss {loss:.4f}  "


def _evaluate(run: Run, loader: BatchSource, lookup: TargetLookup, name: str, display: Display | None) -> AnyScore:
    """Evaluate the weights that would be saved."""
    setup = run.setup

    what = "validation" if name == "validation" else "evaluation of the training split"

    def seen(batches: int) -> None:
        if display is not None:
            display.note(f"{what} {batches}/{len(loader)}")

    seen(0)
    with setup.averaged():
        agree_on_buffers(setup.model.module, setup.ranks)
        score = evaluate(
            setup.trained,
            loader,
            lookup,
            setup.tasks,
            setup.input.policy,
            setup.precision,
            setup.ranks,
            setup.config.tta,
            seen,
        )
    if score.samples == 0:
        raise nothing_decoded(run, loader, name)
    return score


def _report_evaluation(
    run: Run, display: Display | None, kind: str, name: str, score: AnyScore, mark: str = ""
) -> None:
    """Show and log an evaluation."""
    progress = run.progress
    tasks = run.setup.tasks
    if display is not None and run.accounting.log is not None:
        display.say(f"epoch {progress.epoch}/{run.setup.epochs}  {name} {tasks.words(score)}{mark}")
        run.accounting.log.add(kind, epoch=progress.epoch, step=progress.step, **tasks.record(score))


def _silent(_: str) -> None:
    """Print nothing: for ranks other than the first."""


def _total(count: int, ranks: Ranks) -> int:
    return int(ranks.sum(torch.tensor([count], device=ranks.device)))
