//! The machine.

use super::{
    Absence, Action, Connector, Deadline, DecodeAnswer, Event, Fallback, Fault, Outcome, PrefillAnswer, Reason,
};

/// How many prefill backends a request may be given, one after the other. Each try makes an engine compute the prompt and
/// keep its blocks for minutes, so it is few.
const PREFILL_TRIES: u8 = 2;

/// How many decode backends a request may be given, one after the other.
const DECODE_TRIES: u8 = 3;

/// What holds for every exchange of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How the KV cache moves.
    pub connector: Connector,
    /// What happens without it.
    pub fallback: Fallback,
}

/// A leg, as far as the exchange is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leg {
    /// Not sent, closed or failed.
    Closed,
    /// Sent and not answered.
    Open,
    /// Answered.
    Answered,
}

/// One request on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    connector: Connector,
    fallback: Fallback,
    /// Why decode computes the prompt itself: for what the request is, or since prefill failed.
    without: Option<Reason>,
    prefill: Leg,
    decode: Leg,
    /// Whether the decode leg that is open carries parameters.
    with_parameters: bool,
    prefill_tries: u8,
    decode_tries: u8,
    /// How the last prefill failed, for want of another.
    prefill_fault: Option<Reason>,
    /// How the last decode failed, and whether its answer can be relayed.
    decode_fault: Option<(Reason, bool)>,
    /// Whether the client has got, or is getting, its answer.
    answered: bool,
    over: bool,
}

impl Exchange {
    /// A request that is split unless `whole` says why decode gets it whole.
    #[must_use]
    pub const fn new(rules: Rules, whole: Option<Reason>) -> Self {
        Self {
            connector: rules.connector,
            fallback: rules.fallback,
            without: whole,
            prefill: Leg::Closed,
            decode: Leg::Closed,
            with_parameters: false,
            prefill_tries: 0,
            decode_tries: 0,
            prefill_fault: None,
            decode_fault: None,
            answered: false,
            over: false,
        }
    }

    /// Whether nothing more will be done.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Takes in an event and appends what is to be done.
    ///
    /// An event that can no longer matter (the answer of a leg that was closed, anything after the end) does nothing.
    pub fn on(&mut self, event: Event, actions: &mut Vec<Action>) {
        if self.over {
            return;
        }
        match event {
            Event::Begin => self.choose_decode(actions),
            Event::DecodeChosen => {
                if self.without.is_some() {
                    self.send_decode(false, actions);
                } else if !self.connector.is_concurrent() && self.prefill == Leg::Answered {
                    // The last decode never got the request, so prefill's blocks are untouched.
                    self.hand_over(actions);
                } else {
                    self.choose_prefill(actions);
                }
            }
            Event::NoDecode(absence) => self.no_decode(absence, actions),
            Event::PrefillChosen => {
                if self.connector == Connector::Mooncake {
                    actions.push(Action::Identify);
                } else {
                    self.send_prefill(actions);
                }
            }
            Event::NoPrefill(absence) => {
                let reason = self.prefill_fault.unwrap_or(match absence {
                    Absence::None | Absence::Tried => Reason::NoPrefill,
                    Absence::Down => Reason::PrefillDown,
                    Absence::Full => Reason::PrefillFull,
                });
                self.go_without(reason, actions);
            }
            Event::Identified => {
                self.send_prefill(actions);
                self.send_decode(true, actions);
            }
            Event::Unidentified => self.prefill_failed(Reason::EngineUnknown, actions),
            Event::Prefill(answer) => self.on_prefill(answer, actions),
            Event::Decode(answer) => self.on_decode(answer, actions),
            Event::Expired(deadline) => self.on_expired(deadline, actions),
            Event::ClientGone => self.on_client_gone(actions),
            Event::Relayed => {
                if self.answered {
                    self.over = true;
                    self.close_prefill(actions);
                }
            }
            Event::BrokeOff => {
                if self.answered {
                    self.over = true;
                    self.close_prefill(actions);
                    actions.push(Action::Abort);
                }
            }
        }
    }

