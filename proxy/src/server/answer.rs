//! The bodies of answers: our own, or decode's as it comes.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::account::Account;
use super::client_io::BusyGuard;
use super::legs::PrefillLeg;
use crate::backends::Pick;
use crate::backends::breaker::Failure;
use crate::relay::errors;
use crate::relay::events::is_inside_an_event;
use crate::relay::upstream::Answer;

/// The client must see that the answer is not whole: its connection ends here.
#[derive(Debug, thiserror::Error)]
#[error("the engine broke off")]
pub(super) struct BrokeOff;

/// The body of an answer.
pub(super) enum AnswerBody {
    /// One that is there as a whole.
    Whole {
        bytes: Option<Bytes>,
        /// Kept until the body was taken.
        _kept: (Option<Box<Account>>, BusyGuard),
    },
    /// Decode's.
    Relay { relay: Box<Relay>, _busy: BusyGuard },
}

/// How far a relay has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Pieces come and go.
    Flowing,
    /// Decode broke off; what there is, and the event that tells of it, goes out before the connection is ended.
    Told,
    /// The connection is to be ended.
    Broken,
    /// All was relayed.
    Whole,
}

/// Decode's answer on its way to the client.
pub(super) struct Relay {
    /// What was held back until the first event.
    held: VecDeque<Bytes>,
    rest: Answer,
    is_stream: bool,
    stage: Stage,
    inside_an_event: bool,
    last: Instant,
    /// Since when a piece is waited for: a client that takes nothing is no silence of the engine.
    silent_since: Option<Instant>,
    idle_time_out: Duration,
    /// Rings when nothing may have come for too long; made when first needed.
    alarm: Option<Pin<Box<Sleep>>>,
    /// A Mooncake prefill whose own answer is late: decode's said already that the KV is there.
    prefill: Option<(PrefillLeg, Pick)>,
    decode: Pick,
    account: Box<Account>,
}

impl Relay {
    pub(super) fn new(
        (pieces, rest, is_stream): (Vec<Bytes>, Answer, bool),
        decode: Pick,
        prefill: Option<(PrefillLeg, Pick)>,
        account: Box<Account>,
        idle_time_out: Duration,
        now: Instant,
    ) -> Self {
        Self {
            held: pieces.into(),
            rest,
            is_stream,
            stage: Stage::Flowing,
            inside_an_event: false,
            last: now,
            silent_since: None,
            idle_time_out,
            alarm: None,
            prefill,
            decode,
            account,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        match self.stage {
            Stage::Flowing => {}
            Stage::Told => {
                // Comes back at once, after what was written has been flushed.
                self.stage = Stage::Broken;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Stage::Broken => return Poll::Ready(Some(Err(BrokeOff))),
            Stage::Whole => return Poll::Ready(None),
        }
        self.poll_prefill(context);
        if let Some(piece) = self.held.pop_front() {
            return self.passes(piece);
        }
        match self.rest.poll_piece(context) {
            Poll::Ready(Some(Ok(piece))) => {
                let now = Instant::now();
                if self.is_stream {
                    self.account.gaps.add(now.saturating_duration_since(self.last));
                }
                self.last = now;
                self.silent_since = None;
                self.passes(piece)
            }
            Poll::Ready(None) => {
                self.stage = Stage::Whole;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => self.breaks_off(Failure::Broken, "the engine broke off its answer", context),
            Poll::Pending if self.is_silent_for_too_long(context) => {
                self.breaks_off(Failure::TimedOut, "the engine stopped answering", context)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn passes(&mut self, piece: Bytes) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        self.inside_an_event = is_inside_an_event(self.inside_an_event, &piece);
        Poll::Ready(Some(Ok(piece)))
    }

    /// Lets a late prefill end; what it says no longer matters but for its health.
    fn poll_prefill(&mut self, context: &mut Context<'_>) {
        if let Some((leg, pick)) = &mut self.prefill
            && let Poll::Ready(end) = leg.as_mut().poll(context)
        {
            match end.health {
                Ok(()) => pick.succeeded(end.at),
                Err(failure) => pick.failed(failure, end.at),
            }
            self.prefill = None;
        }
    }

    fn is_silent_for_too_long(&mut self, context: &mut Context<'_>) -> bool {
        let deadline = *self.silent_since.get_or_insert_with(Instant::now) + self.idle_time_out;
        // One that rings too early is set anew when it rings: a piece costs nothing here.
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        while alarm.as_mut().poll(context).is_ready() {
            if Instant::now() >= deadline {
                return true;
            }
            alarm.as_mut().reset(deadline);
        }
        false
    }

    fn breaks_off(
        &mut self,
        failure: Failure,
        message: &str,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BrokeOff>>> {
        self.decode.failed(failure, Instant::now());
        self.account.broken = true;
        self.prefill = None;
        self.stage = Stage::Told;
        if !self.is_stream {
            return self.poll(context);
        }
        let status = if failure == Failure::TimedOut {
            http::StatusCode::GATEWAY_TIMEOUT
        } else {
            http::StatusCode::BAD_GATEWAY
        };
        let event = errors::Failure::new(status, "upstream_error", message).event(self.inside_an_event);
        Poll::Ready(Some(Ok(event)))
    }

    fn is_at_end(&self) -> bool {
        self.stage == Stage::Whole || (self.stage == Stage::Flowing && self.held.is_empty() && self.rest.is_at_end())
    }
}

impl AnswerBody {
    /// An answer that is there as a whole.
    pub(super) fn whole(bytes: Bytes, account: Option<Box<Account>>, busy: BusyGuard) -> Self {
        Self::Whole { bytes: Some(bytes), _kept: (account, busy) }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        match self.get_mut() {
            Self::Whole { bytes, .. } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay { relay, .. } => relay.poll(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { bytes, .. } => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Relay { relay, .. } => relay.is_at_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole { bytes, .. } => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relay { relay, .. } => {
                let held: usize = relay.held.iter().map(Bytes::len).sum();
                let rest = relay.rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower() + held as u64);
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + held as u64);
                }
                hint
            }
        }
    }
}
