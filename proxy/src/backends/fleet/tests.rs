use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::backends::sources::fixed;

fn decode(count: usize) -> Vec<Description> {
    let urls: Vec<String> = (0..count).map(|number| format!("http://192.0.2.{number}:8000")).collect();
    fixed::backends(Role::Decode, &urls, None).unwrap()
}

fn fleet(settings: FleetSettings, count: usize) -> (Fleet, Instant) {
    let now = Instant::now();
    let fleet = Fleet::new(settings, now);
    fleet.apply(Role::Decode, &fixed::all_ready(&decode(count)), now);
    (fleet, now)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn in_turn() -> FleetSettings {
    FleetSettings { policy: Policy::RoundRobin, ..FleetSettings::default() }
}

#[tokio::test]
async fn nothing_is_known_until_a_source_speaks() {
    let now = Instant::now();
    let fleet = Fleet::new(FleetSettings::default(), now);
    assert!(!fleet.is_known(Role::Decode) && !fleet.has_ready(Role::Decode));
    assert_eq!(fleet.pick(Role::Decode, &[], None, now, 0).unwrap_err(), NoBackend::NoneKnown);
    fleet.apply(Role::Decode, &[], now);
    assert!(fleet.is_known(Role::Decode) && !fleet.has_ready(Role::Decode));
}

#[tokio::test]
async fn a_request_that_failed_gets_another_backend_each_time_until_all_were_tried() {
    let (fleet, now) = fleet(FleetSettings::default(), 3);
    let mut tried: Vec<BackendKey> = Vec::new();
    for random in 0..3 {
        let pick = fleet.pick(Role::Decode, &tried, None, now, random).unwrap();
        assert!(!tried.contains(pick.key()));
        tried.push(pick.key().clone());
    }
    assert_eq!(fleet.pick(Role::Decode, &tried, None, now, 0).unwrap_err(), NoBackend::AllTried);
}

#[tokio::test]
async fn a_dead_backend_is_left_alone_after_the_first_failure_and_probed_by_one_request() {
    let (fleet, now) = fleet(in_turn(), 2);
    let dead = decode(2)[0].key.clone();
    let mut asked_dead = 0;
    for request in 0..1_000_u64 {
        // A request each millisecond; the fleet is tried until one works, as an exchange does.
        let now = now + Duration::from_millis(request);
        let pick = fleet.pick(Role::Decode, &[], None, now, request).unwrap();
        if *pick.key() == dead {
            asked_dead += 1;
            pick.failed(Failure::Connect, now);
            let other = fleet.pick(Role::Decode, &[pick.key().clone()], None, now, request).unwrap();
            assert_ne!(*other.key(), dead);
            other.succeeded(now);
        } else {
            pick.succeeded(now);
        }
    }
    assert_eq!(asked_dead, 1, "within the first second there is no probe");
    let later = now + seconds(2);
    let probe = fleet.pick(Role::Decode, &[], None, later, 0).unwrap();
    assert_eq!(*probe.key(), dead, "one request probes");
    for request in 0..100 {
        assert_ne!(*fleet.pick(Role::Decode, &[], None, later, request).unwrap().key(), dead);
    }
    probe.succeeded(later);
    let chosen = (0..100)
        .filter(|request| *fleet.pick(Role::Decode, &[], None, later + seconds(60), *request).unwrap().key() == dead);
    assert_eq!(chosen.count(), 50, "it works again");
}

#[tokio::test]
async fn a_probe_whose_client_leaves_does_not_keep_the_backend_away() {
    let (fleet, now) = fleet(in_turn(), 2);
    let first = fleet.pick(Role::Decode, &[], None, now, 0).unwrap();
    let key = first.key().clone();
    first.failed(Failure::Unavailable, now);
    let later = now + seconds(2);
    for _ in 0..3 {
        let probe = fleet.pick(Role::Decode, &[], None, later, 0).unwrap();
        assert_eq!(*probe.key(), key);
        // Dropped without a verdict.
    }
}

#[tokio::test]
async fn all_down_says_when_to_come_again() {
    let (fleet, now) = fleet(FleetSettings::default(), 2);
    for _ in 0..2 {
        fleet.pick(Role::Decode, &[], None, now, 0).unwrap().failed(Failure::Connect, now);
    }
    // The last one that works is given up only after three failures in a row.
    for _ in 0..2 {
        fleet.pick(Role::Decode, &[], None, now, 0).unwrap().failed(Failure::Connect, now);
    }
    let none = fleet.pick(Role::Decode, &[], None, now + Duration::from_millis(300), 0).unwrap_err();
    assert_eq!(none, NoBackend::AllDown { retry_after: Duration::from_millis(700) });
    assert_eq!(none.retry_after_seconds(), 1);
    assert!(fleet.has_ready(Role::Decode), "a breaker does not make the proxy unready");
    // Both may be probed then.
    let probes: Vec<Pick> =
        (0..2).filter_map(|_| fleet.pick(Role::Decode, &[], None, now + seconds(1), 0).ok()).collect();
    assert_eq!(probes.len(), 2);
    assert!(fleet.pick(Role::Decode, &[], None, now + seconds(1), 0).is_err());
}

#[tokio::test]
async fn a_thousand_bad_requests_open_no_breaker_and_neither_do_own_limits() {
    let (fleet, now) = fleet(FleetSettings { max_in_flight: 1, ..in_turn() }, 1);
    for _ in 0..1_000 {
        let pick = fleet.pick(Role::Decode, &[], None, now, 0).unwrap();
        // While it has its one request, others are refused by the limit.
        let full = fleet.pick(Role::Decode, &[], None, now, 0).unwrap_err();
        assert_eq!(full, NoBackend::AllFull);
        assert!(full.is_overload());
        // A 4xx is a success: the engine works.
        pick.succeeded(now);
    }
    assert_eq!(fleet.breaker_word(&fleet.backends(Role::Decode)[0], now), "closed");
}

#[tokio::test]
async fn drained_ending_and_unready_backends_get_nothing_new_and_keep_what_they_have() {
    let (fleet, now) = fleet(in_turn(), 3);
    let running: Vec<Pick> = (0..3).map(|_| fleet.pick(Role::Decode, &[], None, now, 0).unwrap()).collect();
    let described = decode(3);
    let said = [
        (described[0].clone(), Availability::Terminating),
        (described[1].clone(), Availability::NotReady),
        (described[2].clone(), Availability::Ready),
    ];
    fleet.apply(Role::Decode, &said, now);
    for _ in 0..10 {
        assert_eq!(*fleet.pick(Role::Decode, &[], None, now, 0).unwrap().key(), described[2].key);
    }
    assert_eq!(fleet.set_drained("192.0.2.2:8000", true, now), 1);
    assert_eq!(fleet.pick(Role::Decode, &[], None, now, 0).unwrap_err(), NoBackend::NoneReady);
    assert!(!fleet.has_ready(Role::Decode));
    assert_eq!(running.iter().map(|pick| pick.in_flight()).sum::<usize>(), 3);
    assert_eq!(fleet.set_drained(described[2].key.as_str(), false, now), 1);
    assert_eq!(fleet.set_drained("nobody", true, now), 0);
    assert!(fleet.has_ready(Role::Decode));
    // Removed altogether: its requests go on and are counted off.
    fleet.apply(Role::Decode, &[], now);
    let kept = running[2].backend().clone();
    drop(running);
    assert_eq!(kept.in_flight(), 0);
}

#[tokio::test]
async fn a_backend_that_becomes_ready_again_starts_anew_and_slowly() {
    let (fleet, now) = fleet(FleetSettings { policy: Policy::LeastLoaded, ..FleetSettings::default() }, 2);
    let described = decode(2);
    let first = fleet.backends(Role::Decode)[0].clone();
    let pick = fleet.pick(Role::Decode, &[], None, now, 0).unwrap();
    assert_eq!(pick.key(), first.key());
    pick.failed(Failure::Connect, now);
    drop(pick);
    let away = [(described[0].clone(), Availability::NotReady), (described[1].clone(), Availability::Ready)];
    fleet.apply(Role::Decode, &away, now);
    let back = now + seconds(5);
    fleet.apply(Role::Decode, &fixed::all_ready(&described), back);
    assert!(Arc::ptr_eq(&first, &fleet.backends(Role::Decode)[0]), "the same backend");
    assert_eq!(fleet.breaker_word(&first, back), "closed");
    // A tenth of the weight: ten running requests on the other weigh as much as one here.
    let running: Vec<Pick> = (0..11).map(|_| fleet.pick(Role::Decode, &[], None, back, 0).unwrap()).collect();
    assert_eq!(running.iter().filter(|pick| pick.key() == first.key()).count(), 1);
    let later = back + seconds(10);
    let evened: Vec<Pick> = (0..9).map(|_| fleet.pick(Role::Decode, &[], None, later, 0).unwrap()).collect();
    assert_eq!(evened.iter().filter(|pick| pick.key() == first.key()).count(), 9);
    drop((running, evened));
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_the_place_that_comes_free_and_in_turn() {
    let settings = FleetSettings { max_in_flight: 1, queue_length: 2, ..FleetSettings::default() };
    let (fleet, now) = fleet(settings, 1);
    let running = fleet.pick(Role::Decode, &[], None, now, 0).unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for number in 0..2 {
        let (waits, sender) = (fleet.clone(), sender.clone());
        waiting.push(tokio::spawn(async move {
            let pick = waits.pick_or_wait(Role::Decode, &[], None, number).await.unwrap();
            sender.send(number).unwrap();
            drop(pick);
        }));
        while fleet.waiting(Role::Decode) <= number as usize {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(fleet.pick_or_wait(Role::Decode, &[], None, 9).await.unwrap_err(), NoBackend::QueueFull);
    drop(running);
    assert_eq!((order.recv().await, order.recv().await), (Some(0), Some(1)));
    for one in waiting {
        one.await.unwrap();
    }
    assert_eq!(fleet.waiting(Role::Decode), 0);
    assert_eq!(fleet.backends(Role::Decode)[0].in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_in_time_and_a_client_that_leaves_gives_its_place_up() {
    let settings = FleetSettings { max_in_flight: 1, ..FleetSettings::default() };
    let (fleet, now) = fleet(settings, 1);
    let running = fleet.pick(Role::Decode, &[], None, now, 0).unwrap();
    let gave_up = tokio::time::timeout(seconds(3), fleet.pick_or_wait(Role::Decode, &[], None, 0)).await;
    assert!(gave_up.is_err());
    assert_eq!(fleet.waiting(Role::Decode), 0);
    let before = Instant::now();
    assert_eq!(fleet.pick_or_wait(Role::Decode, &[], None, 0).await.unwrap_err(), NoBackend::QueueTimedOut);
    assert_eq!(before.elapsed().as_secs(), 10);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn a_new_backend_serves_those_who_wait() {
    let settings = FleetSettings { max_in_flight: 1, ..FleetSettings::default() };
    let (fleet, now) = fleet(settings, 1);
    let running = fleet.pick(Role::Decode, &[], None, now, 0).unwrap();
    let waiting = tokio::spawn({
        let fleet = fleet.clone();
        async move { fleet.pick_or_wait(Role::Decode, &[], None, 0).await.map(|pick| pick.key().clone()) }
    });
    while fleet.waiting(Role::Decode) == 0 {
        tokio::task::yield_now().await;
    }
    fleet.apply(Role::Decode, &fixed::all_ready(&decode(2)), Instant::now());
    assert_eq!(waiting.await.unwrap().unwrap(), decode(2)[1].key);
    drop(running);
}

#[tokio::test]
async fn another_process_at_the_same_address_is_another_backend_and_takes_over_the_drain_of_its_pod() {
    let (fleet, now) = fleet(in_turn(), 1);
    let before = fleet.backends(Role::Decode)[0].clone();
    let mut description = before.description().clone();
    description.key = BackendKey::new("another-uid");
    fleet.apply(Role::Decode, &[(description.clone(), Availability::Ready)], now);
    let after = fleet.backends(Role::Decode)[0].clone();
    assert!(!Arc::ptr_eq(&before, &after) && before.availability() == Availability::Terminating);
    fleet.set_drained("another-uid", true, now);
    description.authority = "192.0.2.99:8000".to_owned();
    fleet.apply(Role::Decode, &[(description, Availability::Ready)], now);
    assert!(fleet.backends(Role::Decode)[0].is_drained());
}

/// What a request may do.
#[derive(Clone, Debug)]
enum Step {
    Begin { session: Option<u8>, random: u64 },
    Succeed(usize),
    Fail(usize),
    End(usize),
    Later(u64),
    Say(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<Option<u8>>(), any::<u64>()).prop_map(|(session, random)| Step::Begin { session, random }),
        2 => any::<usize>().prop_map(Step::Succeed),
        2 => any::<usize>().prop_map(Step::Fail),
        3 => any::<usize>().prop_map(Step::End),
        1 => (0..5_000_u64).prop_map(Step::Later),
        1 => proptest::collection::vec(0..3_u8, 4).prop_map(Step::Say),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_counters_are_exact_and_return_to_zero(
        steps in proptest::collection::vec(step(), 0..120),
        policy in proptest::sample::select(vec![Policy::RoundRobin, Policy::LeastLoaded, Policy::PowerOfTwo]),
    ) {
        let started = Instant::now();
        let settings = FleetSettings { policy, max_in_flight: 3, ..FleetSettings::default() };
        let fleet = Fleet::new(settings, started);
        let described = decode(4);
        fleet.apply(Role::Decode, &fixed::all_ready(&described), started);
        let mut known: Vec<Arc<Backend>> = fleet.backends(Role::Decode).to_vec();
        let mut running: Vec<Pick> = Vec::new();
        let mut now = started;
        for step in steps {
            match step {
                Step::Begin { session, random } => {
                    let session = session.map(|byte| [byte]);
                    let session = session.as_ref().map(<[u8; 1]>::as_slice);
                    if let Ok(pick) = fleet.pick(Role::Decode, &[], session, now, random) {
                        prop_assert!(pick.is_wanted());
                        running.push(pick);
                    }
                }
                Step::Succeed(which) if !running.is_empty() => running[which % running.len()].succeeded(now),
                Step::Fail(which) if !running.is_empty() => {
                    running[which % running.len()].failed(Failure::Connect, now);
                }
                Step::End(which) if !running.is_empty() => {
                    let which = which % running.len();
                    drop(running.swap_remove(which));
                }
                Step::Later(time) => now += Duration::from_millis(time),
                Step::Say(words) => {
                    let said: Vec<(Description, Availability)> = described.iter().zip(words).filter_map(|(one, word)| {
                        let availability = [Some(Availability::Ready), Some(Availability::NotReady), None][word as usize];
                        availability.map(|availability| (one.clone(), availability))
                    }).collect();
                    fleet.apply(Role::Decode, &said, now);
                    for backend in fleet.backends(Role::Decode).iter() {
                        if !known.iter().any(|one| Arc::ptr_eq(one, backend)) {
                            known.push(backend.clone());
                        }
                    }
                }
                Step::Succeed(_) | Step::Fail(_) | Step::End(_) => {}
            }
            let mut counts: HashMap<*const Backend, usize> = HashMap::new();
            for pick in &running {
                *counts.entry(Arc::as_ptr(pick.backend())).or_default() += 1;
            }
            for backend in &known {
                let count = counts.get(&Arc::as_ptr(backend)).copied().unwrap_or_default();
                prop_assert_eq!(backend.in_flight(), count);
                prop_assert!(count <= 3);
            }
        }
        running.clear();
        prop_assert!(known.iter().all(|backend| backend.in_flight() == 0));
        // And when everything works from now on, every backend gets requests again.
        fleet.apply(Role::Decode, &fixed::all_ready(&described), now);
        for _ in 0..8 {
            now += Duration::from_secs(60);
            for random in 0..8 {
                if let Ok(pick) = fleet.pick(Role::Decode, &[], None, now, random) {
                    pick.succeeded(now);
                }
            }
        }
        for backend in fleet.backends(Role::Decode).iter() {
            prop_assert_eq!(fleet.breaker_word(backend, now), "closed");
        }
    }
}