    fn on_prefill(&mut self, answer: PrefillAnswer, actions: &mut Vec<Action>) {
        if self.prefill != Leg::Open {
            return;
        }
        self.prefill = Leg::Answered;
        if self.answered {
            // Decode has had its KV; what prefill says afterwards changes nothing.
            return;
        }
        match answer {
            PrefillAnswer::Ready if self.connector.is_concurrent() => actions.push(Action::Start(Deadline::HandOff)),
            PrefillAnswer::Ready => self.hand_over(actions),
            PrefillAnswer::NoParameters => {
                actions.push(Action::Stop);
                self.close_decode(actions);
                self.go_without(Reason::NoParameters, actions);
            }
            PrefillAnswer::ClientError => {
                actions.push(Action::Stop);
                self.close_decode(actions);
                self.answered = true;
                self.over = true;
                actions.push(Action::RelayPrefill(Outcome::Refused(Reason::PrefillRefused)));
            }
            PrefillAnswer::Failed(fault) => {
                self.prefill = Leg::Closed;
                self.prefill_failed(Reason::of_prefill(fault), actions);
            }
        }
    }

    fn on_decode(&mut self, answer: DecodeAnswer, actions: &mut Vec<Action>) {
        if self.decode != Leg::Open {
            return;
        }
        self.decode = Leg::Answered;
        match answer {
            DecodeAnswer::Begun => {
                actions.push(Action::Stop);
                self.answered = true;
                let outcome = match self.without {
                    Some(reason) => Outcome::DecodeOnly(reason),
                    None if self.with_parameters => Outcome::Transferred,
                    None => Outcome::Primed,
                };
                actions.push(Action::RelayDecode(outcome));
            }
            DecodeAnswer::ClientError => {
                self.relay_refusal(Reason::DecodeRefused, actions);
            }
            DecodeAnswer::Failed if self.with_parameters => {
                actions.push(Action::Stop);
                actions.push(Action::ForgetIdentity);
                self.close_prefill(actions);
                actions.push(Action::CloseDecode);
                self.decode = Leg::Closed;
                self.go_without(Reason::HandOffFailed, actions);
            }
            DecodeAnswer::Failed => self.relay_refusal(Reason::DecodeFailed, actions),
            DecodeAnswer::Unavailable { answered, fault } => {
                self.decode = Leg::Closed;
                self.decode_fault = Some((Reason::of_decode(fault), answered));
                actions.push(Action::Stop);
                // Blocks that nobody can have touched serve the next decode; otherwise it is a new exchange.
                let keeps_prefill = !self.connector.is_concurrent()
                    && self.prefill == Leg::Answered
                    && (fault == Fault::Unreachable || !self.connector.has_parameters());
                if !keeps_prefill {
                    self.close_prefill(actions);
                }
                self.choose_decode(actions);
            }
        }
    }

    fn on_expired(&mut self, deadline: Deadline, actions: &mut Vec<Action>) {
        if self.answered {
            return;
        }
        match deadline {
            Deadline::Prefill if self.prefill == Leg::Open => {
                self.close_prefill(actions);
                self.prefill_failed(Reason::PrefillTimedOut, actions);
            }
            Deadline::HandOff if self.decode == Leg::Open && self.prefill == Leg::Answered => {
                actions.push(Action::ForgetIdentity);
                self.prefill = Leg::Closed;
                self.close_decode(actions);
                self.go_without(Reason::HandOffTimedOut, actions);
            }
            Deadline::Prefill | Deadline::HandOff => {}
        }
    }

    fn on_client_gone(&mut self, actions: &mut Vec<Action>) {
        self.over = true;
        actions.push(Action::Stop);
        self.close_prefill(actions);
        if self.decode != Leg::Closed {
            self.decode = Leg::Closed;
            actions.push(Action::CloseDecode);
        }
        if !self.answered {
            actions.push(Action::Count(Outcome::Abandoned));
        }
    }

