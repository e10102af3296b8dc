"""What can go wrong with the pipeline as a whole."""

from aqueduct.errors import AqueductError


class PipelineError(AqueductError, ValueError):
    """The pipeline cannot start, or cannot go on; says why."""
