"""Arrays as samples: read from shards, padded to a common length, and batched by length."""

import os
import threading
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders import DataError, ImageError, Loader, LoaderConfig
from fastimg.loaders.containers import arrays as arrays_module
from fastimg.loaders.containers.arrays import PLACE, ArrayDataset, Views
from fastimg.loaders.containers.npy import npy_bytes
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path, parse_index
from fastimg.loaders.containers.watch import FileWatch, Handles
from fastimg.loaders.decoders.arrays import MULTIPLE, PAD, ArrayDecoder, TokenDecoder, longest, put_tokens
from fastimg.loaders.errors import ShardError
from fastimg.loaders.order import by_length, epoch_order
from fastimg.loaders.runtime.scratch import Scratch

TYPES = [np.float16, np.float32, np.int32]


@pytest.fixture
def store(tmp_path, numbers):
    """`store(arrays, key, lengths)`: a dataset of these arrays in shards of five; None means no array."""

    def write(arrays, key="key", lengths=None, name="shard"):
        places = np.zeros(len(arrays), PLACE)
        places["shard"] = -1
        shards = []
        for start in range(0, len(arrays), 5):
            path = tmp_path / f"{name}{start}.tar"
            held = [i for i in range(start, min(start + 5, len(arrays))) if arrays[i] is not None]
            with ShardWriter(path) as writer:
                for i in held:
                    writer.add(f"{i}", {"npy": npy_bytes(arrays[i])})
            for i, (member,) in zip(held, parse_index(index_path(path), path.stat().st_size), strict=True):
                places[i] = len(shards), member.size, member.offset
            shards.append(path)
        source = numbers(len(arrays))
        source.content = "text"
        source.sample_key = source.sample_name
        return ArrayDataset(source, shards, places, key, {}, lengths)

    return write


@pytest.fixture(params=["in memory", "from the shards"])
def where(request, monkeypatch):
    """Small arrays are kept in memory; many are read by threads each time."""
    if request.param == "from the shards":
        monkeypatch.setattr(arrays_module, "MAX_IN_MEMORY", -1)
    return request.param


@pytest.fixture
def texts(store):
    """`texts(n, most)`: tokens of n texts with 1 to `most` tokens each: text i is i, i, i, ..."""

    def make(n, most, key="key"):
        lengths = np.random.default_rng(0).integers(1, most + 1, n)
        return store([np.full(length, i, np.int32) for i, length in enumerate(lengths)], key, lengths)

    return make


def ids_of(loader):
    """Ids of weight 1 by batch, of one epoch or the rest of it."""
    return [[i for i, w in zip(b.ids.tolist(), b.weight.tolist(), strict=True) if w] for b in loader]


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_are_unchanged_and_belong_to_their_samples(store, dtype, where):
    arrays = [np.random.default_rng(i).normal(0, 50, (3, 2)).astype(dtype) for i in range(23)]
    dataset = store(arrays)
    with Loader(dataset, ArrayDecoder((3, 2), np.dtype(dtype)), LoaderConfig(batch_size=4, workers=2)) as loader:
        for batch in loader:
            assert batch.inputs.shape == (4, 3, 2)
            for i, target, row in zip(batch.ids.tolist(), batch.targets.tolist(), batch.inputs, strict=True):
                assert np.array_equal(row.numpy(), arrays[i]) and target == 10 * i
    dataset.close()


def test_arrays_in_memory_are_read_once_and_copied_by_the_consumer(store, where, monkeypatch):
    arrays = [np.full(3, i, np.float32) for i in range(12)]
    dataset, threads = store(arrays), set()
    read = dataset._read_rows

    def seen(ids, head, out):
        threads.add(threading.current_thread().name.rpartition("-")[0])
        return read(ids, head, out)

    monkeypatch.setattr(dataset, "_read_rows", seen)
    with Loader(dataset, ArrayDecoder((3,), np.dtype("f4")), LoaderConfig(batch_size=4, workers=2)) as loader:
        first = [batch.inputs.clone() for batch in loader]
        assert threads == ({""} if where == "in memory" else {"fastimg-loader"})  # MainThread has no number
        threads.clear()
        assert len(first) == len(list(loader)) == 3
        assert threads == (set() if where == "in memory" else {"fastimg-loader"})
    dataset.close()


def test_sizes_are_added_up_once(store, monkeypatch):
    """Not for each batch: there may be millions of arrays."""
    few, many = (store([np.full(3, i, np.int32) for i in range(4)], name=name) for name in ("few", "many"))
    views = Views([few])
    assert few.in_memory and views.in_memory
    monkeypatch.setattr(arrays_module, "MAX_IN_MEMORY", -1)
    both = Views([few, many])
    assert few.in_memory and views.in_memory and not many.in_memory and not both.in_memory
    monkeypatch.undo()
    assert not many.in_memory and not both.in_memory


