//! The shell around an exchange: does what the machine says, and tells it what happened.
//!
//! Everything lives in the request's own task. When the client leaves, hyper drops that task's future, and with it both
//! legs, whose sockets close at once; nothing can be called after it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, StatusCode, response};
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep};

use super::account::Account;
use super::answer::{AnswerBody, Relay};
use super::client_io::BusyGuard;
use super::hand_off;
use super::legs::{self, Beginning, DecodeEnd, DecodeLeg, Health, PrefillEnd, PrefillLeg};
use super::worker::Worker;
use crate::backends::breaker::Failure as Fault;
use crate::backends::engines::Engines;
use crate::backends::{Backend, BackendKey, NoBackend, Pick, Role};
use crate::exchange::{Absence, Action, Connector, Deadline, Event, Exchange, Outcome, Reason, parameters};
use crate::relay::body::Looked;
use crate::relay::errors::Failure;
use crate::relay::headers;
use crate::relay::spliced::Spliced;
use crate::relay::upstream::{Call, ForPrefill};

/// A request that is to be served by engines.
pub(super) struct Asked<'b> {
    pub(super) method: Method,
    pub(super) path: PathAndQuery,
    /// The headers that go to engines.
    pub(super) headers: Arc<HeaderMap>,
    pub(super) body: Bytes,
    /// What was found in the body, when it was looked at.
    pub(super) looked: Option<Looked<'b>>,
    /// Why decode gets it whole; `None` when it is to be split.
    pub(super) whole: Option<Reason>,
    /// The value of the affinity header.
    pub(super) session: Option<HeaderValue>,
}

impl Asked<'_> {
    /// Whether an event stream is asked for. Engines take more than `true` for true; what they would refuse may be either.
    fn is_stream(&self) -> bool {
        let stream = self.looked.as_ref().and_then(|looked| looked.stream());
        stream.is_some_and(|value| !matches!(value, b"false" | b"null" | b"0"))
    }
}

/// Serves a request: one answer, whatever happens.
///
/// A function that makes a future, not an async one: that would keep its arguments beside what is made of them, and a
/// request's future is moved when it is boxed.
pub(super) fn serve<'s>(
    worker: &'s Arc<Worker>,
    asked: Asked<'s>,
    account: Box<Account>,
    busy: BusyGuard,
) -> impl Future<Output = Response<AnswerBody>> + Send + 's {
    let exchange = Exchange::new(worker.options().rules, asked.whole);
    let mut shell = Shell {
        worker,
        asked,
        account,
        busy,
        exchange,
        decode: None,
        decode_tried: SmallVec::new(),
        prefill: None,
        prefill_failed: SmallVec::new(),
        absence: None,
        answered_by: None,
        engines: None,
        rank: None,
        prefill_parameters: None,
        decode_parameters: None,
        prefill_leg: None,
        prefill_sent: None,
        decode_leg: None,
        beginning: None,
        prefill_answer: None,
        clock: None,
        now: Instant::now(),
    };
    async move {
        match shell.run().await {
            Ending::RelayDecode(outcome) => shell.relay_decode(outcome),
            Ending::RelayPrefill(outcome) => shell.relay_prefill(outcome),
            Ending::Refuse(outcome) => shell.refuse(outcome),
        }
    }
}

/// What the client gets.
enum Ending {
    RelayDecode(Outcome),
    RelayPrefill(Outcome),
    Refuse(Outcome),
}

