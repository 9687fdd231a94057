"""FedExperts: personalised federated learning with mixtures of experts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedexperts.api import Result, load, resume, run
    from fedexperts.config import Settings
    from fedexperts.errors import FedExpertsError
    from fedexperts.methods import Method, registry
    from fedexperts.task import Task

_HOMES = {
    "Result": "api", "load": "api", "resume": "api", "run": "api", "Settings": "config", "FedExpertsError": "errors",
    "Method": "methods", "registry": "methods", "Task": "task",
}  # fmt: skip

__all__ = ["FedExpertsError", "Method", "Result", "Settings", "Task", "load", "registry", "resume", "run"]


def __getattr__(name: str) -> Any:
    """Import on first use: `fedexperts --help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedexperts' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"fedexperts.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
