"""A real Kubernetes control plane on loopback, and kubelets that start agents as processes."""
