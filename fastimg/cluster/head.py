"""Whether the head of a Ray cluster is there: without it, Ray itself waits, and ends the process after a minute."""

import math
import socket
import time
from typing import Any

from fastimg.errors import UserError, reason_of

HEAD_SECONDS = 30.0  # how long the head may be unreachable; Ray ends the process after 60
_ANSWER = 5.0  # seconds in which the head accepts a connection


class ClusterLost(UserError):
    """The cluster, or the nodes of a piece of work, are gone: what has been done counts."""


class ClusterHead:
    """The head of the cluster that `ray` is connected to. `flags` and `goes_on` begin and end an error's sentence."""

    def __init__(self, ray: Any, flags: str, goes_on: str) -> None:
        self._address = ray.get_runtime_context().gcs_address
        self._flags = flags
        self._goes_on = goes_on
        self._lost: float | None = None  # since when
        self._looked = -math.inf

    @property
    def there(self) -> bool:
        """Whether it answered when it was asked last."""
        return self._lost is None

    def answers(self, within: float = 0.0) -> bool:
        """Whether it is there, or was `within` seconds. Raises ClusterLost where it has not been for too long."""
        now = time.monotonic()
        if now - self._looked < within:
            return self.there
        self._looked = now
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _ANSWER).close()
        except OSError as error:
            self._lost = self._lost or now
            if now - self._lost >= HEAD_SECONDS:
                lost = f"{self._flags}: the head of the cluster, {self._address}, is lost"
                raise ClusterLost(f"{lost} ({reason_of(error)}); {self._goes_on}") from error
            return False
        self._lost = None
        return True
