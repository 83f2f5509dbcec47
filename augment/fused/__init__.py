"""Plans on a GPU: `reference.augment` in Triton, bit for bit; pixels are read once and written once.

Look-ups, [3, 256] per image, are built on the device and composed up to the next colour or sharpness. A level becomes
a value by one fused multiply-add and one rounding where that gives the table's bits in all 768 entries (`lines`: bf16
and fp16 as a rule), and by the table, composed with the last look-up, where not. Where brightness, contrast, posterize
or solarize is all that an image drew, its levels are computed instead of looked up.

Whatever an image drew, a thread writes a run of 8 consecutive values at a time (4 in float32), and neighbouring threads
neighbouring runs: so sectors of memory are written whole, once. Images take one of three paths, which the host writes
beside the plan. One whose rows are rows of the image (flipped, moved, or sheared along x) and looked up, in a batch
that is channels-last with rows of whole words, is read in words (`rows`): mirrored rows from the words around a run's
mirror image, put in order by permuting bytes. So is one that is only flipped and sharpened (`sharpening`): sums of nine
neighbours are made of the words of three rows. Any other image (turned, coloured, erased, strided) is made pixel by
pixel (`pixel`): of the four pixels that a run takes from, neighbouring threads make some twice. If it is turned, a warp
makes 8 rows of 4 runs, whose pixels lie close together.

Before this pass, one statistics pass for each column that needs one (a policy draws at most 2, see `Plan.passes`) reads
only the images that drew contrast, autocontrast or equalize. Images that are not warped or coloured by then are counted
in CUDA C++ (`statistics.cu`, by `counting`), any others, and all where NVRTC is missing, in Triton, through the same
warp and operations. There is no synchronisation: the plan is one small tensor, sent once, beside
what was enqueued before, or with the batch if it was worked out ahead. Temporary memory, from
PyTorch's allocator: per image 768 bytes for each column and once more, 771 values of the result's type where there is
no line, and 6.2 kB for each statistics pass.

A plan of several stages is as many passes, of which all but the last make uint8. A blur is six launches over the images
that drew it (`blurs`), and mixing one launch behind all (`mixtures`). What a policy cannot draw is not compiled: warps
that are filled, hues, inverted levels.

Everything is integer arithmetic except the line, blends (float32), autocontrast (float64) and hues (both): single
operations, which `enable_fp_fusion=False` keeps apart. `tests/augment/test_fused.py` compares it with the reference
under Triton's interpreter on the CPU, for every operation, type and odd size, and, with `-m gpu`, on a device.
`test_launches.py` compiles the launched kernels for an H200 (sm_90), and looks at accesses and roundings there.
`test_ptx.py` executes what was compiled as PTX on the CPU (`benchmarks/ptx.py`), and compares with the reference, too.
`test_counting.py` executes `statistics.cu` as C++ on the CPU.

Measured on an H200 for 1024 x 3 x 224 x 224, uint8 to bfloat16 (docs/benchmarks.md, `results/gpu.jsonl`, Triton 3.6): a
copy of the same 462 MB takes 0.111 ms, flips 0.131, TrivialAugment 0.161 (a trial). The first kernels took 0.153 and
0.217: `benchmarks/kernels.py` explains that by the lines of memory that they touched, 233 for each 256 pixels, now 97.

In: a plan, a batch on a GPU, a table. Out: the model's input. Must not know: loaders, the application.
"""

from .blurs import blur
from .launches import fused, work_out
from .mixtures import mix

__all__ = ["blur", "fused", "mix", "work_out"]
