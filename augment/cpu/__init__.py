"""Plans on the CPU: `reference.augment`, compiled, one image at a time, on as many threads as torch uses.

Look-up operations are composed with the normalisation into one table, so most images are read once and written once.
Only operations that need statistics of the whole image (the mean for contrast, histograms for autocontrast and
equalize) or more than one level (colour, sharpness, and a warp before any of these) cost an extra pass. These passes
write to per-thread scratch memory, two images that fit the cache and are reused.

In: a plan, a batch, a table. Out: the model's input. Must not know: loaders, the application.
"""

from .filters import blur
from .images import augment, seconds_to_compile
from .masks import warp
from .mixtures import mix
from .results import between

__all__ = ["augment", "between", "blur", "mix", "seconds_to_compile", "warp"]
