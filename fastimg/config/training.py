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
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")  # those of them that record CUDA graphs on a GPU


@dataclass(frozen=True, kw_only=True)
class FromStore:
    """What commands take that read DATA from an object store, and keep nothing else in a cache."""

    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder that keeps the shards of an object store. Default: the folder shards in the user's cache directory."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """How much --cache-dir may hold, such as 200GB; with 0, samples are read one by one and nothing is kept. Default:
    what it already holds, plus half of the free disk space."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Options of the object store, as obstore names them: endpoint=URL, region=NAME, skip_signature=true. Credentials
    are taken from the environment."""


@dataclass(frozen=True, kw_only=True)
class Inputs:  # more than 12 fields: a flag each
    """The model, its data and its input size: the first flags of `train`."""

    data: Positional[Annotated[Path | None, arg(metavar="DATA")]] = None
    """Shards made by `fastimg convert`, an image folder, or the URL of either (s3://bucket/D). Default: the dataset in
    the current directory, or else the embedded digits."""

    arch: Annotated[str | None, arg(aliases=("-a", "--model"), metavar="NAME")] = None
    """The model: any timm model (from a repository of the hub: hf-hub:USER/NAME), a torchvision model as
    torchvision/NAME, fastimg/airnet for 32 x 32 pixels, or, for texts, a Hugging Face encoder as hf:NAME or hf:FOLDER,
    which comes with its weights. Default: the architecture that --weights states, else resnet50."""
    text_arch: Annotated[str | None, arg(metavar="NAME")] = None
    """The Hugging Face encoder of the texts, hf:NAME or hf:FOLDER, for images with texts beside them (`fastimg convert
    --text-column`). --arch encodes the images, and one classifier gets the features of both."""
    combiner: Literal["concat", "gated"] | None = None
    """How the features of image and text are combined: side by side (concat), or by a learned gate for each feature
    (gated). Default: gated, since a linear classifier on concatenated features only adds up what each input says."""
    pretrained: bool = False
    """Start from the model's published weights (downloaded)."""
    weights: Path | None = None
    """Start from the weights of a run or its URL, of one of its checkpoints, or of a file: safetensors, or a checkpoint
    of plain tensors. The architecture, arguments and preprocessing that they state are used unless a flag says
    otherwise."""
    num_classes: int | None = None
    """Number of outputs of the model. Default: the number of classes in the dataset."""
    freeze: Annotated[str | None, arg(metavar="{backbone,N,image,text}")] = None
    """Freeze a part of the model. backbone: train only the classifier. image or text, with --text-arch: freeze only
    that encoder. N: freeze the first N blocks of the model, where the stem is the first. Frozen layers also keep their
    batch-norm statistics."""
    freeze_epochs: int | None = None
    """Apply --freeze for this many epochs, then train everything (gradual unfreezing); see --layer-decay."""
    head_init: Literal["xavier", "he", "zeros"] | None = None
    """Initialisation of a new classifier on a trained backbone: zeros, or random values as proposed by Glorot (xavier)
    or He. Default: zeros, the most accurate wherever it was measured (benchmarks/heads.py)."""
    head: Literal["linear", "mlp"] = "linear"
    """The classifier: one linear layer, or two with batch norm and GELU between them."""
    head_hidden: int | None = None
    """Hidden units of --head mlp. Default: 512."""
    cache_embeddings: Annotated[str | None, arg(metavar="[K|off]", alone="1", words=("off", NUMBER))] = None
    """Run the frozen encoder of --freeze backbone, image or text over the dataset once, and train on the embeddings. K:
    keep this many augmented views of each image, and use one per epoch in turn. off: run the encoder in every epoch.
    Default: 1 without augmentation, off with it."""
    cache_dtype: Literal["fp16", "fp32"] | None = None
    """Data type of cached embeddings (default: fp16), or of a teacher's cached outputs (default: fp32)."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to cache tokens, embeddings and a teacher's outputs, and shards of an object store. Default: .fastimg in a
    converted dataset if it is writable, else the user's cache directory."""
    cache_limit: Annotated[str | None, arg(metavar="SIZE")] = None
    """How much --cache-dir may hold of the shards of an object store, such as 200GB. Default: what it already holds,
    plus half of the free disk space."""
    storage_option: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Options of the object store, as obstore names them: endpoint=URL, region=NAME, skip_signature=true. Credentials
    are taken from the environment."""
    drop_path: float | None = None
    """Rate of stochastic depth, for models that support it. Default: the model's own, usually 0."""
    ghost_bn: int | None = None
    """Compute batch-norm statistics over groups of this many images, a divisor of the batch (ghost batch norm)."""
    in_chans: int | None = None
    """Number of channels of the model's input: 1 for gray, which is decoded faster and takes a third of the memory, or
    3 for RGB; with --image-field, its number of bands. Published weights and --weights are folded as timm folds them.
    Default: the bands of --image-field, else what --weights state, else 3."""
    image_field: Annotated[str | None, arg(metavar="NAME")] = None
    """Train on the arrays [C, H, W] of this field (`fastimg convert --field NAME:bands`), of uint8, uint16 or float32,
    instead of the images. Default: what --weights state."""
    depth: Annotated[int | None, arg(metavar="{8,16}")] = None
    """Bits per channel: 16 keeps all levels of 16-bit PNG and TIFF images. Default: what --weights state, else 8."""
    blurpool: bool = False
    """Blur before max pooling and before strided convolutions with at least 16 channels (BlurPool)."""
    model_kwargs: tuple[str, ...] = ()
    """Additional arguments of the model, as name=value."""

    classes: Literal["top", "leaf"] | None = None
    """Which folder names the class of a file, in a folder of class folders: the topmost one (top), or the one that
    contains the file (leaf). Folders of the same name are one class. Default: top; a message tells you if the two
    differ."""
    train_split: str = "train"
    """The split to train on."""
    val_split: str | None = None
    """The split to validate on. Default: val, else test, else --val-fraction of the training split."""
    val_fraction: float | None = None
    """Share of each class of the training split to hold out if there is no validation split. Default: 0.1; 0 trains
    without validation."""
    fold: Annotated[str | None, arg(metavar="K/N")] = None
    """Hold out fold K of N for validation, counted from 0, as in 0/5, instead of using a validation split. A sample's
    fold depends only on its content, so N runs validate on each sample once."""
    group: Annotated[str | None, arg(metavar="COLUMN")] = None
    """Keep samples that have the same value in this column (of the targets, or of the samples' .json) in the same fold
    of --fold."""
    stratify: bool = False
    """Give every fold of --fold the same share of each class, as far as possible."""
    order: Order | None = None
    """Order of the training images in each epoch. quasi-random: for shards larger than memory; neighbouring images are
    read together, and batches are drawn from a window of them. sequential: always in the order in which they are
    stored. Default: random; for an object store quasi-random, by whole shards."""
    sampler: Annotated[str | None, arg(metavar="{balanced,sqrt,FILE}")] = None
    """Draw the images of an epoch with repetition, some more often than others. balanced: the same number of each
    class. sqrt: each class in proportion to the square root of its number of images. FILE: in proportion to a csv of
    class,share lines, or a json object. The number of images in an epoch does not change. Default: each image once."""
    order_window: int | None = None
    """Number of images in the window of --order quasi-random. The page cache should hold one and a half windows.
    Default: 32768."""
    loader: Annotated[
        Literal["auto", "native", "torch", "dali", "ffcv", "synthetic"], arg(aliases=("--data-backend",))
    ] = "auto"
    """The data loader: fastimg's own (native, auto), PyTorch's DataLoader with Pillow and torchvision (torch), NVIDIA
    DALI, FFCV (.beton only), or synthetic, random pixels on the device, which shows how fast training could be."""
    resident: bool = False
    """Decode every image once and keep all images as uint8 on the device, where crops are cut. This is for small
    datasets, up to half of the free memory of a GPU, or of the host on a CPU. Each rank keeps all images."""
    workers: Annotated[str, arg(aliases=("-j",))] = "auto"
    """Number of threads that decode images (processes with --loader torch), or auto for this process's share of the
    cores."""
    profile: Annotated[str | None, arg(metavar="[auto|PATH]", alone="auto")] = None
    """Use the profile of this machine that `fastimg bench DATA --tune` writes: its workers, prefetch and augment stream
    unless flags set them, and its batch size with --batch-size auto. --profile alone, or auto, reads the profile in the
    user's cache directory."""
    prefetch: int | None = None
    """Number of batches held in host memory. Default: 3, or 6 on a GPU."""
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    """Where fastimg's own loader decodes JPEGs. gpu: with nvImageCodec (the extra `gpu`), whose pixels differ slightly
    from the CPU's. auto: cpu."""
    augment_stream: Literal["auto", "own", "step"] = "auto"
    """The CUDA stream that augments batches: a stream of its own, which overlaps the previous step, or the step's.
    auto: own."""
    dct_scaling: Literal["auto", "low", "eighths", "off"] = "auto"
    """Decode training crops at a reduced size where possible. auto: decode a crop of at least twice the output's size
    at 1/2, 1/4 or 1/8 of its size if the JPEG is tiled and the CPU decodes it. This is faster, and changes pixels
    slightly. low: like auto, but at 1/4 and 1/8 only from the low frequencies, which is several times as fast for large
    photographs. eighths: at the smallest of 1/8, 2/8 to 8/8 at which the crop is as large as the output. Validation
    always decodes at full size."""
    on_error: Literal["skip", "fail"] | None = None
    """What to do with an image that cannot be decoded: leave it out of the loss and report it, or stop. Default:
    skip."""
    max_pixels: int | None = None
    """Do not decode images with more pixels than this. Default: 89478485."""

    max_length: int | None = None
    """Truncate texts to this many tokens. Default: the model's own limit."""
    img_size: Annotated[int | None, arg(aliases=("--imgsz",))] = None
    """Side of the model's square input in pixels, for training and validation. Default: the model's own."""
    train_crop_size: int | None = None
    """Side of the training input, if it differs from --img-size."""
    val_crop_size: int | None = None
    """Side of the validation input, if it differs from --img-size."""
    val_resize_size: int | None = None
    """Resize the shorter side of validation images to this before the centre crop. Default: the side of the crop
    divided by --crop-pct."""
    crop_pct: float | None = None
    """The side of the centre crop as a share of the resized image's shorter side. Default: the model's own."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """Filter of the antialiased resize. Default: the model's own."""
    mean: tuple[float, ...] | None = None
    """Mean of each input channel, 0 to 1, or of --image-field in the units of its values. Default: the model's own; for
    one channel, the mean of its three; for --image-field and --depth 16, measured on up to 1,000 training samples."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each input channel, in the same units. Default: as for --mean."""
    progressive: Annotated[str | None, arg(metavar="A:B")] = None
    """Grow training crops from A to B pixels in steps of 32, as in 160:192 (progressive resizing); see
    --progressive-epochs."""
    progressive_epochs: Annotated[str | None, arg(metavar="E:F")] = None
    """Keep size A up to epoch E, and use size B from epoch F. Default: 70% and 85% of the epochs."""


@dataclass(frozen=True, kw_only=True)
class Augmenting:  # more than 12 fields: a flag each
    """Augmentation of training images: the flags that `train`, `inspect` and `bench` share."""

    scale: tuple[float, float] | None = None
    """Smallest and largest share of the image's area in a training crop. Default: 0.08 1."""
    ratio: tuple[float, float] | None = None
    """Smallest and largest aspect ratio of a training crop. Default: 0.75 1.3333."""
    crop_padding: int | None = None
    """Mirror the image at its edges by this many pixels and cut out the crop at random, instead of random resized
    crops, like torchvision's RandomCrop(padding=N, padding_mode="reflect"). Images of another size are resized
    first."""
    hflip: float | None = None
    """Probability of a horizontal flip. Default: 0.5."""
    alternating_flip: Switch[bool] = False
    """Mirror each image in every second epoch, starting with a share of --hflip of the images in the first, instead of
    drawing each flip independently."""
    vflip: float | None = None
    """Probability of a vertical flip. Default: 0."""
    rotate: float | None = None
    """Rotate by up to this many degrees in either direction. Default: 0."""
    aa: Annotated[str | None, arg(metavar="NAME")] = None
    """An augmentation policy. trivial (or ta_wide): TrivialAugmentWide, which applies one of 14 operations, at one of
    31 strengths, to each image. timm's names also work: rand-m9-mstd0.5-inc1 (RandAugment), auto, original, originalr,
    v0, v0r (AutoAugment), augmix-m3-w3, 3aug (DeiT III's, with --color-jitter 0.3 0.3 0.3). A name that ends in -gray,
    such as trivial-gray or rand-m9-gray, leaves out operations that change only colours, for gray images. Default:
    none."""
    brightness: tuple[float, float] | None = None
    """Smallest and largest brightness factor; 1 leaves the image unchanged. Default: 1 1."""
    contrast: tuple[float, float] | None = None
    """Smallest and largest contrast factor. Default: 1 1."""
    saturation: tuple[float, float] | None = None
    """Smallest and largest saturation factor. Default: 1 1."""
    color_jitter: tuple[float, float, float] | None = None
    """Strengths of brightness, contrast and saturation as in torchvision: x stands for factors from max(0, 1 - x) to
    1 + x."""
    hue: float | None = None
    """Turn hues by up to this share of the colour circle in either direction, like the fourth number of timm's color
    jitter: 0 to 0.5. Default: 0."""
    grayscale_prob: float | None = None
    """Probability of making the image grey. Default: 0."""
    gaussian_blur_prob: float | None = None
    """Probability of blurring the image with a Gaussian of 0.1 to 2 pixels. Default: 0."""
    solarize_prob: float | None = None
    """Probability of inverting all levels from 128 up. Default: 0."""
    reprob: float | None = None
    """Probability of erasing a rectangle of the image. Default: 0."""
    mixup: float | None = None
    """Mix each image with another one from its batch, in a proportion drawn from Beta(x, x). Training accuracy then
    counts the class with the larger proportion. Default: 0, never."""
    cutmix: float | None = None
    """Paste a rectangle of another image of the batch into each image, its area drawn from Beta(x, x). Together with
    --mixup, each image gets one of the two. Default: 0, never."""
    no_aug: Switch[bool] = False
    """Train on resized centre crops, as in validation."""
    augmentation: YamlOnly[bool | list[str | dict[str, Any]] | None] = None  # in YAML alone, as Ludwig has it
    kornia: YamlOnly[list[dict[str, dict[str, Any]]] | None] = None  # in YAML alone: class name -> arguments


@dataclass(frozen=True, kw_only=True)
class Train(Augmenting, Inputs):  # more than 12 fields: a flag each
    """Train an image classifier. Start it with torchrun to train data-parallel."""

    batch_size: Annotated[int | Literal["auto"] | None, arg(aliases=("-b",))] = None
    """Images per step on each device. auto: double the batch, with this loader and model, as long as it fits in memory
    and is faster, up to a fifth of the dataset. Default: 256 on a GPU, 64 on a CPU; a resumed run keeps its own."""
    grad_accum_steps: int = 1
    """Accumulate the gradients of this many batches before each optimiser step."""
    grad_checkpointing: bool = False
    """Store only the inputs of the model's blocks for the backward pass and recompute the rest: less memory, about a
    third more time, the same result."""

    opt: Annotated[str, arg(metavar="NAME")] = "adamw"
    """Optimiser: adamw or sgd, which have tuned defaults, schedule_free_adamw or schedule_free_sgd, or any timm
    optimiser by name, such as muon, lamb, lion or adan."""
    opt_kwargs: tuple[str, ...] = ()
    """Additional arguments of the optimiser, as name=value."""
    opt_eps: float | None = None
    """The number that keeps the optimiser from dividing by zero. Default: the optimiser's own."""
    opt_betas: tuple[float, ...] | None = None
    """Decay rates of the optimiser's moving averages. Default: the optimiser's own."""
    opt_impl: Literal["auto", "fused", "foreach"] = "auto"
    """Implementation of the optimiser: one kernel for the whole update (fused), or one per operation (foreach). auto:
    fused if torch supports it."""
    lr: float | Literal["auto", "find"] = "auto"
    """Peak learning rate. auto: chosen by optimiser, model, starting weights and batch, and printed. find: measured on
    this data before the first step, by steps with a rising rate that are undone (the learning-rate range test)."""
    lr_scale: Literal["linear", "sqrt", "none"] | None = None
    """How the learning rate scales with the batch over all devices. Default: with --lr auto or --batch-size auto,
    linear for SGD and sqrt for AdamW; otherwise none."""
    lr_base_size: int | None = None
    """The batch size that --lr is meant for, with --lr-scale or --batch-size auto. Default: 256."""
    layer_decay: float | None = None
    """Multiply the learning rate by this factor for each block further from the classifier (0.65 to 0.9 for ViTs)."""
    momentum: float | None = None
    """Momentum of SGD (Nesterov), and of other optimisers that have one. Default: 0.9."""
    weight_decay: Annotated[float | None, arg(aliases=("--wd",))] = None
    """Weight decay, except for norms and biases. Default: 0.05 for AdamW, 5e-5 for SGD; the same for optimisers whose
    decay is like theirs, 0 for all others."""
    norm_weight_decay: float | None = None
    """Weight decay of norms and biases. Default: 0."""
    norm_lr_scale: float | None = None
    """Multiply the learning rate of norms by this; their weight decay per step does not change. Default: 1."""
    lookahead: int | None = None
    """Move the weights, and the running statistics of norms, back towards their running average every N steps, as in
    airbench (Lookahead). The average changes more slowly later in the run. Default: never."""
    clip_grad: float | None = None
    """Clip the gradient to this norm."""
    smoothing: Annotated[float, arg(aliases=("--label-smoothing",))] = 0.1
    """Label smoothing."""
    bce_loss: bool = False
    """The same as --loss bce."""
    loss: LossKind | None = None
    """The loss: softmax cross-entropy; binary cross-entropy, summed over classes (bce); focal loss, which emphasises
    hard samples; or asymmetric loss, which gives little weight to classes that a sample does not have. Default:
    cross-entropy."""
    focal_gamma: float | None = None
    """How much --loss focal lowers the loss of easy samples; 0 is cross-entropy. Default: 2."""
    class_weights: Annotated[str | None, arg(metavar="{balanced,effective,FILE}")] = None
    """Weigh the loss by class. balanced: by the inverse of its number of samples. effective: by the inverse of its
    effective number of samples with beta 0.999, which hardly grows beyond a few thousand. FILE: a csv of class,weight
    lines, or a json object. Weights are scaled so that their mean over the training samples is 1."""
    logit_adjust: Annotated[float | None, arg(metavar="TAU")] = None
    """Add TAU times the logarithm of each class's share of the samples to its logit in training, so that the model
    itself need not favour common classes; use 1 for balanced accuracy. Default: 0."""

    bce_pos_weight: Annotated[str | None, arg(metavar="X|balanced")] = None
    """Multiply the loss of a label by this where the label is present, for targets of several labels. balanced: for
    each label, the number of samples without it per sample with it. Default: 1."""
    targets: Annotated[str | None, arg(metavar="A,B")] = None
    """Which of the dataset's targets to train on; the model has outputs for each. Default: all of them."""
    target_weights: Annotated[str | None, arg(metavar="A=X,B=Y|uncertainty")] = None
    """Weights of the targets' losses. uncertainty: learn them, as in Kendall, Gal and Cipolla (2018). Default: 1
    each."""
    teacher: Annotated[str | None, arg(metavar="RUN|ARCH")] = None
    """Also learn from a trained model (distillation): a run or its URL, one of its checkpoints, or an architecture with
    --teacher-weights. It must have the same classes, and sees the same crops."""
    teacher_weights: Path | None = None
    """Weights of an architecture given as --teacher. Their classifier must have the dataset's classes in the same
    order."""
    kd_temperature: float | None = None
    """Temperature that softens the class probabilities of teacher and student. Default: 4."""
    kd_weight: float | None = None
    """Share of the teacher in the loss; the labels have the rest. Default: 0.5."""
    cache_teacher: Annotated[int | None, arg(metavar="K")] = None
    """Run the teacher once, over this many augmented views of each image, and keep its outputs; epochs use the views in
    turn. Default: the teacher runs in every step."""

    epochs: int | None = None
    """Number of passes over the training split. Default: 10."""
    duration: Annotated[str | None, arg(metavar="TIME")] = None
    """Length of the run, instead of --epochs: 16ep (epochs), 300ba (optimiser steps) or 100000sp (samples)."""
    max_time: Annotated[str | None, arg(metavar="TIME")] = None
    """End the run, with a checkpoint to resume from, this long after it was started: 90s, 30m or 2h. The run ends after
    a step, so leave time for that step, a validation and the checkpoint. Default: no limit."""
    sched: Literal["cosine", "linear", "step", "constant"] | None = None
    """Learning rate schedule. Default: cosine from scratch, linear when fine-tuning, constant with a schedule-free
    optimiser."""
    warmup: Annotated[str | None, arg(metavar="TIME")] = None
    """Linear warmup: 5ep, 300ba, 100000sp, or 0.1dur for a share of the run. Default: 0.05dur from scratch, 0.2dur when
    fine-tuning."""
    warmup_epochs: float | None = None
    """The same as --warmup, in epochs."""
    warmup_fraction: float | None = None
    """The same as --warmup, as a share of all steps."""
    warmup_lr: float | None = None
    """Learning rate that warmup rises from, scaled by the same factor as --lr. Default: 0."""
    min_lr: float | None = None
    """Final learning rate of the cosine and linear schedules, scaled by the same factor as --lr. Default: 0."""
    decay: Annotated[str | None, arg(metavar="TIME")] = None
    """Time between the drops of the step schedule: 30ep, 1000ba, 0.25dur. Default: a third of the run."""
    decay_epochs: float | None = None
    """The same as --decay, in epochs."""
    decay_rate: float | None = None
    """Factor by which the step schedule multiplies the learning rate. Default: 0.1."""

    amp: bool = True
    """Use mixed precision where it is faster: on GPUs, and on CPUs with bf16 instructions."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """Data type of mixed precision. auto: bf16 where the device supports it, else fp16 with a gradient scaler; on a GPU
    whose rates were measured, fp16 where that is more than 5% faster for models of this kind."""
    channels_last: bool = True
    """Use the channels-last memory format for convolutional models."""
    compile: Annotated[str | None, arg(metavar="[MODE]", alone="default", words=COMPILE_MODES)] = None
    """Compile the model with torch.compile before the first step, for every input size of the run. The modes are
    default, max-autotune-no-cudagraphs, and, with CUDA graphs, reduce-overhead and max-autotune. CUDA graphs need
    --grad-accum-steps 1 and no --strategy fsdp. --compile alone means default."""
    device: str = "auto"
    """The device: auto, cpu, cuda or cuda:N."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How the processes of torchrun share the work. ddp, auto: each holds the whole model. fsdp: each holds a shard of
    the weights, gradients and optimiser state (FSDP2)."""
    sync_bn: bool = False
    """Synchronise batch-norm statistics over all ranks."""
    grad_compression: Literal["bf16", "fp16"] | None = None
    """Exchange gradients between ranks as bf16 or fp16, which halves the bytes and rounds the values (the hooks
    bf16_compress_hook and fp16_compress_hook of DistributedDataParallel). Default: float32."""
    numa_binding: Literal["auto", "off"] = "auto"
    """Bind ranks to cores. auto: each rank runs on the cores of its GPU's NUMA node, which the ranks of that node share
    equally, unless taskset, numactl or torchrun --numa-binding have chosen its cores, or most cores would be idle."""

    backend: Literal["local", "ray"] = "local"
    """Where ranks run. local: in this process, or in those that torchrun started. ray: in workers of Ray Train, on the
    nodes of a Ray cluster that share a folder."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """The Ray cluster, or auto for the one that this machine belongs to. Default: RAY_ADDRESS, else auto."""
    num_workers: int | None = None
    """Number of ranks with --backend ray. Default: as many as the cluster has room for when training starts."""
    resources_per_worker: Annotated[str | None, arg(metavar="NAME=AMOUNT[,...]")] = None
    """What a rank takes of Ray's resources, such as gpu=1,cpu=8. Default: a GPU with its share of the node's cores;
    without GPUs, the cores of a node."""
    elastic: Annotated[str | None, arg(metavar="MIN:MAX")] = None
    """Start, and continue after a failure, with as many ranks from MIN to MAX as there is room for (with --backend ray,
    instead of --num-workers). Ranks that continue share a step's images evenly."""
    max_failures: int | None = None
    """How often training may continue from its last checkpoint after a worker is lost, with --backend ray. Default:
    3."""

    model_ema: bool = False
    """Validate and save an exponential moving average of the weights. Training itself continues from the weights."""
    model_ema_decay: float | None = None
    """Decay of the moving average; at step t at most (1 + t) / (10 + t). Default: 0.9998."""
    model_ema_steps: int = 1
    """Update the moving average every N steps, by N times as much (as in torchvision's references)."""
    tta: Annotated[Tta, arg(metavar="[VIEWS]", alone="mirror", words=TTA_VIEWS)] = False
    """Test-time augmentation in validation. mirror: the mean of the logits of each image and its mirror image.
    mirror-shift: half of that, plus half the mean of the same for the image shifted by a pixel up-left and down-right,
    as in airbench. --tta alone means mirror."""
    evaluate_training_set: bool = False
    """Also evaluate the training split at each validation, with validation crops."""

    output: Annotated[Path, arg(aliases=("-o",))] = Path("runs")
    """Folder of run directories, or its URL in an object store, which needs --name; checkpoints are uploaded while
    training continues."""
    name: str | None = None
    """Name of the run directory. Default: the names of the dataset and the model."""
    resume: Annotated[str | None, arg(metavar="[auto|RUN]", alone="auto")] = None
    """Continue an interrupted run: a run directory, its URL, or auto for the newest one of this data and model."""
    seed: int = 0
    """Seed of the weights, the order, the crops and augmentation."""
    deterministic: bool = False
    """Use only deterministic algorithms (on a CPU they all are)."""
    log: Annotated[tuple[str, ...], arg(metavar="TRACKER")] = ()
    """Also report to tensorboard, wandb or mlflow, or to several of them: curves, pictures of samples, settings, and
    where checkpoints are. The library's own environment variables apply."""
    log_interval: int = 20
    """Steps between progress lines and log records."""
    trace: Annotated[int | None, arg(metavar="[STEPS]", alone="10", words=(NUMBER,))] = None
    """Record a timeline of this many steps with torch's profiler, from the eleventh step on: the host's work, the
    loader's threads and, on a GPU, its kernels and copies. It is the run directory's trace.json.gz, which
    ui.perfetto.dev shows. With several ranks it is that of rank 0. --trace alone means 10 steps."""
    val_interval: int = 1
    """Epochs between validations, and between evaluations of the training split."""
    save_interval: Annotated[str, arg(metavar="TIME|STEPS")] = "10m"
    """Time between checkpoints within an epoch: 90s, 10m or 1h, or a number of steps. One is also written at the end of
    each epoch. Training continues while a checkpoint is written, except with --strategy fsdp."""
    checkpoint_hist: int = 1
    """Checkpoints to keep in addition to the best and the last."""
    patience: int | None = None
    """Stop after this many validations in a row without an improvement of --patience-metric. Validations before the end
    of --freeze-epochs, or before the crops of --progressive have grown, do not count."""
    patience_metric: Literal["loss", "top1", "balanced_accuracy"] | None = None
    """The validation metric that --patience watches. If accuracies are equal, the lower loss counts as better; a new
    best checkpoint always counts as an improvement. Default: loss, which may still fall while accuracy is constant."""
    metric: Annotated[str | None, arg(metavar="NAME")] = None
    """The validation metric that decides which checkpoint is the best, and that --patience watches: loss, top1, top5 or
    balanced_accuracy; for targets, with the target's name as in breed.top1, tags.map, tags.f1, age.mae, age.r2.
    Default: top-1 accuracy and --patience-metric for a single class target, else loss."""
    recipe: str | None = None
    """Start from the settings of a recipe, which files and flags override. `fastimg recipe list` shows all recipes."""
    config: Path | None = None
    """Read settings from this YAML file or its URL, such as the config.yaml of a run. Flags override it."""
    dry_run: bool = False
    """Print the effective configuration and exit."""
    verbose: bool = False
    """Print more: the loader's buffers and the size of the model."""
