//! Every order of events that can happen is walked, and what must hold is checked at each step.
//!
//! The walk is over states of (exchange, what the shell has open): an event is offered only when the shell could tell it,
//! that is after the action that it answers.

use std::collections::{HashSet, VecDeque};

use super::{
    Absence, Action, Connector, Deadline, DecodeAnswer, Event, Exchange, Fallback, Fault, Outcome, PrefillAnswer,
    Reason, Rules,
};

/// What the shell has open, and what the client has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Shell {
    /// An action whose answer is awaited before anything else is done.
    asked: Option<Action>,
    prefill_open: bool,
    decode_open: bool,
    decode_has_parameters: bool,
    /// A decode answer that is held and could be relayed.
    decode_held: bool,
    clock: Option<Deadline>,
    /// How far this try has come: its identity is known, prefill answered.
    identified: bool,
    prefill_ready: bool,
    relaying: bool,
    answers: u8,
    outcome: Option<Outcome>,
    tries: u8,
    sent: u8,
}

const FAULTS: [Fault; 4] = [Fault::Unreachable, Fault::TimedOut, Fault::Broken, Fault::Status];
const ABSENCES: [Absence; 4] = [Absence::None, Absence::Down, Absence::Full, Absence::Tried];

impl Shell {
    /// Every event that may come next.
    fn possible(&self) -> Vec<Event> {
        let mut events = vec![Event::ClientGone];
        match self.asked {
            Some(Action::ChooseDecode) => {
                events.push(Event::DecodeChosen);
                events.extend(ABSENCES.map(Event::NoDecode));
                return events;
            }
            Some(Action::ChoosePrefill) => {
                events.push(Event::PrefillChosen);
                events.extend(ABSENCES.map(Event::NoPrefill));
                return events;
            }
            Some(Action::Identify) => {
                events.extend([Event::Identified, Event::Unidentified]);
                return events;
            }
            _ => {}
        }
        if self.prefill_open {
            events.extend(
                [PrefillAnswer::Ready, PrefillAnswer::NoParameters, PrefillAnswer::ClientError].map(Event::Prefill),
            );
            events.extend(FAULTS.map(|fault| Event::Prefill(PrefillAnswer::Failed(fault))));
        }
        if self.decode_open {
            events.extend([DecodeAnswer::Begun, DecodeAnswer::ClientError, DecodeAnswer::Failed].map(Event::Decode));
            for fault in FAULTS {
                let answered = fault == Fault::Status;
                events.push(Event::Decode(DecodeAnswer::Unavailable { answered, fault }));
            }
        }
        if let Some(deadline) = self.clock {
            events.push(Event::Expired(deadline));
        }
        if self.relaying {
            events.extend([Event::Relayed, Event::BrokeOff]);
        }
        events
    }

    /// Takes the event as the shell does before it tells the machine.
    fn before(&mut self, event: Event) {
        match event {
            Event::Prefill(answer) => {
                self.prefill_open = false;
                self.prefill_ready |= answer == PrefillAnswer::Ready;
            }
            Event::Decode(answer) => {
                self.decode_open = false;
                self.decode_held = !matches!(answer, DecodeAnswer::Unavailable { answered: false, .. });
            }
            Event::Identified => self.identified = true,
            Event::Expired(_) => self.clock = None,
            Event::Relayed | Event::BrokeOff => self.relaying = false,
            _ => {}
        }
        self.asked = None;
    }

