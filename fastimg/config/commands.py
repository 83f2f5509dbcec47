"""One frozen dataclass per command: the single source of flags, `--help`, the YAML under `--config` and `config.yaml`.

None means "chosen for you"; what was chosen is printed and written down. Nothing here imports torch: `--help` is
instant. What `train` takes is in trainconfig.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from . import flag_types as flagtypes
from .training import Augmenting, Inputs, Train

__all__ = [
    "Augmenting",
    "Convert",
    "Demo",
    "Embed",
    "Eval",
    "Inputs",
    "Inspect",
    "Predict",
    "Recipe",
    "Train",
    "Verify",
]


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Turn images or texts into shards: tars that DALI and WebDataset read too, or FFCV's .beton files."""

    src: Positional[Annotated[Path, arg(metavar="SRC")]]
    """A folder with one subfolder of images or .txt files per class (with or without train/ val/ test/ above); a csv,
    tsv, jsonl or parquet manifest with a label and an image's path, or a text, in each row; parquet files with image
    bytes (Hugging Face's layout); tar shards or .beton files, anybody's; torchvision:NAME (CIFAR10, MNIST, ...);
    sklearn:digits."""
    dst: Positional[Annotated[Path, arg(metavar="DST")]]
    """The dataset directory to make."""
    more: Positional[Annotated[tuple[Path, ...], arg(metavar="[MORE ...]", help_behavior_hint="")]] = ()
    """With --merge: further sources, the last path being DST."""
    format: Annotated[Literal["tar", "beton"] | None, arg(metavar="{tar,beton}", help_behavior_hint="")] = None
    """tar: WebDataset shards with DALI's index; beton: one FFCV file for each split. Default: tar; with --append the
    dataset's own."""
    append: bool = False
    """Add SRC to the dataset in DST, whose shards stay as they are."""
    merge: bool = False
    """Several sources, as in `--merge A B DST`, become one dataset."""
    shard_size: str = "256MB"
    """Size of a tar, by the sizes of its source images: a number with KB, MB or GB."""
    val_fraction: float = 0.0
    """Hold out this share of the training split, stratified by class and seeded."""
    shuffle: FlagCreatePairsOff[bool] = False
    """Shuffle the training split once, seeded; class-sorted shards ruin windowed shuffling. Done without being asked
    but for tars and .beton files, which keep their order unless they are merged."""
    no_shuffle: FlagCreatePairsOff[bool] = False
    """Keep the order of the source."""
    seed: int = 0
    """Seed of the shuffle, of --val-fraction and of --raw-fraction."""
    classes: Annotated[Literal["top", "leaf"] | None, arg(metavar="{top,leaf}", help_behavior_hint="")] = None
    """Of a folder of class folders: which folder names the class of a file, the topmost (top), or the one that it lies
    in (leaf), folders of one name being one class. Default: top, and a line says so where the two differ."""
    path_column: flagtypes.Str = None
    """Manifest column with image paths, relative to the manifest, or with image bytes in parquet files. Default: path,
    file, filename or image."""
    text_column: flagtypes.Str = None
    """Manifest column with texts, which makes it a dataset of texts. Default: text, sentence, review, content or
    document, where there is no column with image paths."""
    label_column: flagtypes.Str = None
    """Manifest column with labels. Default: label, class or target."""
    split_column: flagtypes.Str = None
    """Manifest column with split names. Default: split, where there is one."""
    no_header: FlagCreatePairsOff[bool] = False
    """The first line of a csv or tsv is a row: columns are called 1, 2, ... Found out, and said, for texts where no
    name in that line is a known column, and for images where that line has the path of one."""
    delimiter: flagtypes.Str = None
    """The character between the columns of a csv or tsv, or tab. Default: found in its first rows, among comma,
    semicolon, tab and |."""
    labels_are_classes: FlagCreatePairsOff[bool] = False
    """Make each different label of a manifest a class, even where labels look like identifiers, numbers with fractions
    or lists, which is refused otherwise."""
    tile: str = "auto"
    """Rewrite JPEGs losslessly with tiles that can be decoded alone, so that a training crop costs less: auto (32
    pixels wide), a width in pixels, or off."""
    max_size: Annotated[int | None, arg(aliases=["--max-resolution"], metavar="INT", help_behavior_hint="")] = None
    """Shrink images whose longer side has more pixels than this to it (antialiased), and store them as JPEGs."""
    quality: flagtypes.Int = None
    """Quality, 1 to 100, of JPEGs that are encoded. Default: 95."""
    jpeg: Literal["keep", "reencode"] = "keep"
    """reencode: store every image as a JPEG of --quality. keep: every image keeps its coefficients or its bytes."""
    raw_fraction: flagtypes.Float = None
    """With --format beton: store this share of the images as raw pixels, drawn by the seed. Default: 0."""
    originals: Annotated[
        Literal["keep", "drop", "refuse"] | None, arg(metavar="{keep,drop,refuse}", help_behavior_hint="")
    ] = None
    """With --format beton: what FFCV cannot decode (PNG, CMYK, ...) is stored as raw pixels, an EXIF orientation is
    baked in; keep: the original bytes too, in a field `original`; drop: without them; refuse: as --on-error says.
    Default: keep."""
    compare: bool = False
    """Decode every tiled JPEG and its source, and compare the pixels: slower. Without it a source's data is walked."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that read and check images: a number, or auto for one per core."""
    max_pixels: int = flagtypes.MAX_PIXELS
    """Refuse images with more pixels than this, from their header, before anything is decoded."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with an image that cannot be stored: leave it out, counted and named, or stop."""
    resume: bool = False
    """Go on with a conversion into DST that was interrupted."""
    overwrite: bool = False
    """Replace the dataset in DST."""
    json: bool = False
    """Print the report as json."""


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check that a dataset is whole: sizes, checksums, indexes against tars, labels; every fault is named."""

    data: Positional[Path]
    """Shards made by `fastimg convert`, somebody's tars or .beton files, or a folder of images or texts."""
    deep: bool = False
    """Decode every image too; read every text."""
    max_pixels: int = flagtypes.MAX_PIXELS
    """With --deep: images with more pixels than this are a fault."""
    json: bool = False
    """Print the result as json."""


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Evaluate a checkpoint: accuracy, precision and recall of every class, a confusion matrix."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint), a checkpoint directory, or model.safetensors."""
    data: Positional[Path]
    """Shards or an image folder, with the checkpoint's classes."""
    split: flagtypes.Str = None
    """The split to evaluate. Default: val, else test, else what training held out of train."""
    classes: Annotated[Literal["top", "leaf"] | None, arg(metavar="{top,leaf}", help_behavior_hint="")] = None
    """Of a folder of class folders: which folder names the class of a file, the topmost (top), or the one that it lies
    in (leaf), folders of one name being one class. Default: top, and a line says so where the two differ."""
    batch_size: Annotated[int, arg(aliases=["-b"])] = 64
    """Images per step."""
    loader: Annotated[Literal["auto", "native", "torch", "dali", "ffcv"], arg(aliases=["--data-backend"])] = "auto"
    """What reads and decodes: fastimg's own loader (native, auto), PyTorch's DataLoader with Pillow and torchvision,
    NVIDIA DALI, or FFCV (.beton only)."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that decode images, processes with --loader torch."""
    on_error: Annotated[Literal["skip", "fail"] | None, arg(metavar="{skip,fail}", help_behavior_hint="")] = None
    """What to do with an image that cannot be decoded: leave it out, counted and named, or stop. Default: skip."""
    max_pixels: flagtypes.Int = None
    """Images with more pixels than this are not decoded. Default: 89478485."""
    tta: bool = False
    """Answer with the mean of the logits of each image and its mirror image."""
    amp: bool = True
    """Mixed precision where the device gains by it."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    plot: flagtypes.File = None
    """Where to draw the confusion matrix. Default: confusion-SPLIT.png beside the checkpoint."""
    json: bool = False
    """Print the result as json."""


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Classify images, or texts, with a checkpoint."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint), a checkpoint directory, or model.safetensors."""
    sources: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILES ...]", help_behavior_hint="")]] = ()
    """Image files, or folders to search for images; of a checkpoint that reads texts .txt files."""
    text: tuple[str, ...] = ()
    """Texts to classify, each in quotes."""
    topk: int = 5
    """Classes to show for each image."""
    batch_size: Annotated[int, arg(aliases=["-b"])] = 64
    """Images per step."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that decode images."""
    max_pixels: int = flagtypes.MAX_PIXELS
    """Images with more pixels than this are not decoded."""
    tta: bool = False
    """Answer with the mean of the logits of each image and its mirror image."""
    amp: bool = True
    """Mixed precision where the device gains by it."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    json: bool = False
    """Print one json object per line instead of a table."""
    csv: flagtypes.File = None
    """Write the result to this csv file; - is standard output."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a checkpoint as one file for other programs: ONNX, torch.export's pt2, or safetensors."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint), a checkpoint directory, or model.safetensors."""
    format: Literal["safetensors", "onnx", "pt2"]
    """onnx, pt2: uint8 images in, logits out, normalisation inside. safetensors: weights, the rest as metadata."""
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE|FOLDER", help_behavior_hint="")] = None
    """Where to write. Default: RUN.onnx, .pt2 or .safetensors in the run's directory, or beside a lone checkpoint."""
    with_preprocessing: bool = False
    """onnx, pt2: images of any size in; `predict`'s resize and centre crop are inside too. See docs/export.md."""
    check: bool = False
    """Run the written file on the CPU and compare its answers with those of `predict`; exit code 1 if they differ."""
    check_data: Annotated[Path | None, arg(metavar="DATA", help_behavior_hint="")] = None
    """With --check: a dataset or images, of which up to 64 are read. Default: images of noise."""
    overwrite: bool = False
    """Replace the file."""
    json: bool = False
    """Print the result as json."""


