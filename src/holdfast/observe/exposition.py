"""The text that Prometheus reads; the one place that needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, Final

from holdfast.observe.backlog import Gauge
from holdfast.observe.metrics import BUILD, Metric, MetricKind, Tally
from holdfast.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

#: What to do where it is missing.
MISSING: Final = "metrics need prometheus-client: pip install prometheus-client"


def available() -> bool:
    """Whether prometheus-client is installed; it is not imported for this."""
    return find_spec("prometheus_client") is not None


def page(tally: Tally, gauges: Iterable[Gauge], accept: str = "", *, with_process: bool = False) -> tuple[bytes, str]:
    """All metrics in the format that the reader accepts, and the name of that format."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(Families(tally, gauges))
    if with_process:
        ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class Families:
    """A collector of prometheus-client over what was counted and what was seen."""

    def __init__(self, tally: Tally, gauges: Iterable[Gauge] = ()) -> None:
        self._tally = tally
        self._gauges = gauges

    def collect(self) -> Iterator[Family]:
        """One family for each metric that there is something to tell of."""
        for metric, counts in groupby(self._tally, key=lambda count: count[0]):
            yield _counted(metric, [(labels, numbers) for _, labels, numbers in counts])
        gauges: dict[Metric, list[tuple[tuple[str, ...], float]]] = {BUILD: [((__version__,), 1)]}
        for metric, labels, value in self._gauges:
            gauges.setdefault(metric, []).append((labels, value))
        for metric, values in gauges.items():
            yield _gauge(metric, values)


def _counted(metric: Metric, counts: Sequence[tuple[tuple[str, ...], Sequence[int]]]) -> Family:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    if metric.kind is MetricKind.COUNTER:
        counter = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels, (number,) in counts:
            counter.add_metric(labels, number)
        return counter
    histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, (*numbers, sum_us) in counts:
        histogram.add_metric(labels, _cumulative(metric, numbers), sum_us / 1e6)
    return histogram


def _gauge(metric: Metric, values: Sequence[tuple[tuple[str, ...], float]]) -> Family:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _cumulative(metric: Metric, numbers: Sequence[int]) -> list[tuple[str, float]]:
    """Each bucket with all that are below it, as the format wants it."""
    total, buckets = 0, []
    for bound, number in zip((*map(str, map(float, metric.buckets)), "+Inf"), numbers, strict=True):
        total += number
        buckets.append((bound, float(total)))
    return buckets
