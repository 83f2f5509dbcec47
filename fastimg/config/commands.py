"""One frozen dataclass per command: the single source of flags, `--help`, the YAML under `--config` and `config.yaml`.

None means "chosen for you"; the choice is printed. Nothing here imports torch, so `--help` is instant. What `train`
takes is in `training`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fastimg.errors import UsageError

from .flag_types import MAX_PIXELS, NUMBER, Positional, Switch, arg
from .training import TTA_VIEWS, Augmenting, FromStore, Inputs, Train, Tta

__all__ = [
    "Augmenting",
    "Cluster",
    "Convert",
    "Demo",
    "Embed",
    "Eval",
    "Inputs",
    "Inspect",
    "Predict",
    "Push",
    "Recipe",
    "Train",
    "Verify",
]


@dataclass(frozen=True, kw_only=True)
class Convert:  # more than 12 fields: a flag each
    """Turn images or texts into shards: tars that DALI and WebDataset read too, or FFCV's .beton files."""

    src: Positional[Annotated[Path, arg(metavar="SRC")]]
    """A folder with one subfolder of images or .txt files per class, optionally below train/, val/ and test/; a csv,
    tsv, jsonl or parquet manifest with a label and the path of an image, or a text, in each row; parquet files with
    image bytes (Hugging Face's layout); COCO's annotations (.json, or the folder above annotations/); a folder in the
    layout of YOLO, of VOC, or of images/ and masks/; tar shards or .beton files of any origin; torchvision:NAME
    (CIFAR10, MNIST, ...); sklearn:digits; hf://datasets/USER/NAME[:config][@revision] (the Hugging Face hub). Class
    folders, manifests, parquet files, tars and datasets may be in an object store: s3://, gs://, az://, http(s)://."""
    dst: Positional[Annotated[Path, arg(metavar="DST")]]
    """The dataset directory to write, or the URL of one in an object store."""
    more: Positional[Annotated[tuple[Path, ...], arg(metavar="[MORE ...]")]] = ()
    """With --merge: more sources; the last path is DST."""
    format: Literal["tar", "beton"] | None = None
    """tar: WebDataset shards with DALI's index; beton: one FFCV file for each split. Default: tar; with --append, the
    format of the dataset."""
    append: bool = False
    """Add SRC to the dataset in DST, without changing its shards."""
    merge: bool = False
    """Combine several sources into one dataset, as in `--merge A B DST`."""
    shard_size: str = "256MB"
    """Size of a tar, measured by its source images: a number with KB, MB or GB."""
    val_fraction: float = 0.0
    """Hold out this share of the training split, stratified by class and seeded."""
    shuffle: Switch[bool] = False
    """Shuffle the training split once, by the seed, since shuffling within a window needs shards that are not sorted by
    class. This is the default, except for tars and .beton files, which keep their order unless they are merged."""
    no_shuffle: Switch[bool] = False
    """Keep the order of the source."""
    seed: int = 0
    """Seed of shuffling, --val-fraction and --raw-fraction."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file, in a folder of class folders: the topmost one (top), or the one that
    contains the file (leaf). Folders of the same name are one class. Default: top; a message tells you if the two
    differ. In tars of other writers, which have labels as members, folders name classes only if this is given."""
    key_dots: Literal["first", "last"] | None = None
    """In tars of other writers, the key that the members of a sample have in common: their name up to its first dot, as
    in WebDataset, or up to its last one, for names such as cat.17.jpg. Default: first; names that hardly fit it are
    refused."""
    image_member: Annotated[str | None, arg(metavar="EXT")] = None
    """In tars of other writers, the member that is the image: its extension (left.jpg), or what is before .jpg, .png,
    ... (left). Default: one without a further dot, such as jpg; of several the one that comes first, with a message."""
    label_member: Annotated[str | None, arg(metavar="EXT[:KEY]")] = None
    """In tars of other writers, the member that holds the label: its extension (txt), with a key in JSON (json:label,
    or json:a.b). Default: cls; a message says what there is if no sample has one."""
    path_column: str | None = None
    """Manifest column with image paths, relative to the manifest, or with image bytes in parquet files. Default: path,
    file, filename or image."""
    text_column: str | None = None
    """Manifest column with texts: a dataset of texts, or, if there is a column with image paths, of images with texts
    beside them, either of which may be missing. Default: text, sentence, review, content or document, if there is no
    column with image paths."""
    label_column: str | None = None
    """Manifest column with labels. Default: label, class or target."""
    target: tuple[str, ...] = ()
    """A manifest column to learn, as NAME or NAME:KIND; may be given several times. KIND is class, multilabel (lists of
    labels) or number; if you leave it out, it is guessed and reported. Cells may be empty. Replaces --label-column."""
    label_delimiter: str | None = None
    """Separator of several labels in a cell, with --target; may be ' '. Default: | if it occurs, else a comma; JSON
    lists are recognised."""
    field: tuple[str, ...] = ()
    """A manifest column to keep as a field beside the image, as NAME:KIND; may be given several times. KIND is number,
    array, bands (a TIFF or .npy of several channels), ragged (a list of items), labels, box (xyxy; also box-xywh,
    box-yolo), keypoint, mask, image or bytes. Cells are numbers, JSON lists or paths. NAME:labels@boxes has a label for
    each item of boxes."""
    image_field: str | None = None
    """Store the files of class folders, or of a manifest's column of paths, as the field of this name, each with a
    preview as its image. The files are arrays [C, H, W] (.npy or TIFF) instead of images."""
    images: Path | None = None
    """Folder of the images of COCO's annotations. Default: the images beside the file."""
    masks: Literal["semantic"] | None = None
    """Draw the outlines of objects (polygons and run lengths) in COCO's and YOLO's annotations as a field `mask`.
    semantic: its pixels are class numbers from 1, or 0 for the background."""
    split_column: str | None = None
    """Manifest column with split names. Default: split, if there is one."""
    no_header: Switch[bool] = False
    """Read the first line of a csv or tsv as a row; the columns are called 1, 2, ... This is detected, and reported, if
    no name in that line is a known column (texts), or if the line contains the path of an image (images)."""
    delimiter: str | None = None
    """The character between the columns of a csv or tsv, or tab. Default: comma, semicolon, tab or |, detected in the
    first rows."""
    labels_are_classes: Switch[bool] = False
    """Make each different label of a manifest, or of --label-member, a class, even if labels look like identifiers,
    decimal numbers or lists, which are refused otherwise."""
    tile: str = "auto"
    """Rewrite JPEGs losslessly with tiles that can be decoded independently, which makes training crops cheaper: auto
    (32 pixels wide), a width in pixels, or off."""
    max_size: Annotated[int | None, arg(aliases=("--max-resolution",))] = None
    """Shrink images whose longer side exceeds this many pixels (antialiased), and store them as JPEGs."""
    quality: int | None = None
    """Quality of encoded JPEGs, 1 to 100. Default: 95."""
    jpeg: Literal["keep", "reencode"] = "keep"
    """How images are stored. reencode: store every image as a JPEG of --quality. keep: preserve the coefficients or
    bytes of every image."""
    recompress: Annotated[str | None, arg(metavar="lossless|jpeg:Q")] = None
    """Recompress images that are not JPEGs (PNG, WebP, TIFF, BMP, GIF, ...). jpeg:Q, such as jpeg:95, makes them tiled
    JPEGs of quality Q; lossless keeps every pixel, and takes fewer bytes where it can. JPEGs stay lossless. The changes
    are reported. Default: nothing is recompressed; with --append, as in the dataset."""
    raw_fraction: float | None = None
    """Share of the images, drawn by the seed, to store as raw pixels with --format beton. Default: 0."""
    originals: Literal["keep", "drop", "refuse"] | None = None
    """What to do with the original bytes of images that FFCV cannot decode (PNG, CMYK, ...), with --format beton. Such
    images are stored as raw pixels, with their EXIF orientation applied. keep: also store the original bytes, in a
    field `original`; drop: do not store them; refuse: treat such images as --on-error says. Default: keep."""
    compare: bool = False
    """Decode every tiled JPEG and its source, and compare the pixels (slower). By default only the structure of the
    data is checked."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that read and check images, or auto for one per core; on a Ray cluster, the number for a
    shard's task."""
    backend: Literal["local", "ray"] = "local"
    """Where shards are written: on this machine, or on a Ray cluster whose nodes share a folder (DST may be a URL)."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """The Ray cluster, or auto for the one that this machine belongs to. Default: RAY_ADDRESS, else auto."""
    max_pixels: int = MAX_PIXELS
    """Refuse images with more pixels than this, from their header, before anything is decoded."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with an image that cannot be stored: skip and report it, or stop."""
    resume: bool = False
    """Continue an interrupted conversion into DST."""
    overwrite: bool = False
    """Replace the dataset in DST. It stays until the new one is complete, so that there is room for both. With
    --resume, too, an interrupted replacement is continued."""
    delete_first: bool = False
    """With --overwrite, delete the dataset in DST before the new one is made, where the disk cannot hold both. If the
    conversion then fails, neither is left."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to keep the journal, and shards until they are uploaded, with a URL as DST; or where to fetch its shards
    to, with a URL as SRC. Default: the user's cache directory."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """How much the cache may hold, such as 200GB, with tars or a dataset at a URL as SRC. Default: what it already
    holds, plus half of the free disk space."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Options of the object store, as obstore names them: endpoint=URL, region=NAME. Credentials are taken from the
    environment."""
    json: bool = False
    """Print the report as JSON."""


@dataclass(frozen=True, kw_only=True)
class Verify(FromStore):
    """Check that a dataset is intact: sizes, checksums, indexes, labels. Every fault is reported."""

    data: Positional[Path]
    """Shards made by `fastimg convert`, other tars or .beton files, or a folder of images or texts; or the URL of
    shards in an object store, which are all fetched again, or of a folder there."""
    deep: bool = False
    """Also decode every image, or read every text."""
    max_pixels: int = MAX_PIXELS
    """With --deep: report images with more pixels than this."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Eval:  # more than 12 fields: a flag each
    """Evaluate a checkpoint: accuracy, precision and recall of every class, a confusion matrix, and the mistakes."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint) or its URL, a checkpoint directory, or model.safetensors."""
    data: Positional[Path]
    """Shards or an image folder, with the checkpoint's classes, or the URL of shards or a folder in an object store."""
    more: Positional[Annotated[tuple[Path, ...], arg(metavar="[MORE ...]")]] = ()
    """More runs; DATA comes last. Each run is evaluated, as are their mean, deviation and ensemble. Each run over folds
    is evaluated on the fold that it held out."""
    split: str | None = None
    """The split to evaluate. Default: val, else test, else the part of train that training held out."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file, in a folder of class folders: the topmost one (top), or the one that
    contains the file (leaf). Folders of the same name are one class. Default: top; a message tells you if the two
    differ."""
    batch_size: Annotated[int | None, arg(aliases=("-b",))] = None
    """Images per step. Default: 256 on a GPU, 64 on a CPU."""
    loader: Annotated[Literal["auto", "native", "torch", "dali", "ffcv"], arg(aliases=("--data-backend",))] = "auto"
    """The data loader: fastimg's own (native, auto), PyTorch's DataLoader with Pillow and torchvision (torch), NVIDIA
    DALI, or FFCV (.beton only)."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images (processes with --loader torch), or auto."""
    on_error: Literal["skip", "fail"] | None = None
    """What to do with an image that cannot be decoded: skip and report it, or stop. Default: skip."""
    max_pixels: int | None = None
    """Do not decode images with more pixels than this. Default: 89478485."""
    tta: Annotated[Tta, arg(metavar="[VIEWS]", alone="mirror", words=TTA_VIEWS)] = False
    """Test-time augmentation. mirror: average the logits of each image and its mirror image. mirror-shift: also average
    those of the image shifted by a pixel up-left and down-right, like `train --tta mirror-shift`. --tta alone means
    mirror."""
    amp: bool | None = None
    """Use mixed precision where it is faster, or with --no-amp float32. Default: the precision of the training."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder that keeps the shards of an object store. Default: the folder shards in the user's cache directory."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """How much --cache-dir may hold, such as 200GB. Default: what it already holds, plus half of the free disk
    space."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Options of the object store, as obstore names them: endpoint=URL, region=NAME, skip_signature=true. Credentials
    are taken from the environment."""
    plot: Path | None = None
    """Write the plot of the confusion matrix to this file, or to its URL in an object store. Default:
    confusion-SPLIT.png next to the checkpoint. mistakes-SPLIT.csv and mistakes-SPLIT.png, the most confident mistakes,
    are written to the same folder."""
    json: bool = False
    """Print the result as JSON."""

    @property
    def runs(self) -> tuple[Path, ...]:
        """The checkpoints: all paths but the last."""
        return (self.checkpoint, self.data, *self.more)[:-1]

    @property
    def dataset(self) -> Path:
        """The data: the last path."""
        return (self.data, *self.more)[-1]


@dataclass(frozen=True, kw_only=True)
class Predict(FromStore):  # more than 12 fields: a flag each
    """Classify images, or texts, with a checkpoint."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint) or its URL, a checkpoint directory, or model.safetensors."""
    sources: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILES ...]")]] = ()
    """Image files, or folders to search for images; for a checkpoint that reads texts, .txt files; or the URL of a
    file, of a folder or of a dataset in an object store."""
    text: tuple[str, ...] = ()
    """Texts to classify, each of them quoted. May be given several times."""
    topk: int = 5
    """Number of classes to show for each image."""
    threshold: float | None = None
    """Predict labels with this probability or more, for targets of several labels. Default: each label's own threshold,
    which training chose on the validation split."""
    batch_size: Annotated[int | None, arg(aliases=("-b",))] = None
    """Images per step. Default: 256 on a GPU, 64 on a CPU."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images, or auto."""
    max_pixels: int = MAX_PIXELS
    """Do not decode images with more pixels than this."""
    tta: Annotated[Tta, arg(metavar="[VIEWS]", alone="mirror", words=TTA_VIEWS)] = False
    """Test-time augmentation. mirror: average the logits of each image and its mirror image. mirror-shift: also average
    those of the image shifted by a pixel up-left and down-right, like `train --tta mirror-shift`. --tta alone means
    mirror."""
    amp: bool | None = None
    """Use mixed precision where it is faster, or with --no-amp float32. Default: the precision of the training."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    json: bool = False
    """Print one JSON object per line instead of a table."""
    csv: Path | None = None
    """Write the result to this csv file, or to its URL in an object store; - stands for standard output."""


@dataclass(frozen=True, kw_only=True)
class Export(FromStore):  # more than 12 fields: a flag each
    """Write a checkpoint as one file for other programs: ONNX, torch.export's pt2, or safetensors."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint) or its URL, a checkpoint directory, or model.safetensors."""
    format: Literal["safetensors", "onnx", "pt2"] | None = None
    """The file format. onnx, pt2: a graph from uint8 images to logits, including normalisation. safetensors: the
    weights, with metadata. Default: the extension of --output."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FILE|FOLDER")] = None
    """Where to write, or the URL of a file in an object store. Default: RUN.onnx, .pt2 or .safetensors in the directory
    of the run, or next to the checkpoint."""
    with_preprocessing: bool = False
    """Accept images of any size, and include the resize and centre crop of `predict` (onnx, pt2). See
    docs/export.md."""
    check: bool = False
    """Run the written file on the CPU and compare its outputs with those of `predict`; exit code 1 if they differ."""
    check_data: Annotated[Path | None, arg(metavar="DATA")] = None
    """Images for --check: a dataset or its URL, or image files, of which up to 64 are read. Default: random images."""
    overwrite: bool = False
    """Replace the file."""
    json: bool = False
    """Print the result as JSON."""

    @property
    def chosen_format(self) -> Literal["safetensors", "onnx", "pt2"]:
        """The format, as --format or the name of --output says. Raises UsageError where neither does."""
        if self.format is not None:
            return self.format
        suffix = "" if self.output is None else self.output.suffix
        match suffix:
            case ".safetensors":
                return "safetensors"
            case ".onnx":
                return "onnx"
            case ".pt2":
                return "pt2"
        raise UsageError(
            "export: which format? give --format onnx, pt2 or safetensors, or an --output that ends in one of them, "
            "such as model.onnx"
        )


@dataclass(frozen=True, kw_only=True)
class Push:
    """Upload a checkpoint to the Hugging Face hub, with a model card made of what the run knows."""

    checkpoint: Positional[Path]
    """A run directory (its best checkpoint) or its URL, a checkpoint directory, or model.safetensors."""
    dst: Positional[Annotated[str, arg(metavar="hub://USER/NAME")]]
    """The repository. It is created if it does not exist; otherwise the files become a new commit."""
    private: bool = False
    """Make a new repository private."""
    revision: Annotated[str | None, arg(metavar="BRANCH")] = None
    """Commit to this branch, which is created if it does not exist. Default: main."""
    message: str | None = None
    """The message of the commit."""
    dry_run: Switch[bool] = False
    """Print the files and the card, and upload nothing. Needs no network and no token."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to keep the best model of a run at a URL. Default: the user's cache directory."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Options of the object store, as obstore names them: endpoint=URL, region=NAME, skip_signature=true. Credentials
    are taken from the environment."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Inspect(FromStore, Augmenting):  # more than 12 fields: a flag each
    """Look at a dataset: counts, sizes, formats, duplicates, leaks, and pictures of what a model will see, or texts."""

    data: Positional[Path]
    """Shards, .beton files, other tars, or a folder of images or texts; or the URL of shards or a folder in an
    object store."""
    split: str | None = None
    """Inspect only this split. Default: all splits."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file, in a folder of class folders: the topmost one (top), or the one that
    contains the file (leaf). Folders of the same name are one class. Default: top; a message tells you if the two
    differ."""
    headers_only: Switch[bool] = False
    """Read only the headers of images: faster, but damage inside them is not found."""
    no_pictures: Switch[bool] = False
    """Draw nothing, which saves the seconds that importing torch takes."""
    samples: int | None = None
    """Number of images in samples.png; augmented.png shows up to 8 of them, as in the first 8 epochs of training. For
    texts, the number of texts to print. Default: 36 images, 10 texts."""
    draw_fields: Annotated[str | None, arg(metavar="A,B|none")] = None
    """The boxes, points and masks to draw over the images. Default: all that the data has."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the crops in augmented.png, in pixels. Default: the size in --config, else 224."""
    config: Path | None = None
    """Show the augmentation of this YAML file, such as the config.yaml of a run. Flags override it."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FOLDER")] = None
    """Folder to write pictures to, or its URL in an object store. Default: inspect-NAME, where NAME is that of the
    data."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that read and decode, or auto for one per core."""
    max_pixels: int = MAX_PIXELS
    """Count images with more pixels than this as unreadable."""
    seed: int = 0
    """Seed of the pictures. Training with the same seed draws the same crops and augmentation."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Embed(FromStore):  # more than 12 fields: a flag each
    """Run an encoder over images or texts, and write the embedding, key and label of each."""

    data: Positional[Annotated[Path, arg(metavar="DATA")]]
    """Shards, .beton files, or a folder of images or texts; or the URL of shards or a folder in an object store."""
    dst: Positional[Annotated[Path, arg(metavar="OUT")]]
    """The folder to write to, or its URL in an object store."""
    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME")] = None
    """The encoder: any timm model (from a repository of the hub: hf-hub:USER/NAME), a torchvision model as
    torchvision/NAME, or, for texts, a Hugging Face encoder as hf:NAME or hf:FOLDER. Default: the architecture that
    --weights states, else resnet50."""
    pretrained: bool = False
    """Use the model's published weights (downloaded)."""
    weights: Path | None = None
    """Use the weights of this file, of a run or its URL, or of one of its checkpoints. The architecture, arguments and
    preprocessing that they state are used unless a flag says otherwise."""
    model_kwargs: tuple[str, ...] = ()
    """Additional arguments of the model, as name=value."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the model's square input in pixels. Default: the model's own."""
    max_length: int | None = None
    """Truncate texts to this many tokens. Default: the model's own limit."""
    split: str | None = None
    """Embed only this split. Default: all splits."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file, in a folder of class folders: the topmost one (top), or the one that
    contains the file (leaf). Folders of the same name are one class. Default: top; a message tells you if the two
    differ."""
    format: Literal["shards", "npy", "parquet"] = "shards"
    """How to store the embeddings. shards: tars of .npy, .cls and .json, as WebDataset and DALI read them; npy: one
    array for each split, with labels and keys in files next to it; parquet: a file for each split, with the columns
    key, label, class and embedding."""
    dtype: Literal["fp16", "fp32"] = "fp16"
    """Data type of the embeddings."""
    knn: Annotated[int | None, arg(metavar="[K]", alone="20", words=(NUMBER,))] = None
    """Print the accuracy of classification by the K nearest neighbours (cosine): of val or test among train, or of each
    sample among all others. --knn alone means 20."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that read and decode, or auto for one per core."""
    max_pixels: int = MAX_PIXELS
    """Do not decode images with more pixels than this."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with a sample that cannot be decoded: skip and report it, or stop."""
    amp: bool | None = None
    """Use mixed precision where it is faster, or with --no-amp float32. Default: the precision in which the run of
    --weights was trained; on."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to cache embeddings while they are computed, and for later runs, and shards of an object store. Default:
    .fastimg in a converted dataset if it is writable, else the user's cache directory."""
    backend: Literal["local", "ray"] = "local"
    """Where embeddings are computed: on this machine, or on a Ray cluster whose nodes share a folder, or read a URL."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """The Ray cluster, or auto for the one that this machine belongs to. Default: RAY_ADDRESS, else auto."""
    overwrite: bool = False
    """Replace the embeddings in OUT."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Convert, train, evaluate and predict on 1,797 real handwritten digits, in under two minutes on two cores."""

    output: Annotated[Path, arg(aliases=("-o",))] = Path("fastimg-demo")
    """Folder for everything that the demo writes; an earlier demo in it is replaced."""
    epochs: int = 12
    """Number of passes over the training split."""
    seed: int = 0
    """Seed of all random numbers."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """List the recipes of `train --recipe`, or show what one sets, as YAML that --config reads."""

    action: Positional[Literal["list", "show"]]
    """list: print every recipe and its purpose. show: print the settings of recipe NAME."""
    name: Positional[Annotated[str | None, arg(metavar="[NAME]")]] = None
    """The recipe to show."""
    json: bool = False
    """Print it as JSON."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Print an example of a file for `ray up`, which starts a Ray cluster."""

    action: Positional[Literal["example"]]
    """example: print the file, with comments; what has to be adapted is marked."""
