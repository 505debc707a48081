"""The host networks, which can be run segment by segment."""

from esper.kasmina.hosts.cnn import CnnHost
from esper.kasmina.hosts.factory import build_host
from esper.kasmina.hosts.protocol import HostProtocol
from esper.kasmina.hosts.segmented import SegmentedHost
from esper.kasmina.hosts.staged import StagedHost, make_host
from esper.kasmina.hosts.transformer import TransformerHost

__all__ = [
    "CnnHost",
    "HostProtocol",
    "SegmentedHost",
    "StagedHost",
    "TransformerHost",
    "build_host",
    "make_host",
]
