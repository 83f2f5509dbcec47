# Written by scripts/signatures.py: do not edit.
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from fastimg import augment as augment
from fastimg import loaders as loaders
from fastimg.bench.benchmark import Measurement
from fastimg.convert.report import Report
from fastimg.inspect.images import Inspection
from fastimg.inspect.texts import TextInspection
from fastimg.predict.answering.predictor import Predictor
from fastimg.predict.answers import Answers
from fastimg.predict.embedding import Embedded
from fastimg.predict.ensemble import RunsEvaluation
from fastimg.predict.evaluation import Evaluation
from fastimg.predict.export import Exported
from fastimg.predict.target_evaluation import TargetEvaluation
from fastimg.search.leaderboard import Leaderboard
from fastimg.suggest.document import Advised
from fastimg.train.loop import Result

__version__: str

__all__ = ['augment', 'bench', 'convert', 'embed', 'eval', 'export', 'inspect', 'load', 'loaders', 'predict', 'search', 'suggest', 'train']

def bench(data: str | PathLike[str], *, quick: bool = False, full: bool = False, split: str = "train", arch: str | None = None, loader: Literal["auto", "native", "torch", "dali", "ffcv"] = "auto", loaders: str | None = None, stages: str = "all", batch_size: int | None = None, img_size: int | None = None, workers: str | int = "auto", workers_curve: str | None = None, images: int | None = None, repeats: int | None = None, decode: Literal["auto", "cpu", "gpu"] = "auto", amp: bool = True, channels_last: bool = True, device: str = "auto", no_advice: bool = False, tune: bool = False, scratch: str | PathLike[str] | None = None, seed: int = 0, output: str | PathLike[str] | None = None, overwrite: bool = False, scale: tuple[float, float] | None = None, ratio: tuple[float, float] | None = None, crop_padding: int | None = None, hflip: float | None = None, alternating_flip: bool = False, vflip: float | None = None, rotate: float | None = None, aa: str | None = None, brightness: tuple[float, float] | None = None, contrast: tuple[float, float] | None = None, saturation: tuple[float, float] | None = None, color_jitter: tuple[float, float, float] | None = None, hue: float | None = None, grayscale_prob: float | None = None, gaussian_blur_prob: float | None = None, solarize_prob: float | None = None, reprob: float | None = None, mixup: float | None = None, cutmix: float | None = None, no_aug: bool = False, augmentation: bool | list[str | dict[str, Any]] | None = None, kornia: list[dict[str, dict[str, Any]]] | None = None, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), progress: bool = False, model: str | None = None, data_backend: Literal["auto", "native", "torch", "dali", "ffcv"] = "auto", imgsz: int | None = None) -> Measurement:
    """Measure where the time goes, as `fastimg bench` does.

    `help(fastimg.bench)` describes each setting.
    """

def convert(src: str | PathLike[str] | Sequence[str | PathLike[str]], dst: str | PathLike[str], *, format: Literal["tar", "beton"] | None = None, append: bool = False, merge: bool = False, shard_size: str = "256MB", val_fraction: float = 0.0, shuffle: bool = False, no_shuffle: bool = False, seed: int = 0, classes: Literal["top", "leaf"] | None = None, key_dots: Literal["first", "last"] | None = None, image_member: str | None = None, label_member: str | None = None, path_column: str | None = None, text_column: str | None = None, label_column: str | None = None, target: Sequence[str] = (), label_delimiter: str | None = None, field: Sequence[str] = (), image_field: str | None = None, images: str | PathLike[str] | None = None, masks: Literal["semantic"] | None = None, split_column: str | None = None, no_header: bool = False, delimiter: str | None = None, labels_are_classes: bool = False, tile: str | int = "auto", max_size: int | None = None, quality: int | None = None, jpeg: Literal["keep", "reencode"] = "keep", recompress: str | None = None, raw_fraction: float | None = None, originals: Literal["keep", "drop", "refuse"] | None = None, compare: bool = False, workers: str | int = "auto", backend: Literal["local", "ray"] = "local", address: str | None = None, max_pixels: int = 89478485, on_error: Literal["skip", "fail"] = "skip", resume: bool = False, overwrite: bool = False, delete_first: bool = False, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), progress: bool = False, max_resolution: int | None = None) -> Report:
    """Turn images or texts into shards, as `fastimg convert` does.

    `help(fastimg.convert)` describes each setting.
    """

