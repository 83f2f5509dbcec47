"""What `train` takes: the model and its data, augmentation, and the training itself.

None means "chosen for you"; what was chosen is printed and written down. Nothing here imports torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Fixed, FlagCreatePairsOff, Positional, Suppress, arg

from . import flag_types as flagtypes

HF_PREFIX = "hf:"  # what the names of Hugging Face's text encoders begin with
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is trained, on what, at which size: the first flags of `train`."""

    data: Positional[Annotated[Path | None, arg(metavar="DATA", help_behavior_hint="")]] = None
    """Shards made by `fastimg convert`, or an image folder. Left out: the dataset in the current directory, else the
    embedded digits."""

    arch: Annotated[str | None, arg(aliases=["-a", "--model"], metavar="NAME", help_behavior_hint="")] = None
    """Any timm model, torchvision's as torchvision/NAME, or for texts Hugging Face's encoders as hf:NAME or hf:FOLDER,
    which come with their weights. Default: the one that --weights state, else resnet50."""
    pretrained: bool = False
    """Start from the model's published weights (downloaded)."""
    weights: flagtypes.File = None
    """Start from the weights of a run, of one of its checkpoints, or in a file: safetensors, or a checkpoint of plain
    tensors. Architecture, arguments and preprocessing that they state are taken where no flag says otherwise."""
    num_classes: flagtypes.Int = None
    """Outputs of the model. Default: as many as the dataset has classes."""
    freeze: Annotated[str | None, arg(metavar="{backbone,N}", help_behavior_hint="")] = None
    """backbone: train only the classifier; a number: the first N blocks of the model (its stem is the first) keep their
    weights. What is frozen keeps its batch-norm statistics too."""
    freeze_epochs: flagtypes.Int = None
    """Gradual unfreezing: --freeze holds for this many epochs, then everything trains; see --layer-decay."""
    head_init: Annotated[
        Literal["xavier", "he", "zeros"] | None, arg(metavar="{xavier,he,zeros}", help_behavior_hint="")
    ] = None
    """How a new classifier on a trained trunk begins: at zero, or random after Glorot or He. Default: zeros, which won
    wherever it was measured (benchmarks/heads.py)."""
    head: Literal["linear", "mlp"] = "linear"
    """The classifier: one linear layer, or two with batch norm and GELU between them."""
    head_hidden: flagtypes.Int = None
    """Units between the layers of --head mlp. Default: 512."""
    cache_embeddings: Annotated[str | None, arg(metavar="{K,off}", help_behavior_hint="")] = None
    """With --freeze backbone: run the frozen encoder once over the dataset, and train on the kept embeddings. K: on so
    many augmented views of each image, one an epoch in turn. off: run the encoder in every epoch. Default: once where
    nothing is augmented, off where something is."""
    cache_dtype: Annotated[Literal["fp16", "fp32"] | None, arg(metavar="{fp16,fp32}", help_behavior_hint="")] = None
    """What cached embeddings are kept in. Default: fp16."""
    cache_dir: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where tokens and embeddings are kept. Default: .fastimg in a converted dataset that can be written to, else the
    user's cache directory."""
    drop_path: flagtypes.Float = None
    """Stochastic depth rate, for models that have it."""
    ghost_bn: flagtypes.Int = None
    """Batch norms take their statistics over so many images at a time, a divisor of the batch (ghost batch norm)."""
    blurpool: bool = False
    """Blur before strided convolutions of 16 channels and more, and in max pooling (BlurPool)."""
    model_kwargs: tuple[str, ...] = ()
    """Further arguments of the model, as name=value."""

    classes: Annotated[Literal["top", "leaf"] | None, arg(metavar="{top,leaf}", help_behavior_hint="")] = None
    """Of a folder of class folders: which folder names the class of a file, the topmost (top), or the one that it lies
    in (leaf), folders of one name being one class. Default: top, and a line says so where the two differ."""
    train_split: str = "train"
    """The split to train on."""
    val_split: flagtypes.Str = None
    """The split to validate on. Default: val, else test, else --val-fraction of the training split."""
    val_fraction: flagtypes.Float = None
    """Where there is no validation split, hold out this share of the training split (default 0.1; 0: no validation)."""
    order: Literal["random", "quasi-random", "sequential"] = "random"
    """Of training images in each epoch. quasi-random: for shards larger than memory; images that lie together are read
    together, and batches are drawn from a window of them. sequential: as they are stored, every time."""
    order_window: flagtypes.Int = None
    """Images in the window of --order quasi-random. The page cache should hold one and a half windows. Default:
    32768."""
    loader: Annotated[
        Literal["auto", "native", "torch", "dali", "ffcv", "synthetic"], arg(aliases=["--data-backend"])
    ] = "auto"
    """What reads and decodes: fastimg's own loader (native, auto), PyTorch's DataLoader with Pillow and torchvision,
    NVIDIA DALI, FFCV (.beton only), or synthetic: random pixels on the device, which shows the fastest that training
    could be."""
    workers: Annotated[str, arg(aliases=["-j"])] = "auto"
    """Threads that decode images, processes with --loader torch: a number, or auto for this process's share of the
    cores."""
    profile: Annotated[str | None, arg(metavar="[auto|PATH]", help_behavior_hint="")] = None
    """Take the number of workers, the slots, the stream that augments and the batch of --batch-size auto from a profile
    of this machine, which `fastimg bench DATA --tune` writes, where no flag sets them. --profile alone reads the
    default place in the user's cache directory."""
    prefetch: flagtypes.Int = None
    """Batches held in host memory. Default: 3."""
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    """Where fastimg's own loader decodes JPEGs. gpu: by nvImageCodec, from the extra `gpu`, whose pixels differ a
    little from the CPU's. auto: cpu."""
    augment_stream: Literal["auto", "own", "step"] = "auto"
    """On a GPU, the CUDA stream that augments: its own, beside the step before, or the step's. auto: own."""
    dct_scaling: Literal["auto", "off"] = "auto"
    """auto: a training crop of at least twice the output's size is decoded at 1/2, 1/4 or 1/8 where the JPEG is tiled
    and the CPU decodes: faster, and a little other pixels. Validation never does."""
    on_error: Annotated[Literal["skip", "fail"] | None, arg(metavar="{skip,fail}", help_behavior_hint="")] = None
    """What to do with an image that cannot be decoded: leave it out of the loss, counted and named, or stop. Default:
    skip."""
    max_pixels: flagtypes.Int = None
    """Images with more pixels than this are not decoded. Default: 89478485."""

    max_length: flagtypes.Int = None
    """Tokens that a text is cut to. Default: the model's own."""
    img_size: Annotated[int | None, arg(aliases=["--imgsz"], metavar="INT", help_behavior_hint="")] = None
    """Side of the model's square input in pixels, for training and validation. Default: the model's own."""
    train_crop_size: flagtypes.Int = None
    """Side of the training input, where it differs."""
    val_crop_size: flagtypes.Int = None
    """Side of the validation input, where it differs."""
    val_resize_size: flagtypes.Int = None
    """Shorter side that validation images are resized to before the centre crop. Default: val crop / crop-pct."""
    crop_pct: flagtypes.Float = None
    """Share of the resized image's side that the centre crop keeps. Default: the model's own."""
    interpolation: Annotated[
        Literal["bilinear", "bicubic"] | None, arg(metavar="{bilinear,bicubic}", help_behavior_hint="")
    ] = None
    """Filter of the antialiased resize. Default: the model's own."""
    mean: flagtypes.Triple = None
    """Mean of the input channels, 0 to 1. Default: the model's own."""
    std: flagtypes.Triple = None
    """Standard deviation of the input channels. Default: the model's own."""
    progressive: Annotated[str | None, arg(metavar="A:B", help_behavior_hint="")] = None
    """Progressive resizing: training crops grow from A to B pixels in steps of 32, as 160:192; see
    --progressive-epochs."""
    progressive_epochs: Annotated[str | None, arg(metavar="E:F", help_behavior_hint="")] = None
    """Crops have size A up to epoch E, and size B from epoch F. Default: 70 % and 85 % of the epochs."""


