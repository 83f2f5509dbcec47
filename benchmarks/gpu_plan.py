"""What `gpu.py` runs, in which order and for how long, and the grid of training steps. Imports no torch."""

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Compile = Literal["default", "max-autotune-no-cudagraphs", "reduce-overhead"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the benchmark that runs in its own process."""

    name: str
    function: str  # module:function, called with a `bench.Bench`
    seconds: int  # time limit, including importing torch, starting CUDA and compiling
    what: str
    second: bool = False  # part of the second call
    by_name: bool = False  # part of neither call
    images: bool = False  # reads JPEGs
    fills: bool = False  # does as much as it has time for, including time that earlier sections left unused
    needs: tuple[str, ...] = ()  # modules that a machine with torch may lack
    record_as: str = ""  # `section` in records, if it differs from the name


_COMMAND_LINE = ("msgspec", "simplejpeg", "xxhash")

SECTIONS = {
    section.name: section
    for section in (
        Section(
            name="gates",
            function="gpu_gates:gates",
            seconds=45,
            what="cores and clocks; steps as CUDA graphs give the eager bits; the tests that failed in the last call",
        ),
        Section(
            name="cifar",
            function="gpu_cifar:cifar",
            seconds=110,
            what="`--recipe cifar-fast`, eager and as CUDA graphs, in turn with airbench: seconds and accuracy",
            needs=(*_COMMAND_LINE, "pyarrow", "matplotlib", "sklearn"),
        ),
        Section(
            name="steps",
            function="gpu_steps:steps",
            seconds=140,
            what="the trainer's step on synthetic data: eager, as CUDA graphs, compiled, both",
            fills=True,
        ),
        Section(
            name="training",
            function="gpu_training:training",
            seconds=215,
            what="decoding alone, the loader by threads; files and shards against the fastest synthetic step; a trace",
            images=True,
        ),
        Section(
            name="augment",
            function="gpu_augment:augment",
            seconds=45,
            what="augmentation's time on the device and on the host against a copy; the ceiling of nvJPEG's hardware",
            images=True,
        ),
        Section(
            name="tests",
            function="gpu_checks:marked_tests",
            seconds=330,
            second=True,
            what="the tests marked gpu that have not passed at this commit, training first, in four processes",
            needs=(*_COMMAND_LINE, "pyarrow", "matplotlib", "sklearn", "pytest", "hypothesis"),
        ),
        Section(
            name="parity",
            function="gpu_parity:parity",
            seconds=60,
            second=True,
            what="augmentation and the ragged resize against the CPU, bit for bit, at one size",
        ),
        Section(
            name="gpu-decode",
            function="gpu_checks:gpu_decode",
            seconds=50,
            second=True,
            what="JPEGs decoded on the GPU (torchvision, nvImageCodec) against the CPU's, and their speed",
            images=True,
            needs=("simplejpeg",),
        ),
        Section(
            name="dali",
            function="gpu_loaders:dali",
            seconds=30,
            second=True,
            what="DALI's loader compared with fastimg's",
            images=True,
            needs=("nvidia.dali",),
        ),
        Section(
            name="augment-peers",
            function="gpu_augment:augment_peers",
            seconds=25,
            second=True,
            what="augmentation against torchvision v2 and Kornia",
            needs=("kornia",),
        ),
        Section(
            name="more-steps",
            function="gpu_steps:more_steps",
            seconds=60,
            second=True,
            what="other models, types, compile modes and batches that no result has yet for this GPU",
            fills=True,
            record_as="steps",
        ),
        Section(
            name="versions",
            function="gpu_versions:versions",
            seconds=20,
            by_name=True,
            what="packages, seconds per import, the advice of `fastimg doctor`",
            fills=True,  # without doctor on a machine where imports are slow
        ),
        Section(
            name="overlap",
            function="gpu_training:overlap",
            seconds=40,
            by_name=True,
            what="loader and step together compared with the slower of them",
            images=True,
        ),
        Section(
            name="amp",
            function="gpu_checks:amp",
            seconds=30,
            by_name=True,
            what="a step in bf16 and fp16 against float32",
        ),
        Section(
            name="fp16",
            function="gpu_checks:fp16_scaler",
            seconds=20,
            by_name=True,
            what="the gradient scaler: the loss falls, and a gradient that overflows is dropped",
        ),
        Section(
            name="fsdp2",
            function="gpu_checks:fsdp2",
            seconds=25,
            by_name=True,
            what="a model sharded over one rank against the unsharded model",
        ),
        Section(
            name="compile",
            function="gpu_checks:compiled",
            seconds=60,
            by_name=True,
            what="torch.compile against eager, and the number of graphs",
        ),
        Section(
            name="augment-parity",
            function="gpu_parity:augment_parity",
            seconds=85,
            by_name=True,
            what="augmentation against the reference: every type, an odd size",
        ),
        Section(
            name="ragged-parity",
            function="gpu_parity:ragged_parity",
            seconds=15,
            by_name=True,
            what="the ragged resize against the CPU's, both filters",
        ),
        Section(
            name="loader-parity",
            function="gpu_parity:loader_parity",
            seconds=15,
            by_name=True,
            what="whole epochs on the device against one thread on the CPU, bit for bit",
            images=True,
        ),
        Section(
            name="augment-operations",
            function="gpu_augment:operations",
            seconds=50,
            by_name=True,
            what="augmentation by each of TrivialAugment's operations, and by each kernel",
        ),
        Section(
            name="augment-tuning",
            function="gpu_tuning:tuning",
            seconds=90,
            by_name=True,
            what="TrivialAugment with other numbers of threads, pixels and registers",
        ),
    )
}
FIRST = [name for name, section in SECTIONS.items() if not (section.second or section.by_name)]
SECOND = [name for name, section in SECTIONS.items() if section.second]
_CHECKING = ("gpu_gates", "gpu_versions", "gpu_parity", "gpu_checks")
CHECKS = [name for name, section in SECTIONS.items() if section.function.partition(":")[0] in _CHECKING]
GROUPS = {
    "first": FIRST,
    "second": SECOND,
    "checks": CHECKS,
    "measures": [name for name in SECTIONS if name not in CHECKS],
    "all": list(SECTIONS),
}

# Modules that may be missing where torch is installed -> the wheels that provide them, and what they enable.
OPTIONAL = {
    "simplejpeg": ("simplejpeg", "JPEGs that are not tiled, the tests"),
    "msgspec": ("msgspec", "the command line, checkpoints, datasets, the tests"),
    "pyarrow": ("pyarrow", "tables as sources, the tests"),
    "matplotlib": ("matplotlib contourpy cycler fonttools kiwisolver pyparsing", "curves of a run, the tests"),
    "sklearn": ("scikit-learn scipy joblib threadpoolctl narwhals", "the digits of `cifar`, the tests"),
    "xxhash": ("xxhash", "datasets that are written"),
    "pytest": ("pytest iniconfig pluggy", "the tests"),
    "xdist": ("pytest-xdist execnet", "the tests on several cores"),
    "hypothesis": ("hypothesis sortedcontainers", "the tests"),
    "nvidia.nvimgcodec": ("nvidia-nvimgcodec-cu13 nvidia-nvjpeg", "JPEGs decoded on the GPU by nvImageCodec"),
    "nvidia.dali": ("nvidia-dali-cuda130", "DALI's loader"),
    "kornia": ("kornia kornia-rs", "Kornia's augmentation"),
    "airbench": ("airbench", "airbench beside `cifar`"),
}
NEEDED = ("torch", "torchvision", "timm", "numpy", "PIL", "numba", "rich")  # by every section


def missing(modules: Iterable[str]) -> list[str]:
    """Those of the modules that are not installed. Imports nothing but the parents of submodules."""
    return [module for module in modules if not _installed(module)]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # parent package missing, or a module without a specification
        return False


@dataclass(frozen=True)
class Variant:
    """A training configuration: one row of the steps."""

    arch: str
    dtype: Literal["bf16", "fp16", "float32"]
    compile: Compile | None
    batch: int
    cuda_graphs: bool = False

    def fields(self) -> dict[str, Any]:
        """The keys of its record."""
        return asdict(self)

    def text(self) -> str:
        """A description for people."""
        graphs = [GRAPHS] if self.cuda_graphs else []
        return " ".join([self.arch, self.dtype, *([self.compile] if self.compile else []), *graphs, str(self.batch)])


GRAPHS = "graphs"  # in the description of a variant


def variant(text: str) -> Variant:
    """The reverse of `Variant.text`: MODEL TYPE [MODE] [graphs] BATCH. Raises ValueError."""
    arch, dtype, *how, batch = text.split() if len(text.split()) in (3, 4, 5) else [text, "", ""]
    graphs = how[-1:] == [GRAPHS]
    modes = how[:-1] if graphs else how
    wrong = modes and (len(modes) > 1 or modes[0] not in get_args(Compile))
    if dtype not in ("bf16", "fp16", "float32") or not batch.isdigit() or wrong:
        raise ValueError(
            f"{text}: write a model, a type, a mode or nothing, graphs or nothing, and a batch: "
            "resnet50 bf16 default graphs 256"
        )
    return Variant(arch, dtype, modes[0] if modes else None, int(batch), graphs)  # type: ignore[arg-type]


def fastest(archs: Sequence[str], batch: int, device: str) -> list[Variant]:
    """The rows of `steps`: each model eager, as CUDA graphs, compiled, and both; then both in fp16."""
    if device != "cuda":
        return [Variant(arch, "float32", None, batch, graphs) for arch in archs for graphs in (False, True)]
    rows: list[Variant] = []
    for arch in archs:
        rows += [Variant(arch, "fp16", None, batch, graphs) for graphs in (False, True)]
        rows += [Variant(arch, "bf16", "default", batch, graphs) for graphs in (False, True)]
    return [*rows, *(Variant(arch, "fp16", "default", batch, True) for arch in archs)]


def grid(archs: Sequence[str], batches: Sequence[int], device: str) -> list[Variant]:
    """Models by type, batch and compile mode, the most informative first: without compiling, then compiled."""
    types: tuple[Literal["bf16", "fp16", "float32"], ...] = ("bf16", "fp16") if device == "cuda" else ("float32",)
    plain = [Variant(arch, dtype, None, batch) for batch in batches for dtype in types for arch in archs]
    if device != "cuda":
        return plain
    modes: tuple[Compile, ...] = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
    first = [Variant(arch, "bf16", "default", batches[0]) for arch in archs]
    first += [Variant(archs[0], "bf16", mode, batches[0]) for mode in modes[1:]]
    rest = [Variant(arch, "bf16", mode, batch) for batch in batches for mode in modes for arch in archs]
    return list(dict.fromkeys([*plain, *first, *rest]))


def more(archs: Sequence[str], batches: Sequence[int], device: str) -> list[Variant]:
    """The rows of `more-steps`, as far as no result has them yet."""
    return [*grid(archs, batches, device), *(Variant(arch, "float32", None, batches[0]) for arch in archs)]