    /// Does what the machine says and checks that it may be done.
    fn does(&mut self, action: Action, rules: Rules, after_client: bool) {
        let told = format!("{rules:?}: {action:?} with {self:?}");
        assert!(self.asked.is_none(), "something is done while an answer is awaited: {told}");
        if after_client {
            assert!(
                matches!(action, Action::Stop | Action::ClosePrefill | Action::CloseDecode | Action::Count(_)),
                "called after the client left: {told}"
            );
        }
        let ended = self.answers > 0;
        match action {
            Action::ChooseDecode | Action::ChoosePrefill | Action::Identify => {
                assert!(!ended, "begun after the answer: {told}");
                assert!(!self.decode_open && !self.prefill_open, "a leg is still open: {told}");
                if action == Action::ChoosePrefill {
                    (self.identified, self.prefill_ready) = (false, false);
                    self.tries += 1;
                    assert!(self.tries <= 4, "{told}");
                }
                self.asked = Some(action);
            }
            Action::SendPrefill => {
                assert!(!ended && !self.prefill_open, "{told}");
                assert!(rules.connector != Connector::Mooncake || self.identified, "no engine id: {told}");
                self.prefill_open = true;
                self.sent += 1;
            }
            Action::SendDecode { with_parameters } => {
                assert!(!ended && !self.decode_open, "{told}");
                if with_parameters {
                    let whole = match rules.connector {
                        Connector::Mooncake => self.identified && self.prefill_open,
                        Connector::Nixl => self.prefill_ready && !self.prefill_open,
                        Connector::Plain => false,
                    };
                    assert!(whole, "parameters that are not whole: {told}");
                } else {
                    assert!(!self.prefill_open, "a plain decode beside a prefill: {told}");
                }
                self.decode_open = true;
                self.decode_held = false;
                self.decode_has_parameters = with_parameters;
                self.sent += 1;
            }
            Action::ClosePrefill => {
                assert!(self.prefill_open, "{told}");
                self.prefill_open = false;
            }
            Action::CloseDecode => {
                assert!(self.decode_open || self.decode_held || self.relaying, "{told}");
                (self.decode_open, self.decode_held, self.relaying) = (false, false, false);
            }
            Action::ForgetIdentity => {}
            Action::Start(deadline) => self.clock = Some(deadline),
            Action::Stop => self.clock = None,
            Action::RelayDecode(outcome) => {
                assert!(self.decode_held && !self.decode_open, "{told}");
                assert!(outcome != Outcome::Transferred || self.decode_has_parameters, "{told}");
                assert!(!matches!(outcome, Outcome::DecodeOnly(_)) || !self.decode_has_parameters, "{told}");
                self.relaying = true;
                self.answer(outcome, &told);
            }
            Action::RelayPrefill(outcome) => {
                // An answer that is held from an earlier try is dropped with it.
                assert!(!self.decode_open && !self.relaying, "something of decode may reach the client: {told}");
                self.decode_held = false;
                self.answer(outcome, &told);
            }
            Action::Refuse(outcome) => {
                assert!(!self.decode_open && !self.prefill_open, "a leg is left open: {told}");
                self.answer(outcome, &told);
            }
            Action::Count(outcome) => {
                assert!(self.outcome.is_none(), "counted twice: {told}");
                self.outcome = Some(outcome);
            }
            Action::Abort => assert!(ended, "{told}"),
        }
    }

    fn answer(&mut self, outcome: Outcome, told: &str) {
        self.answers += 1;
        assert_eq!(self.answers, 1, "answered twice: {told}");
        assert!(self.outcome.is_none(), "counted twice: {told}");
        self.outcome = Some(outcome);
        // A clock that went on would end an answer that is under way.
        assert_eq!(self.clock, None, "{told}");
    }
}

