"""Message channels for Python that cross tasks, processes and hosts."""

__all__ = ["__version__"]

__version__ = "0.1.0"
