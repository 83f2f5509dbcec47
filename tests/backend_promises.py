"""The contract of every loader backend, whatever decodes: the native loader's batches, states and iteration.

A module of tests subclasses `OfEveryBackend`, and has the fixtures `backend`, `data` (an open dataset) and `bound` (the
mean absolute difference of centre crops from the native loader's, 0 to 255; None if pixels are arbitrary).
"""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastimg.loaders import CenterCrop, LoaderConfig, RandomResizedCrop
from fastimg.loaders.backends.selection import open_source
from fastimg.loaders.order import Sampling

SIZE = 32
RANDOM, CENTRE = RandomResizedCrop(size=SIZE), CenterCrop(size=SIZE, resize=36)
ORDERS: dict[str, dict[str, Any]] = {
    "random": {},
    "sequential": {"order": "sequential"},
    "quasi-random": {"order": "quasi-random", "block": 2, "window": 8},
    "rank": {"rank": 1, "world_size": 2},
    "tail": {"order": "sequential", "rank": 2, "world_size": 3, "batch_size": 8},
    "padding": {"order": "sequential", "rank": 2, "world_size": 3, "batch_size": 12},  # only padding
    "large": {"batch_size": 32, "seed": 5},
}
Open = Callable[..., Any]  # the fixtures of tests/conftest.py


class OfEveryBackend:
    @pytest.mark.parametrize("name", ORDERS)
    def test_batches_are_the_native_loaders(
        self, data: Any, backend: Any, name: str, open_loader: Open, read_pixels: Open, plain: Open
    ) -> None:
        options = ORDERS[name]
        crop = CENTRE if options.get("order") == "sequential" else RANDOM
        native, other = open_loader("native", data, crop, **options), open_loader(backend, data, crop, **options)
        for _ in range(2):
            expected, got = read_pixels(native), read_pixels(other)
            assert plain(got) == plain(expected) and len(got) == len(other) == len(native)
            for ids, _, weight, _, pixels in got:
                assert pixels.dtype == torch.uint8 and pixels.shape == (len(ids), SIZE, SIZE, 3)
                assert all(image.any() for image, w in zip(pixels, weight, strict=True) if w)
                if options.get("order") == "sequential":
                    assert not pixels[int(sum(weight)) :].any()
        assert other.epoch == 1 and other.unreadable == other.rerouted == {} and other.wait_seconds > 0
        native.close()
        other.close()

    def test_a_sampling_draws_the_native_loaders_samples(self, data: Any, backend: Any, open_loader: Open) -> None:
        """With how often each came before in the epoch, and divided among ranks."""
        options = {"sampling": Sampling(np.arange(len(data)) + 1.0), "rank": 1, "world_size": 2}
        drawn = []
        for each in ("native", backend):
            with contextlib.closing(open_loader(each, data, **options)) as loader:
                drawn.append([(batch.keys.tolist(), batch.weight.tolist()) for batch in loader])
        assert drawn[0] == drawn[1]
        assert any(key >= 1 << 32 for keys, _ in drawn[0] for key in keys)

    def test_a_state_moves_from_one_backend_to_another(
        self, data: Any, backend: Any, open_loader: Open, read_pixels: Open
    ) -> None:
        expected = [batch[0] for batch in read_pixels(open_loader("native", data))]
        for first, second in (("native", backend), (backend, "native"), (backend, backend)):
            begun = open_loader(first, data)
            batches = iter(begun)
            done = [next(batches).ids.tolist() for _ in range(2)]
            state = begun.state_dict()
            begun.close()
            rest = open_loader(second, data, workers=1)
            rest.load_state_dict(state)
            done += [batch[0] for batch in read_pixels(rest)]
            assert done == expected
            assert rest.epoch == 0 and [batch[0] for batch in read_pixels(rest)] != done  # the epoch after it
            rest.close()
        with (
            contextlib.closing(open_loader(backend, data, seed=1)) as other,
            pytest.raises(ValueError, match="made with seed 0"),
        ):
            other.load_state_dict(state)

    def test_a_consumer_may_stop_early_and_begin_again(
        self, data: Any, backend: Any, open_loader: Open, read_pixels: Open, plain: Open
    ) -> None:
        with contextlib.closing(open_loader("native", data)) as native:
            expected = [plain(read_pixels(native)) for _ in range(4)]
        with contextlib.closing(open_loader(backend, data)) as loader:
            for _ in loader:
                break
            assert plain(read_pixels(loader)) == expected[1]
            first, second = iter(loader), iter(loader)
            next(first)
            assert next(second).ids.tolist() == expected[3][0][0]
            with pytest.raises(RuntimeError, match="this iteration is over"):
                next(first)
            assert sum(1 for _ in second) == len(loader) - 1
            held = iter(loader)
            next(held)
            loader.close()
            with pytest.raises(RuntimeError, match="this iteration is over"):
                next(held)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_batches_on_a_gpu(
        self,
        data: Any,
        backend: Any,
        bound: float | None,
        open_loader: Open,
        read_pixels: Open,
        plain: Open,
        difference: Open,
    ) -> None:
        """The consumer is slower than the copies; ids, weights and order are unchanged."""
        config = LoaderConfig(batch_size=4, workers=2, order="sequential")
        with contextlib.closing(open_loader("native", data, CENTRE, order="sequential")) as native:
            expected = read_pixels(native)
        with contextlib.closing(open_source(backend, data, CENTRE, config, "cuda")) as other:
            for _ in range(3):
                got = []
                for batch in other:
                    assert batch.inputs.is_cuda and batch.targets.is_cuda and batch.weight.is_cuda
                    assert not batch.ids.is_cuda
                    torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call]
                    pixels = batch.inputs.permute(0, 2, 3, 1).clone().cpu()
                    lists = (batch.ids.tolist(), batch.targets.tolist(), batch.weight.tolist())
                    got.append((*lists, batch.samples, pixels))
                assert plain(got) == plain(expected)
                assert bound is None or difference(expected, got) <= bound
