"""Steps that are recorded and replayed give the bits of steps as they are. Without a GPU, a stand-in records."""

import contextlib
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.models.precision import Precision
from fastimg.train import assembly, graphs, loop, setup
from fastimg.train import step as training_step
from fastimg.train.graphs import StepGraphs, why_not
from fastimg.train.optimisers import groups
from fastimg.train.optimisers.lookahead import Lookahead

FLOAT = Precision("cpu", None, "float32")
BF16 = Precision("cpu", torch.bfloat16, "bf16")
HALF = Precision("cpu", torch.float16, "fp16 with a gradient scaler")

DROPOUT = ("--model-kwargs", "drop_rate=0.2", "--drop-path", "0.1")

# 24 images in batches of 5: five steps an epoch, the last of 4 images.
CASES = {
    "sgd and dropout": (("--opt", "sgd", *DROPOUT), FLOAT),
    "adamw": (("--opt", "adamw", "--clip-grad", "0.1"), FLOAT),
    "bf16": (("--opt", "adamw", *DROPOUT), BF16),
    "fp16, clipped": (("--opt", "sgd", "--clip-grad", "0.1"), HALF),
    "fp16": (("--opt", "adamw"), HALF),
    "a moving average": (("--opt", "sgd", "--model-ema", "--model-ema-decay", "0.9"), FLOAT),
    "lookahead": (("--opt", "sgd", "--lookahead", "3"), FLOAT),
    "mixed images": (("--opt", "adamw", "--mixup", "0.4", "--cutmix", "0.4", "--reprob", "0.5"), FLOAT),
    "growing crops": (("--opt", "sgd", "--progressive", "32:64", "--progressive-epochs", "1:2"), FLOAT),
    "unfreezing": (("--opt", "sgd", "--freeze", "backbone", "--freeze-epochs", "2"), FLOAT),
}


class Stale:
    """What a graph does not see: whoever reads it fails."""

    def __getattr__(self, name):
        raise AssertionError(f"a graph would keep what {name} was when it was recorded")

    __add__ = __sub__ = __mul__ = __eq__ = __mod__ = __float__ = __getattr__


class Standin:
    """Records functions. Replayed, they find nothing of the host's that moves with the run."""

    made = 0
    recorded = 0
    replayed = 0

    def __init__(self, run):
        self.run = run
        type(self).made += 1

    def beside(self):
        return contextlib.nullcontext()

    def unrepeatable(self):
        return lambda: ""

    def moment(self):
        return lambda: None

    def record(self, work):
        type(self).recorded += 1
        places = self.places()

        def replay():
            type(self).replayed += 1
            assert self.places() == places, "a graph would read or write elsewhere"
            progress, counts = self.run.progress, self.run.progress.counts
            with pytest.MonkeyPatch.context() as patch:
                for name in ("step", "epoch"):
                    patch.setattr(progress, name, Stale())
                patch.setattr(counts, "denominator", lambda: counts._own)
                for group in self.run.setup.optimisation.optimizer.param_groups:
                    patch.setitem(group, "lr", Stale())
                work()

        return replay

    def places(self):
        """The addresses of what the two parts of a step read and write; lookahead's averages are not theirs."""
        run = self.run
        tensors = [*run.setup.trained.parameters(), *run.setup.trained.buffers(), run.progress.counts._own]
        tensors += [run.progress.meter.sums, run.progress.first_bad._least, run.progress.first_bad._number]
        for state in run.setup.optimisation.optimizer.state.values():
            tensors += [v for name, v in state.items() if torch.is_tensor(v) and name != Lookahead.KEY]
        return [tensor.data_ptr() for tensor in tensors]


@pytest.fixture
def recorder():
    """A stand-in that counts for one test."""
    return type("Counted", (Standin,), {})