@dataclass(frozen=True, kw_only=True)
class Augmenting:
    """What happens to training images: the flags that `train` and `inspect` share."""

    scale: flagtypes.Pair = None
    """Smallest and largest share of the image's area in a training crop. Default: 0.08 1."""
    ratio: flagtypes.Pair = None
    """Smallest and largest aspect ratio of a training crop. Default: 0.75 1.3333."""
    hflip: flagtypes.Float = None
    """Probability of a horizontal flip. Default: 0.5."""
    vflip: flagtypes.Float = None
    """Probability of a vertical flip. Default: 0."""
    rotate: flagtypes.Float = None
    """Turn by up to this many degrees to either side. Default: 0."""
    aa: Annotated[
        Literal["trivial", "ta_wide", "none"] | None, arg(metavar="{trivial,none}", help_behavior_hint="")
    ] = None
    """trivial (ta_wide): TrivialAugmentWide, one of 14 operations at one of 31 strengths for each image. Default:
    none."""
    brightness: flagtypes.Pair = None
    """Smallest and largest factor of brightness; 1 changes nothing. Default: 1 1."""
    contrast: flagtypes.Pair = None
    """Smallest and largest factor of contrast. Default: 1 1."""
    saturation: flagtypes.Pair = None
    """Smallest and largest factor of saturation. Default: 1 1."""
    color_jitter: flagtypes.Triple = None
    """Brightness, contrast and saturation by torchvision's strengths: x is a factor from max(0, 1 - x) to 1 + x."""
    reprob: flagtypes.Float = None
    """Probability that a rectangle of the image is erased. Default: 0."""
    mixup: flagtypes.Float = None
    """Mix each image with another of its batch; the share is drawn from Beta(x, x). The training accuracy that is shown
    is then that of the class with the larger share. Default: 0, for never."""
    cutmix: flagtypes.Float = None
    """Put a rectangle of another image of the batch into each. With --mixup each image takes one of the two."""
    no_aug: FlagCreatePairsOff[bool] = False
    """Train on the same resized centre crops that validation sees."""
    augmentation: Fixed[Suppress[bool | list[str | dict[str, Any]] | None]] = None  # in YAML alone, as Ludwig has it
    kornia: Fixed[Suppress[list[dict[str, dict[str, Any]]] | None]] = None  # in YAML alone: class name -> arguments


