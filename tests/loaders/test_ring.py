"""Slots: fields in one flat buffer, viewed by NumPy and torch, on the host and on a GPU."""

import numpy as np
import pytest
import torch

from fastimg.loaders.batch import LABEL_FIELDS, Field
from fastimg.loaders.ring import CudaRing, HostRing, Slot, SlotLayout

BATCH = 5
FIELDS = (
    Field("inputs", (7, 3, 3), np.dtype(np.uint8)),
    Field("embedding", (11,), np.dtype(np.float32)),
    Field("tokens", (2, 3), np.dtype(np.int64)),
    *LABEL_FIELDS,
)


def fill(slot, seed):
    """Random content in every field; a copy of it."""
    rng = np.random.default_rng(seed)
    for array in slot.arrays.values():
        array[...] = rng.integers(0, 200, array.shape)
    return {name: array.copy() for name, array in slot.arrays.items()}


def test_fields_are_aligned_and_disjoint():
    layout = SlotLayout(FIELDS, BATCH)
    end = 0
    for field in FIELDS:
        at, size, shape, dtype = layout.fields[field.name]
        assert at % 256 == 0 and at >= end and shape == (BATCH, *field.shape) and dtype == field.dtype
        assert size == np.prod(shape) * dtype.itemsize
        end = at + size
    assert end <= layout.nbytes < end + 256 and list(layout.fields) == [field.name for field in FIELDS]


def test_arrays_and_tensors_are_views_of_one_buffer():
    layout = SlotLayout(FIELDS, BATCH)
    slot = Slot(layout, pinned=False)
    assert slot.buffer.numel() == layout.nbytes and not slot.buffer.any() and not slot.buffer.is_pinned()
    content = fill(slot, 1)
    tensors = layout.tensors(slot.buffer)
    assert list(tensors) == list(slot.arrays) == list(content)
    for name, (at, _, shape, dtype) in layout.fields.items():
        assert tensors[name].data_ptr() == slot.buffer.data_ptr() + at == slot.arrays[name].ctypes.data
        assert slot.arrays[name].shape == shape and slot.arrays[name].dtype == dtype
        assert tensors[name].numpy().dtype == dtype
        np.testing.assert_array_equal(tensors[name].numpy(), content[name])  # no field overlaps another
    tensors["tokens"][3, 1, 2] = -5
    assert slot.arrays["tokens"][3, 1, 2] == -5


def test_what_is_apart_lies_together():
    """Each of the n is a batch of its own in memory; arrays and tensors have the rows first all the same."""
    apart = Field("inputs", (2, 3, 7), np.dtype(np.uint8), apart=True)
    layout = SlotLayout((apart, *LABEL_FIELDS), BATCH)
    slot = Slot(layout, pinned=False)
    slot.arrays["inputs"][1:3] = np.arange(42).reshape(2, 3, 7)  # a chunk of rows
    inputs = layout.tensors(slot.buffer)["inputs"]
    assert slot.arrays["inputs"].shape == tuple(inputs.shape) == (BATCH, 2, 3, 7)
    assert inputs[:, 0].is_contiguous() and inputs[:, 1].is_contiguous() and inputs.transpose(0, 1).is_contiguous()
    assert inputs[1:3].tolist() == [np.arange(42).reshape(2, 3, 7).tolist()] * 2 and not inputs[3:].any()


@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.int16, np.int32, np.float16, np.float64])
def test_types_of_fields(kind):
    layout = SlotLayout((Field("inputs", (3,), np.dtype(np.uint8)), Field("more", (2,), np.dtype(kind))), BATCH)
    slot = Slot(layout, pinned=False)
    slot.arrays["more"][2] = [0, 1]
    more = layout.tensors(slot.buffer)["more"]
    assert more.numpy().dtype == kind and more.tolist() == [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (Field("ids", (2,), np.dtype(np.int64)), "two fields of a batch are called 'ids'; rename the decoder's field"),
        (Field("more", (), np.dtype(np.complex64)), "is of type complex64; a batch can hold bool, uint8, uint16, int8"),
        (Field("more", (), np.dtype("U5")), "'more' is of type <U5; a batch can hold bool"),
        (Field("more", (), np.dtype(np.uint8), apart=True), "'more' is apart, but has no dimension"),
    ],
)
def test_invalid_fields(field, words):
    with pytest.raises(ValueError, match=words):
        SlotLayout((Field("inputs", (3,), np.dtype(np.uint8)), field, *LABEL_FIELDS), BATCH)


def test_the_host_ring_returns_the_slot_itself():
    layout = SlotLayout(FIELDS, BATCH)
    ring, slot = HostRing(layout), Slot(layout, pinned=False)
    tensors = ring.hand_over(slot)
    ring.reclaim()
    assert tensors["inputs"].data_ptr() == slot.buffer.data_ptr()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_cuda_ring_hands_over_copies_that_outlive_the_slot():
    """A slot is refilled as soon as it is reclaimed, while slow kernels still read the previous batches."""
    layout, device = SlotLayout(FIELDS, BATCH), torch.device("cuda")
    ring, slots = CudaRing(layout, device), [Slot(layout, pinned=True) for _ in range(2)]
    assert all(slot.buffer.is_pinned() for slot in slots)
    seen, pointers = [], set()
    for step in range(12):
        slot = slots[step % 2]
        slot.number = step
        content = fill(slot, step)
        ring.begin(slot)
        tensors = ring.hand_over(slot)
        torch.cuda._sleep(20_000_000)
        seen.append(({name: tensor.clone() for name, tensor in tensors.items()}, content))
        pointers.add(tensors["inputs"].data_ptr())
        ring.reclaim()
        slot.buffer.fill_(255)
    assert len(pointers) == 3
    for tensors, content in seen:
        for name, tensor in tensors.items():
            assert tensor.is_cuda
            np.testing.assert_array_equal(tensor.cpu().numpy(), content[name])
