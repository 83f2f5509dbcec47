"""The loader's backends, and the settings that each of them ignores. Imports nothing slow."""

from typing import Literal

Reading = Literal["native", "torch", "dali", "ffcv", "synthetic"]  # those that take a path, and nothing else
Backend = Literal[Reading, "resident"]

# By backend: settings of LoaderConfig, of the crop and of `open_source` that have no effect.
IGNORED_SETTINGS: dict[Backend, tuple[str, ...]] = {
    "native": (),
    "torch": ("decode", "dct_scaling"),
    "dali": ("decode", "dct_scaling", "crop_padding"),
    "ffcv": ("decode", "dct_scaling", "crop_padding", "on_error", "max_pixels"),
    "synthetic": (
        *("decode", "dct_scaling", "crop_padding", "on_error", "max_pixels", "workers", "prefetch", "scale", "ratio"),
    ),
    "resident": ("decode", "dct_scaling", "prefetch"),
}

# Backends that decode to RGB alone.
RGB_ONLY: frozenset[Backend] = frozenset({"dali", "ffcv", "resident"})
