"""The Kubernetes driver; needs ``holdfast[kubernetes]``."""

from __future__ import annotations

from holdfast.drivers.kubernetes.driver import KubernetesDriver

__all__ = ["KubernetesDriver"]
