"""What a node of a cluster says about the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeLine:
    """One line of CLUSTER NODES."""

    node_id: str
    port: int
    flags: frozenset[str]
    master_id: str | None
    epoch: int
    slots: frozenset[int]

    @property
    def is_master(self) -> bool:
        """Whether it is a master, with slots or without."""
        return "master" in self.flags

    @property
    def is_sound(self) -> bool:
        """Whether nobody takes it for failed and it is fully known."""
        return not self.flags & {"fail", "fail?", "handshake", "noaddr"}


def nodes_in(text: str) -> list[NodeLine]:
    """The lines of CLUSTER NODES."""
    return [_node(line.split()) for line in text.splitlines() if line]


def _node(words: list[str]) -> NodeLine:
    node_id, address, flags, master_id, _ping, _pong, epoch, _link, *slots = words
    return NodeLine(
        node_id=node_id,
        port=int(address.partition("@")[0].rpartition(":")[2]),
        flags=frozenset(flags.split(",")),
        master_id=None if master_id == "-" else master_id,
        epoch=int(epoch),
        slots=frozenset(slot for part in slots if not part.startswith("[") for slot in _range(part)),
    )


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
