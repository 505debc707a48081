"""The version of this package, which files and events name."""

__all__ = ["__version__"]

__version__ = "0.1.0"