struct Shell<'w, 'b> {
    worker: &'w Arc<Worker>,
    asked: Asked<'b>,
    account: Box<Account>,
    busy: BusyGuard,
    exchange: Exchange,
    decode: Option<Pick>,
    decode_tried: SmallVec<[BackendKey; 3]>,
    prefill: Option<Pick>,
    prefill_failed: SmallVec<[BackendKey; 2]>,
    /// Why there was no decode backend.
    absence: Option<NoBackend>,
    /// Whose answer is held back, once another decode was chosen.
    answered_by: Option<Pick>,
    /// The prefill of this try and its engines, as they were when it began.
    engines: Option<(Arc<Backend>, Arc<Engines>)>,
    rank: Option<u32>,
    prefill_parameters: Option<String>,
    decode_parameters: Option<String>,
    prefill_leg: Option<PrefillLeg>,
    prefill_sent: Option<Instant>,
    decode_leg: Option<DecodeLeg>,
    /// The last answer of decode, held back.
    beginning: Option<Beginning>,
    prefill_answer: Option<(response::Parts, Bytes)>,
    clock: Option<(Deadline, Clock)>,
    /// When the last thing happened. What follows from it is done at once, so it needs no look at the clock of its own.
    now: Instant,
}

/// What rings.
enum Clock {
    Sleep(Pin<Box<Sleep>>),
    /// The hand-over of an answer that is no stream.
    HandOff(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl Clock {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Sleep(sleep) => sleep.as_mut().poll(context),
            Self::HandOff(over) => over.as_mut().poll(context),
        }
    }
}

impl Shell<'_, '_> {
    async fn run(&mut self) -> Ending {
        let mut actions = Vec::with_capacity(8);
        let mut event = Event::Begin;
        loop {
            self.exchange.on(event, &mut actions);
            let mut told = None;
            for action in actions.drain(..) {
                match action {
                    Action::ChooseDecode => told = Some(self.choose_decode().await),
                    Action::ChoosePrefill => told = Some(self.choose_prefill()),
                    Action::Identify => told = Some(self.identify().await),
                    Action::SendPrefill => self.send_prefill(),
                    Action::SendDecode { with_parameters } => self.send_decode(with_parameters),
                    // Its place is free for others at once.
                    Action::ClosePrefill => (self.prefill_leg, self.prefill) = (None, None),
                    Action::CloseDecode => (self.decode_leg, self.beginning) = (None, None),
                    Action::ForgetIdentity => self.forget_identity(),
                    Action::Start(deadline) => self.start(deadline),
                    Action::Stop => self.clock = None,
                    Action::RelayDecode(outcome) => return Ending::RelayDecode(outcome),
                    Action::RelayPrefill(outcome) => return Ending::RelayPrefill(outcome),
                    Action::Refuse(outcome) => return Ending::Refuse(outcome),
                    // Both need a client that left or an answer under way, which end this future before they come.
                    Action::Abort | Action::Count(_) => {}
                }
            }
            event = match told {
                Some(event) => event,
                None => self.next().await,
            };
        }
    }

    /// Waits until a leg ends or the clock is over.
    async fn next(&mut self) -> Event {
        enum Ended {
            Prefill(PrefillEnd),
            Decode(DecodeEnd),
            Clock(Deadline),
        }
        let ended = poll_fn(|context| {
            // Prefill first: when both are here, a refusal of it stands before anything that decode says.
            if let Some(leg) = &mut self.prefill_leg
                && let Poll::Ready(end) = leg.as_mut().poll(context)
            {
                return Poll::Ready(Ended::Prefill(end));
            }
            if let Some(leg) = &mut self.decode_leg
                && let Poll::Ready(end) = leg.as_mut().poll(context)
            {
                return Poll::Ready(Ended::Decode(end));
            }
            if let Some((deadline, clock)) = &mut self.clock
                && clock.poll(context).is_ready()
            {
                return Poll::Ready(Ended::Clock(*deadline));
            }
            Poll::Pending
        })
        .await;
        match ended {
            Ended::Prefill(end) => {
                self.prefill_leg = None;
                self.now = end.at;
                self.account.prefill = self.prefill_sent.map(|sent| end.at.saturating_duration_since(sent));
                if let Some(pick) = self.prefill.take() {
                    judge(&pick, end.health, self.now);
                    if end.health.is_err() {
                        self.prefill_failed.push(pick.key().clone());
                    }
                    // A Mooncake prefill is done here; its place is free for others while decode goes on.
                }
                if end.parameters.is_some() {
                    self.decode_parameters = end.parameters;
                }
                self.prefill_answer = end.relay;
                Event::Prefill(end.answer)
            }
            Ended::Decode(end) => {
                self.decode_leg = None;
                self.now = Instant::now();
                if let Some(pick) = &self.decode {
                    judge(pick, end.health, self.now);
                }
                self.beginning = end.beginning;
                Event::Decode(end.answer)
            }
            Ended::Clock(deadline) => {
                self.clock = None;
                self.now = Instant::now();
                if deadline == Deadline::Prefill
                    && let Some(pick) = self.prefill.take()
                {
                    judge(&pick, Err(Fault::TimedOut), self.now);
                    self.prefill_failed.push(pick.key().clone());
                }
                Event::Expired(deadline)
            }
        }
    }

