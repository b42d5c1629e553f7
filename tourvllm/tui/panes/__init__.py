"""The panes of the main screen, each a picture of one part of the state. Causes stand left, effects right."""

from .batch import BatchPane
from .loop import LoopPane
from .output import OutputPane
from .pool import PoolPane
from .queues import QueuesPane
from .source import SourcePane, prepare_sources
from .tables import TablesPane
from .timeline import TimelinePane
from .why import WhyPane

__all__ = [
    "BatchPane",
    "LoopPane",
    "OutputPane",
    "PoolPane",
    "QueuesPane",
    "SourcePane",
    "TablesPane",
    "TimelinePane",
    "WhyPane",
    "prepare_sources",
]