def test_views_of_arrays_in_memory(store, where):
    one, two = (store([np.full(3, sign * i, np.float32) for i in range(6)], name=f"v{sign}") for sign in (1, -1))
    with Loader(Views([one, two]), ArrayDecoder((3,), np.dtype("f4")), LoaderConfig(batch_size=3, workers=1)) as loader:
        for sign in (1, -1, 1):
            for batch in loader:
                assert torch.equal(batch.inputs[:, 0], sign * batch.ids.float())
    one.close()
    two.close()


@pytest.mark.parametrize("other", [np.zeros(4, np.float16), np.zeros(3, np.float32), np.zeros((3, 1), np.float16)])
def test_an_array_with_the_wrong_shape_ends_the_run(store, other, where):
    dataset = store([np.zeros(3, np.float16), other])
    loader = Loader(dataset, ArrayDecoder((3,), np.dtype(np.float16)), LoaderConfig(batch_size=2, workers=1))
    with loader, pytest.raises(DataError, match=r"not float16 \[3\]; delete the cache"):
        list(loader)
    dataset.close()


def test_a_sample_without_an_array_is_left_out_with_its_reason(store, where):
    arrays = [np.full(3, i, np.float32) for i in range(8)]
    arrays[2] = arrays[5] = None
    dataset = store(arrays)
    dataset._reasons[2] = "an empty text"
    assert dataset.present == 6 and len(dataset) == 8
    with Loader(dataset, ArrayDecoder((3,), np.dtype("f4")), LoaderConfig(batch_size=4, workers=2)) as loader:
        assert sorted(chain(*ids_of(loader))) == [0, 1, 3, 4, 6, 7]
        assert loader.unreadable == {2: "an empty text", 5: "it was left out"}
    failing = Loader(dataset, ArrayDecoder((3,), np.dtype("f4")), LoaderConfig(batch_size=4, on_error="fail"))
    with failing, pytest.raises(DataError, match=r"numbers/[25]: (an empty text|it was left out); repair or remove"):
        list(failing)
    dataset.close()


@pytest.mark.parametrize("kind", ["cut", "moved", "gone"])
def test_a_changed_store_is_detected(store, kind):
    dataset = store([np.full(3, i, np.float32) for i in range(3)])
    dataset.read(0, Scratch())
    (path,) = dataset.files()
    data = path.read_bytes()
    with path.open("r+b") as file:
        if kind == "cut":
            file.truncate(600)
        elif kind == "moved":
            file.write(data[1024:] + data[:1024])
        else:
            path.unlink()
    if kind == "gone":
        dataset.close()
    with pytest.raises(ShardError, match=r"start again|start anew|bring it back"):
        for _ in range(20):
            dataset.read(2, Scratch())
    dataset.close()


@pytest.mark.parametrize("kind", [np.float16, np.int8, np.float64])
@pytest.mark.parametrize("shape", [(768,), (), (3, 5), (2, 0)])
def test_compiled_reads_are_those_of_python(store, shape, kind, monkeypatch):
    monkeypatch.setattr(arrays_module, "MAX_IN_MEMORY", -1)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 50, shape).astype(kind) for _ in range(40)]
    arrays[3], arrays[4], arrays[5] = None, np.zeros((7, 9), kind), np.zeros(shape, np.uint16)
    dataset = store(arrays)
    shards, places = dataset.files(), dataset._places.tolist()

    def change(index, offset, content):
        shard, _, at = places[index]
        with shards[shard].open("r+b") as file:
            file.seek(at + offset)
            file.write(content)

    change(10, 124 - 512, b"7")  # the size in the tar's header
    change(11, 1, b"n")  # the .npy header
    change(12, 124 - 512 - 20, b"7777777")  # what nobody looks at
    shard, size, at = places[24]
    os.truncate(shards[shard], at + size - 1)
    dataset._watch = FileWatch(shards)
    dataset._handles = Handles(shards, dataset._watch, "start again")
    dataset._places["shard"][30], dataset._places["offset"][31] = -1, 1 << 40
    decoder = ArrayDecoder(shape, np.dtype(kind))
    for ids in (range(40), [], [39, 3, 3, 12, 10], rng.permutation(40).tolist()):
        out = np.full((2, len(ids), *shape), 77, kind)
        unread = [dataset.read_rows(ids, decoder.head, out[0])]
        with monkeypatch.context() as patch:
            patch.setattr(dataset, "_fill_rows", lambda *_: None)
            unread.append(dataset.read_rows(ids, decoder.head, out[1]))
        assert unread[0] == unread[1]
        read = np.setdiff1d(np.arange(len(ids)), unread[0])
        assert out[0][read].tobytes() == out[1][read].tobytes()
        assert all(np.array_equal(out[0][row], arrays[ids[row]]) for row in read)
    unread = dataset.read_rows(range(40), decoder.head, np.empty((40, *shape), kind))
    assert {3, 4, 5, 10, 11, 24, 30, 31} <= set(unread) and len(unread) <= 9
    dataset.close()


