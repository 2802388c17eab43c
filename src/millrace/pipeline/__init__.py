"""Declarative pipelines: a source queue, steps in SQL or Python, and sinks, exactly once."""

from millrace.pipeline.carrying import Carried, carry
from millrace.pipeline.change import OnChange
from millrace.pipeline.declaration import DeclaredSink, Limit, Pipeline, Run, Source, Step
from millrace.pipeline.lag import Lag, SinkStatus, Status
from millrace.pipeline.opening import Where
from millrace.pipeline.planning import (
    Plan,
    check_letters,
    has_letters,
    pipeline_status,
    plan_pipeline,
)
from millrace.pipeline.reading import read_pipeline
from millrace.pipeline.rewinding import adding_sinks, rewind_pipeline
from millrace.pipeline.runner import Progress
from millrace.pipeline.running import Setting, run_pipeline
from millrace.pipeline.verifying import Difference, SinkVerification, verify_pipeline

__all__ = [
    "Carried",
    "DeclaredSink",
    "Difference",
    "Lag",
    "Limit",
    "OnChange",
    "Pipeline",
    "Plan",
    "Progress",
    "Run",
    "Setting",
    "SinkStatus",
    "Source",
    "Status",
    "Step",
    "Verified",
    "Where",
    "adding_sinks",
    "carry",
    "check_letters",
    "has_letters",
    "pipeline_status",
    "plan_pipeline",
    "read_pipeline",
    "rewind_pipeline",
    "run_pipeline",
    "verify_pipeline",
]

Verified = SinkVerification
"""The public name of `SinkVerification`."""
