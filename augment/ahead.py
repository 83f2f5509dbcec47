"""What applying a plan takes, worked out before it is applied: by any thread, and sent to the device with the batch.

    plan = work_out(draw(policy, keys, seed, epoch), height, width, device)    a thread
    write(plan, words)                                                         into memory that is copied with the batch
    apply(sent(plan, words on the device), images)                             the trainer: nothing is sent any more

A plan that was not worked out, or for another size, gives the same bits.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from .backends import backend_of
from .mixing import words_of as mixing_words
from .plan import Ahead, MixingAhead, Plan

_ALIGN = 64  # words: kernels are compiled for the alignment of memory that the allocator gives


def work_out(plan: Plan, height: int, width: int, device: torch.device) -> Plan:
    """The same plan, with what `apply` needs of it for images of this size on `device`.

    Raises ValueError for sides above 8,192 pixels.
    """
    first, *others = (_worked_out(stage, height, width, device) for stage in plan.stages)
    then = tuple(replace(stage, ahead=ahead) for stage, ahead in zip(plan.then, others, strict=True))
    mixing = plan.mixing
    if mixing is not None:
        ahead = MixingAhead(mixing, height, width, mixing_words(mixing, height, width))
        mixing = replace(mixing, ahead=ahead)
    return replace(plan, ahead=first, then=then, mixing=mixing)


def _worked_out(stage: Plan, height: int, width: int, device: torch.device) -> Ahead:
    ahead = Ahead(stage, height, width, stage.sized(height, width))
    if backend_of(device) != "fused":
        return ahead
    from . import fused  # Triton is slow to import, and not needed on a CPU

    return replace(ahead, launch=fused.work_out(stage, height, width))


def words_of(plan: Plan) -> list[torch.Tensor]:
    """int32 [B, k] for each stage, and for mixing: what kernels of a GPU read of a plan that is worked out.

    None for a CPU.
    """
    ahead = [stage.ahead for stage in (plan, *plan.then)]
    words = [each.launch.words for each in ahead if each is not None and each.launch is not None]
    if words and plan.mixing is not None and plan.mixing.ahead is not None:
        words.append(plan.mixing.ahead.words)
    return words


def count_words(plan: Plan) -> int:
    """The number of words that `write` takes: the same for all plans of a policy, a size and a number of images."""
    return sum(_room(words) for words in words_of(plan))


def write(plan: Plan, words: npt.NDArray[np.int32]) -> None:
    """Write the plan's words to host memory [n], n >= `count_words`."""
    start = 0
    for each in words_of(plan):
        words[start : start + each.numel()] = each.numpy().ravel()
        start += _room(each)


def sent(plan: Plan, words: torch.Tensor) -> Plan:
    """The plan with its words [n], as `write` wrote them, on the device. They must stay there until it is applied."""
    there = {}  # by the words on the host
    start = 0
    for host in words_of(plan):
        there[id(host)] = words[start : start + host.numel()].view(host.shape)
        start += _room(host)
    ahead = []
    for stage in (plan, *plan.then):
        assert stage.ahead is not None, "a plan that was not worked out"
        launch = stage.ahead.launch
        ahead.append(stage.ahead if launch is None else replace(stage.ahead, sent=there[id(launch.words)]))
    first, *others = ahead
    then = tuple(replace(stage, ahead=ahead) for stage, ahead in zip(plan.then, others, strict=True))
    mixing = plan.mixing
    if mixing is not None and mixing.ahead is not None:
        mixing = replace(mixing, ahead=replace(mixing.ahead, sent=there.get(id(mixing.ahead.words))))
    return replace(plan, ahead=first, then=then, mixing=mixing)


def _room(words: torch.Tensor) -> int:
    return -(-words.numel() // _ALIGN) * _ALIGN
