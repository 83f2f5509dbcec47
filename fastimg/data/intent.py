"""What a training is asked to be, before its model is built: which architecture, from which start, on which pixels."""

from fastimg.config.commands import Train
from fastimg.models.text_encoder import PREFIX

from . import augmentation

ARCH = "resnet50"  # where nothing is said, nor stated by weights


def plain(config: Train) -> bool:
    """Whether training sees what validation sees: texts, as told, or with a frozen backbone and no augmentation."""
    return config.no_aug or reads_text(config) or (head_alone(config) and not augmentation.asked(config))


def reads_text(config: Train) -> bool:
    """Whether the model is a text encoder."""
    return architecture(config).startswith(PREFIX)


def architecture(config: Train) -> str:
    """The model's name, where what its weights state was adopted."""
    return config.arch or ARCH


def tuned(config: Train) -> bool:
    """Whether training starts from trained weights."""
    return config.pretrained or config.weights is not None or reads_text(config)


def head_alone(config: Train) -> bool:
    """Whether nothing but the classifier ever trains."""
    return config.freeze == "backbone" and config.freeze_epochs is None
