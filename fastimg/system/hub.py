"""The Hugging Face hub: its failures in a sentence, and whether it may be asked at all.

`huggingface_hub` reads HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE from the environment. It is imported where it is used.
"""

import contextlib
import json
import logging
from collections.abc import Iterator

from fastimg.errors import UserError, reason_of
from fastimg.wording import shortened

TOKEN = "set HF_TOKEN to a token of an account that may"


@contextlib.contextmanager
def asking_hub(what: str) -> Iterator[None]:
    """Turn what the hub's library raises into one sentence about `what`, and keep its log to itself.

    Raises UserError. Errors of our own, and of the file system, pass.
    """
    from huggingface_hub import errors

    of_requests = errors.HfHubHTTPError.__mro__[1]  # the base of every error of the HTTP library that the hub uses
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise UserError(f"{what}: {_reason(error)}") from error
    except errors.HFValidationError as error:
        raise UserError(f"{what}: {shortened(reason_of(error), 200)}; check the name") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{what}: the server does not answer as the hub does; check HF_ENDPOINT") from error
    except Exception as error:
        failed = _caused_by(error, (of_requests, ConnectionError))
        if failed is None:
            raise
        raise UserError(f"{what}: {_reason(failed)}") from error
    finally:
        log.setLevel(level)


def _caused_by(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """The first of an error and its causes that is of these kinds: a failed upload is wrapped in a RuntimeError."""
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """Why a request failed, and what to do."""
    from huggingface_hub import constants, errors

    while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    where = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, and it is not on this machine; unset it once, with a network"
    match error:
        case errors.GatedRepoError():
            return f"its owner has to grant access; ask for it at {where}, and {TOKEN} read it"
        case errors.RevisionNotFoundError():
            return "there is no such revision; check what stands behind @"
        case errors.RemoteEntryNotFoundError():
            return f"a file is missing there ({shortened(reason_of(error), 120)}); check the revision"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) and error.response else 0
    match status:
        case 401:
            return f"{where} knows no such repository, or does not show it (401); check the name, or {TOKEN} read it"
        case 403:
            return f"{where} refuses (403); {TOKEN} do this"
        case 404:
            return f"{where} has no such repository (404); check the name"
        case 0:
            return f"{where} does not answer ({shortened(reason_of(error), 120)}); check the network connection"
    return f"{where} fails ({status}); try again later"