    async fn choose_decode(&mut self) -> Event {
        if let Some(pick) = self.decode.take() {
            self.decode_tried.push(pick.key().clone());
            self.answered_by = self.beginning.is_some().then_some(pick);
        }
        let session = self.asked.session.as_ref().map(HeaderValue::as_bytes);
        let random = self.worker.ids.random();
        let fleet = &self.worker.shared.fleet;
        let picked = if self.decode_tried.is_empty() {
            fleet.pick_or_wait(Role::Decode, &[], session, random).await
        } else {
            fleet.pick(Role::Decode, &self.decode_tried, session, self.now, random)
        };
        self.now = Instant::now();
        match picked {
            Ok(pick) => {
                self.decode = Some(pick);
                Event::DecodeChosen
            }
            Err(none) => {
                self.absence = Some(none);
                Event::NoDecode(absence(none))
            }
        }
    }

    fn choose_prefill(&mut self) -> Event {
        self.prefill = None;
        self.engines = None;
        self.rank = None;
        let session = self.asked.session.as_ref().map(HeaderValue::as_bytes);
        let random = self.worker.ids.random();
        let fleet = &self.worker.shared.fleet;
        match fleet.pick(Role::Prefill, &self.prefill_failed, session, self.now, random) {
            Ok(pick) => {
                self.prefill = Some(pick);
                let transfer_id = self.worker.ids.transfer_id();
                self.prefill_parameters = match self.worker.options().rules.connector {
                    Connector::Mooncake => Some(parameters::mooncake_prefill(&transfer_id)),
                    Connector::Nixl => Some(parameters::NIXL_PREFILL.to_owned()),
                    Connector::Plain => None,
                };
                self.decode_parameters = None;
                self.account.transfer_id = Some(transfer_id);
                Event::PrefillChosen
            }
            Err(none) => Event::NoPrefill(absence(none)),
        }
    }

    /// Learns the engine id, and makes decode's parameters of it: the whole set, or no leg is sent.
    async fn identify(&mut self) -> Event {
        let (Some(pick), Some(transfer_id)) = (&self.prefill, &self.account.transfer_id) else {
            return Event::Unidentified;
        };
        let asked = self.worker.shared.fleet.engines(pick).await;
        self.now = Instant::now();
        let failed = match asked {
            Ok(engines) => {
                if let (Some(bootstrap), Some(engine)) = (pick.bootstrap(), engines.next()) {
                    self.rank = (engines.ranks() > 1).then_some(engine.rank);
                    self.decode_parameters =
                        Some(parameters::mooncake_decode(&bootstrap.address, &engine.engine_id, transfer_id));
                    self.engines = Some((pick.backend().clone(), engines));
                    return Event::Identified;
                }
                true
            }
            // One that is starting has no engine yet, which is no fault.
            Err(error) => !error.is_starting(),
        };
        if let Some(pick) = self.prefill.take() {
            if failed {
                judge(&pick, Err(Fault::Identity), self.now);
            }
            self.prefill_failed.push(pick.key().clone());
        }
        Event::Unidentified
    }

