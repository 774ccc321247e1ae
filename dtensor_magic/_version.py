"""The version, in one place: the build, the agents' greeting and users read it here."""

__version__ = "0.1.0"