@pytest.mark.usefixtures("files_given_back")
def test_files_are_closed_and_opened_again(store, open_files):
    dataset = store([np.full(3, i, np.float32) for i in range(7)])
    first = bytes(dataset.read(6, Scratch()))
    assert sum(path.endswith(".tar") for path in open_files()) == 1
    dataset.close()
    assert not any(path.endswith(".tar") for path in open_files())
    assert bytes(dataset.read(6, Scratch())) == first
    del dataset  # forgotten: closed too


def test_tokens_are_padded_and_a_batch_is_as_long_as_its_longest_text(texts):
    dataset = texts(50, 30)
    with Loader(dataset, TokenDecoder(24), LoaderConfig(batch_size=8, workers=2, order="length")) as loader:
        widths = []
        for batch in loader:
            real = [i for i, w in zip(batch.ids.tolist(), batch.weight.tolist(), strict=True) if w]
            lengths = np.minimum(dataset.lengths[real], 24)
            widths.append(batch.inputs.shape[1])
            assert widths[-1] == max(8, -(-lengths.max() // 8) * 8)
            for row, i, length in zip(batch.inputs.tolist(), real, lengths, strict=False):
                assert row == [i] * length + [PAD] * (widths[-1] - length)
            assert batch.inputs[len(real) :].eq(PAD).all()
        assert widths == sorted(widths, reverse=True) and widths[0] == 24 and widths[-1] == 8
    dataset.close()


def test_a_text_that_failed_makes_no_batch_longer(store):
    """Nor do the previous contents of the row, and rows beyond the data."""
    dataset = store([np.full(40 if i == 0 else 3, i, np.int32) if i != 5 else None for i in range(7)])
    config = LoaderConfig(batch_size=2, workers=1, order="sequential", prefetch=2)
    with Loader(dataset, TokenDecoder(64), config) as loader:
        shapes = [tuple(batch.inputs.shape) for batch in loader]
    assert shapes == [(2, 40), (2, 8), (2, 8), (2, 8)]
    dataset.close()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 20))