def embed(data: str | PathLike[str], dst: str | PathLike[str], *, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), arch: str | None = None, pretrained: bool = False, weights: str | PathLike[str] | None = None, model_kwargs: Sequence[str] = (), img_size: int | None = None, max_length: int | None = None, split: str | None = None, classes: Literal["top", "leaf"] | None = None, format: Literal["shards", "npy", "parquet"] = "shards", dtype: Literal["fp16", "fp32"] = "fp16", knn: int | None = None, workers: str | int = "auto", max_pixels: int = 89478485, on_error: Literal["skip", "fail"] = "skip", amp: bool | None = None, device: str = "auto", backend: Literal["local", "ray"] = "local", address: str | None = None, overwrite: bool = False, progress: bool = False, model: str | None = None, imgsz: int | None = None) -> Embedded | None:
    """Write the embedding of every image or text, as `fastimg embed` does.

    `help(fastimg.embed)` describes each setting.
    """

def eval(checkpoint: str | PathLike[str] | Sequence[str | PathLike[str]], data: str | PathLike[str], *, split: str | None = None, classes: Literal["top", "leaf"] | None = None, batch_size: int | None = None, loader: Literal["auto", "native", "torch", "dali", "ffcv"] = "auto", workers: str | int = "auto", on_error: Literal["skip", "fail"] | None = None, max_pixels: int | None = None, tta: bool | Literal["mirror", "mirror-shift"] = False, amp: bool | None = None, device: str = "auto", cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), output: str | PathLike[str] | None = None, overwrite: bool = False, progress: bool = False, data_backend: Literal["auto", "native", "torch", "dali", "ffcv"] = "auto") -> Evaluation | TargetEvaluation | RunsEvaluation:
    """Evaluate a checkpoint, or several, as `fastimg eval` does.

    `help(fastimg.eval)` describes each setting.
    """

def export(checkpoint: str | PathLike[str], *, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), format: Literal["safetensors", "onnx", "pt2"] | None = None, output: str | PathLike[str] | None = None, with_preprocessing: bool = False, check: bool = False, check_data: str | PathLike[str] | None = None, overwrite: bool = False) -> Exported:
    """Write a checkpoint as one file for other programs, as `fastimg export` does.

    `help(fastimg.export)` describes each setting.
    """

def inspect(data: str | PathLike[str], *, scale: tuple[float, float] | None = None, ratio: tuple[float, float] | None = None, crop_padding: int | None = None, hflip: float | None = None, alternating_flip: bool = False, vflip: float | None = None, rotate: float | None = None, aa: str | None = None, brightness: tuple[float, float] | None = None, contrast: tuple[float, float] | None = None, saturation: tuple[float, float] | None = None, color_jitter: tuple[float, float, float] | None = None, hue: float | None = None, grayscale_prob: float | None = None, gaussian_blur_prob: float | None = None, solarize_prob: float | None = None, reprob: float | None = None, mixup: float | None = None, cutmix: float | None = None, no_aug: bool = False, augmentation: bool | list[str | dict[str, Any]] | None = None, kornia: list[dict[str, dict[str, Any]]] | None = None, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), split: str | None = None, classes: Literal["top", "leaf"] | None = None, headers_only: bool = False, no_pictures: bool = False, samples: int | None = None, draw_fields: str | None = None, img_size: int | None = None, config: str | PathLike[str] | None = None, output: str | PathLike[str] | None = None, overwrite: bool = False, workers: str | int = "auto", max_pixels: int = 89478485, seed: int = 0, progress: bool = False, imgsz: int | None = None) -> Inspection | TextInspection:
    """Look at a dataset, as `fastimg inspect` does.

    `help(fastimg.inspect)` describes each setting.
    """

def load(checkpoint: str | PathLike[str], *, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), batch_size: int | None = None, workers: str | int = "auto", max_pixels: int = 89478485, tta: bool | Literal["mirror", "mirror-shift"] = False, amp: bool | None = None, device: str = "auto") -> Predictor:
    """Load a checkpoint's model once, for a program that predicts again and again.

    `help(fastimg.load)` describes each setting.
    """

