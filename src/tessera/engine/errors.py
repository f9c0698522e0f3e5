"""Failures of the engine. Requests that can never work raise tessera.errors.InvalidRequestError instead."""

from tessera.errors import TesseraError


class EngineConfigError(TesseraError):
    """Engine options that contradict each other or the model. The message names the option and its range."""


class CacheMemoryError(TesseraError):
    """Not even one sequence of `max_model_len` tokens fits in memory. The message carries the arithmetic."""


class DeviceMemoryError(TesseraError):
    """Weights, workspace and one sequence do not fit on the device. Carries the arithmetic and what helps."""


class FragmentedMemoryError(TesseraError):
    """The device has enough free memory for what was planned, but not in pieces that are large enough."""


class DeviceMemoryTakenError(TesseraError):
    """Memory that the plan counted on was gone when it was to be allocated. Carries how much is missing."""


class BlockAccountingError(TesseraError):
    """Blocks of the KV cache were lost, shared by mistake or freed twice: a bug. Carries the counts."""


class SchedulerStalledError(TesseraError):
    """Unfinished requests exist but a step could schedule none of them: a bug. Carries the counts."""


class DuplicateRequestError(TesseraError):
    """A request id is already in use."""


class EngineDeadError(TesseraError):
    """A step failed earlier; the engine serves nothing more. The message carries the first cause."""


class EngineClosedError(TesseraError):
    """The engine is draining or shut down and accepts no new requests."""


class SelfCheckError(TesseraError):
    """The canned request run before the engine reports ready failed. Carries what was wrong."""
