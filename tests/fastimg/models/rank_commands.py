"""Commands that train with two ranks of torchrun on one machine."""

from pathlib import Path


def command(python: str, *arguments: str) -> list[str]:
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, "-m", "fastimg", *arguments]


def arguments(data: Path, output: Path, arch: str, batch_size: int) -> list[str]:
    """22 training and 5 validation images: neither number is a multiple of the batch, so both are padded."""
    flags = ["--arch", arch, "--img-size", "32", "-b", str(batch_size), "--epochs", "2", "--val-fraction", "0.2"]
    extra = ["--no-amp", "--log-interval", "1", "--workers", "1", "--lr", "1e-3", "--clip-grad", "1.0"]
    return ["train", str(data), *flags, *extra, "--output", str(output), "--name", "run"]