def predict(checkpoint: str | PathLike[str], sources: str | PathLike[str] | Sequence[str | PathLike[str]] = (), *, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), text: Sequence[str] = (), topk: int = 5, threshold: float | None = None, batch_size: int | None = None, workers: str | int = "auto", max_pixels: int = 89478485, tta: bool | Literal["mirror", "mirror-shift"] = False, amp: bool | None = None, device: str = "auto", sheet: str | PathLike[str] | None = None, overwrite: bool = False, progress: bool = False) -> Answers:
    """Classify images, or texts, with a checkpoint, as `fastimg predict` does.

    `help(fastimg.predict)` describes each setting.
    """

def search(data: str | PathLike[str], *, param: Sequence[str] = (), trials: int | None = None, max_time: str | None = None, arch: str | None = None, weights: Sequence[str] = (), algorithm: Literal["tpe", "random", "grid", "gp"] = "tpe", pruner: Literal["hyperband", "median", "none"] | None = None, metric: str | None = None, objective: str = "accuracy", storage: str | None = None, output: str | PathLike[str] | None = None, keep: Literal["best", "all"] = "best", config: str | PathLike[str] | None = None, device: str = "auto", jobs: int | None = None, backend: Literal["local", "ray"] = "local", address: str | None = None, resources_per_trial: str | None = None, limit_gpu_memory: bool = False, seed: int = 0, train: Mapping[str, Any] | None = None, progress: bool = False, model: str | None = None) -> Leaderboard:
    """Find the best settings for a dataset, as `fastimg search` does.

    `help(fastimg.search)` describes each setting.
    """

def suggest(data: str | PathLike[str], *, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), max_time: str | None = None, arch: str | None = None, weights: str | PathLike[str] | None = None, model_kwargs: Sequence[str] = (), classes: Literal["top", "leaf"] | None = None, device: str = "auto", workers: str | int = "auto", output: str | PathLike[str] = 'suggested.yaml', overwrite: bool = False, progress: bool = False, model: str | None = None) -> Advised:
    """Look at a dataset and this machine, and write a configuration for `train`, as `fastimg suggest` does.

    `help(fastimg.suggest)` describes each setting.
    """

