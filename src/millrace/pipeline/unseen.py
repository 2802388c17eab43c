"""Messages of a pipeline without its secrets: whatever was read from variables, and passwords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from millrace.errors import MillraceError
from millrace.pipeline.declaration import Pipeline
from millrace.pipeline.variable import hide, names_in


def hidden(pipeline: Pipeline, environ: Mapping[str, str], text: str) -> str:
    """A text in which no value of a variable that the declaration names can be read."""
    sources = (pipeline.source, *pipeline.sources.values())
    named = [one for source in sources for one in (source.url, source.path, source.token_file)]
    return hide(text, names_in([named, *(sink.settings for sink in pipeline.sinks)]), environ)


@contextmanager
def unseen(pipeline: Pipeline, environ: Mapping[str, str]) -> Iterator[None]:
    """Have errors say nothing of secrets."""
    try:
        yield
    except MillraceError as error:
        error.message = hidden(pipeline, environ, error.message)
        error.args = (error.message, *error.args[1:])
        raise