def test_put_tokens_and_longest(lengths, most):
    host = np.full((len(lengths), most), 7, np.int32)
    for row, length in zip(host, lengths, strict=True):
        put_tokens(np.arange(length, dtype=np.int32), row)
        assert row.tolist() == [*range(min(length, most)), *[PAD] * (most - length)]
    used = min(max(lengths), most)
    assert longest(host) == min(most, max(MULTIPLE, -(-used // MULTIPLE) * MULTIPLE))


ORDERS = st.sampled_from(["random", "quasi-random"])


@given(st.integers(1, 400), st.integers(1, 9), ORDERS, st.integers(0, 3), st.integers(0, 9))
def test_by_length_is_a_permutation_with_batches_of_similar_lengths(n, batch, policy, seed, epoch):
    lengths = np.random.default_rng(n).integers(1, 500, n)
    order = epoch_order(n, seed, epoch, policy, 8, 64)
    found = by_length(order, lengths, batch, policy, seed, epoch)
    assert sorted(found.tolist()) == list(range(n))
    assert np.array_equal(found, by_length(order, lengths, batch, policy, seed, epoch))
    full = n // batch * batch
    assert sorted(found[full:].tolist()) == sorted(order[full:].tolist())
    batches = lengths[found[:full]].reshape(-1, batch)
    assert (np.diff(batches, axis=1) <= 0).all()
    if batch > 1 and full // batch <= 64:  # all are sorted together, so that no batch crosses into another group
        spans = sorted((row[-1], row[0]) for row in batches.tolist())
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_batches_have_similar_lengths_and_a_new_order_each_epoch():
    lengths = np.random.default_rng(0).integers(1, 500, 4096)
    orders = [by_length(epoch_order(4096, 0, e, "random"), lengths, 16, "random", 0, e) for e in (0, 1)]
    wasted = [np.ptp(lengths[order].reshape(-1, 16), axis=1).mean() for order in orders]
    assert max(wasted) < 10 < np.ptp(lengths.reshape(-1, 16), axis=1).mean()
    assert not np.array_equal(*orders)
    first = lengths[orders[0]].reshape(-1, 16)[:, 0]
    assert np.abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.2  # long ones occur throughout


def test_length_is_longest_first():
    lengths = np.array([3, 9, 1, 9, 5])
    assert by_length(np.arange(5), lengths, 2, "length", 0, 0).tolist() == [1, 3, 4, 0, 2]


def test_order_length_is_for_tokens(store):
    dataset = store([np.zeros(3, np.float32)])
    with pytest.raises(ValueError, match="order length is only for texts stored as tokens"):
        Loader(dataset, ArrayDecoder((3,), np.dtype("f4")), LoaderConfig(batch_size=1, order="length"))


@pytest.fixture
def open_texts(texts):
    """`open_texts(rank, world_size, batch_size, ...)`: a loader of 61 texts that uses the first 57."""
    dataset, loaders = texts(61, 40), []

    def build(**options):
        config = LoaderConfig(**{"batch_size": 4, "workers": 2, "seed": 5} | options)
        loaders.append(Loader(dataset, TokenDecoder(40), config, indices=np.arange(57)))
        return loaders[-1]

    yield build
    for loader in loaders:
        loader.close()
    dataset.close()


@pytest.mark.parametrize("order", ["random", "quasi-random", "length"])
def test_ranks_share_what_one_process_reads(open_texts, order):
    """At each step the same samples, of almost equal length."""
    options = {"order": order, "together": 8, "window": 64}
    one = ids_of(open_texts(batch_size=8, **options))
    two = [ids_of(open_texts(rank=rank, world_size=2, **options)) for rank in range(2)]
    assert [a + b for a, b in zip(*two, strict=True)] == one
    assert sorted(chain(*one)) == list(range(57))


@pytest.mark.parametrize("order", ["random", "length"])
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_state_within_an_epoch_resumes_with_another_world_size(open_texts, order, step):
    whole, options = open_texts(batch_size=8, order=order, together=8), {"order": order, "together": 8}
    first, second = ids_of(whole), ids_of(whole)
    begun = open_texts(batch_size=8, **options)
    ids_of(begun)
    head = [batch.ids.tolist() for _, batch in zip(range(step), begun, strict=False)]
    assert head == second[:step] if order == "random" else head
    state = begun.state_dict()
    two = [open_texts(rank=rank, world_size=2, workers=1, **options) for rank in range(2)]
    for loader in two:
        loader.load_state_dict(state)
    rest = [a + b for a, b in zip(*map(ids_of, two), strict=True)]
    assert rest == second[step:] and (first != second or order == "length")


def test_a_state_of_other_batches_of_lengths_or_other_tokens_is_refused(open_texts, texts):
    state = open_texts(batch_size=8).state_dict()
    assert state["order"] == "random, by length in runs of 8"
    open_texts(batch_size=2, together=8).load_state_dict(state)
    with pytest.raises(ValueError, match="by length in runs of 4"):
        open_texts(batch_size=4).load_state_dict(state)
    other = texts(61, 40, "another tokenizer")
    loader = Loader(other, TokenDecoder(40), LoaderConfig(batch_size=8, seed=5), indices=np.arange(57))
    with loader, pytest.raises(DataError, match="not the data that the run began with"):
        loader.load_state_dict(state)
    other.close()


@pytest.fixture
def open_views(store):
    """A loader of two views of ten samples: sample i of view v is 100 v + i."""
    views = Views([store([np.full(2, 100 * v + i, "f4") for i in range(10)], f"{v}", name=f"v{v}-") for v in range(2)])
    loaders = []

    def build(**options):
        config = LoaderConfig(**{"batch_size": 4, "workers": 2, "prefetch": 2} | options)
        loaders.append(Loader(views, ArrayDecoder((2,), np.dtype("f4")), config))
        return loaders[-1]

    yield build
    for loader in loaders:
        loader.close()
    views.close()


def values(loader):
    return [(b.ids.tolist(), (b.inputs[:, 0] - b.ids).tolist()) for b in loader]


def test_views_take_turns(open_views):
    loader = open_views()
    assert len(loader.dataset.files()) == 4 and loader.dataset.sample_name(3) == "numbers/3"
    for epoch in range(5):
        assert {value for _, row in values(loader) for value in row} == {100.0 * (epoch % 2)}


def test_resuming_within_an_epoch_reads_its_view(open_views):
    whole = open_views(seed=3)
    values(whole)
    second = values(whole)
    begun = open_views(seed=3)
    begun.set_epoch(1)
    for _, _ in zip(range(2), begun, strict=False):
        state = begun.state_dict()
    other = open_views(seed=3, workers=1)
    values(other)  # it is at another view
    other.load_state_dict(state)
    assert values(other) == second[2:] and {value for _, row in second for value in row} == {100.0}


def test_views_have_different_fingerprints(store):
    arrays = [np.zeros(2, "f4")] * 3
    names = {Views([store(arrays, key) for key in keys]).fingerprint for keys in ("ab", "ba", "aa", "abab")}
    assert len(names) == 4


def test_reading_a_missing_array_raises_an_image_error(store):
    dataset = store([None])
    with pytest.raises(ImageError, match="it was left out"):
        dataset.read(0, Scratch())