def train(data: str | PathLike[str] | None = None, *, arch: str | None = None, text_arch: str | None = None, combiner: Literal["concat", "gated"] | None = None, pretrained: bool = False, weights: str | PathLike[str] | None = None, num_classes: int | None = None, freeze: str | int | None = None, freeze_epochs: int | None = None, head_init: Literal["xavier", "he", "zeros"] | None = None, head: Literal["linear", "mlp"] = "linear", head_hidden: int | None = None, cache_embeddings: str | int | None = None, cache_dtype: Literal["fp16", "fp32"] | None = None, cache_dir: str | PathLike[str] | None = None, cache_limit: str | None = None, storage_option: Sequence[str] = (), drop_path: float | None = None, ghost_bn: int | None = None, in_chans: int | None = None, image_field: str | None = None, depth: int | None = None, blurpool: bool = False, model_kwargs: Mapping[str, Any] | Sequence[str] = (), classes: Literal["top", "leaf"] | None = None, train_split: str = "train", val_split: str | None = None, val_fraction: float | None = None, fold: str | None = None, group: str | None = None, stratify: bool = False, order: Literal["random", "quasi-random", "sequential"] | None = None, sampler: str | None = None, order_window: int | None = None, loader: Literal["auto", "native", "torch", "dali", "ffcv", "synthetic"] = "auto", resident: bool = False, workers: str | int = "auto", profile: str | None = None, prefetch: int | None = None, decode: Literal["auto", "cpu", "gpu"] = "auto", augment_stream: Literal["auto", "own", "step"] = "auto", dct_scaling: Literal["auto", "low", "eighths", "off"] = "auto", on_error: Literal["skip", "fail"] | None = None, max_pixels: int | None = None, max_length: int | None = None, img_size: int | None = None, train_crop_size: int | None = None, val_crop_size: int | None = None, val_resize_size: int | None = None, crop_pct: float | None = None, interpolation: Literal["bilinear", "bicubic"] | None = None, mean: Sequence[str] | None = None, std: Sequence[str] | None = None, progressive: str | None = None, progressive_epochs: str | None = None, scale: tuple[float, float] | None = None, ratio: tuple[float, float] | None = None, crop_padding: int | None = None, hflip: float | None = None, alternating_flip: bool = False, vflip: float | None = None, rotate: float | None = None, aa: str | None = None, brightness: tuple[float, float] | None = None, contrast: tuple[float, float] | None = None, saturation: tuple[float, float] | None = None, color_jitter: tuple[float, float, float] | None = None, hue: float | None = None, grayscale_prob: float | None = None, gaussian_blur_prob: float | None = None, solarize_prob: float | None = None, reprob: float | None = None, mixup: float | None = None, cutmix: float | None = None, no_aug: bool = False, augmentation: bool | list[str | dict[str, Any]] | None = None, kornia: list[dict[str, dict[str, Any]]] | None = None, batch_size: int | Literal["auto"] | None = None, grad_accum_steps: int = 1, grad_checkpointing: bool = False, opt: str = "adamw", opt_kwargs: Mapping[str, Any] | Sequence[str] = (), opt_eps: float | None = None, opt_betas: Sequence[str] | None = None, opt_impl: Literal["auto", "fused", "foreach"] = "auto", lr: float | Literal["auto", "find"] = "auto", lr_scale: Literal["linear", "sqrt", "none"] | None = None, lr_base_size: int | None = None, layer_decay: float | None = None, momentum: float | None = None, weight_decay: float | None = None, norm_weight_decay: float | None = None, norm_lr_scale: float | None = None, lookahead: int | None = None, clip_grad: float | None = None, smoothing: float = 0.1, bce_loss: bool = False, loss: Literal["cross-entropy", "bce", "focal", "asymmetric"] | None = None, focal_gamma: float | None = None, class_weights: str | None = None, logit_adjust: float | None = None, bce_pos_weight: str | None = None, targets: str | None = None, target_weights: str | None = None, teacher: str | None = None, teacher_weights: str | PathLike[str] | None = None, kd_temperature: float | None = None, kd_weight: float | None = None, cache_teacher: int | None = None, epochs: int | None = None, duration: str | None = None, max_time: str | None = None, sched: Literal["cosine", "linear", "step", "constant"] | None = None, warmup: str | None = None, warmup_epochs: float | None = None, warmup_fraction: float | None = None, warmup_lr: float | None = None, min_lr: float | None = None, decay: str | None = None, decay_epochs: float | None = None, decay_rate: float | None = None, amp: bool = True, amp_dtype: Literal["auto", "bf16", "fp16"] = "auto", channels_last: bool = True, compile: bool | str | None = None, device: str = "auto", strategy: Literal["auto", "ddp", "fsdp"] = "auto", sync_bn: bool = False, grad_compression: Literal["bf16", "fp16"] | None = None, numa_binding: Literal["auto", "off"] = "auto", backend: Literal["local", "ray"] = "local", address: str | None = None, num_workers: int | None = None, resources_per_worker: str | None = None, elastic: str | None = None, max_failures: int | None = None, model_ema: bool = False, model_ema_decay: float | None = None, model_ema_steps: int = 1, tta: bool | Literal["mirror", "mirror-shift"] = False, evaluate_training_set: bool = False, output: str | PathLike[str] = 'runs', name: str | None = None, resume: bool | str | None = None, seed: int = 0, deterministic: bool = False, log: Sequence[str] = (), log_interval: int = 20, trace: int | None = None, val_interval: int = 1, save_interval: str | int = "10m", checkpoint_hist: int = 1, patience: int | None = None, patience_metric: Literal["loss", "top1", "balanced_accuracy"] | None = None, metric: str | None = None, recipe: str | None = None, config: str | PathLike[str] | None = None, dry_run: bool = False, verbose: bool = False, progress: bool = False, model: str | None = None, data_backend: Literal["auto", "native", "torch", "dali", "ffcv", "synthetic"] = "auto", imgsz: int | None = None, wd: float | None = None, label_smoothing: float = 0.1) -> Result:
    """Train a classifier, as `fastimg train` does.

    `help(fastimg.train)` describes each setting.
    """
