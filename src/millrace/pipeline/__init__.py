"""Declared pipelines: a queue, steps in SQL or Python, sinks, exactly once."""

from millrace.pipeline.carrying import Carried, carry
from millrace.pipeline.declaration import DeclaredSink, Limit, Pipeline, Run, Source, Step
from millrace.pipeline.opening import Where
from millrace.pipeline.reading import read_pipeline
from millrace.pipeline.runner import Progress
from millrace.pipeline.running import Setting, run_pipeline

__all__ = [
    "Carried",
    "DeclaredSink",
    "Limit",
    "Pipeline",
    "Progress",
    "Run",
    "Setting",
    "Source",
    "Step",
    "Where",
    "carry",
    "read_pipeline",
    "run_pipeline",
]
