//! Figures: what the report shows of records, and how contenders are compared.

use std::collections::BTreeMap;

use crate::cells::{MEMORY, SLOW};
use crate::peers::Contender;
use crate::record::Record;
use crate::statistics::Spread;

/// One figure: a value of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// What it is called, with its unit.
    pub title: &'static str,
    /// The cell.
    pub cell: &'static str,
    /// The value in it.
    pub value: &'static str,
    /// Whether the base's value of the same round is taken off.
    pub is_above_base: bool,
}

const fn figure(title: &'static str, cell: &'static str, value: &'static str) -> Figure {
    Figure { title, cell, value, is_above_base: false }
}

/// Requests per second of the proxy's core at 64 connections.
pub const RATE_64: Figure = figure("requests/s, c=64", "whole-64", "requests_per_second");
/// The same when both cores are shared.
pub const RATE_TWO: Figure = figure("requests/s, both cores shared, c=64", "two-whole-64", "requests_per_second");
/// CPU of a request at 64 connections.
pub const CPU_64: Figure = figure("CPU µs/request, c=64", "whole-64", "cpu_us_per_request");
/// CPU of a request with a long prompt.
pub const CPU_PROMPT: Figure = figure("CPU µs/request, 64 KiB prompt, c=16", "prompt-64k", "cpu_us_per_request");
/// CPU of an event among 256 streams of 50 events a second.
pub const CPU_PACED: Figure = figure("CPU µs/event, 256 streams × 50/s", "paced-256", "cpu_us_per_event");
/// CPU of an event at full speed.
pub const CPU_EVENTS: Figure = figure("CPU µs/event, no delay, 64 streams", "events-64", "cpu_us_per_event");
/// Median latency of one connection.
pub const P50_1: Figure = figure("p50 µs, c=1", "whole-1", "p50_us");
/// Tail latency of 64 connections.
pub const P99_64: Figure = figure("p99 µs, c=64", "whole-64", "p99_us");
/// Median latency at a fixed rate, above the client that does as many hops by itself.
pub const ADDED_P50: Figure =
    Figure { is_above_base: true, ..figure("added p50 µs at 2,000 requests/s", "rate-2000", "p50_us") };
/// Tail latency, likewise.
pub const ADDED_P99: Figure =
    Figure { is_above_base: true, ..figure("added p99 µs at 2,000 requests/s", "rate-2000", "p99_us") };
/// Time to the first byte of a stream's body.
pub const FIRST_1: Figure = figure("stream, first byte p50 µs, c=1", "stream-1", "first_p50_us");
/// Tail of the way of an event.
pub const EVENT_P99: Figure = figure("event delay p99 µs, 256 streams × 50/s", "paced-256", "event_p99_us");
/// Memory without load.
pub const IDLE: Figure = figure("resident MiB, idle", MEMORY, "idle_mib");
/// Memory of an open stream.
pub const PER_STREAM: Figure = figure("resident KiB per stream, 1,000 streams", MEMORY, "kib_per_stream");
/// Growth with clients that do not read.
pub const GROWTH: Figure = figure("growth MB, 4 × 80 MB not read", SLOW, "growth_mb");
/// What decode could write meanwhile.
pub const WRITTEN: Figure = figure("MB that decode could write, of 320", SLOW, "written_mb");

/// Every figure of the report, in its order.
pub const FIGURES: [Figure; 33] = [
    figure("requests/s, c=1", "whole-1", "requests_per_second"),
    figure("requests/s, c=16", "whole-16", "requests_per_second"),
    RATE_64,
    figure("requests/s, c=256", "whole-256", "requests_per_second"),
    figure("requests/s, 64 KiB prompt, c=16", "prompt-64k", "requests_per_second"),
    RATE_TWO,
    figure("CPU µs/request, c=1", "whole-1", "cpu_us_per_request"),
    CPU_64,
    CPU_PROMPT,
    figure("CPU µs/request at 2,000 requests/s", "rate-2000", "cpu_us_per_request"),
    CPU_EVENTS,
    CPU_PACED,
    figure("CPU µs/event, 1,000 streams × 5/s", MEMORY, "cpu_us_per_event"),
    P50_1,
    figure("p99 µs, c=1", "whole-1", "p99_us"),
    figure("p50 µs, c=16", "whole-16", "p50_us"),
    figure("p50 µs, c=64", "whole-64", "p50_us"),
    P99_64,
    figure("p99 µs, c=256", "whole-256", "p99_us"),
    figure("p50 µs at 2,000 requests/s", "rate-2000", "p50_us"),
    figure("p99 µs at 2,000 requests/s", "rate-2000", "p99_us"),
    ADDED_P50,
    ADDED_P99,
    FIRST_1,
    figure("events/s, no delay, 64 streams", "events-64", "events_per_second"),
    figure("events/s, both cores shared, 64 streams", "two-events-64", "events_per_second"),
    figure("event delay p50 µs, 256 streams × 50/s", "paced-256", "event_p50_us"),
    EVENT_P99,
    IDLE,
    figure("resident MiB, 1,000 streams", MEMORY, "full_mib"),
    PER_STREAM,
    GROWTH,
    WRITTEN,
];

