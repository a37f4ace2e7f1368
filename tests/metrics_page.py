"""The tables of metrics in ``docs/metrics.md``, from the registries of the gateway and of agents.

``python -m tests.metrics_page`` writes them; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics import MetricWrapperBase

from holdfast.agent.metrics import Metrics as OfAgents
from holdfast.deployments.gateway.metrics import Metrics as OfGateway
from tests.generated import DOCS, Part, table

_PAGE = DOCS / "metrics.md"
_KINDS = {Part(_PAGE, "metrics of the gateway"): OfGateway, Part(_PAGE, "metrics of agents"): OfAgents}
PARTS = tuple(_KINDS)


def written_by_code(part: Part) -> str:
    """The table of the metrics that ``part`` has."""
    return table(("metric", "type", "labels", "meaning"), *_rows(_KINDS[part]()))


def _rows(registry: OfGateway | OfAgents) -> Iterator[tuple[str, ...]]:
    """One row for each, in the order of their declaration."""
    for each in vars(registry).values():
        if not isinstance(each, MetricWrapperBase):
            continue
        (about,) = each.describe()
        name = f"{about.name}_total" if about.type == "counter" else about.name
        labels = ", ".join(f"`{label}`" for label in each._labelnames)
        yield f"`{name}`", about.type, labels, about.documentation


if __name__ == "__main__":
    for each in PARTS:
        each.write(written_by_code(each))
