"""The name and version of this distribution."""

__all__ = ["__distribution__", "__version__"]

__version__ = "0.2.0"
"""Files and events name it."""

__distribution__ = "esper-grow"
"""What pip installs; the name `esper` belongs to another project there."""
