"""What a program that calls fastimg may have switched on in torch, which must not change what fastimg computes."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_inside = 0  # how many calls are under way, in all threads: torch has one default dtype for all
_before: "torch.dtype | None" = None  # the default dtype, which the last of them sets again


@contextmanager
def as_imported() -> Iterator[None]:
    """Within, torch is as just after its import, and afterwards as before.

    That is: gradients are recorded, no inference mode, float32 by default on the CPU, no autocast. Every way into
    fastimg enters it: the functions of `fastimg`, the command line, a Predictor. Where torch is not imported yet there
    is nothing to do.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_float32())
        yield


@contextmanager
def _float32() -> Iterator[None]:
    global _inside, _before
    import torch

    with _lock:
        if _inside == 0:
            _before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _before is not None:
                torch.set_default_dtype(_before)
