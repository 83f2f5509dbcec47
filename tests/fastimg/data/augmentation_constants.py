"""What tests of augmentation share: the mean and deviation of images, and the mark of tests that need Kornia."""

import importlib.util

import pytest

KORNIA = importlib.util.find_spec("kornia") is not None
needs_kornia = pytest.mark.skipif(not KORNIA, reason="kornia is not installed: pip install '.[kornia]'")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