/// Walks everything from the beginning; returns how many states and steps there were, and the outcomes seen.
fn walk(rules: Rules, whole: Option<Reason>) -> (usize, usize, HashSet<Outcome>) {
    let mut shell = Shell::default();
    let mut exchange = Exchange::new(rules, whole);
    let mut actions = Vec::new();
    exchange.on(Event::Begin, &mut actions);
    actions.drain(..).for_each(|action| shell.does(action, rules, false));
    let mut seen = HashSet::from([(exchange.clone(), shell.clone())]);
    let mut open = VecDeque::from([(exchange, shell)]);
    let (mut steps, mut outcomes) = (0, HashSet::new());
    while let Some((exchange, shell)) = open.pop_front() {
        if exchange.is_over() {
            assert!(shell.outcome.is_some(), "not counted: {shell:?}");
            assert!(!shell.prefill_open && !shell.decode_open, "a leg is left open: {shell:?}");
            outcomes.extend(shell.outcome);
            continue;
        }
        for event in shell.possible() {
            steps += 1;
            let (mut exchange, mut shell) = (exchange.clone(), shell.clone());
            shell.before(event);
            let leaves = event == Event::ClientGone;
            exchange.on(event, &mut actions);
            for action in actions.drain(..) {
                shell.does(action, rules, leaves);
            }
            assert!(!leaves || exchange.is_over(), "goes on without a client");
            let waits = shell.asked.is_some() || shell.prefill_open || shell.decode_open || shell.relaying;
            assert!(exchange.is_over() || waits, "nothing can happen any more: {event:?} {exchange:?} {shell:?}");
            assert!(shell.sent <= 16, "no end of tries: {shell:?}");
            if seen.insert((exchange.clone(), shell.clone())) {
                open.push_back((exchange, shell));
            }
        }
    }
    (seen.len(), steps, outcomes)
}

const CONNECTORS: [Connector; 3] = [Connector::Mooncake, Connector::Nixl, Connector::Plain];

#[test]
fn in_every_order_of_events_the_rules_of_an_exchange_hold() {
    for connector in CONNECTORS {
        for fallback in [Fallback::DecodeOnly, Fallback::Fail] {
            let (states, steps, outcomes) = walk(Rules { connector, fallback }, None);
            println!("{connector:?} {fallback:?}: {states} states, {steps} steps, {} outcomes", outcomes.len());
            let best = if connector.has_parameters() { Outcome::Transferred } else { Outcome::Primed };
            assert!(outcomes.contains(&best));
            let fell = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::DecodeOnly(_))).count();
            assert_eq!(fell > 0, fallback == Fallback::DecodeOnly, "{outcomes:?}");
        }
    }
}

#[test]
fn in_every_order_of_events_a_request_for_decode_alone_never_meets_prefill() {
    for fallback in [Fallback::DecodeOnly, Fallback::Fail] {
        let rules = Rules { connector: Connector::Mooncake, fallback };
        let (_, _, outcomes) = walk(rules, Some(Reason::ManyAnswers));
        assert!(outcomes.contains(&Outcome::DecodeOnly(Reason::ManyAnswers)));
        assert!(!outcomes.contains(&Outcome::Transferred));
    }
}

/// Plays events from the beginning and returns the actions of the last one.
fn play(connector: Connector, fallback: Fallback, events: &[Event]) -> Vec<Action> {
    let mut exchange = Exchange::new(Rules { connector, fallback }, None);
    let mut actions = Vec::new();
    exchange.on(Event::Begin, &mut actions);
    for event in events {
        actions.clear();
        exchange.on(*event, &mut actions);
    }
    actions
}

const BOTH_SENT: [Event; 3] = [Event::DecodeChosen, Event::PrefillChosen, Event::Identified];

fn after(before: &[Event], then: &[Event]) -> Vec<Event> {
    [before, then].concat()
}

#[test]
fn mooncake_sends_both_legs_at_once_and_nixl_one_after_the_other() {
    let both = play(Connector::Mooncake, Fallback::DecodeOnly, &BOTH_SENT);
    assert_eq!(
        both,
        [Action::SendPrefill, Action::Start(Deadline::Prefill), Action::SendDecode { with_parameters: true }]
    );
    let first = play(Connector::Nixl, Fallback::DecodeOnly, &BOTH_SENT[..2]);
    assert_eq!(first, [Action::SendPrefill, Action::Start(Deadline::Prefill)]);
    let second = after(&BOTH_SENT[..2], &[Event::Prefill(PrefillAnswer::Ready)]);
    let second = play(Connector::Nixl, Fallback::DecodeOnly, &second);
    assert_eq!(second, [Action::SendDecode { with_parameters: true }, Action::Start(Deadline::HandOff)]);
}

