"""The verdict on a run that waits: its kind, its wording, and its prediction."""

import itertools
from dataclasses import replace

import pytest

from fastimg.train.reporting.hints import WaitingFacts, hint, started_slowly, with_workers

FACTS = WaitingFacts(wait=0.5, speed=100.0, data="D", workers=4, cores=16, threads=16, cuda=True, busy=0.95, read=0.1)


def told(**changes):
    found = hint(replace(FACTS, **changes))
    assert found is not None
    return found


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.1])
def test_a_run_that_hardly_waits_gets_no_advice(wait):
    assert hint(replace(FACTS, wait=wait)) is None


def test_synthetic_pixels():
    assert hint(replace(FACTS, backend="synthetic", busy=None, read=None)) is None


def test_a_gpu_that_waits_for_launches():
    """Only where data is there, on a GPU, in most steps: also for pixels that are on the device."""
    found = told(wait=0.02, drained=0.97, busy=0.9)
    assert found.kind == "launch-bound" and found.promised is None
    assert found.text == (
        "launch-bound: in 97% of the steps the GPU had nothing left to do while the host was still launching the "
        "backward pass, so the host's speed decides; try a larger --batch-size, or --compile, which launches fewer "
        "kernels, or --compile reduce-overhead, which launches a whole pass at once"
    )
    assert told(wait=0.0, drained=0.6, backend="resident", busy=None).kind == "launch-bound"
    replayed = told(wait=0.0, drained=0.6, busy=0.9, graphs=True).text
    assert "when the host launched their graphs" in replayed and "reduce-overhead" not in replayed
    assert told(drained=1.0).kind == "decode-bound"  # it waits for data above all
    for drained in (None, 0.0, 0.5):
        assert hint(replace(FACTS, wait=0.0, drained=drained)) is None
    compiled = told(wait=0.0, drained=1.0, compile="default", busy=0.9).text
    assert "try a larger --batch-size, or --compile reduce-overhead, which" in compiled
    graphs = told(wait=0.0, drained=1.0, compile="reduce-overhead", busy=0.9).text
    assert graphs.endswith("try a larger --batch-size")
    assert "reduce-overhead" not in told(wait=0.0, drained=1.0, accumulates=True).text  # they do not go together
    idle = told(wait=0.0, drained=1.0, workers=16, busy=0.4).text
    assert idle.endswith("--workers 8: threads that decode take Python's lock from the one that launches")
    assert "--workers" not in told(wait=0.0, drained=1.0, workers=1, busy=0.4).text


def test_storage():
    folder = told(read=0.6, folder=True)
    assert folder.kind == "storage-bound" and folder.promised is None
    assert folder.text.startswith("storage-bound: 50% of the time was spent waiting for data, and reading is 63% ")
    assert "without waiting 200 img/s; try `fastimg convert D DST`: a few large files" in folder.text
    assert "try --order quasi-random" in told(read=0.6).text
    for order in ("quasi-random", "sequential"):
        shards = told(read=0.6, order=order)
        assert "--order" not in shards.text and "--workers 8" in shards.text and "a faster disk" in shards.text


def test_an_object_store():
    found = told(read=0.8, network=0.6)
    assert found.kind == "network-bound"
    assert "waiting for the object store is 63% of the loader's work" in found.text
    assert "try a larger --cache-limit" in found.text
    assert told(read=0.8, network=0.1).kind == "storage-bound"


def test_decoding_on_a_gpu_machine():
    found = told()
    assert found.kind == "decode-bound" and found.promised == pytest.approx(200.0)  # the rest is computing
    assert "try --workers 16 (estimate: 2.0x, 200 img/s)" in found.text
    assert told(wait=0.9).promised == pytest.approx(400.0)  # four times the threads
    full = told(workers=16)
    assert "--workers" not in full.text and "--max-size" in full.text
    assert "--decode gpu" in told(workers=16, gpu_decoder=True).text
    assert "--decode gpu" not in told(workers=16, gpu_decoder=True, cuda=False, cores=16).text
    assert "`fastimg convert D DST`: a crop of a tiled JPEG" in told(workers=16, folder=True).text
    assert "`fastimg convert --max-size N D DST`: smaller images, and tiled JPEGs" in full.text


def test_the_gpus_decoder():
    found = told(busy=0.3, decode="gpu")
    assert found.kind == "decode-bound" and "try --decode cpu" in found.text
    assert told(decode="gpu").kind == "decode-bound" and "--decode gpu" not in told(decode="gpu", gpu_decoder=True).text


