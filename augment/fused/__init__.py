"""Plans on a GPU: `reference.augment` in Triton, bit for bit; pixels are read once and written once.

Look-ups, [3, 256] per image, are built on the device and composed up to the next colour or sharpness. A level becomes
a value by one fused multiply-add and one rounding where that gives the table's bits in all 768 entries (`lines`: bf16
and fp16 as a rule), and by the table, composed with the last look-up, where not. An image takes one of two paths, which
the host writes beside its plan. One that is at most flipped and looked up, in a batch that is channels-last with rows
of whole words, is a run of values: a thread takes 8 consecutive ones three or six times, reads 8 bytes and stores 16;
where the image is mirrored, it reads 8 consecutive pixels and stores them in reverse order. Any other image (warped,
coloured, sharpened, erased, strided) goes pixel by pixel, 8 consecutive ones a thread. Before this pass, one statistics
pass for each column that needs one (a policy draws at most 2, see `Plan.passes`) reads only the images that drew
contrast, autocontrast or equalize. Images that are not warped or coloured by then are counted in CUDA C++
(`statistics.cu`, by `counting`), any others, and all where NVRTC is missing, in Triton, through the same warp and
operations. There is no synchronisation: the plan is one small tensor, sent once. Temporary memory, from PyTorch's
allocator: per image 768 bytes for each column and once more, 771 values of the result's type where there is no line,
and 6.2 kB for each statistics pass.

A plan of several stages is as many passes, of which all but the last make uint8. A blur is six launches over the images
that drew it (`blurs`). What a policy cannot draw is not compiled: warps that are filled, hues, inverted levels.

Everything is integer arithmetic except the line, blends (float32), autocontrast (float64) and hues (both): single
operations, which `enable_fp_fusion=False` keeps apart. `tests/augment/test_fused.py` compares it with the reference
under Triton's interpreter on the CPU, for every operation, type and odd size, and, with `-m gpu`, on a device.
`test_launches.py` compiles the launched kernels for an H200 (sm_90), and looks at accesses and roundings there.
`test_counting.py` executes `statistics.cu` as C++ on the CPU.

Measured on an H200 for 1024 x 3 x 224 x 224, uint8 to bfloat16 (`benchmarks/gpu.py`, `results/gpu.jsonl`, Triton 3.6,
medians of 10): a copy of the same 462 MB takes 0.111 ms, flips 0.153, TrivialAugment 0.215, and 0.269 where Triton
counts the statistics. Predicted from machine code (`benchmarks/kernels.py`, `results/kernels.jsonl`, Triton 3.9), which
was too little: flips, 5.9 instructions a value, 0.107 to 0.138 ms, from perfect overlap to none; TrivialAugment, 15.6,
with statistics and tables 0.122 to 0.207 ms, and 0.132 to 0.220 ms where Triton counts.

In: a plan, a batch on a GPU, a table. Out: the model's input. Must not know: loaders, the application.
"""

from .blurs import blur
from .launches import fused

__all__ = ["blur", "fused"]
