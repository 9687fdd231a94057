"""Every error that a user can cause: what was wrong, where, and what would be right."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Found = TypeVar("Found")


class FedExpertsError(Exception):
    """Base of all errors that are the input's fault; the command line prints them without a traceback."""


class SettingsError(FedExpertsError):
    """An option or a line of a settings file that cannot be taken."""


class DataError(FedExpertsError):
    """A data set that cannot be read, or a partition of it that cannot exist."""


class ModelError(FedExpertsError):
    """A model that does not fit the data, or cannot be trained here."""


class MethodError(FedExpertsError):
    """A method that does not fit its task."""


class PrivacyError(FedExpertsError):
    """A message that holds what must not leave its owner."""


class DivergedError(FedExpertsError):
    """A client whose loss is no longer a number."""


class RoomError(FedExpertsError):
    """A client that does not fit into the device's memory, even alone."""


class SavedStateError(FedExpertsError):
    """A run folder or checkpoint that cannot be read or continued."""


class FederationError(FedExpertsError):
    """A message, a site or a server of a federation that cannot be taken as it is."""


class UnreachableError(FederationError):
    """Nobody answers there, or not in time, or without the right certificate; it may be tried again."""


class BusyError(UnreachableError):
    """Whoever asks has asked for too much; later it may be given again."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The nearest known word as half a sentence: "; did you mean 'fedavg'?", or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def the_method(name: str, known: Mapping[str, Found]) -> Found:
    """What is known of the method of that name."""
    if name not in known:
        raise MethodError(f"unknown method '{name}'{suggestion(name, known) or ';'} known: {', '.join(known)}")
    return known[name]
