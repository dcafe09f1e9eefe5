"""Every point, in the order of the report."""

from tests.chaos.faults import FAULTS
from tests.chaos.kills import KILLS
from tests.chaos.node_kills import NODE_KILLS

POINTS = {point.name: point for point in (*KILLS, *FAULTS, *NODE_KILLS)}
