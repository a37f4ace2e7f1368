"""Settings of the Kubernetes driver."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from holdfast.settings import FromEnvironment


class KubernetesSettings(FromEnvironment):
    """Read with :func:`holdfast.settings.read`."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_KUBERNETES_")

    config: str = Field(
        "", description="Kubeconfig file; empty: the pod's service account, outside a pod ~/.kube/config."
    )
    namespace: str = Field(
        "", description="Namespace of the machines; empty: the pod's own, or the kubeconfig's."
    )
    machines: int = Field(
        0,
        ge=0,
        description="Machines that jobs need: so many get the priority class of jobs, the rest stand by.",
    )
    priority_class: str = Field(
        "", description="Priority class of machines for jobs; empty: as the PodTemplate says."
    )
    standby_priority_class: str = Field(
        "", description="Priority class of machines beyond those; empty: as the PodTemplate says."
    )
    budget_s: float = Field(
        30.0,
        ge=0,
        le=600,
        description="Seconds that an eviction waits for a PodDisruptionBudget to allow it.",
    )
