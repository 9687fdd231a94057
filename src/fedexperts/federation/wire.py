"""gRPC with certificates on both sides: who is there is known before a byte of ours is read."""

import datetime as dt
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from fedexperts.errors import BusyError, FederationError, UnreachableError
from fedexperts.federation.certificates import AUTHORITY, CERTIFICATE, KEY, expires

log = logging.getLogger(__name__)

SIZE_LIMIT = 512 << 20
"""Bytes of anything that is carried, at most."""
AT_ONCE = 4
"""Calls that one member may have open; ours have one at a time, and others than ours must not take everybody's turn."""

Call = Callable[[str, bytes], bytes]
"""(who asks, what) → the answer; a `FederationError` refuses."""


def serve(
    service: str,
    calls: Mapping[str, Call],
    folder: Path,
    address: str,
    allowed: Collection[str],
    workers: int,
    request_limit: int = SIZE_LIMIT,
) -> tuple[grpc.Server, int]:
    """Offer calls to those with a certificate of the same authority and a name that is allowed; the port it is at.

    `request_limit`: bytes that a request may have.
    """
    server = grpc.server(
        ThreadPoolExecutor(workers, thread_name_prefix=service),
        options=[*_limits(SIZE_LIMIT, request_limit), ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=AT_ONCE * (len(allowed) + 1),  # one for strangers, who are told that they are some
    )
    turns = _Turns()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(call, allowed, turns)) for name, call in calls.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    authority, certificate, key = _own(folder)
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise FederationError(f"nothing can listen at {address}: is the port taken, or not this machine's?") from None
    server.start()
    return server, port


def _limits(sent: int, received: int) -> list[tuple[str, int]]:
    return [("grpc.max_send_message_length", sent), ("grpc.max_receive_message_length", received)]


class _Turns:
    """How many calls each member has open: until it has its answer, or has gone."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, name: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            if self._open[name] >= AT_ONCE:
                raise BusyError(f"it has {AT_ONCE} calls open already")
            self._open[name] += 1
        if not context.add_callback(lambda: self._end(name)):  # it has gone before
            self._end(name)

    def _end(self, name: str) -> None:
        with self._lock:
            self._open[name] -= 1


def _guarded(call: Call, allowed: Collection[str], turns: _Turns) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        names = context.auth_context().get("x509_common_name", [])
        name = names[0].decode(errors="replace") if len(names) == 1 else ""
        if name not in allowed:
            log.warning("refused: %r is not a member", name)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} is not on the list of members here")
        try:
            turns.take(name, context)
            return call(name, request)
        except FederationError as error:
            log.warning("refused, to %s: %s", name, error)
            busy = isinstance(error, BusyError)
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if busy else grpc.StatusCode.INVALID_ARGUMENT
            context.abort(code, str(error)[:500])
        raise AssertionError("abort raises")

    return answer


class Channel:
    """A kept connection to a member, whoever answers at the address: it must prove that it is the one."""

    def __init__(self, folder: Path, address: str, name: str) -> None:
        authority, certificate, key = _own(folder)
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        self.name = name
        self.address = address
        self._folder = folder
        names = [("grpc.ssl_target_name_override", name), ("grpc.max_reconnect_backoff_ms", 5000)]
        self._channel = grpc.secure_channel(address, credentials, options=[*_limits(SIZE_LIMIT, SIZE_LIMIT), *names])

    def call(self, path: str, request: bytes, seconds: float) -> bytes:
        try:
            answer: bytes = self._channel.unary_unary(path)(request, timeout=seconds)
        except grpc.RpcError as error:
            code, said = error.code(), f"{self.name} at {self.address}: {error.details()}"
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise BusyError(said) from None
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise UnreachableError(said + self._perhaps(said)) from None
            raise FederationError(said) from None
        return answer

    def _perhaps(self, said: str) -> str:
        """Why certificates may be what is wrong: TLS says little, and the one that refuses says nothing at all."""
        if (end := expires(self._folder)) < dt.datetime.now(dt.UTC):
            return (
                f"; the certificate in {self._folder} ended on {end:%Y-%m-%d}, `fedexperts federation renew` makes one"
            )
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return f"; what it shows is not {self.name}'s of the authority in {self._folder}, or has ended"
        if "failed to connect" in said and "Socket closed" in said:
            return f"; so does who does not believe the certificate in {self._folder}: its log says why"
        return ""

    def close(self) -> None:
        self._channel.close()


def _own(folder: Path) -> tuple[bytes, bytes, bytes]:
    try:
        authority, certificate, key = ((folder / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY))
    except FileNotFoundError as error:
        raise FederationError(f"{error.filename} is missing: `fedexperts federation new` makes it") from None
    return authority, certificate, key