@pytest.fixture
def train(trained, fast, tmp_path, cli, monkeypatch):
    """train(name, flags, precision, recorder): four epochs on the CPU, at rates as on a GPU. (The run, its output)."""

    def call(name, flags=(), precision=FLOAT, recorder=None, data=trained.shards):
        runs = []
        prepare = setup.prepare
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "prepare", lambda *args: runs.append(prepare(*args)) or runs[-1])
            patch.setattr(setup, "choose_precision", lambda *_: precision)
            patch.setattr(groups, "takes_float32", lambda group: True)
            if recorder is not None:
                patch.setattr(assembly, "work_of", lambda run: StepGraphs(run, lambda: recorder(run)))
            arguments = (*fast, "-b", "5", "--epochs", "4", "--lr", "0.013", "--name", name, "-o", tmp_path / "runs")
            ran = cli("train", data, *arguments, *flags)
        assert ran.code == 0, ran.err
        return runs[-1], ran.out

    return call


def outcome(run):
    """Weights, averages, the optimiser's state, the meter, and the generator as it is after the run."""
    optimisation = run.setup.optimisation
    tensors = dict(run.setup.model.module.state_dict())
    if optimisation.ema is not None:
        tensors |= {f"average of {name}": value for name, value in optimisation.ema.tensors.items()}
    for index, state in optimisation.optimizer.state_dict()["state"].items():
        tensors |= {f"{name} {index}": torch.as_tensor(value) for name, value in state.items()}
    for index, group in enumerate(optimisation.optimizer.param_groups):
        tensors[f"rate {index}"] = torch.as_tensor(group["lr"])
    if optimisation.scaler.is_enabled():
        tensors["scale"] = torch.as_tensor(optimisation.scaler.get_scale())
    return tensors


def assert_same(first, second):
    one, two = outcome(first), outcome(second)
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize(("flags", "precision"), CASES.values(), ids=CASES)
def test_twenty_steps_have_the_bits_of_steps_as_they_are(train, recorder, flags, precision):
    plain, _ = train("plain", flags, precision)
    run, _ = train("graphs", flags, precision, recorder)
    assert run.progress.step == plain.progress.step == 20
    assert_same(run, plain)
    changes = 1 if {"--progressive", "--freeze-epochs"} & {*flags} else 0
    assert recorder.made == 1 + changes
    assert recorder.recorded == 4 * (1 + changes)  # two pairs, and after a change two others
    assert recorder.replayed == 2 * (20 - 3 * (1 + changes))


def test_batches_in_which_no_sample_lacks_a_target(train, recorder, trained, monkeypatch):
    """A sample of the data does: all batches then say which rows have it, as a graph reads it."""

    def columns(dataset):
        wave = 450.0 + 80.0 * dataset.labels
        wave[0] = np.nan
        return (
            TargetColumn.of_classes(dataset.labels, dataset.classes, "colour"),
            TargetColumn.of_numbers(wave, "wave"),
        )

    monkeypatch.setattr(FilesDataset, "targets", property(columns))
    flags = ("--opt", "sgd", *DROPOUT)
    plain, _ = train("plain", flags, data=trained.images)
    run, _ = train("graphs", flags, recorder=recorder, data=trained.images)
    assert_same(run, plain)
    assert recorder.recorded == 4 and len(run.setup.tasks.all) == 2


@pytest.mark.parametrize("kept", [(), ("--cache-teacher", "2", "--cache-dir", "CACHE")])
def test_a_teacher_or_what_it_said_is_recorded_too(train, recorder, trained, tmp_path, kept):
    kept = [tmp_path / "cache" if word == "CACHE" else word for word in kept]
    flags = ("--opt", "sgd", "--teacher", trained.run, *kept)
    plain, _ = train("plain", flags)
    run, _ = train("graphs", flags, recorder=recorder)
    assert_same(run, plain)
    assert recorder.replayed == 2 * (20 - 3) and run.setup.distillation is not None


@pytest.mark.parametrize("dies", [4, 13])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(train, recorder, monkeypatch, dies):
    """It takes its first three steps without graphs, where the other run replays."""
    flags = ("--opt", "adamw", "--mixup", "0.2", "--model-ema", "--save-interval", "1", *DROPOUT)
    whole, _ = train("whole", flags, recorder=recorder)
    average = training_step.average_gradients

    def dying(run):
        if run.progress.step == dies:
            monkeypatch.setattr(training_step, "average_gradients", average)
            raise KeyboardInterrupt
        return average(run)

    monkeypatch.setattr(training_step, "average_gradients", dying)
    with contextlib.suppress(AssertionError):
        train("halves", flags, recorder=recorder)
    resumed, said = train("halves", (*flags, "--resume", "auto"), recorder=recorder)
    assert f"after step {dies} of 20" in said
    assert_same(resumed, whole)