def test_threads_without_slots():
    found = told(busy=0.4, prefetch=3)
    assert found.kind == "loader-bound" and "try --prefetch 6" in found.text and "busy for 40%" in found.text


def test_copies():
    found = told(copy=0.95)
    assert found.kind == "copy-bound" and "copies to the GPU, which take 95% of it" in found.text
    assert "--decode gpu" in told(copy=0.95, gpu_decoder=True).text
    assert told(copy=0.95, cuda=False).kind == told(copy=0.5).kind == told(copy=None).kind == "decode-bound"


def test_arrays_are_not_decoded():
    for unit, rate in (("images", "200 img/s"), ("texts", "200 texts/s")):
        found = told(encoded=False, unit=unit, busy=0.9, read=0.8)
        assert found.kind == "loader-bound" and rate in found.text
        assert "--workers 16" in found.text and "--prefetch 6" in found.text and "convert" not in found.text
    assert "--workers" not in told(encoded=False, busy=0.3).text


@pytest.mark.parametrize(("cuda", "cores"), [(True, ""), (False, ", which also competes for cores")])
def test_the_loader_of_another_library(cuda, cores):
    """One sentence of advice without an estimate: the change, and how to measure both."""
    other = {"backend": "torch", "busy": None, "read": None, "workers": 8, "cuda": cuda}
    found = told(**other, wait=0.63)
    assert found.text == (
        f"loader-bound: 63% of the time was spent waiting for the torch loader{cores}; without waiting 270 img/s; "
        "try --loader native; `fastimg bench D --loaders native,torch` compares the two on this machine"
    )
    assert found.kind == "loader-bound" and found.promised is None
    assert hint(replace(FACTS, **other, wait=0.05)) is None


def test_ranks_count_in_rates_and_not_in_factors():
    one, two = told(), told(ranks=2)
    assert "2.0x, 400 img/s" in two.text and two.promised == 2 * (one.promised or 0)


def test_a_run_of_short_epochs():
    found = started_slowly(replace(FACTS, wait=0.3), 1.25)
    assert found.kind == "start-up" and "not counting the first epoch's start, 30% of the time" in found.text
    assert "for the first batches of each epoch (1.2 s per epoch)" in found.text


def simulated(compute, decode, cores, threads, workers, batches=60):
    """Training and loading on the same cores, in small time steps: (samples per second, share of waiting).

    `compute` and `decode` are core-seconds per sample; the system schedules threads fairly. A batch is taken when it is
    complete, and there is room for two more.
    """
    batch, ready, left, done, waited, now = 8, 0.0, 0.0, 0, 0.0, 0.0
    step = batch * min(compute, decode) / cores / 20
    while done < batches:
        if left <= 0 and ready >= batch:
            ready, left, done = ready - batch, left + batch * compute, done + 1
        computing = threads if left > 0 else 0
        loading = workers if ready < 2 * batch else 0
        share = min(1.0, cores / max(1, computing + loading))
        ready += loading * share * step / decode
        left -= computing * share * step
        waited, now = waited + step * (not computing), now + step
    return done * batch / now, waited / now


@pytest.mark.parametrize("cores", [2, 4])
def test_predictions_on_a_cpu_hold_if_cores_are_shared_fairly(cores):
    """A run with slow workers predicts its rate with fast workers, or with more of them."""
    tried = 0
    for compute, slow, gain, workers in itertools.product((0.001, 0.003, 0.01), (0.004, 0.02), (1, 8), (1, 2, 4)):
        speed, wait = simulated(compute, slow, cores, cores, workers)
        if wait < 0.1:
            continue
        facts = WaitingFacts(wait=wait, speed=speed, data="D", workers=workers, cores=cores, threads=cores)
        for more in (workers, cores):
            reached, _ = simulated(compute, slow / gain, cores, cores, more)
            assert with_workers(facts, gain / slow, more) == pytest.approx(reached, rel=0.1)
            tried += 1
    assert tried > 20


def test_more_workers_on_a_cpu():
    speed, wait = simulated(0.002, 0.02, 4, 4, 1)
    facts = WaitingFacts(wait=wait, speed=speed, data="D", workers=1, cores=4, threads=4, busy=0.98, read=0.02)
    found = hint(facts)
    assert found is not None and "--workers 4 (estimate: " in found.text
    assert found.promised == pytest.approx(simulated(0.002, 0.02, 4, 4, 4)[0], rel=0.1)
