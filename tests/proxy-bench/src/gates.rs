//! What must hold of our proxy beside the peers, and what would be better still.

use crate::figures::{
    ADDED_P50, ADDED_P99, CPU_64, CPU_EVENTS, CPU_PACED, CPU_PROMPT, EVENT_P99, FIRST_1, Figure, GROWTH, IDLE, P50_1,
    P99_64, PER_STREAM, RATE_64, RATE_TWO, Results, WRITTEN,
};
use crate::peers::Contender;
use crate::statistics::Spread;

/// A bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No less than this.
    AtLeast(f64),
    /// No more than this.
    AtMost(f64),
}

impl Bound {
    /// Whether a number keeps to it.
    #[must_use]
    pub fn holds(self, number: f64) -> bool {
        match self {
            Self::AtLeast(bound) => number >= bound,
            Self::AtMost(bound) => number <= bound,
        }
    }
}

/// What the figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// A peer's figure of the same round: the median of the ratios counts.
    Peer(Contender),
    /// A peer's median: the ratio of the medians counts, since single rounds may be near nothing.
    MedianOf(Contender),
    /// Nothing: the figure itself counts.
    Itself,
}

/// One gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// The figure.
    pub figure: Figure,
    /// What it is compared with.
    pub against: Against,
    /// What must hold.
    pub bound: Bound,
    /// Whether it must hold, or would only be better.
    pub is_stretch: bool,
}

/// Whether a gate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Held,
    /// It does not.
    Missed,
    /// There are no figures for it.
    NotMeasured,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Missed => "**missed**",
            Self::NotMeasured => "not measured",
        }
    }
}

const fn least(figure: Figure, peer: Contender, bound: f64) -> Gate {
    Gate { figure, against: Against::Peer(peer), bound: Bound::AtLeast(bound), is_stretch: false }
}

const fn most(figure: Figure, peer: Contender, bound: f64) -> Gate {
    Gate { figure, against: Against::Peer(peer), bound: Bound::AtMost(bound), is_stretch: false }
}

const fn itself(figure: Figure, bound: f64) -> Gate {
    Gate { figure, against: Against::Itself, bound: Bound::AtMost(bound), is_stretch: false }
}

const fn stretch(gate: Gate) -> Gate {
    Gate { is_stretch: true, ..gate }
}

const fn of_medians(figure: Figure, peer: Contender, bound: f64) -> Gate {
    Gate { against: Against::MedianOf(peer), ..most(figure, peer, bound) }
}

/// All gates, then what would be better still.
pub const GATES: [Gate; 34] = [
    least(RATE_64, Contender::VllmRouter, 2.5),
    least(RATE_64, Contender::SglangRouter, 2.5),
    least(RATE_64, Contender::Smg, 3.7),
    // Two hops for the price of one.
    least(RATE_64, Contender::Envoy, 0.95),
    least(RATE_64, Contender::Nginx, 0.53),
    least(RATE_TWO, Contender::VllmRouter, 3.5),
    most(CPU_64, Contender::VllmRouter, 0.40),
    most(CPU_64, Contender::Nginx, 1.9),
    most(CPU_PROMPT, Contender::VllmRouter, 0.33),
    most(CPU_PROMPT, Contender::Nginx, 1.8),
    most(CPU_PACED, Contender::VllmRouter, 0.70),
    most(CPU_PACED, Contender::Nginx, 1.15),
    most(CPU_EVENTS, Contender::VllmRouter, 0.90),
    most(CPU_EVENTS, Contender::Nginx, 1.25),
    most(P50_1, Contender::VllmRouter, 0.80),
    most(P50_1, Contender::Nginx, 1.6),
    most(P99_64, Contender::VllmRouter, 0.38),
    of_medians(ADDED_P50, Contender::VllmRouter, 0.7),
    of_medians(ADDED_P99, Contender::VllmRouter, 0.5),
    most(FIRST_1, Contender::VllmRouter, 0.88),
    most(FIRST_1, Contender::Nginx, 1.45),
    most(EVENT_P99, Contender::Nginx, 1.5),
    most(IDLE, Contender::VllmRouter, 0.2),
    itself(IDLE, 15.0),
    most(PER_STREAM, Contender::VllmRouter, 0.5),
    most(PER_STREAM, Contender::Nginx, 2.2),
    itself(PER_STREAM, 40.0),
    itself(GROWTH, 10.0),
    // Decode is held back: buffers of the kernel take some megabytes per hop, and the proxy next to nothing.
    itself(WRITTEN, 160.0),
    stretch(least(RATE_64, Contender::Nginx, 0.75)),
    stretch(least(RATE_64, Contender::VllmRouter, 3.7)),
    stretch(most(CPU_EVENTS, Contender::Nginx, 0.95)),
    stretch(most(CPU_PACED, Contender::Nginx, 0.95)),
    stretch(itself(PER_STREAM, 24.0)),
];

impl Gate {
    /// What counts for it, with its range over the rounds where it has one.
    #[must_use]
    pub fn measured(&self, results: &Results) -> Option<Spread> {
        match self.against {
            Against::Peer(peer) => results.ratio(self.figure, peer),
            Against::MedianOf(peer) => {
                let median = results.ratio_of_medians(self.figure, peer)?;
                let range = results.ratio(self.figure, peer);
                Some(range.map_or(Spread { median, least: median, most: median, count: 1 }, |range| Spread {
                    median,
                    ..range
                }))
            }
            Against::Itself => results.spread(self.figure, Contender::GcoProxy),
        }
    }

    /// Whether it holds.
    #[must_use]
    pub fn verdict(&self, results: &Results) -> Verdict {
        match self.measured(results) {
            None => Verdict::NotMeasured,
            Some(spread) if self.bound.holds(spread.median) => Verdict::Held,
            Some(_) => Verdict::Missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::record;

    #[test]
    fn a_gate_is_held_or_missed_by_the_median_of_the_ratios() {
        let rounds = |ours: [f64; 3]| {
            let ours =
                ours.into_iter().zip(0..).map(|(value, round)| record(round, Contender::GcoProxy, CPU_64, value));
            let peer = (0..3).map(|round| record(round, Contender::Nginx, CPU_64, 10.0));
            Results::new(ours.chain(peer))
        };
        let gate = most(CPU_64, Contender::Nginx, 1.9);
        assert_eq!(gate.verdict(&rounds([19.0, 10.0, 99.0])), Verdict::Held);
        assert_eq!(gate.verdict(&rounds([19.1, 10.0, 99.0])), Verdict::Missed);
        assert_eq!(gate.verdict(&Results::default()), Verdict::NotMeasured);
        let least = least(CPU_64, Contender::Nginx, 1.9);
        assert_eq!(least.verdict(&rounds([19.0, 10.0, 99.0])), Verdict::Held);
        assert_eq!(least.verdict(&rounds([18.9, 10.0, 99.0])), Verdict::Missed);
    }

    #[test]
    fn a_figure_that_stands_for_itself_needs_no_peer() {
        let results = Results::new([record(0, Contender::GcoProxy, GROWTH, 10.1)]);
        assert_eq!(itself(GROWTH, 10.0).verdict(&results), Verdict::Missed);
        assert_eq!(itself(GROWTH, 10.2).verdict(&results), Verdict::Held);
    }

    #[test]
    fn gates_come_before_what_would_be_better_still() {
        let first_stretch = GATES.iter().position(|gate| gate.is_stretch).unwrap();
        assert!(GATES.iter().skip(first_stretch).all(|gate| gate.is_stretch));
    }
}