def test_what_cannot_be_recorded_goes_on_as_it_is(train, recorder):
    class Refused(recorder):
        def record(self, work):
            work()  # as when the update fails after the passes were captured: gradients are there
            raise RuntimeError("operation not permitted when stream is capturing\nand a trace")

    class Careful(recorder):
        def record(self, work):
            raise torch.OutOfMemoryError("CUDA out of memory")

    class Drawing(recorder):
        def unrepeatable(self):
            return lambda: "the model draws random numbers on the host"

    flags = ("--opt", "sgd", *DROPOUT)
    plain, _ = train("plain", flags)
    for kind, reason in ((Careful, "there is no memory"), (Drawing, "draws random numbers on the host")):
        run, said = train(kind.__name__, flags, recorder=kind)
        assert said.count("steps go on without CUDA graphs") == 1 and reason in said
        assert_same(run, plain)
    _, said = train("Refused", flags, recorder=Refused)
    assert "without CUDA graphs: operation not permitted when stream is capturing" in said and "and a trace" not in said


@pytest.mark.parametrize("opt", ["sgd", "adamw"])
def test_an_update_that_cannot_be_recorded_leaves_nothing_of_its_scaler(train, recorder, opt):
    """With fp16 torch writes the scale on the optimiser, and takes it away only after a step that went well."""

    class Refused(recorder):
        def record(self, work):
            type(self).recorded += 1
            if type(self).recorded == 2:
                optimizer = self.run.setup.optimisation.optimizer
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(optimizer, "step", self.refuse)
                    work()
            return lambda: None

        def refuse(self):
            raise RuntimeError("no kernel for it")

    plain, _ = train("plain", ("--opt", opt), HALF)
    run, said = train("graphs", ("--opt", opt), HALF, Refused)
    assert "without CUDA graphs: no kernel for it" in said
    assert_same(run, plain)


def test_graphs_that_are_given_up_leave_their_memory_before_the_step(train, recorder, monkeypatch):
    """The second pair fails: the step that goes on as it is may need what the first pair's graphs hold."""
    alive = []

    class Second(recorder):
        def record(self, work):
            if len(alive) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            replay = super().record(work)
            alive.append(weakref.ref(replay))
            return replay

    def passes(self, batch):
        held.append(sum(replay() is not None for replay in alive))
        return as_it_is(self, batch)

    held = []
    as_it_is = training_step.EagerWork.forward_backward
    monkeypatch.setattr(training_step.EagerWork, "forward_backward", passes)
    run, said = train("graphs", ("--opt", "sgd"), recorder=Second)
    assert said.count("there is no memory for them") == 1 and len(alive) == 2
    assert held == [0] * (run.progress.step - 4)


def test_the_first_error_of_a_recording_is_told(train, recorder):
    """torch closes a recording that failed with an error of its own."""

    class Closing(recorder):
        def record(self, work):
            try:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand advice")
            finally:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    _, said = train("graphs", ("--opt", "sgd"), recorder=Closing)
    assert "without CUDA graphs: CUDA error: operation not permitted when stream is capturing" in said
    assert "previous error" not in said


