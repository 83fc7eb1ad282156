//! Which of several backends gets a request. Pure: loads, turns and randomness are arguments.
//!
//! | Policy | What it takes |
//! |---|---|
//! | `round_robin` | the next one in turn |
//! | `least_loaded` | the one with the fewest requests in flight; of equals, the next in turn |
//! | `power_of_two` | of two at random, the one with fewer in flight: as good as the least loaded when several proxies choose without knowing of each other |
//!
//! A load is the proxy's own count of requests in flight, which is never late. A backend in its slow start has less than
//! a whole weight: it counts as more loaded, and is passed over in turn, in proportion.
//!
//! With a session (the value of the affinity header) all policies choose by rendezvous hashing: the same session gets the
//! same backend while that can be used, and a backend that comes or goes moves only its own sessions. A backend that has
//! over a quarter more than the mean load is passed over: a session gives way to load.

pub mod queue;

/// How backends are chosen; contract D.1, `PD_PROXY_SCHEDULING`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// In turn.
    RoundRobin,
    /// The fewest requests in flight.
    LeastLoaded,
    /// The better of two at random.
    #[default]
    PowerOfTwo,
}

impl Policy {
    /// All, with their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("round_robin", Self::RoundRobin), ("least_loaded", Self::LeastLoaded), ("power_of_two", Self::PowerOfTwo)];

    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastLoaded => "least_loaded",
            Self::PowerOfTwo => "power_of_two",
        }
    }
}

/// The weight of a backend that is not in its slow start.
pub const WHOLE_WEIGHT: u32 = 1_000;

/// The weight at the beginning of a slow start: a tenth, so that it is not left out altogether.
const LEAST_WEIGHT: u32 = 100;

/// One backend that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where it stands among all backends.
    pub index: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// Its weight in thousandths, 1 to [`WHOLE_WEIGHT`].
    pub weight: u32,
    /// Its hash, for sessions.
    pub hash: u64,
}

impl Candidate {
    /// Whether it would be less loaded than `other` with one request more, weights considered.
    fn is_less_loaded_than(&self, other: &Self) -> bool {
        let load = |candidate: &Self| candidate.in_flight as u64 + 1;
        load(self) * u64::from(other.weight) < load(other) * u64::from(self.weight)
    }
}

/// Chooses one of the candidates; `None` when there is none.
///
/// `turn` grows by one with each choice; `random` is evenly distributed; `session` is the hash of the session, if any.
#[must_use]
pub fn choose(
    policy: Policy,
    candidates: &[Candidate],
    turn: usize,
    random: u64,
    session: Option<u64>,
) -> Option<usize> {
    let count = candidates.len();
    if count <= 1 {
        return candidates.first().map(|only| only.index);
    }
    if let Some(session) = session {
        return by_session(candidates, session);
    }
    let chosen = match policy {
        Policy::RoundRobin => in_turn(candidates, turn, random),
        Policy::LeastLoaded => {
            let mut best = &candidates[turn % count];
            for step in 1..count {
                let candidate = &candidates[(turn % count + step) % count];
                if candidate.is_less_loaded_than(best) {
                    best = candidate;
                }
            }
            best
        }
        Policy::PowerOfTwo => {
            let first = (random % count as u64) as usize;
            // The upper half, and of the others only: two different ones.
            let step = ((random >> 32) % (count as u64 - 1)) as usize + 1;
            let (first, second) = (&candidates[first], &candidates[(first + step) % count]);
            if second.is_less_loaded_than(first) { second } else { first }
        }
    };
    Some(chosen.index)
}

/// The next in turn; one with less than the largest weight is passed over with the probability that it lacks.
fn in_turn(candidates: &[Candidate], turn: usize, random: u64) -> &Candidate {
    let count = candidates.len();
    let largest = candidates.iter().map(|candidate| candidate.weight).max().unwrap_or(WHOLE_WEIGHT).max(1);
    let mut random = random;
    for step in 0..count {
        let candidate = &candidates[(turn % count + step) % count];
        if candidate.weight >= largest || random % u64::from(largest) < u64::from(candidate.weight) {
            return candidate;
        }
        random = mix(random);
    }
    &candidates[turn % count]
}

