"""Errors of the engine. Each message names the thing that is wrong and the way out."""


class EngineError(Exception):
    """Base of the engine's errors."""


class ConfigError(EngineError, ValueError):
    """A setting is wrong; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelError(EngineError, ValueError):
    """A model folder cannot be loaded, or its architecture is not supported."""


class RequestError(EngineError, ValueError):
    """A request was refused when it was added."""
