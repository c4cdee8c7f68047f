"""Where the version of a source tree is read from."""

__version__ = version = "0.33.0"
