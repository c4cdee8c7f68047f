"""Writing and reading gdnsim traces (docs/trace-format.md) from Python, and capturing them from engines
(docs/capture.md).

TraceWriter   streams a trace to a file, one step at a time; a kill or a full disk loses no step that was committed
TraceReader   the stored words of a trace BlockWatch    finds the state blocks that something else wrote, by digest
recover       finishes a trace that was left unfinished
"""

from .blocks import BlockWatch
from .model import Model, TraceError
from .reader import TraceReader
from .recover import recover
from .writer import TraceWriter

__all__ = ["BlockWatch", "Model", "TraceError", "TraceReader", "TraceWriter", "recover"]