/// Who was the limit: a proxy that had not all of its core waited for the load or the engine.
pub const LIMITS: [Figure; 5] = [
    figure("share of its core, c=64", "whole-64", "cpu_share"),
    figure("share of the load's core, c=64", "whole-64", "load_share"),
    figure("share of its core, events without delay", "events-64", "cpu_share"),
    figure("share of the load's core, events without delay", "events-64", "load_share"),
    figure("CPU µs/request of engine and load, c=64", "whole-64", "load_us_per_request"),
];

/// All records, found by contender, cell and round.
#[derive(Clone, Debug, Default)]
pub struct Results {
    records: BTreeMap<(String, String, u32), Record>,
}

impl Results {
    /// Of these records; a later one of the same cell and round replaces an earlier one.
    #[must_use]
    pub fn new(records: impl IntoIterator<Item = Record>) -> Self {
        let keyed = records.into_iter().map(|record| {
            let key = (record.contender.clone(), record.cell.clone(), record.round);
            (key, record)
        });
        Self { records: keyed.collect() }
    }

    /// Every record.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// The contenders that have records, in the report's order.
    #[must_use]
    pub fn contenders(&self) -> Vec<Contender> {
        let has = |contender: &Contender| self.records().any(|record| record.contender == contender.name());
        Contender::ALL.into_iter().filter(has).collect()
    }

    fn value(&self, contender: Contender, cell: &str, value: &str, round: u32) -> Option<f64> {
        self.records.get(&(contender.name().to_owned(), cell.to_owned(), round))?.get(value)
    }

    /// A figure of a contender in every round that has it.
    #[must_use]
    pub fn series(&self, figure: Figure, contender: Contender) -> BTreeMap<u32, f64> {
        let rounds = self.records().filter(|record| record.contender == contender.name() && record.cell == figure.cell);
        let numbers = rounds.filter_map(|record| {
            let own = record.get(figure.value)?;
            let below = if figure.is_above_base {
                self.value(contender.base(), figure.cell, figure.value, record.round)?
            } else {
                0.0
            };
            Some((record.round, own - below))
        });
        numbers.collect()
    }

    /// Its spread over the rounds.
    #[must_use]
    pub fn spread(&self, figure: Figure, contender: Contender) -> Option<Spread> {
        Spread::of(self.series(figure, contender).into_values())
    }

    /// Our proxy's figure divided by a peer's of the same round, over the rounds that have both.
    #[must_use]
    pub fn ratio(&self, figure: Figure, peer: Contender) -> Option<Spread> {
        let peers = self.series(figure, peer);
        let ours = self.series(figure, Contender::GcoProxy);
        let ratios = ours.into_iter().filter_map(|(round, own)| {
            let other = peers.get(&round).copied()?;
            (other > 0.0).then_some(own / other)
        });
        Spread::of(ratios)
    }

    /// Our median divided by a peer's, for figures whose single rounds may be near nothing.
    #[must_use]
    pub fn ratio_of_medians(&self, figure: Figure, peer: Contender) -> Option<f64> {
        let peer = self.spread(figure, peer)?.median;
        let ours = self.spread(figure, Contender::GcoProxy)?.median;
        (peer > 0.0).then_some(ours / peer)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record with one value.
    pub(crate) fn record(round: u32, contender: Contender, figure: Figure, value: f64) -> Record {
        let (contender, cell) = (contender.name().to_owned(), figure.cell.to_owned());
        let mut record = Record { round, contender, cell, ..Record::default() };
        record.set(figure.value, value);
        record
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let results = Results::new([
            record(0, Contender::GcoProxy, RATE_64, 30.0),
            record(0, Contender::Nginx, RATE_64, 60.0),
            record(1, Contender::GcoProxy, RATE_64, 10.0),
            record(1, Contender::Nginx, RATE_64, 10.0),
            // A round that the peer has not.
            record(2, Contender::GcoProxy, RATE_64, 1_000.0),
        ]);
        let ratio = results.ratio(RATE_64, Contender::Nginx).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.most, ratio.count), (0.75, 0.5, 1.0, 2));
        assert_eq!(results.ratio(RATE_64, Contender::Envoy), None);
    }

    #[test]
    fn added_latency_is_above_the_client_that_does_as_many_hops() {
        let results = Results::new([
            record(0, Contender::Direct, ADDED_P50, 50.0),
            record(0, Contender::DirectBoth, ADDED_P50, 90.0),
            record(0, Contender::GcoProxy, ADDED_P50, 190.0),
            record(0, Contender::Nginx, ADDED_P50, 110.0),
            record(0, Contender::VllmRouter, ADDED_P50, 290.0),
        ]);
        let median = |contender| results.spread(ADDED_P50, contender).map(|spread| spread.median);
        assert_eq!(median(Contender::GcoProxy), Some(100.0));
        assert_eq!(median(Contender::Nginx), Some(60.0));
        assert_eq!(results.ratio_of_medians(ADDED_P50, Contender::VllmRouter), Some(0.5));
    }
}