@dataclass(frozen=True, kw_only=True)
class Inspect(Augmenting):
    """Look at a dataset: counts, sizes, formats, duplicates, leaks, and pictures of what a model will see, or texts."""

    data: Positional[Path]
    """Shards, .beton files, somebody's tars, or a folder of images or texts."""
    split: flagtypes.Str = None
    """Look at this split alone. Default: all of them."""
    classes: Annotated[Literal["top", "leaf"] | None, arg(metavar="{top,leaf}", help_behavior_hint="")] = None
    """Of a folder of class folders: which folder names the class of a file, the topmost (top), or the one that it lies
    in (leaf), folders of one name being one class. Default: top, and a line says so where the two differ."""
    headers_only: FlagCreatePairsOff[bool] = False
    """Do not decode the images: faster, and damage inside them is not found."""
    no_pictures: FlagCreatePairsOff[bool] = False
    """Draw nothing: the facts alone, without the seconds that importing torch takes."""
    samples: flagtypes.Int = None
    """Images in samples.png; up to 8 of them are in augmented.png, as training sees them in their first 8 epochs. Of a
    dataset of texts, the texts that are shown. Default: 36 images, 10 texts."""
    img_size: Annotated[int | None, arg(aliases=["--imgsz"], metavar="INT", help_behavior_hint="")] = None
    """Side in pixels of the crops in augmented.png. Default: 224, or what --config says."""
    config: flagtypes.File = None
    """Show the augmentation of this YAML file, such as a run's config.yaml; flags win."""
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="FOLDER", help_behavior_hint="")] = None
    """Where the pictures go. Default: inspect-NAME, by the name of the data."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that read and decode: a number, or auto for one per core."""
    max_pixels: int = flagtypes.MAX_PIXELS
    """Images with more pixels than this count as unreadable."""
    seed: int = 0
    """Seed of what is shown; training with the same seed draws the same crops and augmentation."""
    json: bool = False
    """Print the result as json."""


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Run an encoder once over images or texts, and write an embedding of each, with its key and label."""

    data: Positional[Annotated[Path, arg(metavar="DATA")]]
    """Shards, .beton files, or a folder of images or texts."""
    dst: Positional[Annotated[Path, arg(metavar="OUT")]]
    """The folder to write to."""
    arch: Annotated[str | None, arg(aliases=["-a", "--model"], metavar="NAME", help_behavior_hint="")] = None
    """Any timm model, torchvision's as torchvision/NAME, or for texts Hugging Face's encoders as hf:NAME or hf:FOLDER.
    Default: the one that --weights state, else resnet50."""
    pretrained: bool = False
    """With the model's published weights (downloaded)."""
    weights: flagtypes.File = None
    """With the weights in this file, of a run, or of one of its checkpoints. What they state of the model is taken
    where no flag says otherwise."""
    model_kwargs: tuple[str, ...] = ()
    """Further arguments of the model, as name=value."""
    img_size: Annotated[int | None, arg(aliases=["--imgsz"], metavar="INT", help_behavior_hint="")] = None
    """Side of the model's square input in pixels. Default: the model's own."""
    max_length: flagtypes.Int = None
    """Tokens that a text is cut to. Default: the model's own."""
    split: flagtypes.Str = None
    """This split alone. Default: all of them."""
    classes: Annotated[Literal["top", "leaf"] | None, arg(metavar="{top,leaf}", help_behavior_hint="")] = None
    """Of a folder of class folders: which folder names the class of a file, the topmost (top), or the one that it lies
    in (leaf), folders of one name being one class. Default: top, and a line says so where the two differ."""
    format: Literal["shards", "npy", "parquet"] = "shards"
    """shards: tars of .npy, .cls and .json, as WebDataset and DALI read them; npy: one array for each split, with
    labels and keys beside it; parquet: a file for each split, with the columns key, label, class and embedding."""
    dtype: Literal["fp16", "fp32"] = "fp16"
    """Type of the numbers."""
    knn: Annotated[int | None, arg(metavar="[K]", help_behavior_hint="")] = None
    """Print the accuracy of the K nearest neighbours by cosine, of val or test among train, or of each sample among all
    others. --knn alone is 20."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that read and decode: a number, or auto for one per core."""
    max_pixels: int = flagtypes.MAX_PIXELS
    """Images with more pixels than this are not decoded."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with a sample that cannot be decoded: leave it out, counted and named, or stop."""
    amp: bool = True
    """Mixed precision where the device gains by it."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where embeddings are kept while they are made, and for later runs. Default: .fastimg in a converted dataset that
    can be written to, else the user's cache directory."""
    overwrite: bool = False
    """Replace the embeddings in OUT."""
    json: bool = False
    """Print the result as json."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Convert, train, evaluate and predict on 1,797 real handwritten digits, in under two minutes on two cores."""

    output: Annotated[Path, arg(aliases=["-o"])] = Path("fastimg-demo")
    """Folder for everything that the demo makes; an earlier demo in it is replaced."""
    epochs: int = 12
    """Passes over the training split."""
    seed: int = 0
    """Seed of everything that is drawn."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """List the recipes of `train --recipe`, or show what one sets, as YAML that --config reads."""

    action: Positional[Literal["list", "show"]]
    """list: every recipe and what it is for. show: the settings of the one that NAME says."""
    name: Positional[Annotated[str | None, arg(metavar="[NAME]", help_behavior_hint="")]] = None
    """The recipe to show."""
    json: bool = False
    """Print it as json."""
