"""gRPC with certificates on both sides: who is there is known before a byte of ours is read."""

import logging
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from fedexperts.errors import FederationError, UnreachableError
from fedexperts.federation.certificates import AUTHORITY, CERTIFICATE, KEY

log = logging.getLogger(__name__)

SIZE_LIMIT = 512 << 20
"""Bytes of anything that is carried, at most."""
_OPTIONS = [("grpc.max_send_message_length", SIZE_LIMIT), ("grpc.max_receive_message_length", SIZE_LIMIT)]

Call = Callable[[str, bytes], bytes]
"""(who asks, what) → the answer; a `FederationError` refuses."""


def serve(
    service: str, calls: Mapping[str, Call], folder: Path, address: str, allowed: Container[str], workers: int
) -> tuple[grpc.Server, int]:
    """Offer calls to those with a certificate of the same authority and a name that is allowed; the port it is at."""
    server = grpc.server(
        ThreadPoolExecutor(workers, thread_name_prefix=service),
        options=[*_OPTIONS, ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=2 * workers,
    )
    handlers = {name: grpc.unary_unary_rpc_method_handler(_guarded(call, allowed)) for name, call in calls.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    authority, certificate, key = _own(folder)
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise FederationError(f"nothing can listen at {address}: is the port taken, or not this machine's?") from None
    server.start()
    return server, port


def _guarded(call: Call, allowed: Container[str]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        names = context.auth_context().get("x509_common_name", [])
        name = names[0].decode(errors="replace") if len(names) == 1 else ""
        if name not in allowed:
            log.warning("refused: %r is not a member", name)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} is not on the list of members here")
        try:
            return call(name, request)
        except FederationError as error:
            log.warning("refused, to %s: %s", name, error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:500])
        raise AssertionError("abort raises")

    return answer


class Channel:
    """A kept connection to a member, whoever answers at the address: it must prove that it is the one."""

    def __init__(self, folder: Path, address: str, name: str) -> None:
        authority, certificate, key = _own(folder)
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        self.name = name
        self.address = address
        self._channel = grpc.secure_channel(
            address,
            credentials,
            options=[*_OPTIONS, ("grpc.ssl_target_name_override", name), ("grpc.max_reconnect_backoff_ms", 5000)],
        )

    def call(self, path: str, request: bytes, seconds: float) -> bytes:
        try:
            answer: bytes = self._channel.unary_unary(path)(request, timeout=seconds)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            gone = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            kind = UnreachableError if gone else FederationError
            raise kind(f"{self.name} at {self.address}: {details}") from None
        return answer

    def close(self) -> None:
        self._channel.close()


def _own(folder: Path) -> tuple[bytes, bytes, bytes]:
    try:
        authority, certificate, key = ((folder / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY))
    except FileNotFoundError as error:
        raise FederationError(f"{error.filename} is missing: `fedexperts federation new` makes it") from None
    return authority, certificate, key