    /// Another decode, or the end.
    fn choose_decode(&mut self, actions: &mut Vec<Action>) {
        if self.decode_tries == DECODE_TRIES {
            self.no_decode(Absence::Tried, actions);
            return;
        }
        self.decode_tries += 1;
        actions.push(Action::ChooseDecode);
    }

    fn no_decode(&mut self, absence: Absence, actions: &mut Vec<Action>) {
        self.close_prefill(actions);
        self.answered = true;
        let reason = match absence {
            Absence::None | Absence::Tried => Reason::NoDecode,
            Absence::Down => Reason::DecodeDown,
            Absence::Full => Reason::DecodeFull,
        };
        let (reason, has_answer) = self.decode_fault.unwrap_or((reason, false));
        let outcome = Outcome::Refused(reason);
        // The engine's own words are better than ours; the end of their relay is an event to come.
        self.over = !has_answer;
        actions.push(if has_answer { Action::RelayDecode(outcome) } else { Action::Refuse(outcome) });
    }

    fn choose_prefill(&mut self, actions: &mut Vec<Action>) {
        self.prefill = Leg::Closed;
        actions.push(Action::ChoosePrefill);
    }

    fn send_prefill(&mut self, actions: &mut Vec<Action>) {
        self.prefill = Leg::Open;
        actions.push(Action::SendPrefill);
        actions.push(Action::Start(Deadline::Prefill));
    }

    fn send_decode(&mut self, with_parameters: bool, actions: &mut Vec<Action>) {
        self.decode = Leg::Open;
        self.with_parameters = with_parameters;
        actions.push(Action::SendDecode { with_parameters });
    }

    /// Sequential connectors: prefill is ready, decode is next.
    fn hand_over(&mut self, actions: &mut Vec<Action>) {
        self.send_decode(self.connector.has_parameters(), actions);
        // Without parameters decode waits for nobody but its own queue.
        actions.push(if self.with_parameters { Action::Start(Deadline::HandOff) } else { Action::Stop });
    }

    /// Another prefill, or none.
    fn prefill_failed(&mut self, reason: Reason, actions: &mut Vec<Action>) {
        actions.push(Action::Stop);
        actions.push(Action::ForgetIdentity);
        self.close_decode(actions);
        self.prefill_tries += 1;
        self.prefill_fault = Some(reason);
        if self.prefill_tries == PREFILL_TRIES {
            self.go_without(reason, actions);
        } else {
            self.choose_prefill(actions);
        }
    }

    /// No KV from prefill: what the policy says. The decode backend that was chosen stays.
    fn go_without(&mut self, reason: Reason, actions: &mut Vec<Action>) {
        self.prefill = Leg::Closed;
        match self.fallback {
            Fallback::DecodeOnly => {
                self.without = Some(reason);
                self.send_decode(false, actions);
            }
            Fallback::Fail => {
                self.over = true;
                self.answered = true;
                actions.push(Action::Refuse(Outcome::Refused(reason)));
            }
        }
    }

    fn relay_refusal(&mut self, reason: Reason, actions: &mut Vec<Action>) {
        actions.push(Action::Stop);
        self.close_prefill(actions);
        self.answered = true;
        actions.push(Action::RelayDecode(Outcome::Refused(reason)));
    }

    fn close_prefill(&mut self, actions: &mut Vec<Action>) {
        if self.prefill == Leg::Open {
            actions.push(Action::ClosePrefill);
        }
        self.prefill = Leg::Closed;
    }

    fn close_decode(&mut self, actions: &mut Vec<Action>) {
        if self.decode == Leg::Open {
            actions.push(Action::CloseDecode);
        }
        self.decode = Leg::Closed;
    }
}