    fn forget_identity(&mut self) {
        if let Some((backend, engines)) = &self.engines {
            backend.forget_engines(engines);
        }
    }

    fn call(&self, for_prefill: Option<ForPrefill>, body: Spliced) -> Call {
        let Asked { method, path, headers, .. } = &self.asked;
        Call { method: method.clone(), path: path.clone(), headers: headers.clone(), for_prefill, body }
    }

    fn send_prefill(&mut self) {
        // Only a request whose body was looked at is split, and only with a prefill at hand; without them the leg stays
        // unsent and the clock ends the try.
        let (Some(pick), Some(looked)) = (&self.prefill, &self.asked.looked) else { return };
        let body = looked.prefill(&self.asked.body, self.prefill_parameters.as_deref());
        self.prefill_sent = Some(self.now);
        self.prefill_leg = Some(legs::prefill(
            self.worker,
            pick.backend(),
            self.call(Some(ForPrefill { rank: self.rank }), body),
            self.now,
        ));
    }

    fn send_decode(&mut self, with_parameters: bool) {
        let Some(pick) = &self.decode else { return };
        (self.beginning, self.answered_by) = (None, None);
        let parameters = if with_parameters { self.decode_parameters.as_deref() } else { None };
        let body = match &self.asked.looked {
            Some(looked) => looked.decode(&self.asked.body, parameters),
            None => self.asked.body.clone().into(),
        };
        let call = self.call(None, body);
        self.decode_leg = Some(legs::decode(self.worker, pick.backend(), call, with_parameters, self.now));
    }

    fn start(&mut self, deadline: Deadline) {
        let options = self.worker.options();
        let length = match deadline {
            Deadline::Prefill => options.prefill_time_out,
            Deadline::HandOff => options.hand_off_time_out,
        };
        if deadline == Deadline::HandOff
            && !self.asked.is_stream()
            && let Some(pick) = &self.decode
        {
            let over = hand_off::is_over(pick.backend().clone(), length, options.answer_time_out);
            self.clock = Some((deadline, Clock::HandOff(Box::pin(over))));
            return;
        }
        let at = self.now + length;
        match &mut self.clock {
            Some((running, Clock::Sleep(sleep))) => {
                *running = deadline;
                sleep.as_mut().reset(at);
            }
            _ => self.clock = Some((deadline, Clock::Sleep(Box::pin(tokio::time::sleep_until(at))))),
        }
    }

    fn relay_decode(mut self, outcome: Outcome) -> Response<AnswerBody> {
        let decode = self.decode.take().or_else(|| self.answered_by.take());
        let (Some(beginning), Some(decode)) = (self.beginning.take(), decode) else {
            return self.refuse(outcome);
        };
        let now = self.now;
        let Beginning { mut parts, pieces, rest, is_stream } = beginning;
        self.conclude(outcome, parts.status, now);
        headers::to_client(&mut parts.headers);
        self.tell_outcome(outcome, &mut parts.headers);
        let prefill = self.prefill_leg.take().zip(self.prefill.take());
        let idle_time_out = self.worker.options().idle_time_out;
        let relay = Relay::new((pieces, rest, is_stream), decode, prefill, self.account, idle_time_out, now);
        Response::from_parts(parts, AnswerBody::Relay { relay: Box::new(relay), _busy: self.busy })
    }

    fn relay_prefill(mut self, outcome: Outcome) -> Response<AnswerBody> {
        let Some((mut parts, body)) = self.prefill_answer.take() else { return self.refuse(outcome) };
        self.conclude(outcome, parts.status, self.now);
        headers::to_client(&mut parts.headers);
        self.tell_outcome(outcome, &mut parts.headers);
        Response::from_parts(parts, AnswerBody::whole(body, Some(self.account), self.busy))
    }

