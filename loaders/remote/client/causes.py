"""Why a request to an object store failed, as a sentence: obstore gives a chain of causes, and the store's own code."""

import re
from typing import NamedTuple

from fastimg.loaders.remote.urls import without_secrets

_RESUME = "and start again with resume=True"
_CREDENTIALS = {  # in the environment, by the scheme of a URL
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class Cause(NamedTuple):
    """What an error text means."""

    says: str  # what is wrong, and what to do about it; {names}: the variables of the credentials
    passes: bool = False  # trying again may help


_DENIED = Cause(
    "access denied; give credentials in the environment (as {names}) or with storage_options=; skip_signature=true is "
    "for public buckets"
)
# What obstore's text has in it, the more particular ones first.
_KNOWN: tuple[tuple[str, Cause], ...] = (
    (
        r"ExpiredToken|TokenRefreshRequired|token (has|is) expired|InvalidAuthenticationInfo"
        r"|not valid in the specified time frame",
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
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed|Invalid Access Key",
        Cause("the store does not know these credentials; check those in the environment"),
    ),
    (
        r"UserProjectMissing",
        Cause("the bucket's requester pays, which is possible for s3:// alone; copy the data, or ask its owner"),
    ),
    (
        r"InvalidRange",
        Cause("it is shorter than was stated: it was replaced or damaged; upload it again, with dataset.json", True),
    ),
    # As the answer to a listing, which obstore gives no class of its own.
    (r"AccessDenied|AuthorizationFailure|AuthorizationPermissionMismatch|PublicAccessNotPermitted", _DENIED),
    (r"NoAuthenticationInformation|AuthenticationRequired|InvalidSecurity", _DENIED),
    (r"NoSuchBucket|ContainerNotFound", Cause("no such bucket; check the URL and storage_options=")),
    (
        r"Account must be specified",
        Cause(
            "no storage account; give its name in AZURE_STORAGE_ACCOUNT_NAME, or as account_name with storage_options="
        ),
    ),
    (
        r"Unable to open service account file|Unable to decode service account file",
        Cause("the file of credentials cannot be read; check GOOGLE_APPLICATION_CREDENTIALS"),
    ),
    (
        r"169\.254\.169\.254|metadata\.google\.internal",
        Cause(
            "no credentials: there are none in the environment (as {names}), and this machine has no role that gives "
            "some; a public bucket needs skip_signature=true with storage_options=",
            passes=True,
        ),
    ),
    (
        r"dns error|failed to lookup address|Name or service not known",
        Cause("its host has no address; check the URL, the network and storage_options=", passes=True),
    ),
    (
        r"[cC]ertificate|TLS|tls handshake|CorruptMessage|InvalidContentType",
        Cause(
            "no secure connection could be made, as its certificate is not accepted or it does not speak TLS; check "
            "the address, and root_certificate with storage_options="
        ),
    ),
    (r"BadScheme", Cause("its address is http://; give allow_http=true with storage_options=")),
    (
        r"Connection refused",
        Cause("nobody answers at this address (connection refused); check the URL and storage_options=", passes=True),
    ),
    (
        r"operation timed out|deadline has elapsed|TimedOut",
        Cause("no answer in time; check the network, and read_timeout with storage_options=", passes=True),
    ),
)


# A key that obstore does not read: its path, or that of the listed object.
_UNREADABLE = re.compile(r'Path "([^"]*)"(?:: Encountered illegal character| contained empty path segment)')


def cause_of(error: BaseException, scheme: str = "s3") -> Cause | None:
    """The cause of an error of obstore's, if it is known, in a store of the scheme."""
    chain: BaseException | None = error
    text = ""
    while chain is not None:
        text += f"{chain}\n"
        chain = chain.__cause__
    if found := _UNREADABLE.search(text):
        return Cause(
            f"the key {found[1]!r} cannot be the path of a file, as a part of it is empty, . or .., or has a character "
            "that is not printed; rename it, or give a URL that it is not below"
        )
    known = next((cause for pattern, cause in _KNOWN if re.search(pattern, text)), None)
    return None if known is None else _of_scheme(known, scheme)


def denied(scheme: str) -> str:
    """What is said where a store of the scheme refuses without a reason that is known."""
    if scheme in ("http", "https"):
        return "access denied by the web server; give an address that may be read"
    return _of_scheme(_DENIED, scheme).says if scheme in _CREDENTIALS else "access denied; check its permissions"


def _of_scheme(cause: Cause, scheme: str) -> Cause:
    return cause._replace(says=cause.says.format(names=_CREDENTIALS.get(scheme, _CREDENTIALS["s3"])))


def first_line(error: BaseException) -> str:
    """What an error says, without the parts that are for programmers, and without secrets in its addresses."""
    lines = str(error).strip().splitlines()
    return without_secrets(lines[0].rstrip(".")) if lines else repr(error)