#[test]
fn a_failed_prefill_ends_the_wait_at_once_and_another_is_tried_before_the_policy() {
    let failed = Event::Prefill(PrefillAnswer::Failed(Fault::Status));
    let once = after(&BOTH_SENT, &[failed]);
    assert_eq!(
        play(Connector::Mooncake, Fallback::DecodeOnly, &once),
        [Action::Stop, Action::ForgetIdentity, Action::CloseDecode, Action::ChoosePrefill]
    );
    let alone = after(&once, &[Event::NoPrefill(Absence::Tried)]);
    assert_eq!(
        play(Connector::Mooncake, Fallback::DecodeOnly, &alone),
        [Action::SendDecode { with_parameters: false }]
    );
    let twice = after(&once, &[Event::PrefillChosen, Event::Identified, failed]);
    assert_eq!(
        play(Connector::Mooncake, Fallback::Fail, &twice).last(),
        Some(&Action::Refuse(Outcome::Refused(Reason::PrefillFailed)))
    );
}

#[test]
fn without_kv_in_time_the_decode_leg_is_closed_and_decode_computes_the_prompt() {
    let late = after(&BOTH_SENT, &[Event::Prefill(PrefillAnswer::Ready), Event::Expired(Deadline::HandOff)]);
    assert_eq!(
        play(Connector::Mooncake, Fallback::DecodeOnly, &late),
        [Action::ForgetIdentity, Action::CloseDecode, Action::SendDecode { with_parameters: false }]
    );
    let served = after(&late, &[Event::Decode(DecodeAnswer::Begun)]);
    assert_eq!(
        play(Connector::Mooncake, Fallback::DecodeOnly, &served).last(),
        Some(&Action::RelayDecode(Outcome::DecodeOnly(Reason::HandOffTimedOut)))
    );
}

#[test]
fn decode_may_answer_before_prefill_says_that_it_is_done() {
    let early = after(&BOTH_SENT, &[Event::Decode(DecodeAnswer::Begun)]);
    assert_eq!(
        play(Connector::Mooncake, Fallback::DecodeOnly, &early),
        [Action::Stop, Action::RelayDecode(Outcome::Transferred)]
    );
    let then = after(&early, &[Event::Prefill(PrefillAnswer::Failed(Fault::Broken))]);
    assert_eq!(play(Connector::Mooncake, Fallback::DecodeOnly, &then), []);
}

#[test]
fn a_decode_that_was_never_reached_does_not_cost_a_second_prefill() {
    let fault = Fault::Unreachable;
    let unreachable = Event::Decode(DecodeAnswer::Unavailable { answered: false, fault });
    let ready = after(&BOTH_SENT[..2], &[Event::Prefill(PrefillAnswer::Ready), unreachable, Event::DecodeChosen]);
    assert_eq!(
        play(Connector::Nixl, Fallback::DecodeOnly, &ready),
        [Action::SendDecode { with_parameters: true }, Action::Start(Deadline::HandOff)]
    );
    let both = after(&BOTH_SENT, &[unreachable, Event::DecodeChosen]);
    assert_eq!(play(Connector::Mooncake, Fallback::DecodeOnly, &both), [Action::ChoosePrefill]);
}

#[test]
fn every_word_is_its_own() {
    let words: HashSet<_> = Reason::ALL.iter().map(|reason| reason.word()).collect();
    assert_eq!(words.len(), Reason::ALL.len());
    assert_eq!(Outcome::DecodeOnly(Reason::Echo).header(), "decode-only; reason=echo");
    assert_eq!(Outcome::Transferred.header(), "transferred");
}
