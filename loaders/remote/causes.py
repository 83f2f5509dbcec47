"""Why a request to an object store failed, as a sentence: obstore gives a chain of causes, and the store's own code."""

import re
from typing import NamedTuple

_RESUME = "and start again with resume=True"


class Cause(NamedTuple):
    """What an error text means."""

    says: str  # what is wrong, and what to do about it
    passes: bool = False  # trying again may help


DENIED = Cause(
    "access denied; give credentials in the environment (as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or with "
    "storage_options=; skip_signature=true is for public buckets"
)
# What obstore's text has in it, the more particular ones first.
_KNOWN: tuple[tuple[str, Cause], ...] = (
    (
        r"ExpiredToken|TokenRefreshRequired|token (has|is) expired|InvalidAuthenticationInfo",
        Cause(f"the credentials have expired; renew them in the environment, {_RESUME}"),
    ),
    (
        r"RequestTimeTooSkewed|RequestExpired",
        Cause("the clock of this machine differs too much from that of the store; set it, for example by NTP"),
    ),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|without LOCATION|IllegalLocationConstraint",
        Cause("the bucket is in another region; give its region in AWS_REGION, or as region with storage_options="),
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken",
        Cause("the store does not know these credentials; check those in the environment"),
    ),
    (r"AccessDenied", DENIED),  # as the answer to a listing, which obstore gives no class of its own
    (
        r"InvalidRange",
        Cause("it is shorter than was stated: it was replaced or damaged; upload it again, with dataset.json", True),
    ),
    (r"NoSuchBucket", Cause("no such bucket; check the URL and storage_options=")),
    (
        r"169\.254\.169\.254|metadata\.google\.internal",
        Cause(
            "no credentials: there are none in the environment (as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), and "
            "this machine has no role that gives some; a public bucket needs skip_signature=true with storage_options=",
            passes=True,
        ),
    ),
    (
        r"dns error|failed to lookup address|Name or service not known",
        Cause("its host has no address; check the URL, the network and storage_options=", passes=True),
    ),
    (
        r"certificate|TLS|tls handshake|CorruptMessage|InvalidContentType",
        Cause(
            "no secure connection could be made, as its certificate is not accepted or it does not speak TLS; check "
            "the address, and root_certificate with storage_options="
        ),
    ),
    (
        r"Connection refused",
        Cause("nobody answers at this address (connection refused); check the URL and storage_options=", passes=True),
    ),
    (
        r"operation timed out|deadline has elapsed|TimedOut",
        Cause("no answer in time; check the network, and read_timeout with storage_options=", passes=True),
    ),
)


def cause_of(error: BaseException) -> Cause | None:
    """The cause of an error of obstore's, if it is known."""
    chain: BaseException | None = error
    text = ""
    while chain is not None:
        text += f"{chain}\n"
        chain = chain.__cause__
    return next((cause for pattern, cause in _KNOWN if re.search(pattern, text)), None)


def first_line(error: BaseException) -> str:
    """What an error says, without the parts that are for programmers."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else repr(error)
