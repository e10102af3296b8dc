"""What can go wrong with the pipeline as a whole."""


class PipelineError(ValueError):
    """The pipeline cannot start, or cannot go on; says why."""
