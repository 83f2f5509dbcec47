"""One training step without the trainer: augment, forward, loss, backward, optimiser."""

import torch
import torch.nn.functional as F
from torch import nn

from fastimg.augment import Plan, Policy, apply
from fastimg.loaders import Batch
from fastimg.models.precision import Precision
from fastimg.models.registry import build
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.optimisers.construction import build_optimizer


class Stepper:
    """A model with random weights and its optimiser. `stepper(images, targets)` takes a step and returns the loss.

    `channels_last=None` does as the trainer does: on for convolutional models.
    """

    def __init__(
        self,
        arch: str,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
        channels_last: bool | None = None,
        size: int | None = None,
        classes: int = 1000,
    ) -> None:
        torch.manual_seed(0)
        model = build(arch, classes, img_size=size)
        layout = model.convolutional if channels_last is None else channels_last
        self.memory_format = torch.channels_last if layout else torch.contiguous_format
        self.module: nn.Module = model.module.to(device, memory_format=self.memory_format)
        self.precision = Precision(device.type, None if dtype == torch.float32 else dtype, "as measured")
        self.policy = Policy(hflip=0.5, mean=model.preprocessing.mean, std=model.preprocessing.std)
        self.optimizer = build_optimizer(self.module, "sgd", lr=0.01, weight_decay=1e-4, momentum=0.9)
        self.scaler = self.precision.scaler()
        self._stream = AugmentStream(device)

    def __call__(self, images: torch.Tensor, targets: torch.Tensor, plan: Plan | None = None) -> torch.Tensor:
        """uint8 images [B, 3, H, W], targets [B] on the device -> the loss, a scalar on the device."""
        return self._settled(self.backward(images, targets, plan))

    def _settled(self, loss: torch.Tensor) -> torch.Tensor:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def beside(self, batch: Batch, plan: Plan) -> torch.Tensor:
        """A step on a loader's batch, with its augmentation running beside the previous step, as in the trainer."""
        with self._stream.step(batch):
            inputs = self.augmented(batch.inputs, plan)
        self._stream.keep(batch, inputs)
        return self._settled(self.gradients(inputs, batch.targets))

    def backward(self, images: torch.Tensor, targets: torch.Tensor, plan: Plan | None = None) -> torch.Tensor:
        """The first half of a step: gradients, scaled if the precision requires it."""
        return self.gradients(self.augmented(images, plan), targets)

    def augmented(self, images: torch.Tensor, plan: Plan | None) -> torch.Tensor:
        """The model's input."""
        inputs = apply(plan, images, self.policy, self.precision.input_dtype)
        return inputs.contiguous(memory_format=self.memory_format)

    def gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The gradients of the loss; returns the loss."""
        with self.precision.autocast():
            logits = self.module(inputs)
        loss = F.cross_entropy(logits.float(), targets)
        self.scaler.scale(loss).backward()
        return loss.detach()