    fn refuse(mut self, outcome: Outcome) -> Response<AnswerBody> {
        let failure = self.failure(outcome.reason().unwrap_or(Reason::DecodeFailed));
        let (mut parts, body) = failure.response().into_parts();
        self.conclude(outcome, parts.status, self.now);
        self.tell_outcome(outcome, &mut parts.headers);
        Response::from_parts(parts, AnswerBody::whole(body, Some(self.account), self.busy))
    }

    fn conclude(&mut self, outcome: Outcome, status: StatusCode, now: Instant) {
        self.account.status = Some(status.as_u16());
        if !matches!(outcome, Outcome::Refused(_)) {
            self.account.begins(now);
        }
        if outcome != Outcome::Transferred {
            self.account.transfer_id = None;
        }
        if self.account.is_exchange {
            self.account.outcome = Some(outcome);
        }
    }

    fn tell_outcome(&self, outcome: Outcome, headers: &mut HeaderMap) {
        if !self.account.is_exchange {
            return;
        }
        // Most exchanges end without a reason, and a word alone needs no copy.
        let value = match outcome.reason() {
            None => Ok(HeaderValue::from_static(outcome.word())),
            Some(_) => HeaderValue::from_str(&outcome.header()),
        };
        if let Ok(value) = value {
            headers.insert(headers::EXCHANGE, value);
        }
    }

    /// The error for a request that no engine answered.
    fn failure(&self, reason: Reason) -> Failure {
        let options = self.worker.options();
        let retry_after = self.absence.map(NoBackend::retry_after_seconds);
        let unavailable = |message: &str| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message);
        let gateway = |message: &str| Failure::new(StatusCode::BAD_GATEWAY, "upstream_error", message);
        let late = |message: &str| Failure::new(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", message);
        match reason {
            Reason::DecodeFull => {
                let message = "every decode engine has as many requests as it may have";
                let mut failure = Failure::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message);
                failure.retry_after = retry_after;
                failure
            }
            // The contract's answer, D.4: nobody to connect to.
            Reason::NoDecode | Reason::DecodeDown | Reason::DecodeUnreachable => {
                let mut failure =
                    Failure::new(options.no_decode_status, "no_decode_backend", &*options.no_decode_message);
                failure.retry_after = retry_after;
                failure
            }
            Reason::DecodeTimedOut => late("the decode engine gave no answer in time"),
            Reason::DecodeBroken => gateway("the decode engine broke off before its first event"),
            Reason::PrefillTimedOut => late("the prefill engine gave no answer in time"),
            Reason::HandOffTimedOut => late("the decode engine had no KV cache from prefill in time"),
            Reason::HandOffFailed => gateway("the KV cache did not reach the decode engine"),
            Reason::NoPrefill | Reason::PrefillDown => unavailable("no prefill engine is available"),
            Reason::PrefillFull => {
                let message = "every prefill engine has as many requests as it may have";
                let mut failure = Failure::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message);
                failure.retry_after = Some(1);
                failure
            }
            Reason::EngineUnknown => unavailable("the prefill engine has not said which engine it is"),
            Reason::PrefillUnreachable | Reason::PrefillBroken | Reason::PrefillFailed | Reason::NoParameters => {
                gateway("the prefill engine failed")
            }
            _ => gateway("the decode engine failed"),
        }
    }
}

fn judge(pick: &Pick, health: Health, now: Instant) {
    match health {
        Ok(()) => pick.succeeded(now),
        Err(failure) => pick.failed(failure, now),
    }
}

fn absence(none: NoBackend) -> Absence {
    match none {
        NoBackend::NoneKnown | NoBackend::NoneReady => Absence::None,
        NoBackend::AllDown { .. } => Absence::Down,
        NoBackend::AllTried => Absence::Tried,
        NoBackend::AllFull | NoBackend::QueueFull | NoBackend::QueueTimedOut => Absence::Full,
    }
}
