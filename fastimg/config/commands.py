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
    """What to convert: a folder of class folders, a manifest (.csv, .tsv, .jsonl, .parquet), annotations (COCO, YOLO,
    VOC, masks), tars, .beton files, torchvision:CIFAR10, sklearn:digits, hf://datasets/USER/NAME, or a URL (s3://,
    gs://, az://, https://). docs/convert.md describes each of them."""
    dst: Positional[Annotated[Path, arg(metavar="DST")]]
    """Folder of the dataset to write, or its URL in an object store."""
    more: Positional[Annotated[tuple[Path, ...], arg(metavar="[MORE ...]")]] = ()
    """With --merge: more sources; the last path is DST."""
    format: Literal["tar", "beton"] | None = None
    """What to write: tar, which are WebDataset shards with DALI's index, or beton, one FFCV file for each split
    (default: tar; with --append, the format of the dataset)."""
    append: bool = False
    """Add SRC to the dataset in DST, without changing its shards."""
    merge: bool = False
    """Combine several sources into one dataset, as in `--merge A B DST`."""
    shard_size: str = "256MB"
    """Size of a tar, measured by its source images, as in 500KB, 256MB or 1GB."""
    val_fraction: float = 0.0
    """Share of the training split to hold out as a validation split, the same of each class and drawn by the seed."""
    shuffle: Switch[bool] = False
    """Shuffle the training split while it is converted, so that neighbours in a shard are not of one class. Tars and
    .beton files keep their order unless this is given or they are merged; all else is shuffled anyway."""
    no_shuffle: Switch[bool] = False
    """Keep the order of the source."""
    seed: int = 0
    """Seed of everything that is drawn: the order, --val-fraction and --raw-fraction."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file where class folders have subfolders: top, the topmost one, or leaf, the
    one that holds the file (default: top, with a message where the two differ; in tars of other programs, none)."""
    key_dots: Literal["first", "last"] | None = None
    """In tars of other programs: a sample's key is its file names up to the first dot, as in WebDataset, or up to the
    last one, for names such as cat.17.jpg (default: first)."""
    image_member: Annotated[str | None, arg(metavar="EXT")] = None
    """In tars of other programs: the extension of the member that is the image, such as left.jpg, or left for any
    format (default: one without a further dot, such as jpg)."""
    label_member: Annotated[str | None, arg(metavar="EXT[:KEY]")] = None
    """In tars of other programs: the extension of the member that holds the label, such as txt, or with a key in JSON,
    as in json:label (default: cls)."""
    path_column: str | None = None
    """Manifest column with image paths, relative to the manifest, or with the images themselves in parquet files
    (default: path, file, filename or image)."""
    text_column: str | None = None
    """Manifest column with texts to learn from; with a column of image paths too, a sample is an image and its text,
    either of which may be missing (default: text, sentence, review, content or document, if there are no image
    paths)."""
    label_column: str | None = None
    """Manifest column with labels (default: label, class or target)."""
    target: tuple[str, ...] = ()
    """A manifest column to learn, as NAME or NAME:KIND, where KIND is class, multilabel or number and is guessed if you
    leave it out; may be given several times. It replaces --label-column, and cells may be empty."""
    label_delimiter: str | None = None
    """Separator of several labels in a cell, with --target; may be ' ' (default: | if it occurs, else a comma; JSON
    lists are recognised)."""
    field: tuple[str, ...] = ()
    """A manifest column to keep beside the image, as NAME:KIND; may be given several times. KIND is number, array,
    bands (a TIFF or .npy of several channels), ragged, labels, box, keypoint, mask, image or bytes, as
    docs/annotations.md describes."""
    image_field: str | None = None
    """Read the files as arrays [C, H, W] (.npy or TIFF) instead of images, and keep them as the field of this name; the
    image of each is a preview."""
    images: Path | None = None
    """Folder of the images that COCO's annotations name (default: where the annotations are)."""
    masks: Literal["semantic"] | None = None
    """Draw the outlines of objects in COCO's and YOLO's annotations as a field `mask`. Its pixels are class numbers
    from 1, or 0 for the background."""
    split_column: str | None = None
    """Manifest column with split names (default: split, if there is one)."""
    no_header: Switch[bool] = False
    """Read the first line of a csv or tsv as a row, and call the columns 1, 2, and so on (default: detected, and
    reported)."""
    delimiter: str | None = None
    """Character between the columns of a csv or tsv, or the word tab (default: comma, semicolon, tab or |, detected in
    the first rows)."""
    labels_are_classes: Switch[bool] = False
    """Make each different label a class, even if labels look like identifiers, decimal numbers or lists, which are
    refused otherwise."""
    tile: str = "auto"
    """Rewrite JPEGs losslessly with tiles that can be decoded independently, which makes training crops cheaper: auto
    (32 pixels wide), a width in pixels, or off. PNGs get groups of 64 rows, unless off."""
    max_size: Annotated[int | None, arg(aliases=("--max-resolution",))] = None
    """Shrink images whose longer side exceeds this many pixels (antialiased), and store them as JPEGs."""
    quality: int | None = None
    """Quality of JPEGs that are encoded here, 1 to 100 (default: 95)."""
    jpeg: Literal["keep", "reencode"] = "keep"
    """Keep the data of every image as it is, without loss (keep), or store every image as a JPEG of --quality
    (reencode)."""
    recompress: Annotated[str | None, arg(metavar="lossless|jpeg:Q")] = None
    """Encode images that are not JPEGs anew: lossless keeps every pixel, as PNG where that takes fewer bytes, jpeg:95
    makes tiled JPEGs of quality 95 (default: they stay as they are; with --append, as in the dataset)."""
    raw_fraction: float | None = None
    """With --format beton: share of the images, drawn by the seed, to store as raw pixels (default: 0)."""
    raw_below: Annotated[str | None, arg(metavar="SIZE")] = None
    """With --format beton: store images as raw pixels if these are at most SIZE bytes, 3 for each pixel, as in 64KB;
    FFCV's smart_threshold (default: none)."""
    originals: Literal["keep", "drop", "refuse"] | None = None
    """With --format beton: images that FFCV cannot decode (PNG, CMYK, ...) are stored as raw pixels; keep stores their
    original bytes too, drop does not, refuse treats them as --on-error says (default: keep)."""
    compare: bool = False
    """Decode every tiled JPEG and its source, and compare the pixels, which is slower (default: only the structure of
    the data is checked)."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that read and check images, on a Ray cluster in each task; auto is one for each core."""
    backend: Literal["local", "ray"] = "local"
    """Where shards are written: on this machine, or on a Ray cluster whose nodes share a folder, or write to a URL."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """Address of the Ray cluster; auto is the one that this machine belongs to (default: RAY_ADDRESS, else auto)."""
    max_pixels: int = MAX_PIXELS
    """Refuse images with more pixels than this, before anything is decoded."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with an image that cannot be stored: skip and report it, or stop."""
    resume: bool = False
    """Continue an interrupted conversion into DST."""
    overwrite: bool = False
    """Replace the dataset in DST. It stays until the new one is complete, so the disk must have room for both."""
    delete_first: bool = False
    """With --overwrite: delete the dataset in DST before the new one is made, where the disk cannot hold both. If the
    conversion then fails, neither is left."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """With URLs: folder for the journal of the conversion, for shards until they are uploaded, and for shards that are
    fetched (default: the user's cache directory)."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """Most disk space for copies of an object store's shards, such as 200GB (default: what is there already, plus half
    of the free space)."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A setting of the object store by obstore's name, such as region=eu-west-1, endpoint=URL or skip_signature=true;
    may be given several times. Keys and passwords belong into the environment."""
    json: bool = False
    """Print the report as JSON."""


@dataclass(frozen=True, kw_only=True)
class Verify(FromStore):
    """Check that a dataset is intact: sizes, checksums, indexes, labels; of files, the headers. Every fault is
    reported, and what was not checked."""

    data: Positional[Path]
    """Shards made by `fastimg convert`, other tars or .beton files, or a folder of images or texts; or a URL of these.
    Shards in an object store are all fetched again."""
    deep: bool = False
    """Also decode every image, or read every text."""
    max_pixels: int = MAX_PIXELS
    """Report images with more pixels than this, with --deep or in data that was not converted."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Eval:  # more than 12 fields: a flag each
    """Evaluate a checkpoint: accuracy, precision and recall of every class, a confusion matrix, and the mistakes."""

    checkpoint: Positional[Path]
    """The model: a run's folder (its best checkpoint) or its URL, a checkpoint's folder, or a model.safetensors."""
    data: Positional[Path]
    """What to evaluate on: shards or an image folder with the model's classes, or their URL in an object store."""
    more: Positional[Annotated[tuple[Path, ...], arg(metavar="[MORE ...]")]] = ()
    """More runs, then DATA last: each run is evaluated, and so are their mean, deviation and ensemble. Runs of `train
    --fold` are evaluated on the fold that they held out."""
    split: str | None = None
    """Name of the split to evaluate (default: val, else test, else the part of train that training held out)."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file where class folders have subfolders: top, the topmost one, or leaf, the
    one that holds the file (default: top, with a message where the two differ)."""
    batch_size: Annotated[int | None, arg(aliases=("-b",))] = None
    """Images per step (default: 256 on a GPU, 64 on a CPU)."""
    loader: Annotated[Literal["auto", "native", "torch", "dali", "ffcv"], arg(aliases=("--data-backend",))] = "auto"
    """What loads the images: fastimg's own loader (auto, native), PyTorch's DataLoader with Pillow and torchvision
    (torch), NVIDIA DALI (dali), or FFCV for .beton files (ffcv)."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images, or of processes with --loader torch; auto is this process's share of the
    cores."""
    on_error: Literal["skip", "fail"] | None = None
    """What to do with an image that cannot be decoded: skip and report it, or stop (default: skip)."""
    max_pixels: int | None = None
    """Do not decode images with more pixels than this (default: 89478485)."""
    tta: Annotated[Tta, arg(metavar="[VIEWS]", alone="mirror", words=TTA_VIEWS)] = False
    """Average the model's outputs over several views of each image: the image and its mirror image (mirror, or --tta
    alone), or also both of them shifted by a pixel in two directions (mirror-shift)."""
    amp: bool | None = None
    """Use mixed precision where it is faster; --no-amp computes in float32 (default: as in training)."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder on this machine for copies of an object store's shards, which are then fetched only once (default: the
    folder shards in the user's cache directory)."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """Most disk space for copies of an object store's shards, such as 200GB (default: what is there already, plus half
    of the free space)."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A setting of the object store by obstore's name, such as region=eu-west-1, endpoint=URL or skip_signature=true;
    may be given several times. Keys and passwords belong into the environment."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FILE", hidden=("--plot",))] = None
    """Picture of the confusion matrix to write, or its URL; the most confident mistakes are written beside it
    (default: confusion-NAME.png next to the checkpoint, NAME being what is evaluated, such as val)."""
    overwrite: Switch[bool] = False
    """Replace the file of --output."""
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
    """The model: a run's folder (its best checkpoint) or its URL, a checkpoint's folder, or a model.safetensors."""
    sources: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILES ...]")]] = ()
    """Image files, folders to search for images, or converted data; .txt files for a model that reads texts; or URLs of
    these."""
    text: tuple[str, ...] = ()
    """Texts to classify, each of them quoted; may be given several times."""
    topk: int = 5
    """Number of classes to show for each image."""
    threshold: float | None = None
    """For targets of several labels: predict those with this probability or more (default: each label's own threshold,
    which training chose on the validation split)."""
    batch_size: Annotated[int | None, arg(aliases=("-b",))] = None
    """Images per step (default: 256 on a GPU, 64 on a CPU)."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images; auto is this process's share of the cores."""
    max_pixels: int = MAX_PIXELS
    """Do not decode images with more pixels than this."""
    tta: Annotated[Tta, arg(metavar="[VIEWS]", alone="mirror", words=TTA_VIEWS)] = False
    """Average the model's outputs over several views of each image: the image and its mirror image (mirror, or --tta
    alone), or also both of them shifted by a pixel in two directions (mirror-shift)."""
    amp: bool | None = None
    """Use mixed precision where it is faster; --no-amp computes in float32 (default: as in training)."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    json: bool = False
    """Print one JSON object per line instead of a table."""
    csv: Path | None = None
    """Write the result to this csv file, or to its URL in an object store; - stands for standard output."""
    sheet: Annotated[Path | None, arg(metavar="FILE")] = None
    """Picture to draw of up to 48 of the images, each with what is predicted of it: a .png file or its URL."""
    overwrite: Switch[bool] = False
    """Replace the files of --csv and --sheet."""


@dataclass(frozen=True, kw_only=True)
class Export(FromStore):  # more than 12 fields: a flag each
    """Write a checkpoint as one file for other programs: ONNX, torch.export's pt2, or safetensors."""

    checkpoint: Positional[Path]
    """The model: a run's folder (its best checkpoint) or its URL, a checkpoint's folder, or a model.safetensors."""
    format: Literal["safetensors", "onnx", "pt2"] | None = None
    """The file format: onnx or pt2, a graph from uint8 images to logits, normalisation included, or safetensors, the
    weights with a description (default: the extension of --output)."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FILE|FOLDER")] = None
    """File or folder to write, or the URL of a file in an object store (default: RUN.onnx, .pt2 or .safetensors in the
    run's folder, or next to the checkpoint)."""
    with_preprocessing: bool = False
    """Accept images of any size: the graph of onnx or pt2 also resizes and cuts out the centre, as `predict` does."""
    check: bool = False
    """Run the written file on the CPU and compare its outputs with those of `predict`; the exit code is 1 if they
    differ."""
    check_data: Annotated[Path | None, arg(metavar="DATA")] = None
    """Images for --check: a dataset or its URL, or image files, of which up to 64 are read (default: random images)."""
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
    """The model: a run's folder (its best checkpoint) or its URL, a checkpoint's folder, or a model.safetensors."""
    dst: Positional[Annotated[str, arg(metavar="hub://USER/NAME")]]
    """The repository. It is created if it does not exist; otherwise the files become a new commit."""
    private: bool = False
    """Make a new repository private."""
    revision: Annotated[str | None, arg(metavar="BRANCH")] = None
    """Branch to commit to, which is created if it does not exist (default: main)."""
    message: str | None = None
    """Message of the commit (default: Upload NAME, with the model's name)."""
    dry_run: Switch[bool] = False
    """Print the files and the card, and upload nothing. Needs no network and no token."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder for the best model of a run that is at a URL (default: the user's cache directory)."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A setting of the object store by obstore's name, such as region=eu-west-1, endpoint=URL or skip_signature=true;
    may be given several times. Keys and passwords belong into the environment."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Inspect(FromStore, Augmenting):  # more than 12 fields: a flag each
    """Look at a dataset: counts, sizes, formats, duplicates, leaks, and pictures of what a model will see, or texts."""

    data: Positional[Path]
    """What to look at: shards, .beton files, other tars, or a folder of images or texts; or the URL of shards or a
    folder in an object store."""
    split: str | None = None
    """Name of the split to inspect (default: all splits)."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file where class folders have subfolders: top, the topmost one, or leaf, the
    one that holds the file (default: top, with a message where the two differ)."""
    headers_only: Switch[bool] = False
    """Read only the headers of images: faster, but damage inside them is not found."""
    no_pictures: Switch[bool] = False
    """Draw nothing, which saves the seconds that importing torch takes."""
    samples: int | None = None
    """Number of images in samples.png, or of texts to print; augmented.png shows up to 8 of them, as the first 8 epochs
    of training would (default: 36 images, 10 texts)."""
    draw_fields: Annotated[str | None, arg(metavar="A,B|none")] = None
    """Names of the boxes, points and masks to draw over the images (default: all that the data has)."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the crops in augmented.png in pixels (default: the size in --config, else 224)."""
    config: Path | None = None
    """Show the augmentation of this YAML file, such as the config.yaml of a run. Flags override it."""
    output: Annotated[Path | None, arg(aliases=("-o",), metavar="FOLDER")] = None
    """Folder to write pictures to, or its URL in an object store (default: inspect-NAME, where NAME is that of the
    data; pictures of an earlier inspection are renewed there)."""
    overwrite: Switch[bool] = False
    """Replace pictures that are in the folder of --output."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that read and decode; auto is one for each core."""
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
    """Name of the encoder: any of timm's models, such as resnet50 or hf-hub:USER/NAME, torchvision/NAME, or hf:NAME, a
    Hugging Face encoder of texts (default: what --weights name, else resnet50)."""
    pretrained: bool = False
    """Use the model's published weights, which are downloaded once."""
    weights: Path | None = None
    """Use these weights: a file, a run or its URL, or one of its checkpoints. The model and the preprocessing that they
    name are used too, unless a flag says otherwise."""
    model_kwargs: tuple[str, ...] = ()
    """Further arguments of the model, as name=value, such as drop_rate=0.1."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the model's square input in pixels (default: the model's own)."""
    max_length: int | None = None
    """Cut texts off after this many tokens (default: the model's own limit)."""
    split: str | None = None
    """Name of the split to embed (default: all splits)."""
    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file where class folders have subfolders: top, the topmost one, or leaf, the
    one that holds the file (default: top, with a message where the two differ)."""
    format: Literal["shards", "npy", "parquet"] = "shards"
    """How to store the embeddings: shards, tars of .npy, .cls and .json as WebDataset and DALI read them; npy, an array
    for each split with labels and keys beside it; or parquet, a table for each split."""
    dtype: Literal["fp16", "fp32"] = "fp16"
    """Number format of the embeddings."""
    knn: Annotated[int | None, arg(metavar="[K]", alone="20", words=(NUMBER,))] = None
    """Print how often the K nearest neighbours (by cosine) name the right class: for val or test among train, or for
    each sample among all others. --knn alone means 20."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that read and decode; auto is one for each core."""
    max_pixels: int = MAX_PIXELS
    """Do not decode images with more pixels than this."""
    on_error: Literal["skip", "fail"] = "skip"
    """What to do with a sample that cannot be decoded: skip and report it, or stop."""
    amp: bool | None = None
    """Use mixed precision where it is faster; --no-amp computes in float32 (default: as the run of --weights was
    trained, else on)."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder for embeddings while they are computed and for later runs, and for copies of an object store's shards
    (default: .fastimg in a converted dataset if it is writable, else the user's cache directory)."""
    backend: Literal["local", "ray"] = "local"
    """Where embeddings are computed: on this machine, or on a Ray cluster whose nodes share a folder, or read a URL."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """Address of the Ray cluster; auto is the one that this machine belongs to (default: RAY_ADDRESS, else auto)."""
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
    """list prints every recipe and its purpose; show prints the settings of recipe NAME."""
    name: Positional[Annotated[str | None, arg(metavar="[NAME]")]] = None
    """The recipe to show."""
    json: bool = False
    """Print it as JSON."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Print an example of a file for `ray up`, which starts a Ray cluster."""

    action: Positional[Literal["example"]]
    """example prints the file, with comments that mark what has to be adapted."""
