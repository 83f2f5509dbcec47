"""Batches that stay valid with copy=True, and the error for keeping batches without it."""

from itertools import chain, pairwise

import pytest
import torch

from fastimg.loaders import CenterCrop, ImageDecoder, Loader, LoaderConfig

pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left")
N = 30


@pytest.fixture
def loader(numbers, stamp):
    with Loader(numbers(N), stamp(), batch_size=3, workers=1, prefetch=3) as loader:
        yield loader


def numbers_of(batch):
    return batch.inputs[:, 0, 0, 0].tolist()


def test_copies_stay_valid(numbers, stamp, loader):
    with Loader(numbers(N), stamp(), LoaderConfig(batch_size=3, workers=1), copy=True) as copying:
        kept = list(copying)
    seen = [(numbers_of(batch), batch.targets.tolist(), batch.weight.tolist()) for batch in loader]
    assert [(numbers_of(batch), batch.targets.tolist(), batch.weight.tolist()) for batch in kept] == seen
    assert sorted(chain.from_iterable(numbers_of(batch) for batch in kept)) == list(range(N))
    assert len({batch.inputs.data_ptr() for batch in kept}) == len(kept) == 10


def test_copies_are_channels_last_too(files, build):
    options = {"batch_size": 5, "order": "sequential"}
    with build(files, ImageDecoder(CenterCrop(size=16, resize=16)), **options) as plain:
        strides = next(iter(plain)).inputs.stride()
        with Loader(plain.dataset, plain._decoder, plain.config, copy=True) as copying:
            batch = next(iter(copying))
    assert batch.inputs.stride() == strides and batch.inputs.is_contiguous(memory_format=torch.channels_last)


def test_a_list_of_batches_is_refused(loader):
    with pytest.raises(RuntimeError, match=r"4 batches of a Loader are held, .* use copy=True"):
        list(loader)
    assert len([batch.ids for batch in loader]) == 10  # the ids belong to the batch; and the loader continues


def test_targets_and_weights_of_batches_on_the_host_can_be_collected(loader):
    """The usual evaluation loop."""
    targets, weights, ids = zip(*((batch.targets, batch.weight, batch.ids) for batch in loader), strict=True)
    assert torch.cat(targets).tolist() == loader.dataset.labels[torch.cat(ids).numpy()].tolist()
    assert len(set(torch.cat(targets).tolist())) > 1 and torch.cat(weights).tolist() == [1.0] * N


def test_a_list_of_inputs_is_refused(loader):
    with pytest.raises(RuntimeError, match=r"^inputs of 4 batches of a Loader are held, .* or clone\(\) to keep"):
        [batch.inputs for batch in loader]
    assert len([batch.inputs.clone() for batch in loader]) == 10


def test_a_list_of_a_field_is_refused(files):
    options = {"batch_size": 5, "workers": 1, "prefetch": 2, "crop": 16}
    with Loader(files, fields=[], **options) as loader, pytest.raises(RuntimeError, match=r"^crop_box of 3 batches"):
        [batch.boxes_of_crop for batch in loader]


@pytest.mark.parametrize("prefetch", [2, 3])
def test_the_shortest_list_with_memory_that_was_reused(numbers, stamp, prefetch):
    """It is detected when the iteration ends."""
    loader = Loader(numbers(prefetch + 1), stamp(), batch_size=1, workers=1, prefetch=prefetch)
    with loader, pytest.raises(RuntimeError, match="copy=True"):
        list(loader)


def test_a_list_within_the_memory_is_valid(numbers, stamp):
    with Loader(numbers(6), stamp(), batch_size=2, workers=1, prefetch=3, order="sequential") as loader:
        assert [numbers_of(batch) for batch in list(loader)] == [[0, 1], [2, 3], [4, 5]]


def test_loops_that_keep_no_more_than_the_first_or_the_last_are_not_refused(loader):
    shown = next(iter(loader))
    for _, batch in enumerate(loader):
        before = batch
    first = None
    for number, batch in zip(range(10), loader, strict=True):
        first = batch if number == 0 else first
    assert [len(numbers_of(b)) for pair in pairwise(loader) for b in pair[:1]] == [3] * 9
    assert shown is not first is not before


def test_batches_in_reference_cycles_are_not_refused(loader):
    for batch in loader:
        cycle = [batch]
        cycle.append(cycle)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_on_a_gpu(numbers, stamp):
    config = LoaderConfig(batch_size=3, workers=1)
    with Loader(numbers(N), stamp(), config, "cuda", copy=True) as loader, Loader(numbers(N), stamp(), config) as host:
        kept = list(loader)
        torch.cuda.synchronize()
        assert [numbers_of(batch) for batch in kept] == [numbers_of(batch) for batch in host]
        assert all(batch.ready is not None and batch.ready.query() for batch in kept)
    with Loader(numbers(N), stamp(), config, "cuda") as loader, pytest.raises(RuntimeError, match="copy=True"):
        list(loader)
    with Loader(numbers(N), stamp(), config, "cuda") as loader, pytest.raises(RuntimeError, match=r"^targets of "):
        [batch.targets for batch in loader]