def setup_of(parameters, opt="sgd", **settings):
    values = {"cuda_graphs": "auto", "strategy": "auto", "grad_accum_steps": 1, "compile": None, "opt": opt}
    values |= {"grad_checkpointing": False, "world_size": 1, "text": None, "pair": None, "embedding": None}
    values |= settings
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    fused = {"fused": True} if opt in kinds else {}
    optimizer = kinds.get(opt, torch.optim.RMSprop)(parameters, lr=0.1, **fused)
    return SimpleNamespace(
        config=SimpleNamespace(**values),
        ranks=SimpleNamespace(world_size=values["world_size"]),
        model=SimpleNamespace(text=values["text"], pair=values["pair"]),
        data=SimpleNamespace(embedding=values["embedding"]),
        optimisation=SimpleNamespace(optimizer=optimizer),
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"opt": "adamw", "compile": "default"}, ""),
        ({"text": object(), "embedding": (8,)}, ""),
        ({"cuda_graphs": "off"}, "--cuda-graphs off"),
        ({"world_size": 2}, "several ranks"),
        ({"strategy": "fsdp"}, "--strategy fsdp"),
        ({"grad_accum_steps": 2}, "--grad-accum-steps 2"),
        ({"compile": "reduce-overhead"}, "--compile reduce-overhead"),
        ({"text": object()}, "differ in length"),
        ({"pair": object(), "embedding": (8,)}, "differ in length"),
        ({"grad_checkpointing": True}, "--grad-checkpointing"),
        ({"opt": "rmsprop"}, "--opt rmsprop"),
    ],
)
def test_where_steps_are_recorded(settings, reason):
    found = why_not(setup_of([nn.Parameter(torch.zeros(2))], **settings))
    assert reason in found and bool(found) == bool(reason)


def test_a_cuda_recorder_waits_on_both_sides(monkeypatch):
    """The order of streams and events, as told to torch."""
    said = []

    class Stream:
        def __init__(self, name="recorded"):
            self.name = name

        def wait_stream(self, other):
            said.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event):
            said.append(f"{self.name} waits for an event")

    class Event:
        def record(self, stream):
            said.append(f"{stream.name} records an event")

    class Graph:
        def replay(self):
            said.append("replay")

    @contextlib.contextmanager
    def entered(stream):
        said.append(f"on {stream.name}")
        yield
        said.append("back")

    @contextlib.contextmanager
    def captured(graph, pool, stream, capture_error_mode):
        said.append(f"captures {pool} on {stream.name}, {capture_error_mode}")
        yield

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("step"))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    recorder = graphs.CudaRecorder(torch.device("cuda", 0), Stream())
    with recorder.beside():
        said.append("work")
    replay = recorder.record(lambda: said.append("recorded"))
    replay()
    recorder.moment()()
    assert said == [
        *("recorded waits for step", "on recorded", "work", "back", "step waits for recorded"),
        *("on step", "captures a pool on recorded, thread_local", "recorded", "back", "replay"),
        *("step records an event", "step waits for an event"),
    ]
    why = recorder.unrepeatable()
    assert why() == ""
    torch.rand(1)
    assert "on the host" in why()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32:UserWarning")
@pytest.mark.parametrize("name", [*CASES, "compiled", "resumed"])
def test_on_a_gpu_graphs_have_the_bits_of_steps_as_they_are(name, trained, fast, tmp_path, cli, monkeypatch):
    """With algorithms that always give the same bits. A resumed run takes its first steps without graphs."""
    flags, precision = CASES.get(name, (("--opt", "sgd", *DROPOUT), FLOAT))
    amp = {FLOAT: ("--no-amp",), BF16: ("--amp-dtype", "bf16"), HALF: ("--amp-dtype", "fp16")}[precision]
    more = {"compiled": ("--compile",), "resumed": ("--sched", "constant", "--warmup", "2ba")}
    flags = (*flags, *amp, *more.get(name, ()))
    rest = ("-b", "5", "--lr", "0.013", "--device", "cuda", "--deterministic", "-o", tmp_path / "runs")
    kept = (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
    runs, replayed = {}, []
    prepare, replay = setup.prepare, torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replayed.append(graph), replay(graph))[1])

    def train(kind, *more):
        made = []
        monkeypatch.setattr(loop, "prepare", lambda *args: made.append(prepare(*args)) or made[-1])
        ran = cli("train", trained.shards, *fast, "--epochs", "4", "--name", kind, *rest, *flags, *more)
        assert ran.code == 0, ran.err
        assert "without CUDA graphs" not in ran.out
        runs[kind] = made[-1]

    try:
        train("off", "--cuda-graphs", "off")
        assert not replayed
        if name == "resumed":
            train("auto", "--epochs", "2")
            train("auto", "--resume", "auto")
        else:
            train("auto")
    finally:
        torch.set_float32_matmul_precision(kept[0])
        torch.backends.cudnn.benchmark = kept[1]
        torch.use_deterministic_algorithms(False)
    assert replayed
    assert_same(runs["auto"], runs["off"])
