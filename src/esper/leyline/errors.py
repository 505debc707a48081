"""The error tree: every failure Esper raises on purpose, and the exit code it ends a command with.

EsperError                       70  a bug of ours unless a subclass says otherwise
├── UsageError                    2  what was typed, configured or supplied cannot be used
│   ├── ConfigError                  a configuration value
│   │   ├── UnknownKeyError          a key that does not exist, with the nearest one that does
│   │   └── InvalidValueError        a key whose value breaks its constraint
│   ├── SlotIdError                  a slot id off the grammar
│   ├── UnknownNameError             a task, preset, blueprint or mode that does not exist
│   ├── UnreadableFileError          a file that is missing, damaged or not ours
│   ├── ForeignFileError             a link or special file where a run would write
│   ├── DeviceError                  a device that does not exist here
│   ├── DownloadError                data that could not be fetched
│   ├── NoDataError                  real data were requested and there are none
│   ├── MissingExtraError            a feature whose optional dependency is not installed
│   └── PluginError                  a task or blueprint that cannot be registered
├── ContractError                70  a value that breaks a contract between our own parts
│   ├── EventDecodeError             a line that is not an event of this schema
│   └── UnreadableMessageError       what driver or worker received is no message of the protocol
├── EnvFaultError                 1  an env's numbers or modules broke; names slot and layer
├── RunFailedError                1  the run could not be carried to its end
│   └── WorkerLostError              a worker's process or actor has ended; it can be replaced
├── TelemetryLostError            3  the durable log could not be written
└── InterruptedRunError         130  a stop of the run was requested
"""

import difflib
import shlex
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar

from esper.version import __distribution__

__all__ = [
    "ConfigError",
    "ContractError",
    "DeviceError",
    "DownloadError",
    "EnvFaultError",
    "EsperError",
    "EventDecodeError",
    "ExitCode",
    "ForeignFileError",
    "InterruptedRunError",
    "InvalidValueError",
    "MissingExtraError",
    "NoDataError",
    "PluginError",
    "RunFailedError",
    "SlotIdError",
    "TelemetryLostError",
    "UnknownKeyError",
    "UnknownNameError",
    "UnreadableFileError",
    "UnreadableMessageError",
    "UsageError",
    "WorkerLostError",
    "nearest_name",
    "reason_of",
]

MAX_SHOWN_CHARS = 80


class ExitCode(IntEnum):
    """Exit status of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    TELEMETRY_INCOMPLETE = 3
    INTERNAL = 70
    INTERRUPTED = 130


class EsperError(Exception):
    """Raised on purpose; its text is one sentence for the person at the terminal."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL


class UsageError(EsperError):
    """Raised when what was typed, configured or supplied cannot be used."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """Raised when a configuration cannot be used; names where it came from."""


class UnknownKeyError(ConfigError):
    """Raised for a configuration key that does not exist."""

    def __init__(self, key: str, nearest: str | None, source: str) -> None:
        way_on = f"did you mean {nearest!r}?" if nearest else "'esper-train config show' lists all"
        super().__init__(f"{source}: unknown key {shown(key)}; {way_on}")
        self.key = key


class InvalidValueError(ConfigError):
    """Raised for a configuration value that breaks its constraint."""

    def __init__(self, key: str, value: object, constraint: str, source: str = "config") -> None:
        super().__init__(f"{source}: {key} = {shown(value)}: {constraint}")
        self.key = key


class SlotIdError(UsageError):
    """Raised for a slot id that does not match `r<row>c<column>`."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"slot id {shown(value)}: expected r<row>c<column> without leading zeros, such as r0c1"
        )


class UnknownNameError(UsageError):
    """Raised for a name that is not in the table it was looked up in."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        nearest = nearest_name(str(name), names)
        hint = f"did you mean {nearest!r}? " if nearest else ""
        super().__init__(f"unknown {kind} {shown(name)}; {hint}known: {', '.join(names)}")


class UnreadableFileError(UsageError):
    """Raised for a file that is missing, damaged or not of the expected kind."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


