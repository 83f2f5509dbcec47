"""What `train` takes: the model and its data, augmentation, and the training itself.

None means "chosen for you"; the choice is printed, and written to config.yaml. Nothing here imports torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from .flag_types import NUMBER, Positional, Switch, YamlOnly, arg

HF_PREFIX = "hf:"  # what the names of Hugging Face's text encoders begin with
HUB_PREFIX = "hf-hub:"  # and timm's of models in repositories of the hub
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
TRACKERS = ("tensorboard", "wandb", "mlflow")
SCHEDULE_FREE = ("schedule_free_adamw", "schedule_free_sgd")  # optimisers that need no decaying rate
LossKind = Literal["cross-entropy", "bce", "focal", "asymmetric"]
Order = Literal["random", "quasi-random", "sequential"]
Tta = bool | Literal["mirror", "mirror-shift"]  # which views of an image are averaged; True is "mirror"
TTA_VIEWS = ("mirror", "mirror-shift")
NEWEST_RUN = ("last", "auto")  # what --resume names no run by: the newest one, and with auto a new one if there is none
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")  # those of them that record CUDA graphs on a GPU


@dataclass(frozen=True, kw_only=True)
class FromStore:
    """What commands take that read DATA from an object store, and keep nothing else in a cache."""

    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder on this machine for copies of an object store's shards, which are then fetched only once (default: the
    folder shards in the user's cache directory)."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """Most disk space for copies of an object store's shards, such as 200GB; 0 keeps no copies (default: what is there
    already, plus half of the free space)."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A setting of the object store by obstore's name, such as region=eu-west-1, endpoint=URL or skip_signature=true;
    may be given several times. Keys and passwords belong into the environment."""


@dataclass(frozen=True, kw_only=True)
class Inputs:  # more than 12 fields: a flag each
    """The model, its data and its input size: the first flags of `train`."""

    data: Positional[Annotated[Path | None, arg(metavar="DATA")]] = None
    """Shards made by `fastimg convert`, an image folder, or the URL of either (s3://bucket/D) (default: the dataset in
    the current directory; 1,797 handwritten digits where nothing else can be meant)."""

    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME")] = None
    """Name of the model: any of timm's, such as resnet50 or hf-hub:USER/NAME, torchvision/NAME, fastimg/airnet for
    images of 32 x 32 pixels, or hf:NAME, a Hugging Face encoder of texts (default: what --weights name, else
    resnet50)."""
    text_arch: Annotated[str | None, arg(metavar="NAME")] = None
    """For images with texts beside them: the Hugging Face encoder that reads the texts, as hf:NAME or hf:FOLDER. The
    model of --arch reads the images, and one classifier gets the features of both."""
    combiner: Literal["concat", "gated"] | None = None
    """How the features of image and text are joined: concat puts them side by side, gated mixes them by weights that it
    learns (default: gated)."""
    pretrained: bool = False
    """Start from the model's published weights, which are downloaded once."""
    weights: Path | None = None
    """Start from these weights: a run or its URL, one of its checkpoints, or a file, which is safetensors or plain
    tensors saved by torch. The model and the preprocessing that they name are used too, unless a flag says
    otherwise."""
    num_classes: int | None = None
    """Number of outputs of the model (default: the number of classes in the data)."""
    freeze: Annotated[str | None, arg(metavar="{backbone,N,image,text}")] = None
    """What not to train: backbone, all but the classifier; N, the first N blocks from the input on, where the stem is
    the first; image or text, that encoder of a model with both. Batch norm in it keeps its statistics."""
    freeze_epochs: int | None = None
    """Keep what --freeze names frozen for this many epochs, then train the whole model (default: frozen to the end)."""
    head_init: Literal["xavier", "he", "zeros"] | None = None
    """How a new classifier on trained layers starts: with zeros, or with random values by Glorot's rule (xavier) or by
    He's (default: zeros)."""
    head: Literal["linear", "mlp"] = "linear"
    """The classifier: one linear layer, or two with batch norm and GELU between them (mlp)."""
    head_hidden: int | None = None
    """Number of hidden units of the classifier --head mlp (default: 512)."""
    cache_embeddings: Annotated[str | None, arg(metavar="[K|off]", alone="1", words=("off", NUMBER))] = None
    """Run a frozen encoder once and train on what it gave, for K augmented views of each image that the epochs use in
    turn; off runs it in every epoch (default: 1 without augmentation, off with it)."""
    cache_dtype: Literal["fp16", "fp32"] | None = None
    """Number format in which outputs of a frozen encoder, or of a teacher, are kept (default: fp16 for an encoder, fp32
    for a teacher)."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder for what is computed or fetched only once: tokens, embeddings, a teacher's outputs, and shards of an
    object store (default: .fastimg in a converted dataset if it is writable, else the user's cache directory)."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """Most disk space for copies of an object store's shards, such as 200GB (default: what is there already, plus half
    of the free space)."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A setting of the object store by obstore's name, such as region=eu-west-1, endpoint=URL or skip_signature=true;
    may be given several times. Keys and passwords belong into the environment."""
    drop_path: float | None = None
    """Rate of stochastic depth, which skips blocks at random in training, for models that support it (default: the
    model's own, usually 0)."""
    ghost_bn: int | None = None
    """Compute batch-norm statistics over groups of this many images instead of over the whole batch, which it must
    divide (ghost batch norm)."""
    in_chans: int | None = None
    """Channels of the model's input: 1 for gray, which is decoded faster and takes a third of the memory, 3 for RGB, or
    the number of bands of --image-field (default: those bands, else what --weights name, else 3)."""
    image_field: Annotated[str | None, arg(metavar="NAME")] = None
    """Train on the arrays [C, H, W] that the dataset keeps in the field of this name, instead of on its images.
    `fastimg convert --field NAME:bands` stores them (default: what --weights name, else the images)."""
    depth: Annotated[int | None, arg(metavar="{8,16}")] = None
    """Bits per channel: 16 keeps all levels of 16-bit PNG and TIFF images (default: what --weights name, else 8)."""
    blurpool: bool = False
    """Blur before max pooling and before strided convolutions with at least 16 channels (BlurPool)."""
    model_kwargs: tuple[str, ...] = ()
    """Further arguments of the model, as name=value, such as drop_rate=0.1."""

    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file where class folders have subfolders: top, the topmost one, or leaf, the
    one that holds the file (default: top, with a message where the two differ)."""
    train_split: str = "train"
    """Name of the split to train on."""
    val_split: str | None = None
    """Name of the split to validate on (default: val, else test, else a part of the training split that is held
    out)."""
    val_fraction: float | None = None
    """Share of each class of the training split to hold out for validation where there is no split for it; 0 trains
    without validation (default: 0.1)."""
    fold: Annotated[str | None, arg(metavar="K/N")] = None
    """Validate on fold K of N, counted from 0, as in 0/5, instead of on a validation split. A sample's fold depends
    only on its content, so N runs validate on each sample once."""
    group: Annotated[str | None, arg(metavar="COLUMN")] = None
    """With --fold: keep samples in one fold that have the same value in this column, which is a target or an entry of
    the samples' .json."""
    stratify: bool = False
    """With --fold: give every fold the same share of each class, as far as possible."""
    order: Order | None = None
    """Order of the training images: random; quasi-random, which reads neighbours together and mixes them within a
    window, for shards larger than memory; or sequential, as they are stored (default: random, from an object store
    quasi-random)."""
    sampler: Annotated[str | None, arg(metavar="{balanced,sqrt,FILE}")] = None
    """Draw some images more often than others: balanced, the same number of each class; sqrt, by the square root of a
    class's size; or FILE, a csv of class,share lines or a json object. The number of images in an epoch stays the same
    (default: each image once)."""
    order_window: int | None = None
    """Number of images that --order quasi-random mixes at a time. The page cache should hold one and a half times as
    many (default: 32768)."""
    loader: Annotated[
        Literal["auto", "native", "torch", "dali", "ffcv", "synthetic"], arg(aliases=("--data-backend",))
    ] = "auto"
    """What loads the images: fastimg's own loader (auto, native), PyTorch's DataLoader with Pillow and torchvision
    (torch), NVIDIA DALI (dali), FFCV for .beton files (ffcv), or random pixels, to see how fast training could be
    (synthetic)."""
    resident: bool = False
    """Decode every image once and keep all of them on the device, where crops are cut, which suits small datasets. They
    may take up to half of the free memory of a GPU, or of the host on a CPU."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images, or of processes with --loader torch; auto is this process's share of the
    cores."""
    profile: Annotated[str | None, arg(metavar="[auto|PATH]", alone="auto")] = None
    """Use the workers, prefetch, stream and, with --batch-size auto, batch size that `fastimg bench DATA --tune` found
    fastest on this machine, where no flag sets them. Alone, or as auto, it reads the file that bench left in the user's
    cache directory."""
    prefetch: int | None = None
    """Number of batches held ready in host memory (default: 3, on a GPU 6)."""
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    """What decodes JPEGs in fastimg's own loader: the CPU (auto, cpu), or nvImageCodec on the GPU, whose pixels differ
    slightly (gpu; needs the extra `gpu`)."""
    augment_stream: Literal["auto", "own", "step"] = "auto"
    """The CUDA stream that augments batches: one of its own, which overlaps the previous step (auto, own), or that of
    the step (step)."""
    dct_scaling: Literal["auto", "low", "eighths", "off"] = "auto"
    """Decode large training crops at a fraction of their size, which is faster and changes pixels slightly: at 1/2, 1/4
    or 1/8 (auto), at 1/4 and 1/8 from low frequencies alone, for large photographs (low), at any eighth (eighths), or
    never (off). Validation always decodes at full size."""
    on_error: Literal["skip", "fail"] | None = None
    """What to do with an image that cannot be decoded: skip leaves it out of the loss and reports it, fail stops
    (default: skip)."""
    max_pixels: int | None = None
    """Do not decode images with more pixels than this (default: 89478485)."""

    max_length: int | None = None
    """Cut texts off after this many tokens (default: the model's own limit)."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the model's square input in pixels, for training and validation (default: the model's own)."""
    train_crop_size: int | None = None
    """Side of the training input in pixels, if it differs from --img-size."""
    val_crop_size: int | None = None
    """Side of the validation input in pixels, if it differs from --img-size."""
    val_resize_size: int | None = None
    """Resize the shorter side of validation images to this before the centre is cut out (default: the side of the crop
    divided by --crop-pct)."""
    crop_pct: float | None = None
    """Side of the centre crop in validation, as a share of the resized image's shorter side (default: the model's
    own)."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """Filter with which images are resized, without aliasing (default: the model's own)."""
    mean: tuple[float, ...] | None = None
    """Mean of each input channel, from 0 to 1, or in a field's own units with --image-field (default: the model's own;
    for fields and 16 bits, measured on up to 1,000 training samples)."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each input channel, in the units of --mean (default: the model's own; for fields and 16
    bits, measured on up to 1,000 training samples)."""
    progressive: Annotated[str | None, arg(metavar="A:B")] = None
    """Grow training crops during the run from A to B pixels in steps of 32, as in 160:192 (progressive resizing)."""
    progressive_epochs: Annotated[str | None, arg(metavar="E:F")] = None
    """When the crops of --progressive grow: they have size A up to epoch E, and size B from epoch F (default: 70% and
    85% of the epochs)."""


@dataclass(frozen=True, kw_only=True)
class Augmenting:  # more than 12 fields: a flag each
    """Augmentation of training images: the flags that `train`, `inspect` and `bench` share."""

    scale: tuple[float, float] | None = None
    """Smallest and largest share of the image's area in a training crop (default: 0.08 1)."""
    ratio: tuple[float, float] | None = None
    """Smallest and largest aspect ratio of a training crop (default: 0.75 1.3333)."""
    crop_padding: int | None = None
    """Instead of random resized crops: mirror the image at its edges by this many pixels, then cut the crop out at
    random. Images of another size are resized first."""
    hflip: float | None = None
    """Probability of mirroring an image left to right (default: 0.5)."""
    alternating_flip: Switch[bool] = False
    """Mirror each image in every second epoch instead of at random, so that two epochs in a row show both sides.
    --hflip is then the share that is mirrored in the first epoch."""
    vflip: float | None = None
    """Probability of mirroring an image top to bottom (default: 0)."""
    rotate: float | None = None
    """Rotate by up to this many degrees in either direction (default: 0)."""
    aa: Annotated[str | None, arg(metavar="NAME")] = None
    """An augmentation policy by its name: trivial or ta_wide (TrivialAugmentWide), or one of timm's, such as
    rand-m9-mstd0.5-inc1, auto, augmix-m3-w3 or 3aug. Names that end in -gray leave out what changes only colours
    (default: none)."""
    brightness: tuple[float, float] | None = None
    """Smallest and largest brightness factor; 1 leaves the image unchanged (default: 1 1)."""
    contrast: tuple[float, float] | None = None
    """Smallest and largest contrast factor; 1 leaves the image unchanged (default: 1 1)."""
    saturation: tuple[float, float] | None = None
    """Smallest and largest saturation factor; 1 leaves the image unchanged (default: 1 1)."""
    color_jitter: tuple[float, float, float] | None = None
    """How much brightness, contrast and saturation vary, as in torchvision: 0.4 draws a factor between 0.6 and 1.4, and
    0 changes nothing (default: 0 0 0)."""
    hue: float | None = None
    """Turn colours by up to this share of the colour circle in either direction, from 0 to 0.5 (default: 0)."""
    grayscale_prob: float | None = None
    """Probability of making an image gray (default: 0)."""
    gaussian_blur_prob: float | None = None
    """Probability of blurring an image with a Gaussian of 0.1 to 2 pixels (default: 0)."""
    solarize_prob: float | None = None
    """Probability of inverting all levels from 128 up in an image (default: 0)."""
    reprob: float | None = None
    """Probability of erasing a rectangle of an image (default: 0)."""
    mixup: float | None = None
    """Mix each image and its label with those of another in the batch, in a proportion drawn from Beta(x, x), where x
    is this number (default: 0, never)."""
    cutmix: float | None = None
    """Paste a rectangle of another image of the batch into each image, its area drawn from Beta(x, x), where x is this
    number. Together with --mixup, each image gets one of the two (default: 0, never)."""
    no_aug: Switch[bool] = False
    """Train on resized centre crops, as in validation, without any augmentation."""
    augmentation: YamlOnly[bool | list[str | dict[str, Any]] | None] = None  # in YAML alone, as Ludwig has it
    kornia: YamlOnly[list[dict[str, dict[str, Any]]] | None] = None  # in YAML alone: class name -> arguments


@dataclass(frozen=True, kw_only=True)
class Train(Augmenting, Inputs):  # more than 12 fields: a flag each
    """Train an image classifier. Start it with torchrun to train data-parallel."""

    batch_size: Annotated[int | Literal["auto"] | None, arg(aliases=("-b",))] = None
    """Images per step on each device; auto doubles them as long as they fit in memory and training is faster (default:
    256 on a GPU, 64 on a CPU; a resumed run keeps its own)."""
    grad_accum_steps: int = 1
    """Add up the gradients of this many batches before each step of the optimiser."""
    grad_checkpointing: bool = False
    """Save memory by keeping only the inputs of the model's blocks and computing the rest again for the gradients. It
    takes about a third more time, with the same result."""

    opt: Annotated[str, arg(metavar="NAME")] = "adamw"
    """Optimiser: adamw, sgd, schedule_free_adamw, schedule_free_sgd, or any other that timm has, such as muon, lamb,
    lion or adan."""
    opt_kwargs: tuple[str, ...] = ()
    """Further arguments of the optimiser, as name=value."""
    opt_eps: float | None = None
    """Small number that keeps the optimiser from dividing by zero (default: the optimiser's own)."""
    opt_betas: tuple[float, ...] | None = None
    """Decay rates of the optimiser's moving averages (default: the optimiser's own)."""
    opt_impl: Literal["auto", "fused", "foreach"] = "auto"
    """How the optimiser computes its update: in one kernel (fused), or in one for each operation (foreach); auto is
    fused where torch supports it."""
    lr: float | Literal["auto", "find"] = "auto"
    """Peak learning rate: a number; auto, chosen by optimiser, model, starting weights and batch, and printed; or find,
    measured on this data before the first step."""
    lr_scale: Literal["linear", "sqrt", "none"] | None = None
    """How the learning rate grows with the batch over all devices (default: with --lr auto or --batch-size auto, linear
    for SGD and sqrt for AdamW; otherwise none)."""
    lr_base_size: int | None = None
    """Batch size that --lr is meant for, where the learning rate is scaled with the batch (default: 256)."""
    layer_decay: float | None = None
    """Multiply the learning rate by this for each block further from the classifier, so that early layers change less;
    0.65 to 0.9 for ViTs (default: 1)."""
    momentum: float | None = None
    """Momentum of SGD (Nesterov), and of other optimisers that have one (default: 0.9)."""
    weight_decay: Annotated[float | None, arg(aliases=("--wd",))] = None
    """Weight decay, except for norms and biases (default: 0.05 for AdamW, 5e-5 for SGD, the same for optimisers like
    either, 0 for all others)."""
    norm_weight_decay: float | None = None
    """Weight decay of norms and biases (default: 0)."""
    norm_lr_scale: float | None = None
    """Multiply the learning rate of norms by this; their weight decay per step does not change (default: 1)."""
    lookahead: int | None = None
    """Move the weights, and the running statistics of norms, back towards their running average every N steps, as in
    airbench (default: never)."""
    clip_grad: float | None = None
    """Scale the gradient down where its norm is larger than this (default: never)."""
    smoothing: Annotated[float, arg(aliases=("--label-smoothing",))] = 0.1
    """Label smoothing: the share of each label that is spread over all classes."""
    bce_loss: bool = False
    """Train with binary cross-entropy, as --loss bce does."""
    loss: LossKind | None = None
    """The loss: softmax cross-entropy; bce, binary cross-entropy summed over classes; focal, in which hard samples
    count more; or asymmetric, in which labels that a sample lacks count little (default: cross-entropy)."""
    focal_gamma: float | None = None
    """How much --loss focal lowers the loss of easy samples; 0 is cross-entropy (default: 2)."""
    class_weights: Annotated[str | None, arg(metavar="{balanced,effective,FILE}")] = None
    """Give rare classes more weight in the loss: balanced, by the inverse of a class's number of samples; effective,
    likewise, but hardly less beyond a few thousand; or FILE, a csv of class,weight lines or a json object."""
    logit_adjust: Annotated[float | None, arg(metavar="TAU")] = None
    """Keep the model from favouring common classes: in training, TAU times the logarithm of each class's share is added
    to its logit; 1 aims at balanced accuracy (default: 0)."""

    bce_pos_weight: Annotated[str | None, arg(metavar="X|balanced")] = None
    """For targets of several labels: multiply the loss of a label by this where it is present; balanced is the number
    of samples without it per sample with it (default: 1)."""
    targets: Annotated[str | None, arg(metavar="A,B")] = None
    """Names of the dataset's targets to train on; the model has outputs for each (default: all of them)."""
    target_weights: Annotated[str | None, arg(metavar="A=X,B=Y|uncertainty")] = None
    """Weight of each target's loss, as in breed=1,age=0.5, or uncertainty, which learns them (default: 1 each)."""
    teacher: Annotated[str | None, arg(metavar="RUN|ARCH")] = None
    """Also learn from a trained model (distillation): a run or its URL, one of its checkpoints, or an architecture with
    --teacher-weights. It must have the same classes, and sees the same crops."""
    teacher_weights: Path | None = None
    """Weights of an architecture given as --teacher, whose classifier must have the dataset's classes in the same
    order."""
    kd_temperature: float | None = None
    """Temperature that softens the class probabilities of teacher and student in distillation (default: 4)."""
    kd_weight: float | None = None
    """Share of the teacher in the loss; the labels have the rest (default: 0.5)."""
    cache_teacher: Annotated[int | None, arg(metavar="K")] = None
    """Run the teacher once, over K augmented views of each image, and keep its outputs; epochs use the views in turn
    (default: the teacher runs in every step)."""

    epochs: int | None = None
    """Number of passes over the training split (default: 10)."""
    duration: Annotated[str | None, arg(metavar="TIME")] = None
    """Length of the run, instead of --epochs: 16ep (epochs), 300ba (optimiser steps) or 100000sp (samples)."""
    max_time: Annotated[str | None, arg(metavar="TIME", hidden=("--time",))] = None
    """End the run this long after it was started, as in 90s, 30m or 2h, with a checkpoint to resume from. It ends after
    a step, so leave time for that step, a validation and the checkpoint (default: no limit)."""
    sched: Literal["cosine", "linear", "step", "constant"] | None = None
    """How the learning rate falls during the run (default: cosine from scratch, linear when fine-tuning, constant with
    a schedule-free optimiser)."""
    warmup: Annotated[str | None, arg(metavar="TIME")] = None
    """How long the learning rate rises at the start, in epochs, steps, samples or as a share of the run: 5ep, 300ba,
    100000sp or 0.1dur (default: 0.05dur from scratch, 0.2dur when fine-tuning)."""
    warmup_epochs: float | None = None
    """Number of epochs in which the learning rate rises at the start, as --warmup gives it otherwise."""
    warmup_fraction: float | None = None
    """Share of all steps in which the learning rate rises at the start, as --warmup gives it otherwise."""
    warmup_lr: float | None = None
    """Learning rate at the start of the warmup, scaled by the same factor as --lr (default: 0)."""
    min_lr: float | None = None
    """Learning rate at the end of the cosine and linear schedules, scaled by the same factor as --lr (default: 0)."""
    decay: Annotated[str | None, arg(metavar="TIME")] = None
    """Time between the drops of --sched step, in epochs, steps or as a share of the run: 30ep, 1000ba or 0.25dur
    (default: a third of the run)."""
    decay_epochs: float | None = None
    """Number of epochs between the drops of --sched step, as --decay gives it otherwise."""
    decay_rate: float | None = None
    """Factor by which --sched step multiplies the learning rate at each drop (default: 0.1)."""

    amp: bool = True
    """Use mixed precision where it is faster: on GPUs, and on CPUs with bf16 instructions."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """Number format of mixed precision; auto is bf16 where the device supports it, and fp16 elsewhere and where that
    was measured to be more than 5% faster for models of this kind and the optimiser is fused."""
    channels_last: bool = True
    """Use the channels-last memory format for convolutional models."""
    compile: Annotated[str | None, arg(metavar="[MODE]", alone="default", words=COMPILE_MODES)] = None
    """Compile the model with torch.compile, in the mode default where none follows; others are
    max-autotune-no-cudagraphs and, with CUDA graphs, reduce-overhead and max-autotune. CUDA graphs need
    --grad-accum-steps 1 and no --strategy fsdp."""
    cuda_graphs: Literal["auto", "off"] = "auto"
    """Record the work of a whole step as CUDA graphs, which the host launches at once, where that is possible (auto);
    or launch each kernel by itself, which takes less memory (off)."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How the processes of torchrun share the work: each holds the whole model (auto, ddp), or a part of the weights,
    gradients and optimiser state (fsdp, which is FSDP2)."""
    sync_bn: bool = False
    """Synchronise batch-norm statistics over all ranks."""
    grad_compression: Literal["bf16", "fp16"] | None = None
    """Exchange gradients between ranks as bf16 or fp16, which halves the bytes and rounds the values (default:
    float32)."""
    numa_binding: Literal["auto", "off"] = "auto"
    """With auto, each rank runs on the cores that are nearest to its GPU, unless taskset, numactl or torchrun has
    chosen its cores. With off, the system chooses."""

    backend: Literal["local", "ray"] = "local"
    """Where ranks run: in this process or those that torchrun started (local), or in workers of Ray Train, on the nodes
    of a cluster that share a folder (ray)."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """Address of the Ray cluster; auto is the one that this machine belongs to (default: RAY_ADDRESS, else auto)."""
    num_workers: int | None = None
    """With --backend ray: number of ranks (default: as many as the cluster has room for when training starts)."""
    resources_per_worker: Annotated[str | None, arg(metavar="NAME=AMOUNT[,...]")] = None
    """With --backend ray: what a rank takes of the cluster, such as gpu=1,cpu=8 (default: a GPU with its share of the
    node's cores; without GPUs, the cores of a node)."""
    elastic: Annotated[str | None, arg(metavar="MIN:MAX")] = None
    """With --backend ray: start, and continue after a failure, with as many ranks from MIN to MAX as there is room for,
    instead of --num-workers. They share a step's images evenly."""
    max_failures: int | None = None
    """With --backend ray: how often training may continue from its last checkpoint after a worker is lost (default:
    3)."""

    model_ema: bool = False
    """Validate and save a moving average of the weights. Training itself continues from the weights."""
    model_ema_decay: float | None = None
    """Share that --model-ema keeps of the average in each step, less in the first steps (default: 0.9998)."""
    model_ema_steps: int = 1
    """Update the average of --model-ema every N steps, by N times as much."""
    tta: Annotated[Tta, arg(metavar="[VIEWS]", alone="mirror", words=TTA_VIEWS)] = False
    """Average the model's outputs over several views of each validation image: the image and its mirror image (mirror,
    or --tta alone), or also both of them shifted by a pixel in two directions (mirror-shift)."""
    evaluate_training_set: bool = False
    """Also evaluate the training split at each validation, with validation crops."""

    output: Annotated[Path, arg(aliases=("-o",))] = Path("runs")
    """Folder in which each run gets a folder, or its URL in an object store, which needs --name. Checkpoints are
    uploaded while training continues."""
    name: str | None = None
    """Name of the run's folder (default: the names of the dataset and the model)."""
    resume: Annotated[str | None, arg(metavar="[last|auto|RUN]", alone="last")] = None
    """Continue an interrupted run: its folder or its URL, or the newest one of this data and model (last, as --resume
    alone), or of all where DATA is left out; auto starts a new run where there is none."""
    seed: int = 0
    """Seed of the weights, the order, the crops and augmentation."""
    deterministic: bool = False
    """Use only deterministic algorithms (on a CPU they all are)."""
    log: Annotated[tuple[str, ...], arg(metavar="TRACKER")] = ()
    """Also report curves, pictures of samples, settings and the place of checkpoints to tensorboard, wandb or mlflow,
    or to several of them. The library's own environment variables apply."""
    log_interval: int = 20
    """Steps between progress lines and log records."""
    trace: Annotated[int | None, arg(metavar="[STEPS]", alone="10", words=(NUMBER,))] = None
    """Record this many steps with torch's profiler, from the eleventh on, as trace.json.gz in the run's folder, which
    ui.perfetto.dev shows. Alone it records 10; of several ranks, it records rank 0."""
    val_interval: int = 1
    """Epochs between validations, and between evaluations of the training split."""
    save_interval: Annotated[str, arg(metavar="TIME|STEPS")] = "10m"
    """Time or number of steps between checkpoints within an epoch, as in 90s, 10m or 500. One is also written at the
    end of each epoch, unless the one before is less than 10 seconds old."""
    checkpoint_hist: int = 1
    """Number of checkpoints to keep besides the best and the last; with 2 or more, every epoch is saved."""
    patience: int | None = None
    """Stop after this many validations in a row without an improvement. Those before the end of --freeze-epochs, or
    before the crops of --progressive have grown, do not count (default: never)."""
    patience_metric: Literal["loss", "top1", "balanced_accuracy"] | None = None
    """What has to improve for training to go on, where --patience is given (default: loss, which may still fall while
    accuracy stands still)."""
    metric: Annotated[str | None, arg(metavar="NAME")] = None
    """What decides which checkpoint is best, and when --patience ends the run: loss, top1, top5, balanced_accuracy, or
    that of a target, as in tags.map or age.mae (default: top1 where classes are the only target, else loss)."""
    recipe: str | None = None
    """Start from the settings of a recipe, which files and flags override. `fastimg recipe list` shows all recipes."""
    config: Path | None = None
    """Read settings from this YAML file or its URL, such as the config.yaml of a run. Flags override it."""
    dry_run: bool = False
    """Print the settings that would be used, and exit."""
    verbose: bool = False
    """Print more: the loader's buffers and the size of the model."""
