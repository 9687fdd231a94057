"""FedExperts: personalised federated learning with mixtures of experts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedexperts.api import Result, load, resume, run
    from fedexperts.client import Client
    from fedexperts.config import Settings
    from fedexperts.errors import FedExpertsError
    from fedexperts.export import load_exported
    from fedexperts.methods import Method, registry
    from fedexperts.models import split
    from fedexperts.task import Task

_HOMES = {
    "Client": "client", "Result": "api", "load": "api", "resume": "api", "run": "api", "Settings": "config",
    "FedExpertsError": "errors", "Method": "methods", "registry": "methods", "split": "models", "Task": "task",
    "load_exported": "export",
}  # fmt: skip

__all__ = [
    "Client", "FedExpertsError", "Method", "Result", "Settings", "Task", "load", "load_exported", "registry", "resume",
    "run", "split",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: `fedexperts --help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedexperts' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"fedexperts.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