/// Rendezvous hashing with bounded loads.
fn by_session(candidates: &[Candidate], session: u64) -> Option<usize> {
    let count = candidates.len();
    let total: usize = candidates.iter().map(|candidate| candidate.in_flight).sum();
    // A quarter over the mean with this request, rounded up: at least one candidate has less.
    let bound = ((total + 1) * 5).div_ceil(count * 4);
    let free = candidates.iter().filter(|candidate| candidate.in_flight < bound);
    free.max_by_key(|candidate| mix(session ^ candidate.hash)).map(|candidate| candidate.index)
}

/// The weight of a backend that became usable at `since`; 0 stands for long ago. All in milliseconds.
#[must_use]
pub fn slow_start_weight(since: u64, now: u64, slow_start: u64) -> u32 {
    let age = now.saturating_sub(since);
    if since == 0 || age >= slow_start {
        return WHOLE_WEIGHT;
    }
    let grown = u64::from(WHOLE_WEIGHT) * age / slow_start;
    u32::try_from(grown).unwrap_or(WHOLE_WEIGHT).max(LEAST_WEIGHT)
}

/// A hash of some bytes that is the same in every process and on every machine: proxies agree about sessions.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    // FNV-1a, then mixed: FNV's upper bits are weak for short texts.
    const BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    mix(bytes.iter().fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME)))
}

