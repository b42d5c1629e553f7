"""Errors of this package. Every message is a sentence that names the thing and the way out."""


class TourError(Exception):
    """Base of all errors that a user can do something about."""


class TraceError(TourError):
    """A trace cannot be read, or one of its events cannot be applied."""


class RecordError(TourError):
    """The trace cannot be written."""


class ScenarioError(TourError):
    """A scenario file is wrong; the message names the line and the field."""


class ExpressionError(TourError):
    """A condition or watch expression cannot be evaluated. `reason`: why, without the expression itself."""

    def __init__(self, sentence: str, reason: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason or sentence


class UnknownNameError(ExpressionError):
    """An expression uses a name that has no value here, such as a request that has not arrived yet."""


class VerifyError(TourError):
    """The recorded state differs from the engine's, or a standing invariant is broken."""