@dataclass(frozen=True, kw_only=True)
class Train(Augmenting, Inputs):
    """Train an image classifier. Start it with torchrun to train data-parallel."""

    batch_size: Annotated[int | Literal["auto"], arg(aliases=["-b"], metavar="INT|auto")] = 64
    """Images per step on each device. auto: doubled from a small start, with this loader and model, as long as it is
    faster and fits; at most a fifth of the dataset."""
    grad_accum_steps: int = 1
    """Batches whose gradients are added up before the optimiser steps."""
    grad_checkpointing: bool = False
    """Keep only the inputs of the model's blocks for the backward pass, and compute the rest again: less memory, about
    a third more time, the same result."""

    opt: Literal["adamw", "sgd"] = "adamw"
    """Optimiser."""
    opt_impl: Literal["auto", "fused", "foreach"] = "auto"
    """One kernel for all parameters and the whole update, or one for each operation. auto: fused where torch has it."""
    lr: Annotated[float | Literal["auto"], arg(metavar="FLOAT|auto")] = "auto"
    """Peak learning rate. auto: by optimiser, model, starting weights and batch; printed."""
    lr_scale: Annotated[
        Literal["linear", "sqrt", "none"] | None, arg(metavar="{linear,sqrt,none}", help_behavior_hint="")
    ] = None
    """How the learning rate follows the batch over all devices. Default: linear for SGD and sqrt for AdamW with --lr
    auto or --batch-size auto, else none."""
    lr_base_size: flagtypes.Int = None
    """The batch that --lr is for. Default: 256."""
    layer_decay: flagtypes.Float = None
    """Each block of the model learns at this share of the rate of the block above it (0.65 to 0.9 for ViTs)."""
    momentum: flagtypes.Float = None
    """Momentum of SGD (Nesterov). Default: 0.9."""
    weight_decay: Annotated[float | None, arg(aliases=["--wd"], metavar="FLOAT", help_behavior_hint="")] = None
    """Weight decay, not on norms and biases. Default: 0.05 for AdamW, 5e-5 for SGD."""
    norm_weight_decay: flagtypes.Float = None
    """Weight decay of norms and biases. Default: 0."""
    clip_grad: flagtypes.Float = None
    """Clip the gradient to this norm."""
    smoothing: Annotated[float, arg(aliases=["--label-smoothing"])] = 0.1
    """Label smoothing."""
    bce_loss: bool = False
    """Binary cross-entropy of each class, summed over classes, instead of softmax cross-entropy."""

    epochs: flagtypes.Int = None
    """Passes over the training split. Default: 10."""
    duration: Annotated[str | None, arg(metavar="TIME", help_behavior_hint="")] = None
    """Instead of --epochs: 16ep (epochs), 300ba (optimiser steps) or 100000sp (samples)."""
    sched: Annotated[
        Literal["cosine", "linear", "step", "constant"] | None,
        arg(metavar="{cosine,linear,step,constant}", help_behavior_hint=""),
    ] = None
    """How the learning rate falls, step by step. Default: cosine from scratch, linear when fine-tuning."""
    warmup: Annotated[str | None, arg(metavar="TIME", help_behavior_hint="")] = None
    """Linear warmup: 5ep, 300ba, 100000sp, or 0.1dur for a share of the run. Default: 0.05dur from scratch, 0.2dur when
    fine-tuning."""
    warmup_epochs: flagtypes.Float = None
    """The same as --warmup, in epochs."""
    warmup_fraction: flagtypes.Float = None
    """The same as --warmup, as a share of all steps."""
    min_lr: flagtypes.Float = None
    """Where cosine and linear schedules end. Default: 0."""
    decay: Annotated[str | None, arg(metavar="TIME", help_behavior_hint="")] = None
    """Time between the drops of the step schedule: 30ep, 1000ba, 0.25dur. Default: a third of the run."""
    decay_epochs: flagtypes.Float = None
    """The same as --decay, in epochs."""
    decay_rate: flagtypes.Float = None
    """Factor of each drop of the step schedule. Default: 0.1."""

    amp: bool = True
    """Mixed precision where the device gains by it: GPUs, and CPUs with bf16 instructions."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """Type of mixed precision. auto: bf16 where the device has it, else fp16 with a gradient scaler."""
    channels_last: bool = True
    """Keep convolutional models in channels-last memory."""
    compile: Annotated[str | None, arg(metavar="[MODE]", help_behavior_hint="")] = None
    """Compile the model with torch.compile before the first step, for every size that it will see: default,
    reduce-overhead, max-autotune or max-autotune-no-cudagraphs. --compile alone is default."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes (torchrun) share the work. ddp, auto: each has the whole model. fsdp: each keeps a part of
    weights, gradients and optimiser state (FSDP2)."""
    sync_bn: bool = False
    """Share batch-norm statistics over all ranks."""

    model_ema: bool = False
    """Validate and save the exponential moving average of the weights over steps; training goes on from the weights
    themselves."""
    model_ema_decay: flagtypes.Float = None
    """Share of the average that a step keeps, once warm: at step t at most (1 + t) / (10 + t). Default: 0.9998."""
    tta: bool = False
    """Validate with the mean of the logits of each image and its mirror image."""
    evaluate_training_set: bool = False
    """With each validation, evaluate the training split too, cut like validation's."""

    output: Annotated[Path, arg(aliases=["-o"])] = Path("runs")
    """Folder of run directories."""
    name: flagtypes.Str = None
    """Name of the run directory. Default: made of the dataset and the model."""
    resume: flagtypes.Str = None
    """Go on with an interrupted run: a run directory, or auto for the newest one of this data and model."""
    seed: int = 0
    """Seed of weights, order, crops and augmentation."""
    deterministic: bool = False
    """Allow only deterministic algorithms (on a CPU they all are)."""
    log_interval: int = 20
    """Steps between progress lines and log records."""
    val_interval: int = 1
    """Epochs between validations."""
    save_interval: int = 200
    """Steps between checkpoints within an epoch; one is also made at the end of each."""
    checkpoint_hist: int = 1
    """Checkpoints to keep beside the best and the last."""
    patience: flagtypes.Int = None
    """Stop after this many validations in a row without a better one, by --patience-metric. Those before the end of
    --freeze-epochs, or before crops have grown with --progressive, do not count."""
    patience_metric: Annotated[
        Literal["loss", "top1", "balanced_accuracy"] | None,
        arg(metavar="{loss,top1,balanced_accuracy}", help_behavior_hint=""),
    ] = None
    """What --patience watches in validation; where an accuracy ties, the lower loss is better, and a new best
    checkpoint always is. Default: loss, which still falls where accuracy, a count of whole images, stands still."""
    recipe: flagtypes.Str = None
    """Start from a recipe's settings, which files and flags overrule; `fastimg recipe list` names them."""
    config: flagtypes.File = None
    """Read settings from this YAML file, such as a run's config.yaml; flags win."""
    dry_run: bool = False
    """Print the effective configuration and stop."""
    verbose: bool = False
    """Print more: the loader's slots and their bytes, the model's size."""
