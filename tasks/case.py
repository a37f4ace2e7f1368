"""The former name of :mod:`holdfast.tasks.recovery_context`, for playbooks of other packages until the next release."""

from holdfast.tasks.recovery_context import RecoveryContext as Case
from holdfast.tasks.recovery_context import Request

__all__ = ["Case", "Request"]
