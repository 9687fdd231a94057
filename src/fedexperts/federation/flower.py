"""Flower as the carrier: the same server and the same sites, for those who run `flwr run` on an app directory.

Flower starts a process for every message, so a site is made anew each time; all that it is lies in its folder. Which of
Flower's nodes is which site the node itself says, from its `site.toml`.
"""

import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedexperts.errors import FederationError
from fedexperts.federation.carrier import introduced
from fedexperts.federation.envelope import Request, RequestHead, Task
from fedexperts.federation.places import read_server
from fedexperts.federation.runs import queue
from fedexperts.federation.service import conduct, site_in
from fedexperts.terminal import no_more

log = logging.getLogger(__name__)

client_app = ClientApp()
server_app = ServerApp()
_RECORD, _RAW = "envelope", "raw"
_WHO = Request(RequestHead(task=Task.PROFILE)).to_bytes()


def _packed(raw: bytes) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_RAW: raw})})


def _raw(content: RecordDict) -> bytes:
    """The envelope in a message of Flower's; one that holds none is an empty one, which whoever opens it refuses."""
    record = content.get(_RECORD)
    raw = record.get(_RAW) if isinstance(record, ConfigRecord) else None
    return raw if isinstance(raw, bytes) else b""


def answer(message: Message, context: Context) -> Message:
    """A site's turn."""
    site, peers = site_in(Path(str(context.node_config["folder"])))
    try:
        return Message(_packed(site.answer(_raw(message.content))), reply_to=message)
    finally:
        peers.close()


def main(grid: Grid, context: Context) -> None:
    """A run, from wherever it stands to its end."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    settings = read_server(folder)
    options = no_more(shlex.split(str(config.get("options", ""))))
    run = queue(folder, str(config["method"]), options | {"rounds": str(config["rounds"])}, str(config["name"]))
    conduct(run, settings.sites, FlowerCarrier(grid, settings.sites), settings.rules, lambda **known: None)


class FlowerCarrier:
    """One of Flower's messages for each request."""

    def __init__(self, grid: Grid, sites: Sequence[str]) -> None:
        self.grid = grid
        self.sites = sites
        self._nodes: dict[str, int] = {}  # site → Flower's number for it
        self._introduced: dict[str, bytes] = {}  # site → what it said when it was found, until somebody asks for that

    def ask(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        end = time.monotonic() + seconds
        wanted = [self.sites[client] for client in requests]
        while any(name not in self._nodes for name in wanted) and time.monotonic() < end:
            self._find(max(1.0, end - time.monotonic()))
        left = dict(requests)
        for client, request in requests.items():
            if request == _WHO and (said := self._introduced.pop(self.sites[client], None)) is not None:
                del left[client]
                yield client, said
        clients = {self._nodes[self.sites[c]]: c for c in left if self.sites[c] in self._nodes}
        raw = {node: left[client] for node, client in clients.items()}
        for node, answered in self._send(raw, max(1.0, end - time.monotonic())):
            yield clients[node], answered

    def _find(self, seconds: float) -> None:
        """Ask nodes that are not known yet who they are; one that was here before may have a new number."""
        unknown = [node for node in self.grid.get_node_ids() if node not in self._nodes.values()]
        if not unknown:
            time.sleep(1)
        for node, raw in self._send(dict.fromkeys(unknown, _WHO), seconds):
            try:
                site = introduced(raw).site
            except FederationError as error:
                log.warning("node %d: %s", node, error)
                continue
            if site in self.sites:
                self._nodes[site] = node
                self._introduced[site] = raw

    def _send(self, requests: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        messages = [
            Message(_packed(raw), dst_node_id=node, message_type=MessageType.QUERY, ttl=seconds)
            for node, raw in requests.items()
        ]
        for reply in self.grid.send_and_receive(messages, timeout=seconds) if messages else ():
            node = reply.metadata.src_node_id
            if reply.has_content():
                yield node, _raw(reply.content)
            else:  # it has gone; whoever comes back introduces itself
                self._nodes = {name: number for name, number in self._nodes.items() if number != node}


client_app.query()(answer)
server_app.main()(main)