/// Spreads every bit over the whole word (the last steps of SplitMix64).
#[must_use]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn idle(count: usize) -> Vec<Candidate> {
        let candidate = |index| Candidate {
            index,
            in_flight: 0,
            weight: WHOLE_WEIGHT,
            hash: hash(format!("uid-{index}").as_bytes()),
        };
        (0..count).map(candidate).collect()
    }

    fn policy() -> impl Strategy<Value = Policy> {
        proptest::sample::select(vec![Policy::RoundRobin, Policy::LeastLoaded, Policy::PowerOfTwo])
    }

    #[test]
    fn nothing_to_choose_from_gives_nothing() {
        for (_, policy) in Policy::NAMES {
            assert_eq!(choose(policy, &[], 3, 4, None), None);
            assert_eq!(choose(policy, &[], 3, 4, Some(5)), None);
        }
    }

    #[test]
    fn round_robin_gives_everyone_as_much() {
        let candidates = idle(3);
        let chosen: Vec<usize> =
            (0..6).filter_map(|turn| choose(Policy::RoundRobin, &candidates, turn, 0, None)).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn least_loaded_finds_the_least_and_shares_among_equals() {
        let mut candidates = idle(4);
        for (candidate, load) in candidates.iter_mut().zip([5, 2, 9, 2]) {
            candidate.in_flight = load;
        }
        let chosen: Vec<usize> =
            (0..4).filter_map(|turn| choose(Policy::LeastLoaded, &candidates, turn, 0, None)).collect();
        assert_eq!(chosen, [1, 1, 3, 3]);
    }

    #[test]
    fn power_of_two_never_takes_the_most_loaded() {
        let mut candidates = idle(5);
        candidates[3].in_flight = 1;
        for random in 0..10_000_u64 {
            assert_ne!(choose(Policy::PowerOfTwo, &candidates, 0, mix(random), None), Some(3));
        }
    }

    #[test]
    fn a_slow_start_takes_its_share_in_proportion() {
        assert_eq!(slow_start_weight(0, 5, 10_000), WHOLE_WEIGHT);
        assert_eq!(slow_start_weight(1_000, 1_000, 10_000), LEAST_WEIGHT);
        assert_eq!(slow_start_weight(1_000, 6_000, 10_000), 500);
        assert_eq!(slow_start_weight(1_000, 11_000, 10_000), WHOLE_WEIGHT);
        assert_eq!(slow_start_weight(1_000, 1_000, 0), WHOLE_WEIGHT, "switched off");

        let mut candidates = idle(2);
        candidates[1].weight = 250;
        let taken = (0..10_000)
            .filter(|turn| choose(Policy::RoundRobin, &candidates, *turn, mix(*turn as u64), None) == Some(1));
        // Of its half, a quarter: 1,250 of 10,000, with a deviation of 31.
        let taken = taken.count();
        assert!((1_050..1_450).contains(&taken), "{taken}");
        // By load: with one request it counts as one with four.
        candidates[0].in_flight = 2;
        assert_eq!(choose(Policy::LeastLoaded, &candidates, 0, 0, None), Some(0));
        candidates[0].in_flight = 4;
        assert_eq!(choose(Policy::LeastLoaded, &candidates, 0, 0, None), Some(1));
    }

    #[test]
    fn when_all_start_slowly_nobody_is_passed_over() {
        let mut candidates = idle(3);
        for candidate in &mut candidates {
            candidate.weight = LEAST_WEIGHT;
        }
        let chosen: Vec<usize> =
            (0..3).filter_map(|turn| choose(Policy::RoundRobin, &candidates, turn, 999, None)).collect();
        assert_eq!(chosen, [0, 1, 2]);
    }

    #[test]
    fn a_session_stays_and_only_the_sessions_of_a_lost_backend_move() {
        let before = idle(5);
        let after: Vec<Candidate> = before.iter().copied().filter(|candidate| candidate.index != 2).collect();
        let mut moved = 0;
        for session in 0..1_000_u32 {
            let session = Some(hash(&session.to_le_bytes()));
            let first = choose(Policy::PowerOfTwo, &before, 0, 1, session);
            assert_eq!(first, choose(Policy::RoundRobin, &before, 7, 2, session));
            let second = choose(Policy::LeastLoaded, &after, 0, 0, session);
            if first == second {
                continue;
            }
            assert_eq!(first, Some(2), "a session of another backend moved");
            moved += 1;
        }
        assert!((100..300).contains(&moved), "{moved} of 1,000 sessions belong to one of five");
    }

    #[test]
    fn a_session_gives_way_to_load() {
        let mut candidates = idle(2);
        let session = Some(hash(b"one busy session"));
        let home = choose(Policy::PowerOfTwo, &candidates, 0, 0, session).unwrap();
        candidates[home].in_flight = 10;
        assert_eq!(choose(Policy::PowerOfTwo, &candidates, 0, 0, session), Some(1 - home));
    }

    proptest! {
        #[test]
        fn whatever_the_loads_one_of_the_candidates_is_chosen(
            policy in policy(),
            loads in proptest::collection::vec((0..10_000_usize, 1..=WHOLE_WEIGHT), 1..20),
            turn in any::<usize>(),
            random in any::<u64>(),
            session in any::<Option<u64>>(),
        ) {
            let candidates: Vec<Candidate> = loads.iter().enumerate().map(|(index, (in_flight, weight))| Candidate {
                index: index * 3,
                in_flight: *in_flight,
                weight: *weight,
                hash: hash(&index.to_le_bytes()),
            }).collect();
            let chosen = choose(policy, &candidates, turn, random, session);
            prop_assert!(candidates.iter().any(|candidate| Some(candidate.index) == chosen));
        }

        #[test]
        fn loads_stay_close_to_each_other_under_every_policy_by_load(
            seed in any::<u64>(),
            count in 2..8_usize,
            with_sessions in any::<bool>(),
        ) {
            let mut candidates = idle(count);
            let mut random = seed;
            for turn in 0..400 {
                random = mix(random.wrapping_add(0x9E37_79B9_7F4A_7C15));
                let session = with_sessions.then_some(random % 7);
                let index = choose(Policy::LeastLoaded, &candidates, turn, random, session).unwrap();
                candidates[index].in_flight += 1;
            }
            let most = candidates.iter().map(|candidate| candidate.in_flight).max().unwrap();
            // Sessions may go a quarter over the mean, and by rounding one more.
            let bound = if with_sessions { (400 * 5_usize).div_ceil(count * 4) + 1 } else { 400_usize.div_ceil(count) };
            prop_assert!(most <= bound, "{most} of 400 among {count}");
        }
    }
}
