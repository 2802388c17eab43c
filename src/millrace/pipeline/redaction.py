"""Redaction: removes values of variables and passwords from a pipeline's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from millrace.errors import MillraceError
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.variable import hide, names_in


def redact(pipeline: Pipeline, environ: Mapping[str, str], text: str) -> str:
    """Return the text without the values of variables that the declaration names."""
    sources = (pipeline.source, *pipeline.sources.values())
    named = [one for source in sources for one in (source.url, source.path, source.token_file)]
    return hide(text, names_in([named, *(sink.settings for sink in pipeline.sinks)]), environ)


@contextmanager
def redacting_errors(pipeline: Pipeline, environ: Mapping[str, str]) -> Iterator[None]:
    """Redact secrets in errors that are raised within the context."""
    try:
        yield
    except MillraceError as error:
        error.message = redact(pipeline, environ, error.message)
        error.args = (error.message, *error.args[1:])
        raise