class ForeignFileError(UsageError):
    """Raised for a link, or anything but a regular file with one name, where a run would write."""

    def __init__(self, path: object, kind: str) -> None:
        super().__init__(
            f"{path}: is {kind}; a run writes only to regular files of its own directory: "
            "remove it, or resume a copy of the run"
        )


class DeviceError(UsageError):
    """Raised for a device name that is invalid or a device that does not exist."""

    def __init__(self, device: object, reason: str) -> None:
        super().__init__(f"device {shown(str(device))}: {reason}")


class DownloadError(UsageError):
    """Raised when data could not be fetched."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")


class NoDataError(UsageError):
    """Raised when real data were requested and there are none."""

    def __init__(self, dataset: str, reason: str) -> None:
        super().__init__(
            f"no data for {dataset}: {reason}; "
            "name their directory with --data-dir, or make some up with --data synthetic"
        )


class MissingExtraError(UsageError):
    """Raised for a feature whose optional dependency is not installed."""

    def __init__(self, feature: str, package: str, extra: str, alternative: str | None) -> None:
        way_on = shlex.join(["pip", "install", f"{__distribution__}[{extra}]"])
        if alternative is not None:
            way_on += f", or {alternative}"
        super().__init__(f"{feature} needs {package}, which is not installed; {way_on}")


class PluginError(UsageError):
    """Raised for a task, blueprint or other extension that cannot be registered."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"{kind} {shown(name)}: {reason}")


class ContractError(EsperError):
    """Raised when a value breaks a contract between our own parts."""


class EventDecodeError(ContractError):
    """Raised for a line that is not an event of this schema."""

    exit_code = ExitCode.USAGE

    def __init__(self, reason: str, line: bytes) -> None:
        super().__init__(
            f"not an event of this schema: {reason}: {shown(line)}; "
            "'esper-telemetry schema' prints what is expected"
        )
        self.reason = reason


class UnreadableMessageError(ContractError):
    """Raised for received bytes that are no message of the protocol between driver and workers."""


class EnvFaultError(EsperError):
    """Raised when an env cannot continue; the engine quarantines it."""

    exit_code = ExitCode.FAILED

    def __init__(
        self, reason: str, *, slot_id: str | None = None, layer: str | None = None
    ) -> None:
        where = "" if layer is None else f" in {layer}"
        slot = "" if slot_id is None else f" of slot {slot_id!r}"
        super().__init__(f"{reason}{where}{slot}")
        self.slot_id = slot_id
        self.layer = layer


class RunFailedError(EsperError):
    """Raised when a run cannot be carried to its end."""

    exit_code = ExitCode.FAILED


class WorkerLostError(RunFailedError):
    """Raised when a worker's process or actor has ended while it was needed."""

    def __init__(
        self, index: int, reason: str, *, env_ids: tuple[int, ...] = (), stacks: str = ""
    ) -> None:
        super().__init__(f"worker {index}: {reason}")
        self.index = index
        self.reason = reason
        self.env_ids = env_ids
        """The envs that its lanes were working on."""
        self.stacks = stacks
        """The stacks of its threads, if it hung and could still report them."""


class TelemetryLostError(EsperError):
    """Raised when the durable log could not be written."""

    exit_code = ExitCode.TELEMETRY_INCOMPLETE

    def __init__(self, path: object, errno: int | None, reason: str, last_seq: int | None) -> None:
        code = "" if errno is None else f" (errno {errno})"
        end = "no event is on disk" if last_seq is None else f"the last event on disk is {last_seq}"
        super().__init__(f"{path}: {reason}{code}; {end}")
        self.errno = errno
        self.last_seq = last_seq


class InterruptedRunError(EsperError):
    """Raised when a run ends early because a stop was requested."""

    exit_code = ExitCode.INTERRUPTED

    is_reported: bool = False
    """Whether a summary of the run has said already why it ended and how to continue it."""


def shown(value: object) -> str:
    """Format an external value for a message: quoted, on one line, of limited length."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` most likely stands for."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def reason_of(error: Exception) -> str:
    """Return what went wrong in code that may raise anything, for the end of a sentence."""
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}"
